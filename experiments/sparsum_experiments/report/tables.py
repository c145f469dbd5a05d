"""Summaries as the cells of a table, for the terminal and for a page."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from sparsum_experiments.files import printable
from sparsum_experiments.report.columns import columns_of
from sparsum_experiments.report.kinds import kind_of
from sparsum_experiments.report.sections import Section, read_sections
from sparsum_experiments.report.summary import NOTHING, Statistic, Summary, best_by_method, fixed, number

LEFT_ALIGNED = {"method", "setting"}
_SPLITS = ("validation", "test")
# The columns of words, which may be folded into several lines of so many letters.
_FOLDED, _MAX_WORDS = {"setting", "seeds"}, 28


def cells(summaries: Sequence[Summary], criterion: str, splits: Sequence[str] = _SPLITS) -> list[list[str]]:
    """The header and a row for each summary, as text; the criterion is the first metric of each split.

    The cost of training is beside the validation metrics.
    """
    columns = {"method": [summary.method for summary in summaries]}
    if any(summary.setting for summary in summaries):
        columns["setting"] = [summary.setting_text for summary in summaries]
    columns["seeds"] = [_seeds(summary) for summary in summaries]
    for split in splits:
        names = dict.fromkeys(name for summary in summaries for name in _metrics(summary, split))
        for name in sorted(names, key=lambda name: name != criterion):
            columns[f"{split} {name}"] = [number(_metrics(each, split).get(name), len(each.runs)) for each in summaries]
    if "validation" in splits:
        if any(summary.calls for summary in summaries):
            columns["training calls"] = [fixed(each.calls.mean, 2) if each.calls else NOTHING for each in summaries]
        columns["training seconds"] = [fixed(each.seconds.mean, 1) for each in summaries]
    return [list(columns), *map(list, zip(*columns.values(), strict=True))]


def _metrics(summary: Summary, split: str) -> dict[str, Statistic]:
    return summary.validation if split == "validation" else summary.test


def _seeds(summary: Summary) -> str:
    """How many runs are finished, of how many."""
    if summary.n_finished == summary.n_runs:
        return str(summary.n_runs)
    text = f"{summary.n_finished} of {summary.n_runs}"
    return f"{text}, {summary.unfinished}" if summary.unfinished else text


def summary_table(places: Iterable[pathlib.Path]) -> Group:
    """For the terminal, tables for each experiment and data set of all runs in or below some folders."""
    return sections_table(*read_sections(places))


def sections_table(sections: Sequence[Section], problems: Sequence[str]) -> Group:
    """As `summary_table`, of what `read_sections` has read."""
    shown: list[Group | Text] = []
    for section in sections:
        if section.summaries:
            shown.append(rich_tables(section.title, section.summaries, section.experiment))
        else:
            shown.append(_text(f"{section.title}: no epoch is finished yet"))
    return Group(*shown, *(_text(f"left out: {problem}") for problem in problems))


def rich_tables(title: str, summaries: Sequence[Summary], experiment: str) -> Group:
    """For the terminal: a table of the validation metrics, and one of the test metrics if there are any.

    Where they do not fit, there is a single one of the metrics by which methods are compared: numbers that are folded cannot
    be read.
    """
    return Group(_Fitting(title, summaries, experiment))


class _Fitting:
    """The tables of all metrics if the terminal is wide enough for them, or else a small one."""

    def __init__(self, title: str, summaries: Sequence[Summary], experiment: str) -> None:
        self.title, self.summaries, self.experiment = title, summaries, experiment
        self.criterion = kind_of(experiment, [run for summary in summaries for run in summary.runs]).criterion

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        used = [split for split in _SPLITS if any(_metrics(summary, split) for summary in self.summaries)]
        lines = {split: _dense(split, cells(self.summaries, self.criterion, [split])) for split in used}
        if all(_width(each) <= options.max_width for each in lines.values()):
            for split, each in lines.items():
                yield _rich_table(f"{self.title}: {split}", each)
            return
        best = best_by_method(self.summaries, self.experiment)
        which = "" if len(best) == len(self.summaries) else ", the best setting of each method"
        yield _rich_table(f"{self.title}{which}", self._headline_cells(best))
        yield Text("A wider terminal shows all metrics and settings.\n", style="dim")

    def _headline_cells(self, best: Sequence[Summary]) -> list[list[str]]:
        """The header and a row for each summary: the validation criterion, and the first test metric if any has it."""
        rows = [["method", "seeds", f"validation {self.criterion}"]]
        rows += [[each.method, _seeds(each), number(each.validation.get(self.criterion), len(each.runs))] for each in best]
        column = columns_of(self.experiment, [run for summary in best for run in summary.runs])[0]
        tested = [column.statistic(summary.runs) if summary.test else None for summary in best]
        if any(tested):
            rows[0].append(f"test {column.heading.removeprefix('test ')}")
            for row, summary, test in zip(rows[1:], best, tested, strict=True):
                row.append(number(test, len(summary.runs)))
        return _dense("", rows)


def _dense(split: str, lines: list[list[str]]) -> list[list[str]]:
    """Cells without what the title of a table says already."""
    return [[cell.removeprefix(f"{split} ").replace("± ", "±") for cell in line] for line in lines]


def _width(lines: list[list[str]]) -> int:
    """How wide a table has to be so that no number is folded; words may be, at their spaces."""
    widths = []
    for name, *column in zip(*lines, strict=True):
        longest = max(map(len, column), default=0)
        longest = min(longest, _MAX_WORDS) if name in _FOLDED else longest
        widths.append(max(longest, *map(len, name.split()), 0))
    return sum(widths) + 2 * len(widths)


def _rich_table(title: str, lines: list[list[str]]) -> Table:
    """A dense table; where it is still too wide, cells are folded, and nothing is cut off."""
    header, *rows = lines
    table = Table(title=_text(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.collapse_padding = True
    for name in header:
        table.add_column(_text(name), justify="left" if name in LEFT_ALIGNED else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(_text, row))
    return table


def _text(text: str) -> Text:
    """Text that is shown as it is: brackets are not markup, and control characters do not command the terminal."""
    return Text(printable(text))
