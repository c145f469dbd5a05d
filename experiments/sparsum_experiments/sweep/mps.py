"""Several runs at the same time on one GPU, by NVIDIA's Multi-Process Service (MPS).

Without it the kernels of different processes take turns, and a small model leaves most of the GPU idle in its turn. The
service is a daemon; the one started here is private to a sweep: it has its own folder, other programs do not see it, and it
ends with the sweep, however that ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from subprocess import DEVNULL, STDOUT

import torch

from sparsum_experiments.sweep.plan import PlannedRun

PROGRAM = "nvidia-cuda-mps-control"
_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
# Waits for the end of its standard input, which comes when the sweep ends in whatever way, then for that of the runs.
_GUARD = f'cat > /dev/null; echo quit | {PROGRAM} > /dev/null 2>&1; rm -rf "${_LOGS}" "${_PIPES}"'
_START_SECONDS, _END_SECONDS = 30.0, 60.0


@contextmanager
def sharing_gpu(plan: Sequence[PlannedRun], jobs: int, say: Callable[[str], None]) -> Iterator[Mapping[str, str]]:
    """The environment variables with which so many processes at a time share a GPU; empty where that would not help."""
    if jobs == 1 or _PIPES in os.environ or not any(uses_gpu(run) for run in plan):
        yield {}
    elif shutil.which(PROGRAM) is None:
        say(f"the runs take turns on the GPU: {PROGRAM}, with which they would run at the same time, is not installed")
        yield {}
    else:
        with private_daemon(say) as environment:
            yield environment


@contextmanager
def private_daemon(say: Callable[[str], None]) -> Iterator[Mapping[str, str]]:
    """A daemon for this process alone: the environment variables of its clients, or none if it does not start."""
    environment = {_PIPES: tempfile.mkdtemp(prefix="sparsum-mps-"), _LOGS: tempfile.mkdtemp(prefix="sparsum-mps-log-")}
    # Before the daemon, so that there is no moment in which one could be left behind.
    guard = subprocess.Popen(
        ["sh", "-c", _GUARD], stdin=subprocess.PIPE, env=os.environ | environment, start_new_session=True
    )
    try:
        if problem := _start(environment):
            say(f"the runs take turns on the GPU: {PROGRAM} did not start ({problem})")
        else:
            say(f"the runs share the GPU by a private MPS daemon in {environment[_PIPES]}, which ends with this sweep")
        yield {} if problem else environment
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        try:
            guard.wait(_END_SECONDS)  # it removes the folders, too
        except subprocess.TimeoutExpired:
            say(f"the MPS daemon in {environment[_PIPES]} is still running; it ends with its last client")


def uses_gpu(run: PlannedRun) -> bool:
    """Whether a run trains on a GPU."""
    return run.args.device == "cuda" or (run.args.device == "auto" and torch.cuda.is_available())


def _start(environment: Mapping[str, str]) -> str:
    """Start the daemon; returns what went wrong, empty if nothing did."""
    # It sees all GPUs, and the runs those of CUDA_VISIBLE_DEVICES: if both had the variable, it would be applied twice.
    whole = {name: value for name, value in (os.environ | environment).items() if name != "CUDA_VISIBLE_DEVICES"}
    with tempfile.TemporaryFile() as log:  # not a pipe, which the daemon might keep open
        try:
            subprocess.run(
                [PROGRAM, "-d"], env=whole, stdin=DEVNULL, stdout=log, stderr=STDOUT, timeout=_START_SECONDS, check=True
            )
        except subprocess.CalledProcessError:
            log.seek(0)
            return log.read().decode(errors="replace").strip() or "no reason given"
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    return ""
