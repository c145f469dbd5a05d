"""Summaries as the cells of a table, for the terminal and for a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from sparsum_experiments.files import printable
from sparsum_experiments.report.columns import columns_of
from sparsum_experiments.report.sections import Section
from sparsum_experiments.report.summary import NOTHING, Statistic, Summary, best_by_method, fixed, kind_of, number

LEFT_ALIGNED = {"method", "setting"}
_SPLITS = ("validation", "test")
# Settings may be folded into lines of so many letters.
_SETTING_WIDTH = 22


def cells(summaries: Sequence[Summary], criterion: str, splits: Sequence[str] = _SPLITS) -> list[list[str]]:
    """The header and a row for each summary, as text; the criterion is the first metric of each split.

    The cost of training is beside the validation metrics.
    """
    columns = {"method": [summary.method for summary in summaries]}
    if any(summary.setting for summary in summaries):
        columns["setting"] = [summary.setting_text for summary in summaries]
    columns["seeds"] = [_seeds(summary) for summary in summaries]
    for split in splits:
        found: list[dict[str, Statistic]] = [getattr(summary, split) for summary in summaries]
        names = dict.fromkeys(name for metrics in found for name in metrics)
        for name in sorted(names, key=lambda name: name != criterion):
            numbers = zip(summaries, found, strict=True)
            columns[f"{split} {name}"] = [number(metrics.get(name), len(each.runs)) for each, metrics in numbers]
    if "validation" in splits:
        if any(summary.calls for summary in summaries):
            columns["training calls"] = [fixed(each.calls.mean, 2) if each.calls else NOTHING for each in summaries]
        columns["training seconds"] = [fixed(each.seconds.mean, 1) for each in summaries]
    return [list(columns), *map(list, zip(*columns.values(), strict=True))]


def _seeds(summary: Summary) -> str:
    """How many runs are finished, of how many."""
    if summary.n_finished == summary.n_runs:
        return str(summary.n_runs)
    return ", ".join(filter(None, [f"{summary.n_finished} of {summary.n_runs}", summary.unfinished]))


def sections_table(sections: Sequence[Section], problems: Sequence[str]) -> Group:
    """For the terminal, the tables of each section, and what could not be read."""
    return Group(
        *(
            SummaryTables(section.title, section.summaries, section.experiment)
            if section.summaries
            else _text(f"{section.title}: no epoch is finished yet")
            for section in sections
        ),
        *(_text(f"left out: {problem}") for problem in problems),
    )


@dataclass(frozen=True)
class SummaryTables:
    """For the terminal: a table of the validation metrics, and one of the test metrics if there are any.

    Where they do not fit, there is a single one of the metrics by which methods are compared: numbers that are folded cannot
    be read.
    """

    title: str
    summaries: Sequence[Summary]
    experiment: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        runs = [run for summary in self.summaries for run in summary.runs]
        criterion = kind_of(self.experiment, runs).criterion
        tables = [
            _rich_table(f"{self.title}: {split}", cells(self.summaries, criterion, [split]), split)
            for split in _SPLITS
            if any(getattr(summary, split) for summary in self.summaries)
        ]
        unlimited = options.update(width=10**6)
        if all(console.measure(table, options=unlimited).maximum <= options.max_width for table in tables):
            for table in tables:
                table.columns[1].max_width = None  # settings have the rest of the width
                yield table
            return
        best = best_by_method(self.summaries, self.experiment)
        which = "" if len(best) == len(self.summaries) else ", the best setting of each method"
        column = columns_of(self.experiment, [run for summary in best for run in summary.runs])[0]
        lines = [["method", "seeds", f"validation {criterion}", f"test {column.heading.removeprefix('test ')}"]]
        for summary in best:
            found = summary.validation.get(criterion), column.statistic(summary.runs) if summary.test else None
            lines.append([summary.method, _seeds(summary), *(number(each, len(summary.runs)) for each in found)])
        is_tested = any(line[-1] != NOTHING for line in lines[1:])
        yield _rich_table(f"{self.title}{which}", lines if is_tested else [line[:-1] for line in lines])
        yield Text("A wider terminal shows all metrics and settings.\n", style="dim")


def _rich_table(title: str, lines: list[list[str]], split: str = "") -> Table:
    """A dense table, whose cells are folded where it is too wide; in that of a split only settings are."""
    table = Table(title=_text(title, "bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.collapse_padding = True
    for name in lines[0]:
        table.add_column(
            _text(name.removeprefix(f"{split} ")),
            justify="left" if name in LEFT_ALIGNED else "right",
            overflow="fold",
            no_wrap=bool(split) and name != "setting",
            max_width=_SETTING_WIDTH if name == "setting" else None,
        )
    for line in lines[1:]:
        table.add_row(*(_text(cell.replace("± ", "±")) for cell in line))
    return table


def _text(text: str, style: str = "") -> Text:
    """Text that is shown as it is: brackets are not markup, and control characters do not command the terminal."""
    return Text(printable(text), style)
