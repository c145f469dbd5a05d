"""Runs that differ in their seed alone, taken together: their statistics, and which setting of a method is the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from sparsum_experiments.registry import NAMES, experiment_class, place_options, uses
from sparsum_experiments.runs import Run

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

#: What stands where there is no number.
NOTHING = "-"
# Larger numbers, of runs that diverged, are shown with an exponent.
_LONG = 1e9
# What the title and the first column of a table say.
_ELSEWHERE = {"method", "data", "bits"}


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
    found = np.asarray(values, dtype=float)
    with np.errstate(all="ignore"):  # a run that diverged is reported, too: its NaN is not skipped
        mean = float(found.mean())
        error = float(found.std(ddof=1) / math.sqrt(len(found))) if len(found) > 1 else None
    return Statistic(mean, error, len(found))


def fixed(value: float, digits: int) -> str:
    """A number with so many digits after the point, or with an exponent if it would be very long.

    >>> fixed(2.5, 2), fixed(1e308, 2)
    ('2.50', '1e+308')
    """
    return f"{value:.{digits}f}" if abs(value) < _LONG else f"{value:.4g}"


def number(found: Statistic | None, n_runs: int, digits: int | None = None) -> str:
    """The mean ± its standard error, by default with 4 significant digits, and n where some of the runs have no value.

    >>> number(Statistic(0.5, 0.25, 2), n_runs=3, digits=1)
    '0.5 ± 0.2 (n=2)'
    """
    if found is None:
        return NOTHING
    text = f"{found.mean:.4g}" if digits is None else fixed(found.mean, digits)
    if found.error is not None:
        text += f" ± {found.error:.2g}" if digits is None else f" ± {fixed(found.error, digits)}"
    return text if found.n == n_runs else f"{text} (n={found.n})"


def options_text(options: Mapping[str, Any]) -> str:
    """Options as they are typed, with their values.

    >>> options_text({"batch_size": 64, "lr": 0.001, "solver": ""})
    'batch-size 64, lr 0.001, solver default'
    """
    texts = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in options.items()}
    texts |= {name: "default" for name, value in options.items() if value is None or value == ""}
    return ", ".join(f"{name.replace('_', '-')} {text}" for name, text in texts.items())


def used_options(experiment: str, method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a table should show: those that the method uses and that were not left to it to choose.

    >>> used_options("bitvector-vae", "topk", {"lr": 0.002, "solver": "", "temperature_decay": 1e-05})
    {'lr': 0.002}
    """
    hidden = place_options(experiment) | _ELSEWHERE
    return {
        name: value
        for name, value in options.items()
        if name not in hidden and value not in (None, "") and uses(experiment, method, name)
    }


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items by a key, in the order in which they come; a data frame of objects would do the same in more words."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


@dataclass(frozen=True)
class Kind:
    """What reports know of an experiment: one of this package, or of one's own training loop."""

    methods: tuple[str, ...]  # in the order of tables
    criterion: str  # the validation metric by which methods are compared; empty if there is none
    own_criteria: Mapping[str, str] = field(default_factory=dict)  # of methods whose settings are chosen by another one
    sign: int = 1  # 1 if a larger criterion is better, -1 if a smaller one is
    is_own: bool = False  # whether it is not one of this package

    def criterion_of(self, method: str) -> str:
        """The validation metric by which settings of a method are chosen."""
        return self.own_criteria.get(method, self.criterion)


def kind_of(experiment: str, runs: Sequence[Run]) -> Kind:
    """An experiment by its name; what this package does not know of it, its runs say, the first of them before others."""
    if experiment in NAMES:
        known = experiment_class(experiment)
        return Kind(known.methods, known.criterion, known.own_criteria)
    methods = tuple(dict.fromkeys(run.args["method"] for run in runs))
    measured = [name for run in runs for line in run.lines for name in line["validation"]]
    criterion = next((run.criterion for run in runs if run.criterion), None) or next(iter(measured), "")
    # Runs that name the criterion say which values are better; those that leave it to us may not know it.
    better = next((run.better for run in sorted(runs, key=lambda run: run.criterion != criterion)), "larger")
    return Kind(methods, criterion, sign=-1 if better == "smaller" else 1, is_own=True)


@dataclass(frozen=True)
class Summary:
    """What the seeds of one method and setting measured."""

    method: str
    setting: Mapping[str, Any]  # the options that differ from other runs
    runs: tuple[Run, ...]  # those that count, see `summarise`
    n_runs: int  # how many there are or will be, whether they count or not
    validation: dict[str, Statistic]  # metrics of the last epoch
    test: dict[str, Statistic]  # metrics of the evaluation, over the runs that have one
    calls: Statistic | None  # decoder calls per training example, the mean over all epochs; None if they were not counted
    seconds: Statistic  # of training

    @property
    def setting_text(self) -> str:
        """The setting in words, as far as the method uses it."""
        return options_text(used_options(self.runs[0].experiment, self.method, self.setting))

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
    """The summary of runs that differ in their seed alone; None if none of them has measured an epoch.

    The finished runs count or, as long as there is none, those with at least one epoch, each up to the last epoch that all
    of them have reached: later ones would be means over fewer seeds, and an evaluation after them does not belong to it.
    """
    runs = list(runs)
    begun = [run for run in runs if run.lines]
    n = min((len(run.lines) for run in begun), default=0)
    counted = [run for run in begun if run.is_finished]
    counted = counted or [run if len(run.lines) == n else replace(run, lines=run.lines[:n], test={}) for run in begun]
    if not counted:
        return None
    calls = [run.calls for run in counted if run.calls is not None]
    return Summary(
        method=method,
        setting=setting,
        runs=tuple(counted),
        n_runs=len(runs) if n_runs is None else n_runs,
        validation=_statistics([run.validation for run in counted]),
        test=_statistics([run.test for run in counted]),
        calls=statistic(calls) if calls else None,
        seconds=statistic([run.seconds for run in counted]),
    )


def _statistics(metrics: list[dict[str, float]]) -> dict[str, Statistic]:
    """For each metric, over the runs that have it, in the order in which they come."""
    names = dict.fromkeys(name for values in metrics for name in values)
    return {name: statistic([values[name] for values in metrics if name in values]) for name in names}


def best_by_method(summaries: Iterable[Summary], experiment: str) -> list[Summary]:
    """For each method its best setting: that with the best mean of its criterion on validation data.

    The value is that of the last epoch, not of the best one, which would reward noise. A setting of which runs failed or
    are not finished is taken only where no setting of the method is complete: the seeds that failed may be the bad ones.
    One of which no run is finished is taken only where no other has a finished one.
    """
    groups = grouped(summaries, lambda summary: summary.method)
    kind = kind_of(experiment, [run for members in groups.values() for summary in members for run in summary.runs])
    return [
        max(members, key=lambda each: rank(each, kind.criterion_of(each.method), kind.sign)) for members in groups.values()
    ]


def rank(summary: Summary, criterion: str, sign: int = 1) -> tuple[bool, bool, float]:
    """How good a setting is on the validation data; complete ones are before others, then those with a finished run."""
    found = summary.validation.get(criterion)
    mean = -math.inf if found is None or math.isnan(found.mean) else sign * found.mean
    return summary.n_finished == summary.n_runs, summary.n_finished > 0, mean


def criteria_text(experiment: str, summaries: Iterable[Summary]) -> str:
    """What `best_by_method` chooses by, in words."""
    summaries = list(summaries)
    kind = kind_of(experiment, [run for summary in summaries for run in summary.runs])
    criteria = {summary.method: kind.criterion_of(summary.method) for summary in summaries}
    others = [f"{method}: {criterion}" for method, criterion in criteria.items() if criterion != kind.criterion]
    return f"{kind.criterion} ({', '.join(others)})" if others else kind.criterion
