"""A sweep while it goes on: one live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sparsum_experiments.runs import RunFolder
from sparsum_experiments.sweep.pool import Entry, Phase
from sparsum_experiments.training.progress import in_words

_TERMINAL_SECONDS = 0.5
_PLAIN_SECONDS = 30.0


class Board:
    """Shows a sweep: every run that is going on, and how many are done and to come.

    Args:
        console: where.
        jobs: how many runs go on at a time.
    """

    def __init__(self, console: Console, jobs: int) -> None:
        self.console, self.jobs = console, jobs
        # Drawn by whoever calls `look`: no thread beside the one that starts processes.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn_at = time.monotonic() if not console.is_terminal else 0.0

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def say(self, text: str) -> None:
        """Something has happened."""
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def look(self, entries: Sequence[Entry]) -> None:
        """Draw anew, if it is time."""
        pause = _TERMINAL_SECONDS if self.console.is_terminal else _PLAIN_SECONDS
        if time.monotonic() - self._drawn_at < pause:
            return
        self._drawn_at = time.monotonic()
        progress = {entry.run.key: progress_of(entry) for entry in entries if entry.phase is Phase.RUNNING}
        last_line = _totals(entries, progress, self.jobs)
        if self.console.is_terminal:
            self._live.update(Group(_table(entries, progress), Text(last_line)), refresh=True)
            return
        for key, told in progress.items():
            self.say(f"{key}: {', '.join(_cells(told))}" if told else f"{key}: starting")
        self.say(last_line)


def progress_of(entry: Entry) -> dict[str, Any]:
    """What a run that is going on has told of itself; empty until this attempt has told something."""
    try:
        progress = RunFolder(entry.run.folder).progress() or {}
    except (ValueError, OSError):
        return {}
    return progress if progress.get("time", 0.0) >= entry.began_at else {}


def seconds_left(entries: Sequence[Entry], progress: dict[str, dict[str, Any]], jobs: int) -> float | None:
    """How long all that is left will take, None as long as nothing is known.

    A run that has not begun is taken to last as long as those of its experiment and method, or as all others where there is
    none of them.
    """
    left, lengths = 0.0, list[tuple[tuple[str, str], float]]()
    for entry in entries:
        told = progress.get(entry.run.key)
        if told:
            left += told["seconds_left"]
            lengths.append((_kind(entry), time.time() - entry.began_at + told["seconds_left"]))
        elif entry.phase is Phase.FINISHED and entry.n_attempts:
            lengths.append((_kind(entry), entry.seconds))
    unknown = [
        entry for entry in entries if entry.phase in {Phase.WAITING, Phase.RUNNING} and not progress.get(entry.run.key)
    ]
    if unknown and not lengths:
        return None
    for entry in unknown:
        alike = [seconds for kind, seconds in lengths if kind == _kind(entry)] or [each for _, each in lengths]
        left += sum(alike) / len(alike)
    # Towards the end there are fewer runs than jobs, and none is shared.
    longest = max((float(told["seconds_left"]) for told in progress.values() if told), default=0.0)
    return max(left / jobs, longest)


def _kind(entry: Entry) -> tuple[str, str]:
    return entry.run.experiment, entry.run.method


def _totals(entries: Sequence[Entry], progress: dict[str, dict[str, Any]], jobs: int) -> str:
    counts = {phase: sum(entry.phase is phase for entry in entries) for phase in Phase}
    shown = ", ".join(f"{n} {phase}" for phase, n in counts.items() if n)
    left = seconds_left(entries, progress, jobs)
    return f"{len(entries)} runs: {shown}; " + (
        "time left not known yet" if left is None else f"about {in_words(left)} left"
    )


def _table(entries: Sequence[Entry], progress: dict[str, dict[str, Any]]) -> Table:
    """The runs that are going on, and those that failed."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("run", "epoch", "done", "loss", "calls", "left"):
        table.add_column(name, justify="left" if name == "run" else "right", overflow="fold")
    for entry in entries:
        if entry.phase is Phase.RUNNING:
            told = progress[entry.run.key]
            values = [part.split(" ", 1)[1] for part in _cells(told)] if told else ["starting", "", "", "", ""]
            table.add_row(Text(entry.run.key), *values)
        elif entry.phase is Phase.FAILED:
            table.add_row(Text(entry.run.key), "failed", "", "", "", "")
    return table


def _cells(told: dict[str, Any]) -> list[str]:
    """What a run has told, each with its name before it."""
    return [
        f"epoch {told['epoch'] + 1}",
        f"done {told['done']:.0%}",
        f"loss {told['loss']:.4g}",
        f"calls {told['calls']:.2f}",
        f"left {in_words(told['seconds_left'])}",
    ]
