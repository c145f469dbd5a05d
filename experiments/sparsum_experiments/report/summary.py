"""Runs that differ in their seed alone, taken together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparsum_experiments.report.kinds import kind_of
from sparsum_experiments.report.settings import setting_text
from sparsum_experiments.runs import Run

#: What stands where there is no number.
NOTHING = "-"
# Larger numbers, of runs that diverged, are shown with an exponent.
_LONG = 1e9


@dataclass(frozen=True)
class Statistic:
    """The mean of n values and its standard error, which is None for a single value."""

    mean: float
    error: float | None
    n: int


def statistic(values: Sequence[float]) -> Statistic:
    """Mean and standard error, sqrt(sum (v - mean)^2 / (n - 1) / n).

    >>> statistic([1.0, 3.0])
    Statistic(mean=2.0, error=1.0, n=2)
    """
    import pandas  # 0.3 s that `sparsum --help` does without

    series = pandas.Series(values, dtype=float)
    with np.errstate(all="ignore"):  # a run that diverged is reported, too: its NaN is not skipped
        mean, error = float(series.mean(skipna=False)), float(series.sem(skipna=False))
    return Statistic(mean, error if len(series) > 1 else None, len(series))


def known_statistic(values: Iterable[float | None]) -> Statistic | None:
    """Over the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return statistic(known) if known else None


def fixed(value: float, digits: int) -> str:
    """A number with so many digits after the point, or with an exponent if it would be very long.

    >>> fixed(2.5, 2), fixed(1e308, 2)
    ('2.50', '1e+308')
    """
    return f"{value:.{digits}f}" if abs(value) < _LONG else f"{value:.4g}"


def number(found: Statistic | None, n_runs: int, digits: int | None = None) -> str:
    """The mean ± its standard error, and the number of values where some runs have none.

    Args:
        found: the values.
        n_runs: how many there could be.
        digits: after the point; by default there are 4 significant ones.

    >>> number(Statistic(0.5, 0.25, 2), 3, 1)
    '0.5 ± 0.2 (n=2)'
    """
    if found is None:
        return NOTHING
    text = f"{found.mean:.4g}" if digits is None else fixed(found.mean, digits)
    if found.error is not None:
        text += f" ± {found.error:.2g}" if digits is None else f" ± {fixed(found.error, digits)}"
    return text if found.n == n_runs else f"{text} (n={found.n})"


@dataclass(frozen=True)
class Summary:
    """What the seeds of one method and setting measured.

    Args:
        method: how the sum was computed.
        setting: the options that differ from other runs.
        runs: those that count: the finished ones or, as long as there is none, those with an epoch at least, each up to the
            last epoch that all of them have reached.
        n_runs: how many there are or will be, whether they count or not.
        validation: metrics of the last epoch.
        test: metrics of the evaluation, over the runs that have one.
        calls: decoder calls per training example, the mean over all epochs; None if they were not counted.
        seconds: of training.
    """

    method: str
    setting: Mapping[str, Any]
    runs: tuple[Run, ...]
    n_runs: int
    validation: dict[str, Statistic]
    test: dict[str, Statistic]
    calls: Statistic | None
    seconds: Statistic

    @property
    def setting_text(self) -> str:
        """The setting in words, as far as the method uses it."""
        return setting_text(self.runs[0].experiment, self.method, self.setting)

    @property
    def label(self) -> str:
        """The method, and the setting if there is one."""
        return f"{self.method} ({self.setting_text})" if self.setting_text else self.method

    @property
    def n_finished(self) -> int:
        """How many of the runs are finished."""
        return sum(run.is_finished for run in self.runs)

    @property
    def unfinished(self) -> str:
        """How far the runs are, in words, where none is finished; empty otherwise."""
        first = self.runs[0]
        return "" if self.n_finished else f"unfinished, at epoch {len(first.lines)} of {first.args['epochs']}"


def summarise(method: str, setting: Mapping[str, Any], runs: Iterable[Run], n_runs: int | None = None) -> Summary | None:
    """The summary of runs that differ in their seed alone; None if none of them has measured an epoch."""
    begun = list(runs)
    counted = [run for run in begun if run.lines and run.is_finished] or _to_common_epoch(begun)
    if not counted:
        return None
    return Summary(
        method=method,
        setting=setting,
        runs=tuple(counted),
        n_runs=len(begun) if n_runs is None else n_runs,
        validation=_statistics([run.validation for run in counted]),
        test=_statistics([run.test for run in counted]),
        calls=known_statistic(run.calls for run in counted),
        seconds=statistic([run.seconds for run in counted]),
    )


def _to_common_epoch(runs: Iterable[Run]) -> list[Run]:
    """Runs with an epoch at least, up to the last one that all have reached: later ones would be means over fewer seeds.

    An evaluation after a later epoch does not belong to it.
    """
    begun = [run for run in runs if run.lines]
    n = min((len(run.lines) for run in begun), default=0)
    return [run if len(run.lines) == n else replace(run, lines=run.lines[:n], test={}) for run in begun]


def _statistics(metrics: list[dict[str, float]]) -> dict[str, Statistic]:
    """For each metric, over the runs that have it, in the order in which they come."""
    names = dict.fromkeys(name for values in metrics for name in values)
    return {name: statistic([values[name] for values in metrics if name in values]) for name in names}


def unfinished_note(summaries: Iterable[Summary], beginning: str) -> str:
    """A sentence on settings of which no run is finished; empty if there are none."""
    found = [f"{summary.label}, {summary.unfinished}" for summary in summaries if summary.unfinished]
    return f"{beginning}: {'; '.join(found)}." if found else ""


def best_by_method(summaries: Iterable[Summary], experiment: str) -> list[Summary]:
    """For each method its best setting: that with the best mean of its criterion on validation data.

    The value is that of the last epoch, not of the best one, which would reward noise. A setting of which runs failed or
    are not finished is taken only where no setting of the method is complete: the seeds that failed may be the bad ones.
    One of which no run is finished is taken only where no other has a finished one.
    """
    summaries = list(summaries)
    kind = kind_of(experiment, [run for summary in summaries for run in summary.runs])
    best: dict[str, Summary] = {}
    for summary in summaries:
        criterion, other = kind.criterion_of(summary.method), best.get(summary.method)
        if other is None or rank(summary, criterion, kind.sign) > rank(other, criterion, kind.sign):
            best[summary.method] = summary
    return list(best.values())


def criteria_text(experiment: str, summaries: Iterable[Summary]) -> str:
    """What `best_by_method` chooses by, in words."""
    summaries = list(summaries)
    kind = kind_of(experiment, [run for summary in summaries for run in summary.runs])
    criteria = {summary.method: kind.criterion_of(summary.method) for summary in summaries}
    others = [f"{method}: {criterion}" for method, criterion in criteria.items() if criterion != kind.criterion]
    return f"{kind.criterion} ({', '.join(others)})" if others else kind.criterion


def rank(summary: Summary, criterion: str, sign: int = 1) -> tuple[bool, bool, float]:
    """How good a setting is on the validation data; complete ones are before others, then those with a finished run."""
    found = summary.validation.get(criterion)
    mean = -math.inf if found is None or math.isnan(found.mean) else sign * found.mean
    return summary.n_finished == summary.n_runs, summary.n_finished > 0, mean
