"""The columns of a table for an article: what an experiment is judged by, and what it cost."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sparsum_experiments.report.summary import Statistic, statistic
from sparsum_experiments.runs import Run


class Column(NamedTuple):
    """A number of each run.

    Args:
        heading: for people.
        value: the number; None where a run has none.
        digits: how many are shown after the point.
        better: 1 if the larger is the better, -1 if the smaller is, 0 if neither can be said.
        paper: the name of the same number in ``paper.toml``; empty if the paper has none.
        is_optional: whether a table goes without it where no run has the number.
    """

    heading: str
    value: Callable[[Run], float | None]
    digits: int = 2
    better: int = 0
    paper: str = ""
    is_optional: bool = False

    @property
    def paper_heading(self) -> str:
        """Of the paper's number, without what is said of how ours is measured."""
        return f"paper's {self.heading.partition(',')[0]}"

    def statistic(self, runs: Sequence[Run]) -> Statistic | None:
        """Mean and standard error over runs that have the number; None if none has."""
        values = [value for run in runs if (value := self.value(run)) is not None]
        return statistic(values) if values else None


def _tested(name: str, run: Run) -> float | None:
    return run.test.get(name)


def _per_cent(name: str, run: Run) -> float | None:
    part = run.test.get(name)
    return None if part is None else 100 * part


def _test_column(heading: str, name: str, digits: int, better: int = 0, paper: str = "") -> Column:
    return Column(heading, functools.partial(_tested, name), digits, better, paper)


def _per_cent_column(heading: str, name: str, paper: str = "") -> Column:
    return Column(f"{heading} %", functools.partial(_per_cent, name), better=1, paper=paper)


_QUALITY = {
    "ssvae": (_per_cent_column("accuracy", "accuracy", "accuracy"),),
    "signal-game": (
        _per_cent_column("success", "success", "success"),
        _per_cent_column("expected success", "expected_success"),
    ),
    "bitvector-vae": (
        _test_column("bits/dim, the paper's way", "bits_per_dim_paper", 3, -1, "bits_per_dim"),
        _test_column("bits/dim, by a proposal", "bits_per_dim_proposal", 3, -1),
        _test_column("bits/dim, annealed", "bits_per_dim_annealed", 3, -1)._replace(is_optional=True),
        _test_column("bits used", "used_bits", 1)._replace(is_optional=True),
        _test_column("rate", "rate", 2),
        _test_column("distortion", "distortion", 2),
    ),
}
# A run of no epochs cost nothing that could be averaged.
_COST = (
    Column("calls, last epoch", lambda run: run.calls_by_epoch[-1] if run.calls_by_epoch else None, paper="calls"),
    Column("calls, all epochs", lambda run: run.calls),
    Column("seconds", lambda run: run.seconds if run.lines else None, digits=1),
)


def columns_of(experiment: str) -> tuple[Column, ...]:
    """The columns of an experiment: metrics on the test data, then decoder calls and seconds of training."""
    return _QUALITY[experiment] + _COST
