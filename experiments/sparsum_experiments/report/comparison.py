"""Tables for an article: each method on the test data, beside the numbers of the paper, which are in ``paper.toml``."""

from __future__ import annotations

import decimal
import functools
import importlib.resources
import math
import pathlib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparsum_experiments.report.columns import Column
from sparsum_experiments.report.machines import machines_note
from sparsum_experiments.report.notes import estimates_note, finding, left_out_note, measures_note
from sparsum_experiments.report.sections import Row, Section, best_rows, read_sections, table_rows
from sparsum_experiments.report.settings import settings_note
from sparsum_experiments.report.summary import NOTHING, number


@dataclass(frozen=True)
class Cell:
    """Text in a table, and whether it is the best of its column."""

    text: str
    is_best: bool = False


@dataclass(frozen=True)
class Comparison:
    """A table and the sentences around it.

    Args:
        title: the experiment and the data set.
        header: the names of the columns; the first is of text, all others are of numbers.
        rows: the cells of each row.
        notes: sentences for below it.
        finding: the sentence that opens it: what was found.
    """

    title: str
    header: list[str]
    rows: list[list[Cell]]
    notes: list[str]
    finding: str


def read_comparisons(places: Iterable[pathlib.Path]) -> tuple[list[Comparison], list[str]]:
    """The tables of all runs and records in or below some folders, and what could not be read.

    Raises:
        UsageError: if there is no run at all.
    """
    sections, problems = read_sections(places)
    return [compare(section) for section in sections], problems


def compare(section: Section, *, best_only: bool = False) -> Comparison:
    """The table of a section.

    Args:
        section: the runs.
        best_only: only the best setting of each method on the validation data has a row; runs of other settings that are
            not averaged are still named.
    """
    paper = paper_table(section.experiment, section.data, section.bits)
    every = table_rows(section, paper.rows)
    rows = best_rows(every, section) if best_only else every
    columns = {"method": [Cell(row.label) for row in rows]}
    for column in section.columns:
        if column.is_optional and not any(column.statistic(row.runs) for row in rows):
            continue
        columns[column.heading] = _cells(column, rows)
        if paper.has(column.paper):
            columns[column.paper_heading] = _paper_cells(paper, column.paper, rows)
    columns["seeds"] = [Cell(_seeds(row)) for row in rows]
    notes = [
        measures_note(section, rows, list(columns)),
        estimates_note(rows),
        settings_note((row.label, row.first) for row in rows if row.first),
        machines_note((row.label, row.runs) for row in rows),
        paper.note,
        left_out_note(every),
    ]
    cells = [list(row) for row in zip(*columns.values(), strict=True)]
    return Comparison(section.title, list(columns), cells, list(filter(None, notes)), finding(section, rows))


def _cells(column: Column, rows: Sequence[Row]) -> list[Cell]:
    """Means and errors; the best is marked where there is something to compare it with."""
    found = [column.statistic(row.runs) for row in rows]
    ranks = [column.better * each.mean if each and math.isfinite(each.mean) else -math.inf for each in found]
    is_marked = column.better != 0 and sum(map(math.isfinite, ranks)) > 1
    return [
        Cell(number(each, len(row.runs), column.digits), is_marked and math.isfinite(rank) and rank == max(ranks))
        for each, rank, row in zip(found, ranks, rows, strict=True)
    ]


def _paper_cells(paper: PaperTable, name: str, rows: Sequence[Row]) -> list[Cell]:
    """The paper's numbers, each at the first row of its method: the paper has no variants."""
    methods = [row.method for row in rows]
    return [Cell(paper.number(method, name) if methods.index(method) == i else NOTHING) for i, method in enumerate(methods)]


def _seeds(row: Row) -> str:
    n, n_all = len(row.runs), len(row.runs) + len(row.left_out)
    if not n_all:
        return "not run"
    return str(n) if n == n_all else f"{n} of {n_all}"


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper; an empty one where it has none.

    Args:
        rows: for each method its values by name: a mean, and where the paper has one its standard error.
        note: what a reader has to know of them.
    """

    rows: Mapping[str, Mapping[str, list[Any]]] = field(default_factory=dict)
    note: str = ""

    def has(self, name: str) -> bool:
        """Whether any method has a value of this name."""
        return any(name in values for values in self.rows.values())

    def number(self, method: str, name: str) -> str:
        """A value as the paper prints it."""
        return " ± ".join(map(str, self.rows.get(method, {}).get(name, []))) or NOTHING


def paper_table(experiment: str, data: str, bits: int | None = None) -> PaperTable:
    """The table that runs of an experiment on a data set can be compared with."""
    for table in read_tables():
        is_meant = data in table["data"] if "data" in table else data not in table["other_than"]
        if is_meant and (table["experiment"], table.get("bits")) == (experiment, bits):
            return PaperTable(table["rows"], table["note"])
    return PaperTable()


@functools.lru_cache
def read_tables() -> list[dict[str, Any]]:
    """All tables of the paper."""
    text = (importlib.resources.files("sparsum_experiments.report") / "paper.toml").read_text(encoding="utf-8")
    tables: list[dict[str, Any]] = tomllib.loads(text, parse_float=decimal.Decimal)["tables"]  # 3.60 stays 3.60
    return tables
