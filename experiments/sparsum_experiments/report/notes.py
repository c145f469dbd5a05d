"""Sentences for around a table, made from its numbers: what was found, and what its numbers are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sparsum_experiments.report.columns import CALLS, Column
from sparsum_experiments.report.rows import Row, table_rows
from sparsum_experiments.report.sections import Section
from sparsum_experiments.report.summary import Statistic, number
from sparsum_experiments.runs import Run

# The names of estimates begin with this; other metrics take no samples.
_ESTIMATES = "bits_per_dim"
_COUNTS = {"n_samples": "samples", "n_annealed": "annealed images"}


class _Found(NamedTuple):
    """A number of a method or a setting, as text, and its calls in words."""

    method: str
    label: str
    value: Statistic
    text: str
    calls: str = ""


def finding(section: Section, rows: Sequence[Row] | None = None) -> str:
    """One sentence on what was found: the best method, its cost, and how far the next one is behind.

    It is about the first metric by which the rows of a table are judged or, before anything was evaluated, about the
    criterion on validation data.
    """
    rows = table_rows(section) if rows is None else rows
    for column in section.columns:
        if column.better and (found := _of_column(column, rows)):
            name, _, way = column.heading.removesuffix(" %").partition(", ")
            return _comparison(f"{name} ({way})" if way else name, column.better, found)
    if not section.summaries:
        return "No epoch is finished yet."
    found = [
        _Found(summary.method, summary.label, value, number(value, value.n))
        for summary in section.best
        if (value := summary.validation.get(section.criterion)) and math.isfinite(value.mean)
    ]
    if not found:
        return f"No validation {section.criterion or 'metric'} is finite."
    so_far = " so far" if any(summary.unfinished for summary in section.best) else ""
    return _comparison(f"validation {section.criterion}{so_far}", section.kind.sign, found)


def _of_column(column: Column, rows: Sequence[Row]) -> list[_Found]:
    unit = " %" if column.heading.endswith(" %") else ""
    found = []
    for row in rows:
        value, calls = column.statistic(row.runs), CALLS.statistic(row.runs)
        if value and math.isfinite(value.mean):
            text = f"{number(value, len(row.runs), column.digits)}{unit}"
            cost = (
                f", with {number(calls, calls.n, 2).partition(' ')[0]} decoder calls per example in the last epoch"
                if calls
                else ""
            )
            found.append(_Found(row.method, row.label, value, text, cost))
    return found


def _comparison(what: str, better: int, found: Sequence[_Found]) -> str:
    ordered = sorted(found, key=lambda each: -better * each.value.mean)
    first, *others = ordered
    if not others:
        return f"{first.label} is the only one with a result: {what} {first.text}{first.calls}."
    most = "highest" if better > 0 else "lowest"
    equal = [each for each in ordered if each.value.mean == first.value.mean]
    if len(equal) > 1:
        names = f"{', '.join(each.label for each in equal[:-1])} and {equal[-1].label}"
        text = f"{names} have the same {what}, the {most}: {first.text}"
    else:
        text = f"{first.label} has the {most} {what}, {first.text}{first.calls}"
    others = ordered[len(equal) :]
    # Settings of the same method follow only where there is no other method.
    methods = {each.method for each in equal}
    if after := next((each for each in others if each.method not in methods), next(iter(others), None)):
        text += f"; {after.label} follows with {after.text}{_distance(first.value, after.value)}"
    return f"{text}."


def _distance(one: Statistic, other: Statistic) -> str:
    """How far two means are apart, where that may be chance."""
    if one.error is None or other.error is None:
        return ", but a single seed does not show whether the difference is chance"
    gap, error = abs(one.mean - other.mean), math.hypot(one.error, other.error)
    if gap <= error:
        return ", within one standard error of the difference"
    return ", within two standard errors of the difference" if gap <= 2 * error else ""


def measures_note(section: Section, rows: Sequence[Row], header: Sequence[str]) -> str:
    """What the numbers of a table are."""
    counts = sorted({len(row.runs) for row in rows if row.runs})
    is_tested = any(run.test for row in rows for run in row.runs)
    if not counts:
        return f"No run on {section.data} is finished{' and evaluated' * (not section.kind.is_own)} yet."
    n_seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    what = "one seed each" if counts == [1] else f"means ± standard errors over {n_seeds} seeds"
    calls = " Calls are decoder calls per training example." if CALLS.heading in header else ""
    seconds = " Seconds are of training." if "seconds" in header else ""
    return f"{'Test' if is_tested else 'Validation'} data of {section.data}, after the last epoch; {what}.{calls}{seconds}"


def estimates_note(rows: Sequence[Row]) -> str:
    """With how many samples and annealed images bits per dimension were estimated; empty where they were not."""
    runs = [(row.label, run) for row in rows for run in row.runs if any(name.startswith(_ESTIMATES) for name in run.test)]
    same, different = [], []
    for kind, words in _COUNTS.items():
        labels: dict[float, dict[str, None]] = {}
        for label, run in sorted(runs, key=lambda each: each[1].counts.get(kind, 0)):
            if kind in run.counts:
                labels.setdefault(run.counts[kind], {})[label] = None
        if len(labels) == 1:
            same.append(f"{next(iter(labels)):g} {words}")
        elif labels:
            parts = [f"{n:g} ({', '.join(row.label for row in rows if row.label in names)})" for n, names in labels.items()]
            different.append(
                f"Bits/dim were estimated with different numbers of {words} and cannot be compared: {'; '.join(parts)}."
            )
    return " ".join([f"Bits/dim were estimated with {' and '.join(same)}."] * bool(same) + different)


def left_out_note(rows: Sequence[Row]) -> str:
    """The runs that are not averaged, and why."""
    named = [f"{row.label}, seed {run.args['seed']} ({_reason(run)})" for row in rows for run in row.left_out]
    return f"Not averaged, {len(named)} run{'s' * (len(named) != 1)}: {'; '.join(named)}." if named else ""


def _reason(run: Run) -> str:
    n_epochs = int(run.args["epochs"])
    return "not evaluated" if run.is_finished else f"{len(run.lines)} of {n_epochs} epoch{'s' * (n_epochs != 1)}"
