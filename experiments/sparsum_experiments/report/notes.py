"""Sentences for around a table, made from its numbers: what was found, and what its numbers are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from sparsum_experiments.registry import NAMES, experiment_options, make_args
from sparsum_experiments.report.columns import CALLS, Column
from sparsum_experiments.report.sections import Row, Section
from sparsum_experiments.report.summary import Statistic, Summary, fixed, grouped, number, options_text, used_options
from sparsum_experiments.runs import Run, rounded

# The names of estimates begin with this; other metrics take no samples.
_ESTIMATES = "bits_per_dim"
_COUNTS = {"n_samples": "samples", "n_annealed": "annealed images"}


def finding(section: Section, rows: Sequence[Row]) -> str:
    """One sentence on what was found: the best method, its cost, and how far the next one is behind.

    It is about the first metric by which the rows of a table are judged or, before anything was evaluated, about the
    criterion on validation data.
    """
    for column in section.columns:
        if column.better and (text := _best_of(column, rows, with_calls=True)):
            return text
    if not section.summaries:
        return "No epoch is finished yet."
    name, best = f"validation {section.criterion or 'metric'}", section.best
    so_far = " so far" * any(summary.unfinished for summary in best)
    column = Column(name + so_far, lambda run: run.validation.get(section.criterion), None, section.kind.sign)
    return _best_of(column, best, with_calls=False) or f"No finite {name} was measured."


def _best_of(column: Column, rows: Sequence[Row | Summary], *, with_calls: bool) -> str:
    """Which row has the best number of a column, in words; empty if no row has a finite one."""
    values = [(row, value) for row in rows if (value := column.statistic(row.runs)) and math.isfinite(value.mean)]
    if not values:
        return ""
    ordered = sorted(values, key=lambda each: -column.better * each[1].mean)
    unit = " %" * column.heading.endswith(" %")
    texts = [number(value, len(row.runs), column.digits) + unit for row, value in ordered]
    name, _, way = column.heading.removesuffix(" %").partition(", ")
    what = f"{name} ({way})" if way else name
    first, best = ordered[0]
    calls = CALLS.statistic(first.runs) if with_calls else None
    cost = f", with {fixed(calls.mean, 2)} decoder calls per example in the last epoch" if calls else ""
    if len(ordered) == 1:
        return f"{first.label} is the only one with a result: {what} {texts[0]}{cost}."
    most = "highest" if column.better > 0 else "lowest"
    *equal, last = [row for row, value in ordered if value.mean == best.mean]
    if equal:
        text = f"{', '.join(row.label for row in equal)} and {last.label} have the same {what}, the {most}: {texts[0]}"
    else:
        text = f"{first.label} has the {most} {what}, {texts[0]}{cost}"
    # Settings of the same method follow only where there is no other method.
    methods, others = {row.method for row in (*equal, last)}, range(len(equal) + 1, len(ordered))
    for i in sorted(others, key=lambda i: ordered[i][0].method in methods)[:1]:
        text += f"; {ordered[i][0].label} follows with {texts[i]}{_distance(best, ordered[i][1])}"
    return f"{text}."


def _distance(one: Statistic, other: Statistic) -> str:
    """How far two means are apart, where that may be chance."""
    if one.error is None or other.error is None:
        return ", but a single seed does not show whether the difference is chance"
    gap, error = abs(one.mean - other.mean), math.hypot(one.error, other.error)
    if gap <= error:
        return ", within one standard error of the difference"
    return ", within two standard errors of the difference" if gap <= 2 * error else ""


def measures_note(section: Section, rows: Sequence[Row], header: Iterable[str]) -> str:
    """What the numbers of a table are."""
    counts = sorted({len(row.runs) for row in rows if row.runs})
    if not counts:
        if any(run.is_finished for row in rows for run in row.left_out):
            return f"No run on {section.data} has test metrics yet: sparsum evaluate measures them."
        return f"No run on {section.data} is finished{' and evaluated' * (not section.kind.is_own)} yet."
    n_seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    what = "one seed each" if counts == [1] else f"means ± standard errors over {n_seeds} seeds"
    split = "Test" if any(run.test for row in rows for run in row.runs) else "Validation"
    calls = " Calls are decoder calls per training example." * (CALLS.heading in header)
    seconds = " Seconds are of training." * ("seconds" in header)
    return f"{split} data of {section.data}, after the last epoch; {what}.{calls}{seconds}"


def estimates_note(rows: Sequence[Row]) -> str:
    """With how many samples and annealed images bits per dimension were estimated; empty where they were not."""
    runs = [(row.label, run) for row in rows for run in row.runs if any(name.startswith(_ESTIMATES) for name in run.test)]
    same, different = [], []
    for name, words in _COUNTS.items():
        pairs = [(label, f"{run.counts[name]:g}") for label, run in runs if name in run.counts]
        if len(values := {value for _, value in pairs}) == 1:
            same.append(f"{values.pop()} {words}")
        elif pairs:
            parts = _labels_by_value(sorted(pairs, key=lambda pair: float(pair[1])))
            different.append(f"Bits/dim were estimated with different numbers of {words} and cannot be compared: {parts}.")
    return " ".join([f"Bits/dim were estimated with {' and '.join(same)}."] * bool(same) + different)


def machines_note(groups: Iterable[tuple[str, Sequence[Run]]]) -> str:
    """A sentence on the machines of averaged runs, by the label of each row; empty where none is known."""
    pairs = list(dict.fromkeys((label, run.machine or "unknown") for label, runs in groups for run in runs))
    if len(machines := {machine for _, machine in pairs}) < 2:
        return f"Seconds were measured on {machines.pop()}." if machines - {"unknown"} else ""
    mixed = [label for label, found in grouped(pairs, lambda pair: pair[0]).items() if len(found) > 1]
    averaged = f" The seconds of {', '.join(mixed)} are means over different machines." if mixed else ""
    return f"Seconds were measured on different machines and cannot be compared: {_labels_by_value(pairs)}.{averaged}"


def _labels_by_value(pairs: Iterable[tuple[str, str]]) -> str:
    groups = grouped(dict.fromkeys(pairs), lambda pair: pair[1])
    return "; ".join(f"{value} ({', '.join(label for label, _ in found)})" for value, found in groups.items())


def settings_note(section: Section, rows: Sequence[Row]) -> str:
    """The options that all rows share, then those of each: the main ones, and those that differ or are not the default."""
    runs = {row.label: row.first for row in rows if row.first}
    used = {label: used_options(run.experiment, run.args["method"], run.args) for label, run in runs.items()}
    main = [name for name, option in experiment_options(section.experiment).items() if option.is_main]
    changed = {name for label, run in runs.items() for name in _changed(run, used[label])}
    names = dict.fromkeys(name for options in used.values() for name in options)
    values = {name: {repr(options.get(name)) for options in used.values()} for name in names}
    shown = [name for name in main if name in names]
    shown += [name for name in names if name not in main and (name in changed or len(values[name] - {"None"}) > 1)]
    common = {name: options[name] for options in used.values() for name in shown if len(values[name]) == 1}
    parts = [("all rows", common)]
    parts += [(label, {n: options[n] for n in shown if n in options and n not in common}) for label, options in used.items()]
    texts = [f"{label}: {options_text(options)}" for label, options in parts if options]
    return f"Settings of {'; '.join(texts)}." if texts else ""


def _changed(run: Run, used: Iterable[str]) -> set[str]:
    """The options of a run that are not the defaults of its method; all of them where there are no defaults."""
    if run.experiment not in NAMES:
        return set(used)
    try:
        given = {name: run.args.get(name) for name in ("data", "bits")}
        default = rounded(make_args(run.experiment, run.args["method"], given).model_dump())
    except ValueError:  # a method of another version
        return set()
    return {name for name in used if default.get(name) != run.args[name]}


def unfinished_note(summaries: Iterable[Summary], beginning: str) -> str:
    """A sentence on settings of which no run is finished; empty if there are none."""
    found = [f"{summary.label}, {summary.unfinished}" for summary in summaries if summary.unfinished]
    return f"{beginning}: {'; '.join(found)}." if found else ""


def left_out_note(rows: Sequence[Row]) -> str:
    """The runs that are not averaged, and why; without those that a search stopped, on which there is another note."""
    left_out = [(row.label, run) for row in rows for run in row.left_out if not run.stop]
    if not any(row.runs for row in rows) and all(run.is_finished for _, run in left_out):
        return ""  # none is evaluated, which `measures_note` says
    named = [f"{label}, seed {run.args['seed']} ({_reason(run)})" for label, run in left_out]
    return f"Not averaged, {len(named)} run{'s' * (len(named) != 1)}: {'; '.join(named)}." if named else ""


def _reason(run: Run) -> str:
    n_epochs = int(run.args["epochs"])
    return "not evaluated" if run.is_finished else f"{len(run.lines)} of {n_epochs} epoch{'s' * (n_epochs != 1)}"


def search_note(section: Section) -> str:
    """What a search has tried, and where it stopped each setting; empty if there was none."""
    texts = []
    for method, members in grouped(section.summaries, lambda summary: summary.method).items():
        if stopped := [summary for summary in members if is_stopped(summary.runs)]:
            about = [f"{each.setting_text or 'no variant'} {_place(each, section)}" for each in stopped]
            texts.append(f"{method}: {len(members)} settings, of which it stopped {'; '.join(about)}")
    return f"A search tried {'. '.join(texts)}." if texts else ""


def is_stopped(runs: Sequence[Run]) -> bool:
    """Whether there are runs, and a search has stopped them all."""
    return bool(runs) and all(run.stop for run in runs)


def _place(summary: Summary, section: Section) -> str:
    """Where a search stopped a setting, in words."""
    run, criterion = summary.runs[0], section.kind.criterion_of(summary.method)
    value = (
        f", {criterion} {number(summary.validation[criterion], len(summary.runs))}"
        if criterion in summary.validation
        else ""
    )
    return f"after epoch {len(run.lines)} (rank {run.stop.get('rank', 0):.0f} of {run.stop.get('among', 0):.0f}{value})"
