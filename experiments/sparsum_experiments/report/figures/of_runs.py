"""Which figures the runs of an experiment have: those of the paper, and quality against its cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsum_experiments.registry import NAMES, experiment_class
from sparsum_experiments.report.figures.figure import Figure, Point, Series
from sparsum_experiments.report.notes import machines_note, unfinished_note
from sparsum_experiments.report.sections import Section
from sparsum_experiments.report.summary import Statistic, Summary

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

_Curve = tuple[list[float], list[float], list[float]]


class _Drawn(NamedTuple):
    """The best setting of a method, how it looks, and how many epochs of it are drawn at most."""

    summary: Summary
    style: int
    n_points: int

    def line(self, curve: _Curve, x: Sequence[float] = ()) -> Series:
        """A line over epochs, or over ``x``, which has a value for each epoch."""
        n = len(curve[0])
        chosen = np.unique(np.linspace(0, n - 1, min(n, self.n_points)).round().astype(int)).tolist()
        places = [x[i] for i in chosen] if x else [i + 1 for i in chosen]
        y, low, high = ([each[i] for i in chosen] if each else [] for each in curve)
        return Series(self.summary.method, self.style, places, y, low, high)

    def by_epoch(self, value: Callable[[dict[str, Any]], float]) -> np.ndarray:
        """A value of each seed at each epoch that all seeds have reached: (n_seeds, n_epochs)."""
        n = min(len(run.lines) for run in self.summary.runs)
        return np.array([[value(line) for line in run.lines[:n]] for run in self.summary.runs], dtype=float)

    def metric(self, name: str, factor: int = 1) -> _Curve:
        """A validation metric: the mean over seeds, and one standard error below and above it; a single seed has none."""
        values = factor * self.by_epoch(lambda line: line["validation"].get(name, math.nan))
        mean = values.mean(0)
        error = values.std(0, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else np.zeros(0)
        low, high = ((mean[: len(error)] + sign * error).tolist() for sign in (-1, 1))
        return mean.tolist(), low, high

    def calls(self, low: str, high: str) -> _Curve:
        """Decoder calls: the median over examples and two percentiles, means over seeds; the mean if there are none."""
        mean, *curves = (self.by_epoch(_calls(name)).mean(0).tolist() for name in ("mean", "median", low, high))
        return (mean, [], []) if np.isnan(curves).any() else (curves[0], curves[1], curves[2])


def _calls(name: str) -> Callable[[dict[str, Any]], float]:
    return lambda line: line.get("calls", {}).get(name, math.nan)


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
    is_of_bits = section.experiment == "bitvector-vae"
    found = [_criterion_figure(section, drawn)]
    if section.experiment == "ssvae":
        found.append(_accuracy_figure(drawn))
    if is_of_bits:
        found.append(_elbo_by_calls_figure(section, counted))
    found.append(_calls_figure(counted, *(_QUARTILES if is_of_bits else _PERCENTILES)))
    if is_of_bits:
        found.append(_rate_distortion_figure(drawn))
    return [figure for figure in [*found, *_cost_figures(section, drawn)] if figure.series]


def _criterion_figure(section: Section, drawn: Sequence[_Drawn]) -> Figure:
    factor, label = _CRITERIA.get(section.experiment, (1, section.criterion))
    series = [each.line(each.metric(section.criterion, factor)) for each in drawn]
    return Figure(f"Validation {label.partition(', ')[0]} over epochs", _line_note(drawn), "epoch", label, series)


def _accuracy_figure(drawn: Sequence[_Drawn]) -> Figure:
    have = [each for each in drawn if "accuracy" in each.summary.validation]
    series = [each.line(each.metric("accuracy", 100)) for each in have]
    return Figure("Validation accuracy over epochs", _line_note(drawn), "epoch", "accuracy, %", series)


def _calls_figure(drawn: Sequence[_Drawn], low: str, high: str, reach: str, edges: str) -> Figure:
    series = [each.line(each.calls(low, high)) for each in drawn]
    is_wide = _is_wide([value for each in series for value in each.along("y")])
    note = f"Lines are medians over training examples, bands reach {reach}; all are means over seeds.{_drawn_note(drawn)}"
    label = f"calls per example{', logarithmic' * is_wide}"
    return Figure("Decoder calls at each epoch", note, "epoch", label, series, "y" * is_wide, edges)


def _elbo_by_calls_figure(section: Section, drawn: Sequence[_Drawn]) -> Figure:
    factor, y_label = _CRITERIA[section.experiment]
    summed = [each.by_epoch(_calls("mean")).cumsum(1).mean(0).tolist() for each in drawn]
    series = [each.line(each.metric(section.criterion, factor), x) for each, x in zip(drawn, summed, strict=True)]
    is_wide = _is_wide([value for each in series for value in each.x])
    x_label = f"decoder calls per example, summed over epochs{', logarithmic' * is_wide}"
    title = "Validation negative ELBO over decoder calls"
    return Figure(title, _line_note(drawn), x_label, y_label, series, "x" * is_wide)


def _rate_distortion_figure(drawn: Sequence[_Drawn]) -> Figure:
    """The two parts of the negative ELBO, on the validation data, which all runs have."""
    series = []
    for each in drawn:
        rate, distortion = (each.summary.validation.get(name) for name in ("rate", "distortion"))
        if rate is not None and distortion is not None:
            path = each.line((each.metric("distortion")[0], [], []), each.metric("rate")[0])
            series.append(Series(path.name, path.style, path.x, path.y, point=Point(rate, distortion)))
    note = (
        "Marks are means over seeds on the validation data after the last epoch, with standard errors; thin lines are the "
        "path during training. Lower left is better: rate and distortion sum to the negative ELBO."
    )
    return Figure("Rate and distortion", note + _drawn_note(drawn), "rate, nats", "distortion, nats", series)


def _cost_figures(section: Section, drawn: Sequence[_Drawn]) -> list[Figure]:
    """Quality against seconds, which depend on the machine, and against decoder calls, which do not.

    Methods without a finished run are not drawn: their cost and their quality will change.
    """
    finished = [each for each in drawn if each.summary.n_finished]
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
            Series(each.summary.method, each.style, point=Point(cost, quality))
            for each, cost, quality in zip(finished, costs, qualities, strict=True)
            if cost is not None and quality is not None
        ]
        is_wide = _is_wide([each.point.x.mean for each in series if each.point])
        full_label = f"{x_label}{', logarithmic' * is_wide}"
        found.append(Figure(title, f"{note} {more}".strip(), full_label, label, series, "x" * is_wide))
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


def _is_wide(values: Sequence[float]) -> bool:
    """Whether positive numbers differ so much that they need a logarithmic axis."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) > _MAX_LINEAR_RATIO * min(finite)


def _line_note(drawn: Sequence[_Drawn]) -> str:
    if all(len(each.summary.runs) == 1 for each in drawn):
        return f"Each line is a single run.{_drawn_note(drawn)}"
    return f"Lines are means over seeds, bands ± one standard error; a single seed has no band.{_drawn_note(drawn)}"


def _drawn_note(drawn: Sequence[_Drawn]) -> str:
    """Sentences on epochs that are not drawn, and on runs that are not finished; empty if there is nothing to say."""
    longest = max((len(run.lines) for each in drawn for run in each.summary.runs), default=0)
    n_points = min((each.n_points for each in drawn), default=longest)
    thinned = f" {n_points} of {longest} epochs are drawn." if longest > n_points else ""
    return thinned + unfinished_note(
        [each.summary for each in drawn], " Drawn to the last epoch that all seeds have reached"
    )
