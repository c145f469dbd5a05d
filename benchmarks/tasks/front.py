"""The table of the front page, from the records of all tasks: ``python -m benchmarks.tasks.front``.

It prints the table, and ``--write`` puts it into README.md and docs/tasks/index.md.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.tasks.__main__ import task_class
from benchmarks.tasks.records import FOLDER, PAGES, Records, cell, write_page
from benchmarks.tasks.task import Trial

README = pathlib.Path(__file__).parents[2] / "README.md"


@dataclass(frozen=True)
class Headline:
    """A line of the table: one setting of a task, and one metric."""

    task: str  # its name, which is that of its page, too
    setting: str
    title: str  # the problem, for somebody who has not seen the page
    metric: str
    unit: str  # what the metric is, as readers know it
    published: str  # the best published figure, with its source; in words if there is none
    ours: tuple[str, ...]  # the rows that sum exactly
    samplers: tuple[str, ...]  # the rows that sample or relax
    is_smaller_better: bool = False


#: In the order of the table.
HEADLINES: tuple[Headline, ...] = ()


def front(headlines: Iterable[Headline] = HEADLINES, folder: pathlib.Path = FOLDER) -> str:
    """Markdown: the best row of ours beside the best sampler and the best published figure."""
    lines = ["| task | metric | best published | best sampler here | ours |", "| --- | --- | --- | --- | --- |"]
    for headline in headlines:
        found = Records(folder / f"{headline.task}.jsonl").read()
        best = [_best(headline, rows, found) for rows in (headline.samplers, headline.ours)]
        link = f"[{headline.title}](docs/tasks/{headline.task}.md)"
        lines.append(f"| {link} | {headline.unit} | {headline.published} | {' | '.join(best)} |")
    return "\n".join(lines)


def _best(headline: Headline, rows: tuple[str, ...], found: Mapping[Trial, Mapping[str, Any]]) -> str:
    """The best of some rows: the mean over its seeds, and its name."""
    values = {
        row: [
            values["metrics"][headline.metric]
            for trial, values in found.items()
            if (trial.setting, trial.row, trial.is_tuning) == (headline.setting, row, False)
        ]
        for row in rows
    }
    means = {row: statistics.mean(found) for row, found in values.items() if found and None not in found}
    if not means:
        raise ValueError(
            f"{headline.task}, {headline.setting}: none of the rows {', '.join(rows)} has a result in {FOLDER.name}"
        )
    best = (min if headline.is_smaller_better else max)(means, key=lambda row: means[row])
    column = task_class(headline.task).columns[headline.metric]
    return f"{cell(column, values[best])} ({best})"


def main(arguments: Iterable[str] | None = None) -> None:
    """Print the table, or write it into its pages."""
    parser = argparse.ArgumentParser("python -m benchmarks.tasks.front", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write it into README.md and docs/tasks/index.md")
    text = front()
    if parser.parse_args(None if arguments is None else list(arguments)).write:
        write_page(README, text)
        write_page(PAGES / "index.md", text.replace("(docs/tasks/", "("))
    print(text)


if __name__ == "__main__":
    main()
