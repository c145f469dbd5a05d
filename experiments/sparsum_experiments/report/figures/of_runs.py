"""Which figures the runs of an experiment have: those of the paper, and quality against its cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sparsum_experiments.registry import NAMES, experiment_class
from sparsum_experiments.report.columns import columns_of
from sparsum_experiments.report.figures.curves import (
    MAX_POINTS,
    Curve,
    calls_curve,
    chosen_epochs,
    metric_curve,
    summed_calls,
)
from sparsum_experiments.report.figures.figure import Figure, Point, Series
from sparsum_experiments.report.machines import machines_note
from sparsum_experiments.report.sections import Section
from sparsum_experiments.report.summary import Statistic, Summary, unfinished_note

# Numbers that differ by more than this are drawn on a logarithmic scale, or the small ones could not be told apart.
_MAX_LINEAR_RATIO = 20
# How the paper draws what settings are chosen by: a factor and a label.
_CRITERIA = {
    "ssvae": (1, "ELBO, nats"),
    "signal-game": (100, "success, %"),
    "bitvector-vae": (-1, "negative ELBO, nats"),
}
# What the paper shows around the median of the calls.
_QUARTILES = ("p25", "p75", "from the lower to the upper quartile", "quartiles")
_PERCENTILES = ("p10", "p90", "from the 10th to the 90th percentile", "10th and 90th percentile")


class _Drawn(NamedTuple):
    """The best setting of a method, how it looks, and of how many epochs at most."""

    summary: Summary
    style: int
    n_points: int = MAX_POINTS

    def line(self, curve: Curve, x: Sequence[float] = ()) -> Series:
        """A line over epochs, or over what ``x`` has for each epoch."""
        chosen = chosen_epochs(len(curve.y), self.n_points)
        places = _at(x, chosen) or [i + 1 for i in chosen]
        y, low, high = (_at(values, chosen) for values in (curve.y, curve.low, curve.high))
        return Series(self.summary.method, self.style, places, y, low, high)

    def mark(self, x: Statistic, y: Statistic, way: tuple[Sequence[float], Sequence[float]] = ((), ())) -> Series:
        """A point, and the way there, if it is known at each epoch."""
        chosen = chosen_epochs(len(way[0]), self.n_points)
        path_x, path_y = (_at(values, chosen) for values in way)
        return Series(self.summary.method, self.style, path_x, path_y, point=Point(x, y))


def styles_of(section: Section) -> dict[str, int]:
    """The style of each method that is drawn, in the order of the experiment: the same in all sections, whatever was run."""
    drawn = {summary.method for summary in section.best}
    known = list(dict.fromkeys(method for name in NAMES for method in experiment_class(name).methods))
    styles = {method: i for i, method in enumerate([*known, *sorted(drawn - set(known))])}
    order = [*experiment_class(section.experiment).methods, *styles]
    return {method: styles[method] for method in dict.fromkeys(order) if method in drawn}


def figures_of(section: Section, n_points: int = MAX_POINTS) -> list[Figure]:
    """The figures of a section, of the best setting of each method, with so many points on a line at most."""
    by_method = {summary.method: summary for summary in section.best}
    drawn = [_Drawn(by_method[method], style, n_points) for method, style in styles_of(section).items()]
    found = [_criterion_figure(section, drawn)]
    if section.experiment == "ssvae":
        found.append(_accuracy_figure(drawn))
    if section.experiment == "bitvector-vae":
        found.append(_elbo_by_calls_figure(section, drawn))
    found.append(_calls_figure(section, drawn))
    if section.experiment == "bitvector-vae":
        found.append(_rate_distortion_figure(drawn))
    return [figure for figure in [*found, *_cost_figures(section, drawn)] if figure.series]


def _criterion_figure(section: Section, drawn: Sequence[_Drawn]) -> Figure:
    factor, label = _CRITERIA.get(section.experiment, (1, section.criterion))
    series = [each.line(metric_curve(each.summary, section.criterion, factor)) for each in drawn]
    return Figure(f"Validation {label.partition(',')[0]} over epochs", _line_note(drawn), "epoch", label, series)


def _accuracy_figure(drawn: Sequence[_Drawn]) -> Figure:
    have = [each for each in drawn if "accuracy" in each.summary.validation]
    series = [each.line(metric_curve(each.summary, "accuracy", 100)) for each in have]
    return Figure("Validation accuracy over epochs", _line_note(drawn), "epoch", "accuracy, %", series)


def _calls_figure(section: Section, drawn: Sequence[_Drawn]) -> Figure:
    low, high, reach, edges = _QUARTILES if section.experiment == "bitvector-vae" else _PERCENTILES
    series = [each.line(calls_curve(each.summary, low, high)) for each in drawn]
    is_wide = _is_wide([value for each in series for value in (*each.y, *each.low, *each.high)])
    note = f"Lines are medians over training examples, bands reach {reach}; all are means over seeds.{_drawn_note(drawn)}"
    label = f"calls per example{', logarithmic' * is_wide}"
    return Figure("Decoder calls at each epoch", note, "epoch", label, series, y_is_logarithmic=is_wide, edges=edges)


def _elbo_by_calls_figure(section: Section, drawn: Sequence[_Drawn]) -> Figure:
    factor, y_label = _CRITERIA[section.experiment]
    series = [each.line(metric_curve(each.summary, section.criterion, factor), summed_calls(each.summary)) for each in drawn]
    is_wide = _is_wide([value for each in series for value in each.x])
    x_label = f"decoder calls per example, summed over epochs{', logarithmic' * is_wide}"
    title = "Validation negative ELBO over decoder calls"
    return Figure(title, _line_note(drawn), x_label, y_label, series, x_is_logarithmic=is_wide)


def _rate_distortion_figure(drawn: Sequence[_Drawn]) -> Figure:
    """The two parts of the negative ELBO, on the validation data, which all runs have."""
    series = []
    for each in drawn:
        rate, distortion = (each.summary.validation.get(name) for name in ("rate", "distortion"))
        if rate is not None and distortion is not None:
            way = metric_curve(each.summary, "rate").y, metric_curve(each.summary, "distortion").y
            series.append(each.mark(rate, distortion, way))
    note = (
        "Marks are means over seeds on the validation data after the last epoch, with standard errors; thin lines are the "
        "way there. Lower left is better: rate and distortion sum to the negative ELBO."
    )
    return Figure("Rate and distortion", note + _drawn_note(drawn), "rate, nats", "distortion, nats", series)


def _cost_figures(section: Section, drawn: Sequence[_Drawn]) -> list[Figure]:
    """Quality against seconds, which depend on the machine, and against decoder calls, which do not.

    Methods of which no run is finished are not drawn: neither their cost nor their quality is what it will be.
    """
    finished = [each for each in drawn if each.summary.n_finished]
    label, qualities = _qualities(section, finished)
    note = "Marks are means over seeds after the last epoch, with standard errors; a single seed has none."
    note += unfinished_note([each.summary for each in drawn], " Not drawn")
    machines = machines_note((each.summary.method, each.summary.records) for each in finished)
    found = []
    for title, more, x_label, costs in (
        ("Time and quality", machines, "seconds of training", [each.summary.seconds for each in finished]),
        ("Decoder calls and quality", "", "calls per example, mean over epochs", [each.summary.calls for each in finished]),
    ):
        triples = zip(finished, costs, qualities, strict=True)
        series = [each.mark(cost, quality) for each, cost, quality in triples if quality is not None]
        is_wide = _is_wide([cost.mean for cost in costs])
        full_label = f"{x_label}{', logarithmic' * is_wide}"
        found.append(Figure(title, f"{note} {more}".strip(), full_label, label, series, x_is_logarithmic=is_wide))
    return found


def _qualities(section: Section, drawn: Sequence[_Drawn]) -> tuple[str, list[Statistic | None]]:
    """The first test metric; where a method has none, the validation criterion of all."""
    column = columns_of(section.experiment)[0]
    tested = [column.statistic(each.summary.records) for each in drawn]
    if None not in tested:
        return f"test {column.heading}", tested
    factor, name = _CRITERIA.get(section.experiment, (1, section.criterion))
    return f"validation {name}", [_times(factor, each.summary.validation.get(section.criterion)) for each in drawn]


def _times(factor: int, found: Statistic | None) -> Statistic | None:
    if found is None:
        return None
    return Statistic(factor * found.mean, None if found.error is None else abs(factor) * found.error, found.n)


def _at(values: Sequence[float], indices: Sequence[int]) -> list[float]:
    """Some of the values; none of an empty list."""
    return [values[i] for i in indices] if values else []


def _is_wide(values: Sequence[float]) -> bool:
    """Whether positive numbers differ so much that a logarithmic scale is needed."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) > _MAX_LINEAR_RATIO * min(finite)


def _line_note(drawn: Sequence[_Drawn]) -> str:
    if all(len(each.summary.records) == 1 for each in drawn):
        return f"Each line is a single run.{_drawn_note(drawn)}"
    return f"Lines are means over seeds, bands ± one standard error; a single seed has no band.{_drawn_note(drawn)}"


def _drawn_note(drawn: Sequence[_Drawn]) -> str:
    """Sentences on epochs that are not drawn, and on runs that are not finished; empty if there is nothing to say."""
    unfinished = unfinished_note([each.summary for each in drawn], " Drawn to the last epoch that all seeds have reached")
    return _thinned(drawn) + unfinished


def _thinned(drawn: Sequence[_Drawn]) -> str:
    """A sentence on epochs that are not drawn; empty if all are."""
    longest = max((len(run.lines) for each in drawn for run in each.summary.records), default=0)
    n_points = min((each.n_points for each in drawn), default=MAX_POINTS)
    return f" Of {longest} epochs {n_points} are drawn." if longest > n_points else ""
