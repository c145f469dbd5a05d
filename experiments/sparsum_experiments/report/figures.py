"""Which figures the runs of an experiment have: those of the paper, and quality against its cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sparsum_experiments.registry import NAMES, experiment_class
from sparsum_experiments.report.axes import line, mark
from sparsum_experiments.report.drawing import Figure
from sparsum_experiments.report.notes import machines_note, unfinished_note
from sparsum_experiments.report.sections import Section
from sparsum_experiments.report.summary import Statistic, Summary

if TYPE_CHECKING:
    from pandas import DataFrame

#: The eye does not resolve more points on a line, and they make the page large.
MAX_POINTS = 100
# Values that differ by a larger factor need a logarithmic axis.
_MAX_LINEAR_RATIO = 20
# How the paper draws the criterion by which settings are chosen: a factor and a label.
_CRITERIA = {
    "ssvae": (1, "ELBO, nats"),
    "signal-game": (100, "success, %"),
    "bitvector-vae": (-1, "negative ELBO, nats"),
}
# What the paper shows around the median of the calls.
_QUARTILES = ("p25", "p75", "from the lower to the upper quartile", "quartiles")
_PERCENTILES = ("p10", "p90", "from the 10th to the 90th percentile", "10th and 90th percentile")

_Curve = tuple[np.ndarray, np.ndarray, np.ndarray]


class _Drawn(NamedTuple):
    """The best setting of a method, how it looks, and how many epochs of it are drawn at most."""

    summary: Summary
    style: int
    n_points: int

    def line(self, curve: _Curve, x: np.ndarray | None = None) -> DataFrame:
        """A line over epochs, or over ``x``, which has a value for each epoch."""
        n = len(curve[0])
        chosen = np.unique(np.linspace(0, n - 1, min(n, self.n_points)).round().astype(int))
        y, low, high = (each[chosen] for each in curve)
        return line(self.summary.method, self.style, chosen + 1 if x is None else x[chosen], y, low, high)

    def by_epoch(self, group: str, name: str) -> np.ndarray:
        """A value of each seed at each epoch that all seeds have reached: (n_seeds, n_epochs)."""
        runs = self.summary.runs
        n = min(len(run.lines) for run in runs)
        return np.array([[each.get(group, {}).get(name, math.nan) for each in run.lines[:n]] for run in runs], dtype=float)

    def metric(self, name: str, factor: int = 1) -> _Curve:
        """A validation metric: the mean over seeds, and one standard error below and above it; a single seed has none."""
        values = factor * self.by_epoch("validation", name)
        mean, n = values.mean(0), len(values)
        error = values.std(0, ddof=1) / math.sqrt(n) if n > 1 else np.full_like(mean, math.nan)
        return mean, mean - error, mean + error

    def calls(self, low: str, high: str) -> _Curve:
        """Decoder calls: the median over examples and two percentiles, means over seeds; the mean if there are none."""
        mean, *curves = (self.by_epoch("calls", name).mean(0) for name in ("mean", "median", low, high))
        missing = np.full_like(mean, math.nan)
        return (mean, missing, missing) if np.isnan(curves).any() else (curves[0], curves[1], curves[2])


def styles_of(section: Section) -> dict[str, int]:
    """The style of each method that is drawn, in the order of the experiment; ours look the same in all sections."""
    drawn, own = {summary.method for summary in section.best}, section.kind.methods
    every = [method for name in NAMES for method in experiment_class(name).methods] if not section.kind.is_own else own
    styles = {method: i for i, method in enumerate(dict.fromkeys([*every, *sorted(drawn)]))}
    return {method: styles[method] for method in dict.fromkeys([*own, *styles]) if method in drawn}


@np.errstate(all="ignore")  # runs that diverged are drawn, too
def figures_of(section: Section, n_points: int = MAX_POINTS) -> list[Figure]:
    """The figures of a section: the best setting of each method, with at most ``n_points`` points on a line."""
    by_method = {summary.method: summary for summary in section.best}
    drawn = [_Drawn(by_method[method], style, n_points) for method, style in styles_of(section).items()]
    counted = [each for each in drawn if each.summary.calls is not None]
    factor, label = _CRITERIA.get(section.experiment, (1, section.criterion))
    found = [_metric_figure(drawn, section.criterion, factor, label)]
    if section.experiment == "ssvae":
        have = [each for each in drawn if "accuracy" in each.summary.validation]
        found.append(_metric_figure(have, "accuracy", 100, "accuracy, %"))
    if section.experiment == "bitvector-vae":
        found.append(_elbo_by_calls_figure(counted, section.criterion, factor, label))
        found.append(_calls_figure(counted, *_QUARTILES))
        found.append(_rate_distortion_figure(drawn))
    else:
        found.append(_calls_figure(counted, *_PERCENTILES))
    return list(filter(None, [*found, *_cost_figures(section, drawn)]))


def _figure(
    title: str, note: str, x_label: str, y_label: str, series: Sequence[DataFrame], edges: str = "", spread: str = ""
) -> Figure | None:
    """A figure; the axis of ``spread`` is logarithmic if its values need it. None if there is no series."""
    if not series:
        return None
    columns = ["x"] if spread == "x" else ["y", "low", "high"]
    values = np.concatenate([rows[columns].to_numpy().ravel() for rows in series])
    values = values[np.isfinite(values)]
    if spread and len(values) and values.min() > 0 and values.max() > _MAX_LINEAR_RATIO * values.min():
        x_label, y_label = x_label + ", logarithmic" * (spread == "x"), y_label + ", logarithmic" * (spread == "y")
    else:
        spread = ""
    return Figure(title, note, x_label, y_label, series, spread, edges)


def _metric_figure(drawn: Sequence[_Drawn], name: str, factor: int, label: str) -> Figure | None:
    series = [each.line(each.metric(name, factor)) for each in drawn]
    return _figure(f"Validation {label.partition(', ')[0]} over epochs", _line_note(drawn), "epoch", label, series)


def _calls_figure(drawn: Sequence[_Drawn], low: str, high: str, reach: str, edges: str) -> Figure | None:
    series = [each.line(each.calls(low, high)) for each in drawn]
    note = f"Lines are medians over training examples, bands reach {reach}; all are means over seeds.{_drawn_note(drawn)}"
    return _figure("Decoder calls at each epoch", note, "epoch", "calls per example", series, edges, spread="y")


def _elbo_by_calls_figure(drawn: Sequence[_Drawn], name: str, factor: int, label: str) -> Figure | None:
    series = [each.line(each.metric(name, factor), each.by_epoch("calls", "mean").cumsum(1).mean(0)) for each in drawn]
    title, x_label = "Validation negative ELBO over decoder calls", "decoder calls per example, summed over epochs"
    return _figure(title, _line_note(drawn), x_label, label, series, spread="x")


def _rate_distortion_figure(drawn: Sequence[_Drawn]) -> Figure | None:
    """The two parts of the negative ELBO, on the validation data, which all runs have."""
    import pandas

    series = []
    for each in drawn:
        rate, distortion = (each.summary.validation.get(name) for name in ("rate", "distortion"))
        if rate is not None and distortion is not None:
            path = each.line(each.metric("distortion"), each.metric("rate")[0]).assign(low=math.nan, high=math.nan)
            series.append(pandas.concat([path, mark(each.summary.method, each.style, rate, distortion)]))
    note = (
        "Marks are means over seeds on the validation data after the last epoch, with standard errors; thin lines are the "
        "path during training. Lower left is better: rate and distortion sum to the negative ELBO."
    )
    return _figure("Rate and distortion", note + _drawn_note(drawn), "rate, nats", "distortion, nats", series)


def _cost_figures(section: Section, drawn: Sequence[_Drawn]) -> list[Figure | None]:
    """Quality against seconds, which depend on the machine, and against decoder calls, which do not.

    Methods without a finished run are not drawn: their cost and their quality will change.
    """
    finished = [each for each in drawn if each.summary.n_finished]
    if not section.columns:  # nothing was measured yet
        return []
    label, qualities = _qualities(section, finished)
    note = "Marks are means over seeds after the last epoch, with standard errors; a single seed has none."
    note += unfinished_note([each.summary for each in drawn], " Not drawn")
    machines = machines_note((each.summary.method, each.summary.runs) for each in finished)
    found = []
    for title, more, x_label, costs in (
        ("Time and quality", machines, "seconds of training", [each.summary.seconds for each in finished]),
        ("Decoder calls and quality", "", "calls per example, mean over epochs", [each.summary.calls for each in finished]),
    ):
        series = [
            mark(each.summary.method, each.style, cost, quality)
            for each, cost, quality in zip(finished, costs, qualities, strict=True)
            if cost is not None and quality is not None
        ]
        found.append(_figure(title, f"{note} {more}".strip(), x_label, label, series, spread="x"))
    return found


def _qualities(section: Section, drawn: Sequence[_Drawn]) -> tuple[str, list[Statistic | None]]:
    """The first column of the section's table; if a method lacks it, the validation criterion of all methods."""
    column = section.columns[0]
    tested = [column.statistic(each.summary.runs) for each in drawn]
    if None not in tested:
        return f"{'' if section.kind.is_own else 'test '}{column.heading}", tested
    factor, name = _CRITERIA.get(section.experiment, (1, section.criterion))
    found = [each.summary.validation.get(section.criterion) for each in drawn]
    return f"validation {name}", [
        each and Statistic(factor * each.mean, None if each.error is None else abs(factor) * each.error, each.n)
        for each in found
    ]


def _line_note(drawn: Sequence[_Drawn]) -> str:
    if all(len(each.summary.runs) == 1 for each in drawn):
        return f"Each line is a single run.{_drawn_note(drawn)}"
    return f"Lines are means over seeds, bands ± one standard error; a single seed has no band.{_drawn_note(drawn)}"


def _drawn_note(drawn: Sequence[_Drawn]) -> str:
    """Sentences on epochs that are not drawn, and on runs that are not finished; empty if there is nothing to say."""
    longest = max((len(run.lines) for each in drawn for run in each.summary.runs), default=0)
    n_points = min((each.n_points for each in drawn), default=longest)
    thinned = f" {n_points} of {longest} epochs are drawn." if longest > n_points else ""
    summaries = [each.summary for each in drawn]
    return thinned + unfinished_note(summaries, " Drawn to the last epoch that all seeds have reached")
