"""The trials of a task that were made: one JSON object per line of ``results/tasks/NAME.jsonl``."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import pathlib
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from sparsum_experiments.files import parse_json, read_bytes, write_bytes

from benchmarks.tasks.task import AbstractTask, Column, Metrics, Trial

FOLDER = pathlib.Path(__file__).parents[2] / "results" / "tasks"
PAGES = pathlib.Path(__file__).parents[2] / "docs" / "tasks"
_NAMES = tuple(field.name for field in fields(Trial))


@dataclass
class Records:
    """The lines of a file by trial: metrics, and how they were made."""

    path: pathlib.Path

    def read(self) -> dict[Trial, dict[str, Any]]:
        """All lines, in their order."""
        found = {}
        text = read_bytes(self.path) if self.path.exists() else b""
        for number, line in enumerate(text.splitlines(), start=1):
            values = parse_json(line, f"line {number} of {self.path}")
            found[Trial(**{name: values.pop(name) for name in _NAMES})] = values
        return found

    def add(self, trial: Trial, metrics: Metrics, about: Mapping[str, Any]) -> None:
        """Add a line; processes that make different trials can share the file."""
        with self._locked():
            found = self.read() | {trial: {"metrics": {name: _finite(m) for name, m in metrics.items()}, **about}}
            lines = [json.dumps(asdict(each) | found[each], allow_nan=False) + "\n" for each in sorted(found)]
            write_bytes(self.path, "".join(lines).encode())

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.path.parent, os.O_RDONLY)  # the file itself is replaced, and a lock would go with it
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


def _finite(value: Any) -> Any:
    """None for what JSON does not know: an objective that diverged is recorded as such."""
    if isinstance(value, list):
        return [_finite(each) for each in value]
    number = float(value)
    return number if math.isfinite(number) else None


def best_rate(task: type[AbstractTask], setting: str, row: str, found: Mapping[Trial, Mapping[str, Any]]) -> float:
    """The rate that validation data prefers, of those that were tried."""
    if len(task.rates) == 1:
        return task.rates[0]
    tried = {
        trial.rate: values["metrics"].get(task.judge)
        for trial, values in found.items()
        if trial.is_tuning and (trial.setting, trial.row) == (setting, row)
    }
    return max(tried, key=lambda rate: -math.inf if tried[rate] is None else tried[rate])


def _left_out(task: type[AbstractTask], setting: str, made: Iterable[Trial]) -> str:
    """Which rows were not trained, and why; empty if all were."""
    rows = defaultdict(list)
    for row in task.rows:
        if (reason := task.reason(setting, row)) and all(trial.row != row for trial in made):
            rows[reason].append(row)
    parts = [f"{', '.join(names)} ({why})" for why, names in rows.items()]
    return f"Not trained: {'; '.join(parts)}." if parts else ""


def table(task: type[AbstractTask], found: Mapping[Trial, Mapping[str, Any]]) -> str:
    """Markdown: for each setting a line per row, with means over seeds and standard deviations, of what was measured."""
    tunes = len(task.rates) > 1
    parts = []
    for setting in task.settings:
        made = {
            trial: values["metrics"] for trial, values in found.items() if trial.setting == setting and not trial.is_tuning
        }
        columns = {
            name: column for name, column in task.columns.items() if any(name in metrics for metrics in made.values())
        }
        head = [*(column.title for column in columns.values()), *["learning rate"] * tunes, "seeds"]
        lines = [f"| {setting or 'method'} | {' | '.join(head)} |", f"| --- |{' ---: |' * len(head)}"]
        for row in task.rows:
            if trials := [trial for trial in made if trial.row == row]:
                cells = [
                    cell(column, [made[trial].get(name, math.nan) for trial in trials]) for name, column in columns.items()
                ]
                rates = [" ".join(f"{rate:g}" for rate in sorted({trial.rate for trial in trials}))] * tunes
                lines.append(f"| {row} | {' | '.join([*cells, *rates, str(len(trials))])} |")
        if len(lines) > 2:
            parts.append("\n".join(lines))
            if left_out := _left_out(task, setting, made):
                parts.append(left_out)
    return "\n\n".join(parts)


def cell(column: Column, values: list[float | None]) -> str:
    """A metric of all seeds: NaN where it was not measured, None where it was not finite."""
    numbers = [value for value in values if value is not None]
    if any(math.isnan(number) for number in numbers):
        return ""
    if len(numbers) < len(values):
        return f"{len(values) - len(numbers)} of {len(values)} diverged"
    mean = format(statistics.mean(numbers), column.form)
    spread = column.with_spread and len(numbers) > 1
    return f"{mean} ± {format(statistics.stdev(numbers), column.form)}" if spread else mean


def write_page(page: pathlib.Path, tables: str) -> None:
    """Put tables between the marks of a page."""
    text = page.read_text(encoding="utf-8")
    write_bytes(page, with_tables(text, tables).encode())


#: Between these lines of a page stand the tables of its record.
MARKS = "<!-- tables of the record -->", "<!-- end of the tables -->"


def with_tables(text: str, tables: str) -> str:
    """The text of a page with other tables."""
    before, rest = text.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    return f"{before}{MARKS[0]}\n{tables}\n{MARKS[1]}{after}"
