"""Summaries as the cells of a table, for the terminal and for a page."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from sparsum_experiments.registry import experiment_class
from sparsum_experiments.report.columns import columns_of
from sparsum_experiments.report.sections import Section, read_sections
from sparsum_experiments.report.settings import is_used
from sparsum_experiments.report.summary import Statistic, Summary, best_by_method, fixed

LEFT_ALIGNED = {"method", "setting"}
_SPLITS = ("validation", "test")
# The columns of words, which are read well on two or three lines of so many signs.
_FOLDED, _MAX_WORDS = {"setting", "seeds"}, 28


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
            n_runs = [len(summary.runs) for summary in summaries]
            shown = [_number(values.get(name), n) for values, n in zip(metrics, n_runs, strict=True)]
            columns.append((f"{split} {name}", shown))
    if "validation" in splits:
        columns.append(("training calls", [fixed(summary.calls.mean, 2) if summary.calls else "-" for summary in summaries]))
        columns.append(("training seconds", [fixed(summary.seconds.mean, 1) for summary in summaries]))
    header, contents = zip(*columns, strict=True)
    return [list(header), *map(list, zip(*contents, strict=True))]


class _Fitting:
    """The tables of all metrics where the terminal is wide enough for them, or else a small one."""

    def __init__(self, title: str, summaries: Sequence[Summary], experiment: str) -> None:
        self.title, self.summaries, self.experiment = title, summaries, experiment
        self.criterion = experiment_class(experiment).criterion

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        used = [split for split in _SPLITS if any(_metrics(summary, split) for summary in self.summaries)]
        lines = {split: _dense(split, cells(self.summaries, self.criterion, [split])) for split in used}
        if all(_width(each) <= options.max_width for each in lines.values()):
            for split, each in lines.items():
                yield _rich_table(f"{self.title}: {split}", each)
            return
        best = best_by_method(self.summaries, self.experiment)
        kind = "" if len(best) == len(self.summaries) else ", the best setting of each method"
        yield _rich_table(f"{self.title}{kind}", _headline_cells(best, self.criterion))
        yield Text("A wider terminal shows all metrics and settings.\n", style="dim")


def rich_tables(title: str, summaries: Sequence[Summary], experiment: str) -> Group:
    """For the terminal: a table of the validation metrics, and one of the test metrics if there are any.

    Where they do not fit, a single one of what methods are compared by: numbers that are folded cannot be read.
    """
    return Group(_Fitting(title, summaries, experiment))


def summary_table(runs: Iterable[pathlib.Path]) -> Group:
    """For the terminal, tables for each experiment and data set of all runs in or below some folders."""
    return sections_table(*read_sections(runs))


def sections_table(sections: Sequence[Section], problems: Sequence[str]) -> Group:
    """As `summary_table`, of what `read_sections` has read."""
    shown: list[Group | Text] = []
    for section in sections:
        if section.summaries:
            shown.append(rich_tables(section.title, section.summaries, section.experiment))
        else:
            shown.append(Text(f"{section.title}: no epoch is finished yet"))
    return Group(*shown, *(Text(f"left out: {problem}") for problem in problems))


def _headline_cells(summaries: Sequence[Summary], criterion: str) -> list[list[str]]:
    """The header and a row for each summary: the validation criterion, and the first test metric if any has it."""
    column = columns_of(summaries[0].runs[0].experiment)[0]
    tested = [column.statistic(summary.runs) for summary in summaries]
    rows = [["method", "seeds", f"validation {criterion}", f"test {column.heading}"]]
    for summary, test in zip(summaries, tested, strict=True):
        n_runs = len(summary.runs)
        rows.append(
            [
                summary.method,
                _seeds(summary),
                _number(summary.validation.get(criterion), n_runs),
                _number(test, n_runs),
            ]
        )
    return _dense("", rows if any(tested) else [row[:-1] for row in rows])


def _dense(split: str, lines: list[list[str]]) -> list[list[str]]:
    """Cells without what the title of a table says already."""
    return [[cell.removeprefix(f"{split} ").replace("± ", "±") for cell in line] for line in lines]


def _width(lines: list[list[str]]) -> int:
    """How wide a table has to be so that no number is folded; words may be, at their spaces."""
    n_columns = [_column_width(name, cells) for name, *cells in zip(*lines, strict=True)]
    return sum(n_columns) + 2 * len(n_columns)


def _column_width(name: str, cells: Sequence[str]) -> int:
    longest = max(map(len, cells), default=0)
    return max(max(map(len, name.split()), default=0), min(longest, _MAX_WORDS) if name in _FOLDED else longest)


def _rich_table(title: str, lines: list[list[str]]) -> Table:
    """A dense table; where it is still too wide, cells are folded, and nothing is cut off."""
    header, *rows = lines
    table = Table(
        title=title,
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
    """What sets the runs apart, as far as it makes a difference to the method."""
    experiment = summary.runs[0].experiment if summary.runs else ""
    told = {name: value for name, value in summary.setting.items() if is_used(experiment, summary.method, name, value)}
    return ", ".join(f"{name} {value}" for name, value in told.items())


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
