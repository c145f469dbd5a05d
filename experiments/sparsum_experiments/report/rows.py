"""The rows of a table for an article: the runs of each method and setting, in the order of the methods."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sparsum_experiments.report.sections import differing_options
from sparsum_experiments.runs import Run


@dataclass(frozen=True)
class Row:
    """Runs that differ in their seed alone.

    Args:
        method: how the sum was made.
        variant: what sets them apart from other rows of the method, in words; empty if nothing does.
        runs: those that are finished and evaluated, the only ones that are averaged.
        left_out: the others.
    """

    method: str
    variant: str = ""
    runs: tuple[Run, ...] = ()
    left_out: tuple[Run, ...] = ()

    @property
    def label(self) -> str:
        """The method, and the variant if there is one."""
        return f"{self.method} ({self.variant})" if self.variant else self.method

    @property
    def args(self) -> dict[str, Any] | None:
        """What the runs were told; None where there are none."""
        every = self.runs + self.left_out
        return every[0].args if every else None


def table_rows(runs: Sequence[Run], methods: Sequence[str], expected: Collection[str]) -> list[Row]:
    """The rows of runs that belong to one table.

    Args:
        runs: the runs.
        methods: those of the experiment, in their order.
        expected: the methods that have a row even if no run was made with them.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.args["method"], []).append(run)
    known = [method for method in methods if method in groups or method in expected]
    rows = []
    for method in [*known, *sorted(groups.keys() - set(methods))]:
        rows += _rows(method, groups[method]) if method in groups else [Row(method)]
    return rows


def _rows(method: str, runs: list[Run]) -> list[Row]:
    """One row for each variant, and for each setting where a variant has several; those without a name come first."""
    by_variant: dict[str, list[Run]] = {}
    for run in runs:
        by_variant.setdefault(run.variant or "", []).append(run)
    rows = []
    for variant, members in sorted(by_variant.items()):
        differing = differing_options(members)
        settings: dict[str, list[Run]] = {}
        for run in sorted(members, key=lambda run: [_order(run.args.get(name)) for name in differing]):
            setting = ", ".join(f"{option_name(name)} {option_value(run.args.get(name))}" for name in differing)
            settings.setdefault(setting, []).append(run)
        rows += [_row(method, ", ".join(filter(None, (variant, text))), runs) for text, runs in settings.items()]
    return rows


def _row(method: str, variant: str, runs: list[Run]) -> Row:
    by_seed = sorted(runs, key=lambda run: _order(run.args["seed"]))
    runs = tuple(run for run in by_seed if run.is_finished and run.test)
    return Row(method, variant, runs, tuple(run for run in by_seed if run not in runs))


def option_name(name: str) -> str:
    """An option as it is typed."""
    return name.replace("_", "-")


def option_value(value: Any) -> str:
    """What an option was, for people."""
    if value is None or value == "":
        return "default"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _order(value: Any) -> tuple[bool, float, str]:
    """Numbers by their size, before all else by its text."""
    is_number = isinstance(value, int | float)
    return not is_number, value if is_number else 0.0, str(value)
