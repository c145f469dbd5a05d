"""The process of one run of a sweep: how it is started, and why it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

from sparsum_experiments.sweep.plan import PlannedRun
from sparsum_experiments.sweep.state import failure_file, log_file

#: Tells the process of a run to evaluate it, too.
EVALUATE = "--then-evaluate"
# What separates the attempts in a log.
_HEADER = "=== sparsum sweep: attempt of "
_N_REASON_LINES = 3


def n_threads_of(jobs: int) -> int:
    """How many threads a run gets: the machine's cores shared out, unless OMP_NUM_THREADS says it."""
    if "OMP_NUM_THREADS" in os.environ:
        return max(1, int(os.environ["OMP_NUM_THREADS"].split(",")[0]))
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, n_cores // jobs)


def command_of(run: PlannedRun) -> list[str]:
    """What a process of a sweep is started with."""
    evaluate = [EVALUATE] if run.is_evaluated else []
    return [sys.executable, "-m", "sparsum_experiments.sweep.child", str(run.folder), *evaluate, *run.arguments()]


def start_process(run: PlannedRun, n_threads: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A process that makes a run; it has a group of its own, so that Ctrl-C reaches the sweep alone.

    Its standard input is a pipe by which it notices the end of this process: see `sparsum_experiments.sweep.child`. Its
    environment is that of this process, and ``environment`` added to it.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    failure_file(run).unlink(missing_ok=True)
    with log_file(run).open("ab") as log:
        log.write(f"{_HEADER}{time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
        log.flush()
        whole = os.environ | {"OMP_NUM_THREADS": str(n_threads)} | dict(environment)
        return subprocess.Popen(
            command_of(run), stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=whole, process_group=0
        )


def reason_of(run: PlannedRun, status: int) -> str:
    """Why a process ended: how, and the last lines that it printed."""
    how = f"exit status {status}"
    if status < 0:
        name = signal.Signals(-status).name
        how = f"killed by {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")
    printed = log_file(run).read_text(errors="replace").rsplit(_HEADER, 1)[-1].splitlines()[1:]
    last = [line.strip() for line in printed if line.strip()][-_N_REASON_LINES:]
    return f"{how}; {' / '.join(last) or 'it printed nothing'} (all of it in {log_file(run)})"
