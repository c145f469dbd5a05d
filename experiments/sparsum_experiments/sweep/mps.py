"""Several runs side by side on one GPU, by NVIDIA's Multi-Process Service.

Without it the kernels of different processes take turns, and a small model leaves most of the GPU idle in its turn. With it
they run at the same time. The service is a daemon; the one that is started here is private to a sweep: it has its own
folder, other programs do not see it, and it ends with the sweep, however that ends.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from sparsum_experiments.sweep.plan import PlannedRun

PROGRAM = "nvidia-cuda-mps-control"
_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
# Waits for the end of its standard input, which comes when the sweep ends in whatever way, then for that of the runs.
_GUARD = f'cat > /dev/null; echo quit | {PROGRAM} > /dev/null 2>&1; rm -rf "${_LOGS}" "${_PIPES}"'
_START_SECONDS, _END_SECONDS = 30.0, 60.0


@contextmanager
def sharing_gpu(plan: Sequence[PlannedRun], jobs: int, say: Callable[[str], None]) -> Iterator[Mapping[str, str]]:
    """What the processes of runs need in their environment, to run at the same time where they share a GPU.

    Args:
        plan: the runs.
        jobs: how many at a time.
        say: told what is done, or why nothing is.
    """
    if jobs == 1 or _PIPES in os.environ or not any(uses_gpu(run) for run in plan):
        yield {}
        return
    if shutil.which(PROGRAM) is None:
        say(f"the runs take turns on the GPU: {PROGRAM}, which would let them run at the same time, is not there")
        yield {}
        return
    with private_daemon(say) as environment:
        yield environment


@contextmanager
def private_daemon(say: Callable[[str], None]) -> Iterator[Mapping[str, str]]:
    """A daemon of one's own, if it starts: what its clients need in their environment."""
    environment = {_PIPES: tempfile.mkdtemp(prefix="sparsum-mps-"), _LOGS: tempfile.mkdtemp(prefix="sparsum-mps-log-")}
    # Before the daemon, so that there is no moment in which one could be left behind.
    guard = subprocess.Popen(
        ["sh", "-c", _GUARD], stdin=subprocess.PIPE, env=os.environ | environment, start_new_session=True
    )
    try:
        problem = _start(environment)
        if problem:
            say(f"the runs take turns on the GPU: {PROGRAM} did not start ({problem})")
        else:
            say(f"the runs share the GPU by a private MPS daemon in {environment[_PIPES]}, which ends with this sweep")
        yield {} if problem else environment
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        _wait(guard, environment, say)


def uses_gpu(run: PlannedRun) -> bool:
    """Whether a run trains on a GPU."""
    return run.args.device == "cuda" or (run.args.device == "auto" and torch.cuda.is_available())


def _start(environment: Mapping[str, str]) -> str:
    """Start the daemon; returns what went wrong, if something did."""
    # It sees all GPUs. Which of them the runs see is said to these: said to both, their numbers would be counted twice.
    whole = {name: value for name, value in (os.environ | environment).items() if name != "CUDA_VISIBLE_DEVICES"}
    said = pathlib.Path(environment[_LOGS]) / "start.log"
    try:
        with said.open("wb") as log:  # no pipe, which the daemon might keep open
            done = subprocess.run(
                [PROGRAM, "-d"],
                env=whole,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=_START_SECONDS,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else said.read_text(errors="replace").strip() or "no reason given"


def _wait(guard: subprocess.Popen[bytes], environment: Mapping[str, str], say: Callable[[str], None]) -> None:
    try:
        guard.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        say(f"the MPS daemon has not ended yet; it does when its last process has: {environment[_PIPES]}")
        return
    _remove(environment)


def _remove(environment: Mapping[str, str]) -> None:
    for folder in environment.values():
        shutil.rmtree(pathlib.Path(folder), ignore_errors=True)
