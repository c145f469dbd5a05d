"""The display of a sweep: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sparsum_experiments.files import printable
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.sweep.launch import Entry, Phase
from sparsum_experiments.sweep.plan import counted
from sparsum_experiments.training.progress import in_words

_TERMINAL_SECONDS = 0.5
_PLAIN_SECONDS = 30.0
_COLUMNS = ("epoch", "done", "loss", "calls", "left")

Progress = Mapping[str, float]


class Board(Live):
    """Shows on a console the runs that are running, and how many are finished and waiting; a context manager."""

    def __init__(self, console: Console, jobs: int) -> None:
        # Drawn by whoever calls `look`: no thread beside the one that starts processes.
        super().__init__(console=console, auto_refresh=False, transient=True)
        self.jobs = jobs
        self._drawn_at = time.monotonic() if not console.is_terminal else 0.0

    def say(self, text: str) -> None:
        """Print a message."""
        say(self.console, text)

    def look(self, entries: Sequence[Entry]) -> None:
        """Draw again, if it is time."""
        pause = _TERMINAL_SECONDS if self.console.is_terminal else _PLAIN_SECONDS
        if time.monotonic() - self._drawn_at < pause:
            return
        self._drawn_at = time.monotonic()
        progress = {entry.run.key: _progress(entry) for entry in entries if entry.phase is Phase.RUNNING}
        totals = _totals(entries, progress, self.jobs)
        if self.console.is_terminal:
            self.update(Group(_table(entries, progress), Text(totals)), refresh=True)
            return
        for key, found in progress.items():
            shown = [f"{name} {cell}" for name, cell in zip(_COLUMNS, _cells(found), strict=True)] if found else ["starting"]
            self.say(f"{key}: {', '.join(shown)}")
        self.say(totals)


def say(console: Console, text: str) -> None:
    """Print a line; control characters in it, of a log or a file's name, do not reach the terminal."""
    console.print(printable(text), highlight=False, soft_wrap=True, markup=False)


def _progress(entry: Entry) -> Progress:
    """The progress that a run has written; empty until this attempt has written it."""
    found = RunFolder(entry.run.folder).progress()
    is_complete = found.keys() >= {"time", "epoch", "done", "loss", "calls", "seconds_left"}
    return found if is_complete and found["time"] >= entry.began_at else {}


def seconds_left(entries: Sequence[Entry], progress: Mapping[str, Progress], jobs: int) -> float | None:
    """How long the rest of a sweep will take, None if nothing is known yet.

    A run that has not started is estimated by those of its experiment and method, or by all others if there are none.
    """
    lengths: dict[tuple[str, str], list[float]] = {}
    unknown, lefts = list[tuple[str, str]](), list[float]()
    for entry in entries:
        kind = entry.run.experiment, entry.run.method
        if found := progress.get(entry.run.key):
            lefts.append(found["seconds_left"])
            lengths.setdefault(kind, []).append(time.time() - entry.began_at + lefts[-1])
        elif entry.phase in {Phase.WAITING, Phase.RUNNING}:
            unknown.append(kind)
        elif entry.phase is Phase.FINISHED and entry.n_attempts:
            lengths.setdefault(kind, []).append(entry.seconds)
    if unknown and not lengths:
        return None
    every = [seconds for each in lengths.values() for seconds in each]
    left = sum(lefts) + sum(statistics.fmean(lengths.get(kind, every)) for kind in unknown)
    return max([left / jobs, *lefts])  # towards the end there are fewer runs than jobs, and none is shared


def _totals(entries: Sequence[Entry], progress: Mapping[str, Progress], jobs: int) -> str:
    counts = {phase: sum(entry.phase is phase for entry in entries) for phase in Phase}
    shown = ", ".join(f"{n} {phase}" for phase, n in counts.items() if n)
    left = seconds_left(entries, progress, jobs)
    time_left = "time left unknown" if left is None else f"about {in_words(left)} left"
    return f"{counted(len(entries), 'run')}: {shown}; {time_left}"


def _table(entries: Sequence[Entry], progress: Mapping[str, Progress]) -> Table:
    """The runs that are running, and those that failed."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("run", *_COLUMNS):
        table.add_column(name, justify="left" if name == "run" else "right", overflow="fold")
    for entry in entries:
        if entry.phase is Phase.RUNNING:
            table.add_row(Text(entry.run.key), *_cells(progress[entry.run.key]))
        elif entry.phase is Phase.FAILED:
            table.add_row(Text(entry.run.key), "failed")
    return table


def _cells(found: Progress) -> list[str]:
    if not found:
        return ["starting"]
    left = in_words(found["seconds_left"])
    return [f"{found['epoch'] + 1:.0f}", f"{found['done']:.0%}", f"{found['loss']:.4g}", f"{found['calls']:.2f}", left]
