"""The columns of tables: the metrics that an experiment is judged by, and the cost of training. A new one is a line here."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sparsum_experiments.report.kinds import kind_of
from sparsum_experiments.report.summary import Statistic, known_statistic
from sparsum_experiments.runs import Run


class Column(NamedTuple):
    """A number of each run.

    Args:
        heading: for people.
        value: the number; None where a run has none.
        digits: how many are shown after the point.
        better: 1 if larger is better, -1 if smaller is, 0 if neither.
        paper: the name of the same number in ``paper.toml``; empty if the paper has none.
        is_optional: whether the column is left out where no run has the number.
    """

    heading: str
    value: Callable[[Run], float | None]
    digits: int = 2
    better: int = 0
    paper: str = ""
    is_optional: bool = False

    @property
    def paper_heading(self) -> str:
        """Of the paper's number, without how ours is measured."""
        return f"paper's {self.heading.partition(',')[0]}"

    def statistic(self, runs: Sequence[Run]) -> Statistic | None:
        """Mean and standard error over runs that have the number; None if none has."""
        return known_statistic(map(self.value, runs))


def _tested(name: str, factor: int = 1) -> Callable[[Run], float | None]:
    return lambda run: factor * run.test[name] if name in run.test else None


_QUALITY = {
    "ssvae": (Column("accuracy %", _tested("accuracy", 100), better=1, paper="accuracy"),),
    "signal-game": (
        Column("success %", _tested("success", 100), better=1, paper="success"),
        Column("expected success %", _tested("expected_success", 100), better=1),
    ),
    "bitvector-vae": (
        Column("bits/dim, the paper's way", _tested("bits_per_dim_paper"), 3, -1, "bits_per_dim"),
        Column("bits/dim, by a proposal", _tested("bits_per_dim_proposal"), 3, -1),
        Column("bits/dim, annealed", _tested("bits_per_dim_annealed"), 3, -1, is_optional=True),
        Column("bits used", _tested("used_bits"), 1, is_optional=True),
        Column("rate", _tested("rate")),
        Column("distortion", _tested("distortion")),
    ),
}
#: Decoder calls per training example in the last epoch; a run of no epochs has no cost.
CALLS = Column("calls, last epoch", lambda run: run.calls_by_epoch[-1] if run.calls_by_epoch else None, paper="calls")
_COST = (
    CALLS,
    Column("calls, all epochs", lambda run: run.calls),
    Column("seconds", lambda run: run.seconds if run.lines else None, digits=1),
)


def columns_of(experiment: str, runs: Sequence[Run] = ()) -> tuple[Column, ...]:
    """The columns of an experiment: metrics on the test data, then decoder calls and seconds of training.

    An experiment that this package does not have shows what its runs have: all test metrics or, without any, all validation
    metrics of the last epoch, the criterion first; calls and seconds where these were measured.
    """
    if experiment in _QUALITY:
        return _QUALITY[experiment] + _COST
    kind = kind_of(experiment, runs)
    split = "test" if any(run.test for run in runs) else "validation"
    names = dict.fromkeys(name for run in runs for name in _metrics(run, split))
    ordered = sorted(names, key=lambda name: name != kind.criterion)
    quality = [_own_column(name, split, runs, kind.sign if name == kind.criterion else 0) for name in ordered]
    return (*quality, *(column for column in _COST if any(map(column.value, runs))))


def _metrics(run: Run, split: str) -> dict[str, float]:
    return run.test if split == "test" else run.validation if run.lines else {}


def _own_column(name: str, split: str, runs: Sequence[Run], better: int) -> Column:
    """A metric of which only the values are known: the largest has 4 significant digits."""
    sizes = [abs(value) for run in runs if math.isfinite(value := _metrics(run, split).get(name, math.nan))]
    largest = max(sizes, default=0.0)
    digits = min(max(3 - math.floor(math.log10(largest)), 0), 8) if largest else 2
    return Column(
        f"{split} {name}", functools.partial(lambda name, run: _metrics(run, split).get(name), name), digits, better
    )
