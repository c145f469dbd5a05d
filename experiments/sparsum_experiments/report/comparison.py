"""Tables for an article: each method on the test data, beside what the paper reports."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparsum_experiments.registry import experiment_class
from sparsum_experiments.report.columns import Column, columns_of
from sparsum_experiments.report.estimates import estimates_note
from sparsum_experiments.report.machines import machines_note
from sparsum_experiments.report.paper import NOTHING, PaperTable, paper_table
from sparsum_experiments.report.rows import Row, table_rows
from sparsum_experiments.report.sections import Section, read_sections
from sparsum_experiments.report.settings import settings_note
from sparsum_experiments.report.summary import Statistic, best_by_method, fixed
from sparsum_experiments.runs import Run


@dataclass(frozen=True)
class Cell:
    """Text in a table, and whether it is the best of its column."""

    text: str
    is_best: bool = False


@dataclass(frozen=True)
class Comparison:
    """A table and what has to be said of it.

    Args:
        title: the experiment and the data set.
        header: the names of the columns, of which the first is of words and all others of numbers.
        rows: the cells of each row.
        notes: sentences for below it.
        finding: one sentence that says what was found.
    """

    title: str
    header: list[str]
    rows: list[list[Cell]]
    notes: list[str]
    finding: str = ""


def read_comparisons(places: Iterable[pathlib.Path]) -> tuple[list[Comparison], list[str]]:
    """The tables of all runs and runs in or below some folders, and what could not be read.

    Raises:
        UsageError: if there is no run at all.
    """
    sections, problems = read_sections(places)
    return [compare(section) for section in sections], problems


def compare(section: Section, *, best_only: bool = False) -> Comparison:
    """The table of a section.

    Args:
        section: the runs.
        best_only: only the best setting of each method by the validation data has a row; runs of others that are not
            averaged are still named.
    """
    paper = paper_table(section.experiment, section.data, section.bits)
    every = table_rows(section.runs, experiment_class(section.experiment).methods, paper.rows if paper else ())
    rows = _best(every, section) if best_only else every
    columns = {"method": [Cell(row.label) for row in rows]}
    for column in columns_of(section.experiment):
        if column.is_optional and not any(column.statistic(row.runs) for row in rows):
            continue
        columns[column.heading] = _cells(column, rows)
        if paper and any(column.paper in values for values in paper.rows.values()):
            columns[column.paper_heading] = _paper_cells(paper, column.paper, rows)
    columns["seeds"] = [Cell(_seeds(row)) for row in rows]
    notes = [
        _measures(section.data, rows),
        estimates_note((row.label, row.runs) for row in rows),
        settings_note(section.experiment, rows),
        machines_note((row.label, row.runs) for row in rows),
        paper.note if paper else "",
        _left_out(every),
    ]
    return Comparison(
        title=section.title,
        header=list(columns),
        rows=[list(cells) for cells in zip(*columns.values(), strict=True)],
        notes=list(filter(None, notes)),
    )


def _best(rows: Sequence[Row], section: Section) -> list[Row]:
    """The rows of the best settings, and those of methods that have not been run or measured nothing.

    Where some settings of a method were evaluated, it is the best of these.
    """
    tested = best_by_method([summary for summary in section.summaries if summary.test], section.experiment)
    best = {summary.method: summary for summary in (*section.best, *tested)}
    chosen = {run.path for summary in best.values() for run in summary.runs}
    return [row for row in rows if row.method not in best or any(run.path in chosen for run in (*row.runs, *row.left_out))]


def _cells(column: Column, rows: Sequence[Row]) -> list[Cell]:
    """Means and errors; the best is marked where there is something to compare it with."""
    found = [column.statistic(row.runs) for row in rows]
    ranks = [_rank(column, each) for each in found]
    is_marked = column.better and sum(math.isfinite(rank) for rank in ranks) > 1
    return [
        Cell(_number(each, column.digits, len(row.runs)), bool(is_marked) and math.isfinite(rank) and rank == max(ranks))
        for each, rank, row in zip(found, ranks, rows, strict=True)
    ]


def _rank(column: Column, found: Statistic | None) -> float:
    """The larger the better; what is no number is the worst."""
    return column.better * found.mean if found is not None and math.isfinite(found.mean) else -math.inf


def _number(found: Statistic | None, digits: int, n_runs: int) -> str:
    """The mean and its standard error; with the number of values where some runs have none."""
    if found is None:
        return NOTHING
    text = fixed(found.mean, digits) + ("" if found.error is None else f" ± {fixed(found.error, digits)}")
    return text if found.n == n_runs else f"{text} (n={found.n})"


def _paper_cells(paper: PaperTable, name: str, rows: Sequence[Row]) -> list[Cell]:
    """The paper's numbers, each at the first row of its method: it has no variants."""
    firsts = [i == 0 or rows[i - 1].method != row.method for i, row in enumerate(rows)]
    return [Cell(paper.number(row.method, name) if first else NOTHING) for row, first in zip(rows, firsts, strict=True)]


def _seeds(row: Row) -> str:
    n, n_all = len(row.runs), len(row.runs) + len(row.left_out)
    if not n_all:
        return "not run"
    return str(n) if n == n_all else f"{n} of {n_all}"


def _measures(data: str, rows: Sequence[Row]) -> str:
    """What the numbers are."""
    counts = sorted({len(row.runs) for row in rows if row.runs})
    if not counts:
        return f"No run on {data} is finished and evaluated yet."
    n_seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    what = "one seed each" if counts == [1] else f"means ± standard errors over {n_seeds} seeds"
    return (
        f"Test data of {data}, after the last epoch; {what}. "
        "Calls: of the decoder, for each training example. Seconds: of training."
    )


def _left_out(rows: Sequence[Row]) -> str:
    """The runs that are not averaged."""
    found = [(row, run) for row in rows for run in row.left_out]
    if not found:
        return ""
    named = [f"{row.label}, seed {run.args['seed']} ({_reason(run)})" for row, run in found]
    return f"Not averaged, {len(found)} run{'s' * (len(found) > 1)}: {'; '.join(named)}."


def _reason(run: Run) -> str:
    if not run.is_finished:
        return f"{len(run.lines)} of {run.args['epochs']} epochs"
    return "not evaluated"
