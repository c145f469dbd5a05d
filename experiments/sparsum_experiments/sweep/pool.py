"""The runs of a plan, so many processes at a time."""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sparsum_experiments.files import write_bytes
from sparsum_experiments.sweep.mps import sharing_gpu
from sparsum_experiments.sweep.plan import PlannedRun
from sparsum_experiments.sweep.process import n_threads_of, reason_of, start_process
from sparsum_experiments.sweep.state import State, check_plan, failure_file, state_of

#: How often a run is tried before it is given up.
MAX_ATTEMPTS = 2
#: How long runs may take to save when the sweep is stopped.
GRACE_SECONDS = 30.0
_LOOK_SECONDS = 0.2


class Phase(enum.StrEnum):
    """Where a run of a sweep is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass
class Entry:
    """A run and what has become of it.

    Args:
        run: as it is planned.
        phase: where it is.
        n_attempts: how often it was started by this sweep.
        reason: why the last attempt failed.
        began_at: when the last attempt began, as `time.time` counts.
        seconds: how long the attempts took that have ended.
        process: of the attempt that is running.
    """

    run: PlannedRun
    phase: Phase
    n_attempts: int = 0
    reason: str = ""
    began_at: float = 0.0
    seconds: float = 0.0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)


class Watcher(Protocol):
    """Who is told how a sweep goes on."""

    def look(self, entries: Sequence[Entry]) -> None:
        """Some time has passed; called several times a second."""

    def say(self, text: str) -> None:
        """Something has happened."""


def sweep(
    plan: Sequence[PlannedRun], jobs: int, watcher: Watcher, *, grace_seconds: float = GRACE_SECONDS
) -> tuple[list[Entry], bool]:
    """Make all runs of a plan that are not finished.

    Runs that were interrupted go on. A run that fails is tried a second time, after all others, and then given up: its
    reason is in its entry and in ``failed.txt``. A later sweep tries it again.

    Args:
        plan: the runs.
        jobs: how many at a time.
        watcher: who is told how it goes on.
        grace_seconds: how long runs may take to save when the sweep is stopped by Ctrl-C or SIGTERM.

    Returns:
        What became of each run, and whether the sweep was stopped.

    Raises:
        UsageError: if a folder holds another run than the planned one; then nothing is started.
    """
    check_plan(plan)
    entries = [Entry(run, Phase.FINISHED if state_of(run) is State.FINISHED else Phase.WAITING) for run in plan]
    try:
        with (
            _terminating_as_interrupt(),
            sharing_gpu([e.run for e in _unfinished(entries)], jobs, watcher.say) as environment,
        ):
            try:
                while _unfinished(entries):
                    _start(entries, jobs, environment)
                    watcher.look(entries)
                    time.sleep(_LOOK_SECONDS)
                    _collect(entries, watcher)
            except KeyboardInterrupt:
                watcher.say("stopping: the runs save where they are; once more stops at once")
                return entries, True
            finally:
                _stop(entries, grace_seconds)
    except KeyboardInterrupt:
        return entries, True
    return entries, False


def _unfinished(entries: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.phase in {Phase.WAITING, Phase.RUNNING}]


def _start(entries: Sequence[Entry], jobs: int, environment: Mapping[str, str]) -> None:
    """Start runs while there is a place, those that have failed once last."""
    waiting = sorted((entry for entry in entries if entry.phase is Phase.WAITING), key=lambda entry: entry.n_attempts)
    n_free = jobs - sum(entry.phase is Phase.RUNNING for entry in entries)
    for entry in waiting[: max(n_free, 0)]:
        entry.process = start_process(entry.run, n_threads_of(jobs), environment)
        entry.phase, entry.began_at = Phase.RUNNING, time.time()
        entry.n_attempts += 1


def _collect(entries: Sequence[Entry], watcher: Watcher) -> None:
    """See which runs have ended, and how."""
    for entry in entries:
        if entry.process is None or entry.process.poll() is None:
            continue
        status = _end(entry)
        if state_of(entry.run) is State.FINISHED:
            entry.phase = Phase.FINISHED
            watcher.say(f"{entry.run.key} finished in {entry.seconds:.0f} s")
            continue
        entry.reason = reason_of(entry.run, status)
        entry.phase = Phase.WAITING if entry.n_attempts < MAX_ATTEMPTS else Phase.FAILED
        if entry.phase is Phase.FAILED:
            write_bytes(failure_file(entry.run), f"{entry.reason}\n".encode())
        what = "failed again and is given up" if entry.phase is Phase.FAILED else "failed and will be tried once more"
        watcher.say(f"{entry.run.key} {what}: {entry.reason}")


def _end(entry: Entry) -> int:
    """Let go of a process that has ended; returns its exit status."""
    process = entry.process
    assert process is not None
    status = process.wait()
    if process.stdin is not None:
        process.stdin.close()
    entry.seconds += time.time() - entry.began_at
    entry.process = None
    return status


def _stop(entries: Sequence[Entry], grace_seconds: float) -> None:
    """Ask all runs to save and stop, and end those that do not, at once when interrupted again.

    They get SIGTERM, on which they save as on Ctrl-C: unlike SIGINT, it is not ignored where a shell started the sweep in
    the background, and it ends a process at once that has nothing to save yet.
    """
    running = [entry for entry in entries if entry.process is not None]
    for entry in running:
        _send(entry, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    with contextlib.suppress(KeyboardInterrupt):
        while time.monotonic() < deadline and any(entry.process and entry.process.poll() is None for entry in running):
            time.sleep(_LOOK_SECONDS)
    for entry in running:
        _send(entry, signal.SIGKILL)
        _end(entry)
        entry.phase = Phase.FINISHED if state_of(entry.run) is State.FINISHED else Phase.WAITING


def _send(entry: Entry, number: signal.Signals) -> None:
    """Signal a process and its group, if it is still there."""
    if entry.process is not None and entry.process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(entry.process.pid, number)


@contextlib.contextmanager
def _terminating_as_interrupt() -> Iterator[None]:
    """Take SIGTERM, by which schedulers end a job, for a Ctrl-C, and listen to that even where a shell said to ignore it."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
