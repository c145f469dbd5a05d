"""Tables for an article: each method on the test data, beside the numbers of the paper, which are in ``paper.toml``."""

from __future__ import annotations

import decimal
import functools
import importlib.resources
import math
import pathlib
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sparsum_experiments.report.columns import Column
from sparsum_experiments.report.notes import (
    estimates_note,
    finding,
    is_stopped,
    left_out_note,
    machines_note,
    measures_note,
    search_note,
    settings_note,
)
from sparsum_experiments.report.sections import Row, Section, best_rows, read_sections, table_rows
from sparsum_experiments.report.summary import NOTHING, number


class Cell(NamedTuple):
    """Text in a table, and whether it is the best of its column."""

    text: str
    is_best: bool = False


class Comparison(NamedTuple):
    """A table and the sentences around it."""

    title: str
    header: list[str]  # the first column is of text, all others are of numbers
    rows: list[list[Cell]]
    notes: list[str]  # for below the table
    finding: str  # the sentence that opens it


def read_comparisons(places: Iterable[pathlib.Path]) -> tuple[list[Comparison], list[str]]:
    """The tables of what `read_sections` reads, and what could not be read."""
    sections, problems = read_sections(places)
    return [compare(section) for section in sections], problems


def compare(section: Section, *, best_only: bool = False) -> Comparison:
    """The table of a section, or only the best setting of each method on the validation data.

    Runs of other settings that are not averaged are still named.
    """
    paper = paper_table(section.experiment, section.data, section.bits)
    every = table_rows(section, paper.get("rows", ()))
    every = [row for row in every if row.runs or not is_stopped(row.left_out)]  # others are in a note
    rows = best_rows(every, section) if best_only else every
    columns = {"method": [Cell(row.label) for row in rows]}
    for column in section.columns:
        cells = _cells(column, rows)
        if not column.is_optional or any(cell.text != NOTHING for cell in cells):
            columns[column.heading] = cells
        if any(column.paper in values for values in paper.get("rows", {}).values()):
            columns[f"paper's {column.heading.partition(',')[0]}"] = _paper_cells(paper["rows"], column.paper, rows)
    columns["seeds"] = [Cell(_seeds(len(row.runs), len(row.left_out))) for row in rows]
    notes = [
        measures_note(section, rows, columns),
        estimates_note(rows),
        settings_note(section, rows),
        machines_note((row.label, row.runs) for row in rows),
        paper.get("note", ""),
        left_out_note(every),
        search_note(section),
    ]
    lines = [list(line) for line in zip(*columns.values(), strict=True)]
    return Comparison(section.title, list(columns), lines, list(filter(None, notes)), finding(section, rows))


def _cells(column: Column, rows: Sequence[Row]) -> list[Cell]:
    """Means and errors; the best is marked where there is something to compare it with."""
    found = [column.statistic(row.runs) for row in rows]
    ranks = [column.better * each.mean if each and math.isfinite(each.mean) else -math.inf for each in found]
    best = max(ranks, default=0.0) if column.better and sum(map(math.isfinite, ranks)) > 1 else math.nan
    texts = [number(each, len(row.runs), column.digits) for each, row in zip(found, rows, strict=True)]
    return [Cell(text, rank == best) for text, rank in zip(texts, ranks, strict=True)]


def _paper_cells(paper: dict[str, Any], name: str, rows: Sequence[Row]) -> list[Cell]:
    """The paper's numbers as it prints them, each at the first row of its method: the paper has no variants."""
    methods = [row.method for row in rows]
    numbers = [paper.get(method, {}).get(name, []) if methods.index(method) == i else [] for i, method in enumerate(methods)]
    return [Cell(" ± ".join(map(str, mean_and_error)) or NOTHING) for mean_and_error in numbers]


def _seeds(n: int, n_left_out: int) -> str:
    if not n + n_left_out:
        return "not run"
    return f"{n} of {n + n_left_out}" if n_left_out else str(n)


def paper_table(experiment: str, data: str, bits: int | None = None) -> dict[str, Any]:
    """The table that runs of an experiment on a data set can be compared with; empty if the paper has none."""
    for table in paper_tables():
        is_meant = data in table["data"] if "data" in table else data not in table["other_than"]
        if is_meant and (table["experiment"], table.get("bits")) == (experiment, bits):
            return table
    return {}


@functools.lru_cache
def paper_tables() -> list[dict[str, Any]]:
    """All tables of the paper: for each method its values by name, a mean and where the paper has one a standard error."""
    text = (importlib.resources.files("sparsum_experiments.report") / "paper.toml").read_text(encoding="utf-8")
    tables: list[dict[str, Any]] = tomllib.loads(text, parse_float=decimal.Decimal)["tables"]  # 3.60 stays 3.60
    return tables
