"""Processes of one machine that train one model, started and watched by this one."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle  # nosec B403 # of errors, from processes that this one started, through a pipe of its own
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from typing import Any

import torch

from sparsum_experiments.errors import LostRankError
from sparsum_experiments.training.ranks import RESUMABLE, Launch, Ranks, store_at

#: How long ranks may take to end after one of them has ended with an error, before they are killed.
GRACE_SECONDS = 30.0
# A pipe holds more: a rank that fails never waits for its error to be read.
_MAX_ERROR = 30_000


def run_ranks(work: Callable[..., object], n: int, *arguments: Any) -> None:
    """Call ``work(ranks, *arguments)`` in n new processes; the error of one of them is raised here."""
    context = multiprocessing.get_context("spawn")
    errors: SimpleQueue[tuple[int, bytes]] = context.SimpleQueue()
    store = store_at("127.0.0.1", 0, n, is_server=True)
    processes: list[BaseProcess] = []
    with _forwarded(processes) as requests, _threads_shared(n):
        for rank in range(n):
            launch = Launch(Ranks(rank, n, rank), n, 1, ("127.0.0.1", store.port), is_server=False)
            processes.append(context.Process(target=_run, args=(launch, errors, work, arguments), daemon=True))
            processes[-1].start()
        stuck = _wait(processes)
    statuses = {rank: process.exitcode for rank, process in enumerate(processes) if process.exitcode and rank not in stuck}
    _raise_first(statuses, errors, is_stopped=bool(requests))


def _raise_first(statuses: dict[int, int], errors: SimpleQueue[tuple[int, bytes]], *, is_stopped: bool) -> None:
    """Raise the error of a rank: the cause, rather than those that it made fail."""
    found = list[tuple[int, Exception]]()
    while not errors.empty():
        rank, error = errors.get()
        found.append((rank, pickle.loads(error)))  # nosec B301
    causes = sorted((each for each in found if not isinstance(each[1], LostRankError)), key=lambda each: each[0])
    if causes:
        raise causes[0][1]
    silent = statuses.keys() - dict(found).keys()
    if silent and is_stopped:  # before it could save anything
        raise KeyboardInterrupt
    for rank in sorted(silent):
        status = statuses[rank]
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        raise LostRankError(f"rank {rank} {how}; {RESUMABLE}")
    if found:
        raise found[0][1]


def _run(
    launch: Launch, errors: SimpleQueue[tuple[int, bytes]], work: Callable[..., object], arguments: tuple[Any, ...]
) -> None:
    """The process of a rank."""
    os.setsid()  # a terminal's Ctrl-C reaches the first process alone, which forwards it
    threading.Thread(target=_follow_parent, daemon=True).start()
    status = 0
    try:
        with launch.joined() as ranks:
            work(ranks, *arguments)
    except Exception as error:
        error.add_note(f"on rank {launch.ranks.rank}:\n{traceback.format_exc()[-_MAX_ERROR // 2 :]}")
        errors.put((launch.ranks.rank, _pickled(error)))
        status = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # Nothing is left to do, and the end of the interpreter can abort while threads of torch's process group live.
    os._exit(status)


def _pickled(error: Exception) -> bytes:
    with contextlib.suppress(Exception):
        content = pickle.dumps(error)
        pickle.loads(content)  # nosec B301
        if len(content) < _MAX_ERROR:
            return content
    return pickle.dumps(RuntimeError("".join(traceback.format_exception(error))[-_MAX_ERROR // 2 :]))


def _follow_parent() -> None:
    """Save and stop when the process that started this one has ended, be it by SIGKILL."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def _wait(processes: list[BaseProcess]) -> list[int]:
    """Wait for all; once one has failed, the others have some time to notice. Returns the ranks that had to be killed."""
    while (alive := [process for process in processes if process.is_alive()]) and not _n_failed(processes):
        multiprocessing.connection.wait([process.sentinel for process in alive])
    deadline, stuck = time.monotonic() + GRACE_SECONDS, list[int]()
    for rank, process in enumerate(processes):
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            stuck.append(rank)
            process.kill()
            process.join()
    return stuck


def _n_failed(processes: list[BaseProcess]) -> int:
    return sum(bool(process.exitcode) for process in processes)


@contextlib.contextmanager
def _forwarded(processes: list[BaseProcess]) -> Iterator[list[int]]:
    """Send Ctrl-C, SIGTERM and SIGHUP on to rank 0, which all ranks follow; the list holds what came."""
    requests: list[int] = []

    def forward(number: int, _: object) -> None:
        requests.append(number)
        for process in processes[:1]:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGTERM)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _threads_shared(n: int) -> Iterator[None]:
    """New processes share the threads of this one, unless OMP_NUM_THREADS says how many each has."""
    if "OMP_NUM_THREADS" in os.environ:
        yield
        return
    os.environ["OMP_NUM_THREADS"] = str(max(1, torch.get_num_threads() // n))
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]
