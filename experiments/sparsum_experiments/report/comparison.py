"""Tables for an article: each method on the test data, beside the numbers of the paper."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparsum_experiments.report.columns import Column
from sparsum_experiments.report.machines import machines_note
from sparsum_experiments.report.notes import estimates_note, finding, left_out_note, measures_note
from sparsum_experiments.report.paper import PaperTable, paper_table
from sparsum_experiments.report.rows import Row, best_rows, table_rows
from sparsum_experiments.report.sections import Section, read_sections
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
