"""The columns of tables: the metrics that an experiment is judged by, and the cost of training. A new one is a line here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sparsum_experiments.report.summary import Statistic, kind_of, statistic
from sparsum_experiments.runs import Run


class Column(NamedTuple):
    """A number of each run, as a column of a table."""

    heading: str
    value: Callable[[Run], float | None]  # None where a run does not have the number
    digits: int | None = 2  # after the point; if None, there are 4 significant ones
    better: int = 0  # 1 if larger is better, -1 if smaller is, 0 if neither
    paper: str = ""  # the name of the same number in ``paper.toml``
    is_optional: bool = False  # whether the column is left out where no run has the number

    def statistic(self, runs: Sequence[Run]) -> Statistic | None:
        """Mean and standard error over the runs that have the number; None if none has."""
        known = [value for value in map(self.value, runs) if value is not None]
        return statistic(known) if known else None


def _tested(name: str, factor: int = 1) -> Callable[[Run], float | None]:
    return lambda run: factor * run.test[name] if name in run.test else None


_QUALITY = {
    "ssvae": (
        Column("accuracy %", _tested("accuracy", 100), better=1, paper="accuracy"),
        Column("classes used", _tested("used_classes"), 1, is_optional=True),
    ),
    "signal-game": (
        Column("success %", _tested("success", 100), better=1, paper="success"),
        Column("expected success %", _tested("expected_success", 100), better=1),
        Column("symbols used", _tested("used_symbols"), 1, is_optional=True),
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


def _saturated(run: Run) -> float | None:
    """The percentage of training examples with a single assignment with mass in the last epoch."""
    share = run.lines[-1].get("train", {}).get("saturation") if run.lines else None
    return None if share is None else 100 * share


#: Decoder calls per training example in the last epoch; a run of no epochs has no cost.
CALLS = Column("calls, last epoch", lambda run: run.calls_by_epoch[-1] if run.calls_by_epoch else None, paper="calls")
_COST = (
    Column("saturated %, last epoch", _saturated, 1, is_optional=True),
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
    kind, is_tested = kind_of(experiment, runs), any(run.test for run in runs)

    def metrics(run: Run) -> dict[str, float]:
        return run.test if is_tested else run.validation if run.lines else {}

    def column(name: str) -> Column:
        """A metric of which only the values are known: the largest has 4 significant digits."""
        largest = max(
            (abs(found[name]) for run in runs if math.isfinite((found := metrics(run)).get(name, math.nan))), default=0
        )
        digits = min(max(3 - math.floor(math.log10(largest)), 0), 8) if largest else 2
        heading = f"{'test' if is_tested else 'validation'} {name}"
        return Column(heading, lambda run: metrics(run).get(name), digits, kind.sign if name == kind.criterion else 0)

    names = dict.fromkeys(name for run in runs for name in metrics(run))
    ordered = sorted(names, key=lambda name: name != kind.criterion)
    return (*map(column, ordered), *(column for column in _COST if any(map(column.value, runs))))
