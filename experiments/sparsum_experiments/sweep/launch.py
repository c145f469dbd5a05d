"""The processes of a sweep: a limited number at a time, two attempts for each run."""

from __future__ import annotations

import contextlib
import enum
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sparsum_experiments.errors import UsageError
from sparsum_experiments.files import printable, write_bytes
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.sweep.mps import sharing_gpu, uses_gpu
from sparsum_experiments.sweep.plan import PlannedRun, State, check_plan, state_of

# How often a run is tried before it is given up.
_MAX_ATTEMPTS = 2
#: How long runs may take to save when the sweep is stopped.
GRACE_SECONDS = 30.0
_POLL_SECONDS = 0.2
# The output of a run's process, in its folder, and what separates the attempts there.
# By which a process knows its launcher: the runs of a sweep in a task of srun are none of its tasks.
_LAUNCHED = {"RANK", "SLURM_PROCID"}
_LOG, _HEADER = "log.txt", "=== sparsum sweep: attempt of "


class Phase(enum.StrEnum):
    """What a run of a sweep is doing."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass
class Entry:
    """A run of a sweep and its process."""

    run: PlannedRun
    phase: Phase
    n_attempts: int = 0  # by this sweep
    reason: str = ""  # why the last attempt failed
    began_at: float = 0.0  # the last attempt, by `time.time`, to which the times in files are compared
    began: float = 0.0  # the same by `time.monotonic`, which does not jump
    seconds: float = 0.0  # of the attempts that have ended
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)  # of the attempt that is running
    log_size: int = 0  # before the last attempt, where it is started elsewhere

    def end(self) -> int:
        """Wait for the process to end; returns its exit status."""
        assert self.process is not None
        self.process.communicate()  # closes the pipe, too
        status, self.process, self.seconds = self.process.returncode, None, self.seconds + self.elapsed()
        return status

    def begin(self) -> None:
        """Note that an attempt has begun."""
        self.phase, self.began_at, self.began = Phase.RUNNING, time.time(), time.monotonic()

    def elapsed(self) -> float:
        """The seconds since the attempt that is running has begun."""
        return time.monotonic() - self.began

    def find_phase(self) -> None:
        """Look in the folder whether the run, which has no process now, is finished."""
        self.phase = Phase.FINISHED if state_of(self.run) is State.FINISHED else Phase.WAITING


class Watcher(Protocol):
    """Shows a sweep."""

    def look(self, entries: Sequence[Entry]) -> None:
        """Called several times a second."""

    def say(self, text: str) -> None:
        """Called with each message."""


def sweep(
    plan: Sequence[PlannedRun], jobs: int, watcher: Watcher, *, grace_seconds: float = GRACE_SECONDS
) -> tuple[list[Entry], bool]:
    """Run everything in a plan that is not finished, some runs at a time; returns all runs, and whether it was stopped.

    Interrupted runs are resumed. A run that fails is tried once more, after all others, and then given up: the reason is in
    its entry and in ``failed.txt``. A later sweep tries it again. On Ctrl-C, SIGTERM or SIGHUP, all runs have
    ``grace_seconds`` to save. If a folder holds another run than the planned one, nothing is started: a UsageError.
    """
    entries, n_threads = entries_of(plan), n_threads_of(jobs * n_processes_of(plan))
    with contextlib.suppress(KeyboardInterrupt), signals_as_interrupt():  # Ctrl-C once more: all processes are ended
        with sharing_gpu([entry.run for entry in unfinished(entries)], jobs, watcher.say) as environment:
            try:
                while unfinished(entries):
                    _start(entries, jobs, n_threads, environment)
                    watcher.look(entries)
                    time.sleep(_POLL_SECONDS)
                    _collect(entries, watcher)
            except KeyboardInterrupt:
                watcher.say("stopping: the runs are saving; press Ctrl-C again to stop at once")
                return entries, True
            finally:
                _stop(entries, grace_seconds)
        return entries, False
    return entries, True


def entries_of(plan: Sequence[PlannedRun]) -> list[Entry]:
    """The runs of a plan as they are before a sweep; a UsageError if a folder holds another run."""
    check_plan(plan)
    return [Entry(run, Phase.FINISHED if state_of(run) is State.FINISHED else Phase.WAITING) for run in plan]


def unfinished(entries: Sequence[Entry]) -> list[Entry]:
    """The runs that are to be made, or are being made."""
    return [entry for entry in entries if entry.phase in {Phase.WAITING, Phase.RUNNING}]


def _start(entries: Sequence[Entry], jobs: int, n_threads: int, environment: Mapping[str, str]) -> None:
    """Start runs while fewer than ``jobs`` are running, those that have failed once last."""
    waiting = sorted((entry for entry in entries if entry.phase is Phase.WAITING), key=lambda entry: entry.n_attempts)
    n_free = jobs - sum(entry.phase is Phase.RUNNING for entry in entries)
    for entry in waiting[: max(n_free, 0)]:
        entry.process = start_process(entry.run, n_threads, environment)
        entry.begin()
        entry.n_attempts += 1


def _collect(entries: Sequence[Entry], watcher: Watcher) -> None:
    """Look which processes have ended, and how."""
    for entry in entries:
        if entry.process is not None and entry.process.poll() is not None:
            settle(entry, entry.end(), watcher)


def settle(entry: Entry, status: int | str, watcher: Watcher) -> None:
    """Note how an attempt ended: the exit status of its process, or what became of it in words."""
    entry.find_phase()
    what = f"finished in {entry.seconds:.0f} s"
    if entry.phase is not Phase.FINISHED:
        entry.reason = status if isinstance(status, str) else _reason(entry.run, status)
        how = "failed and will be tried once more"
        if entry.n_attempts >= _MAX_ATTEMPTS:
            entry.phase, how = Phase.FAILED, "failed again and is given up"
            write_bytes(RunFolder(entry.run.folder).failure_file, f"{entry.reason}\n".encode())
        what = f"{how}: {entry.reason}"
    watcher.say(f"{entry.run.key} {what}")


def _stop(entries: Sequence[Entry], grace_seconds: float) -> None:
    """Let all runs save and stop; kill those that do not in time, or at once after another Ctrl-C.

    They get SIGTERM: unlike SIGINT, it is not ignored where a shell started the sweep in the background, and it ends a
    process at once that has nothing to save yet.
    """
    deadline = time.monotonic() + grace_seconds
    _send(entries, signal.SIGTERM)
    with contextlib.suppress(KeyboardInterrupt):
        while time.monotonic() < deadline and any(entry.process and entry.process.poll() is None for entry in entries):
            time.sleep(_POLL_SECONDS)
    _send(entries, signal.SIGKILL)
    for entry in entries:
        if entry.process is not None:
            entry.end()
            entry.find_phase()


def _send(entries: Sequence[Entry], number: signal.Signals) -> None:
    """Signal the processes that are running, and their groups."""
    for entry in entries:
        if entry.process is not None:
            send(entry.process, number)


def send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal a process of `start_process`, and its group, if it is running."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """Take SIGTERM, by which schedulers end a job, and SIGHUP for Ctrl-C, which may not be ignored."""
    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = [signal.SIGINT, signal.SIGTERM] + ([] if is_nohup else [signal.SIGHUP])
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def n_threads_of(jobs: int, n_cores: int | None = None) -> int:
    """How many threads a run gets: OMP_NUM_THREADS if it is set, else its share of the cores, by default of this machine."""
    if typed := os.environ.get("OMP_NUM_THREADS"):
        first = typed.split(",")[0].strip()
        if not first.isdecimal() or int(first) < 1:
            raise UsageError(f"the environment variable OMP_NUM_THREADS must be a positive integer, got {typed!r}")
        return int(first)
    return max(1, (n_cores_here() if n_cores is None else n_cores) // jobs)


def default_jobs(plan: Sequence[PlannedRun]) -> int:
    """How many runs are made at a time: on a CPU one per core, each with one thread, which docs/scaling.md measures."""
    if any(uses_gpu(run) for run in plan):
        return 1
    return max(1, n_cores_here() // (n_threads_of(n_cores_here()) * n_processes_of(plan)))


def n_processes_of(plan: Sequence[PlannedRun]) -> int:
    """How many processes train each model of a plan."""
    return max((run.args.devices for run in plan), default=1)


def n_cores_here() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def command_of(run: PlannedRun) -> list[str]:
    """The command of a run's process."""
    evaluate = ["--then-evaluate"] if run.is_evaluated else []
    return [sys.executable, "-m", "sparsum_experiments.sweep_process", str(run.folder), *evaluate, *run.arguments()]


def start_process(run: PlannedRun, n_threads: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the process of a run, in a group of its own, so that Ctrl-C reaches the sweep alone.

    Its standard input is a pipe, by which it notices when this process ends: see `sparsum_experiments.sweep_process`.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    RunFolder(run.folder).failure_file.unlink(missing_ok=True)
    with (run.folder / _LOG).open("ab") as log:
        log.write(f"{_HEADER}{time.strftime('%Y-%m-%d %H:%M:%S')} on {platform.node()}\n".encode())
        log.flush()
        own = {name: value for name, value in os.environ.items() if name not in _LAUNCHED}
        whole = own | {"OMP_NUM_THREADS": str(n_threads)} | dict(environment)
        return subprocess.Popen(
            command_of(run), stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=whole, process_group=0
        )


def log_size(run: PlannedRun) -> int:
    """How much the processes of a run have printed; it grows when one is started."""
    log = run.folder / _LOG
    return log.stat().st_size if log.exists() else 0


def _reason(run: PlannedRun, status: int) -> str:
    """Why a process failed: its exit status, and the last lines that it printed."""
    how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    hint = ", possibly out of memory" if status == -signal.SIGKILL else ""
    log = run.folder / _LOG
    printed = printable(log.read_text(encoding="utf-8", errors="replace")).rsplit(_HEADER, 1)[-1].splitlines()[1:]
    last = " / ".join(list(filter(None, map(str.strip, printed)))[-3:]) or "it printed nothing"
    return f"{how}{hint}; {last} (the whole log: {log})"
