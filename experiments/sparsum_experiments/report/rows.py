"""The rows of a section's table: the runs of each method and setting, in the order of the methods."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sparsum_experiments.report.sections import Section, config_key, differing_options, grouped
from sparsum_experiments.report.settings import options_text
from sparsum_experiments.report.summary import best_by_method
from sparsum_experiments.runs import Run


@dataclass(frozen=True)
class Row:
    """Runs that differ in their seed alone.

    Args:
        method: how the sum was computed.
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
    def first(self) -> Run | None:
        """One of the runs, all of which have the same config; None where there are none."""
        return next(iter(self.runs + self.left_out), None)


def table_rows(section: Section, expected: Collection[str] = ()) -> list[Row]:
    """The rows of a section; methods that are expected have one even if no run was made with them."""
    by_method = grouped(section.runs, lambda run: str(run.args["method"]))
    methods = [method for method in section.kind.methods if method in by_method or method in expected]
    methods += sorted(by_method.keys() - set(methods))
    # Who never evaluates anything on test data wants to see the validation data.
    needs_test = not section.kind.is_own or any(run.test for run in section.runs)
    return [row for method in methods for row in _rows(method, by_method.get(method, []), needs_test=needs_test)]


def best_rows(rows: Sequence[Row], section: Section) -> list[Row]:
    """The rows of the best setting of each method, and those of methods that were not run or measured nothing.

    Where some settings of a method were evaluated, it is the best of these.
    """
    tested = best_by_method([summary for summary in section.summaries if summary.test], section.experiment)
    best = {summary.method: _setting_key(summary.runs[0]) for summary in (*section.best, *tested)}
    return [row for row in rows if not row.first or best.get(row.method) in (None, _setting_key(row.first))]


def _setting_key(run: Run) -> tuple[str | None, str]:
    return run.variant, config_key(run)


def _rows(method: str, runs: list[Run], *, needs_test: bool) -> list[Row]:
    """One row for each variant, and for each setting where a variant has several; those without a name come first."""
    rows = [] if runs else [Row(method)]
    for variant, members in sorted(grouped(runs, lambda run: run.variant or "").items()):
        names = differing_options(members)
        members.sort(key=lambda run: [_order(run.args.get(name)) for name in (*names, "seed")])
        for same in grouped(members, config_key).values():
            text = options_text({name: same[0].args.get(name) for name in names})
            counted = [run for run in same if run.is_finished and (run.test or not needs_test)]
            left_out = [run for run in same if run not in counted]
            rows.append(Row(method, ", ".join(filter(None, (variant, text))), tuple(counted), tuple(left_out)))
    return rows


def _order(value: Any) -> tuple[bool, float, str]:
    """Numbers by their size, before all else by its text."""
    is_number = isinstance(value, int | float)
    return not is_number, value if is_number else 0.0, str(value)
