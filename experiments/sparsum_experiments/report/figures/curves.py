"""Curves over epochs: the mean over seeds, and a band around it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparsum_experiments.report.summary import Summary, statistic
from sparsum_experiments.runs import Run

#: More points than this are not told apart, and make the page large.
MAX_POINTS = 250


@dataclass(frozen=True)
class Curve:
    """A value at each epoch that all counted runs of a summary have reached, and the edges of its band, if any."""

    y: list[float]
    low: list[float]
    high: list[float]


def metric_curve(summary: Summary, name: str, factor: int = 1) -> Curve:
    """A validation metric times a factor: the mean over seeds ± its standard error, which a single seed has not."""
    runs = [[factor * line["validation"].get(name, math.nan) for line in run.lines] for run in summary.records]
    found = [statistic(values) for values in zip(*runs, strict=False)]
    if len(runs) == 1:
        return Curve([each.mean for each in found], [], [])
    errors = [each.error or 0.0 for each in found]
    return Curve(
        [each.mean for each in found],
        [each.mean - error for each, error in zip(found, errors, strict=True)],
        [each.mean + error for each, error in zip(found, errors, strict=True)],
    )


def calls_curve(summary: Summary, low: str, high: str) -> Curve:
    """Decoder calls: the median over examples and two of its percentiles, each the mean over seeds.

    Runs that have no percentiles give their mean, without a band.
    """
    if not all(_has(run, ("median", low, high)) for run in summary.records):
        return Curve(_mean_over_seeds(summary, lambda run: run.calls_by_epoch), [], [])
    return Curve(*(_mean_over_seeds(summary, _calls(name)) for name in ("median", low, high)))


def summed_calls(summary: Summary) -> list[float]:
    """Decoder calls for each training example up to each epoch, the mean over seeds."""
    return _mean_over_seeds(summary, lambda run: list(itertools.accumulate(run.calls_by_epoch)))


def chosen_epochs(n_epochs: int, n_points: int = MAX_POINTS) -> list[int]:
    """Which epochs are drawn, counted from 0: all, or as many as are told apart, the first and the last among them.

    >>> chosen_epochs(3), len(chosen_epochs(10_000)), chosen_epochs(10_000)[-1]
    ([0, 1, 2], 250, 9999)
    """
    if n_epochs <= n_points:
        return list(range(n_epochs))
    return [round(i * (n_epochs - 1) / (n_points - 1)) for i in range(n_points)]


def _calls(name: str) -> Callable[[Run], list[float]]:
    return lambda run: [line["calls"][name] for line in run.lines]


def _has(run: Run, names: Sequence[str]) -> bool:
    return all(isinstance(line["calls"].get(name), int | float) for line in run.lines for name in names)


def _mean_over_seeds(summary: Summary, values_of: Callable[[Run], list[float]]) -> list[float]:
    return [statistic(values).mean for values in zip(*map(values_of, summary.records), strict=False)]
