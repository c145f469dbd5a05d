"""Summaries as the cells of a table, for the terminal and for a page."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from sparsum.experiments.report._sections import read_sections
from sparsum.experiments.report._summary import Statistic, Summary, fixed

LEFT_ALIGNED = {"method", "setting"}
_SPLITS = ("validation", "test")


def cells(summaries: Sequence[Summary], criterion: str, splits: Sequence[str] = _SPLITS) -> list[list[str]]:
    """The header and one row for each summary, as text; the criterion is the first of the metrics of each split.

    What training cost stands beside the validation metrics.
    """
    columns = [("method", [summary.method for summary in summaries])]
    if any(summary.setting for summary in summaries):
        columns.append(("setting", [_setting(summary) for summary in summaries]))
    columns.append(("seeds", [_seeds(summary) for summary in summaries]))
    for split in splits:
        metrics = [_metrics(summary, split) for summary in summaries]
        for name in _names(metrics, criterion):
            n_runs = [len(summary.records) for summary in summaries]
            shown = [_number(values.get(name), n) for values, n in zip(metrics, n_runs, strict=True)]
            columns.append((f"{split} {name}", shown))
    if "validation" in splits:
        columns.append(("training calls", [fixed(summary.calls.mean, 2) for summary in summaries]))
        columns.append(("training seconds", [fixed(summary.seconds.mean, 1) for summary in summaries]))
    header, contents = zip(*columns, strict=True)
    return [list(header), *map(list, zip(*contents, strict=True))]


def rich_tables(title: str, summaries: Sequence[Summary], criterion: str) -> Group:
    """For the terminal, which is narrow: a table of the validation metrics, and one of the test metrics if there are any."""
    used = [split for split in _SPLITS if any(_metrics(summary, split) for summary in summaries)]
    return Group(*(_rich_table(title, split, cells(summaries, criterion, [split])) for split in used))


def summary_table(runs: Iterable[pathlib.Path]) -> Group:
    """For the terminal, tables for each experiment and data set of all runs in or below some folders."""
    sections, problems = read_sections(runs)
    shown: list[Group | Text] = []
    for section in sections:
        if section.summaries:
            shown.append(rich_tables(section.title, section.summaries, section.criterion))
        else:
            shown.append(Text(f"{section.title}: no epoch is finished yet"))
    return Group(*shown, *(Text(f"left out: {problem}") for problem in problems))


def _rich_table(title: str, split: str, lines: list[list[str]]) -> Table:
    """A dense table; where it is still too wide, cells are folded, and nothing is cut off."""
    header, *rows = [[cell.removeprefix(f"{split} ").replace("± ", "±") for cell in line] for line in lines]
    table = Table(
        title=f"{title}: {split}",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for name in header:
        table.add_column(Text(name), justify="left" if name in LEFT_ALIGNED else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # a Text is shown as it is: a bracket in a name is no markup
    return table


def _metrics(summary: Summary, split: str) -> dict[str, Statistic]:
    return summary.validation if split == "validation" else summary.test


def _names(metrics: list[dict[str, Statistic]], first: str) -> list[str]:
    names = dict.fromkeys(name for values in metrics for name in values)
    return sorted(names, key=lambda name: name != first)


def _setting(summary: Summary) -> str:
    return ", ".join(f"{name} {value}" for name, value in summary.setting.items())


def _seeds(summary: Summary) -> str:
    """How many runs are counted, and how many are not or not to their end."""
    n = summary.n_finished
    if n == summary.n_runs:
        return str(n)
    if n:
        return f"{n} of {summary.n_runs}"
    return f"0 of {summary.n_runs}, {summary.unfinished}"


def _number(value: Statistic | None, n_runs: int) -> str:
    """The mean and its standard error; with the number of values where some runs have none."""
    if value is None:
        return "-"
    text = f"{value.mean:.4g}" if value.error is None else f"{value.mean:.4g} ± {value.error:.2g}"
    return text if value.n == n_runs else f"{text} (n={value.n})"
