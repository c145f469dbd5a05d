"""The runs of a sweep as tasks of Ray, on this machine or on a cluster.

A task starts the process that ``--jobs`` starts, on whatever node Ray chooses. If its worker or its node is lost, Ray starts
the task again elsewhere, and the run continues from its last checkpoint: the folder of the runs is on a file system that all
nodes share, and the lock in a run's folder keeps a process that is still saving apart from the next one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pathlib
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparsum_experiments.errors import UsageError
from sparsum_experiments.sweep.launch import (
    GRACE_SECONDS,
    Entry,
    Phase,
    Watcher,
    entries_of,
    log_size,
    n_processes_of,
    n_threads_of,
    send,
    settle,
    signals_as_interrupt,
    start_process,
    unfinished,
)
from sparsum_experiments.sweep.mps import sharing_gpu
from sparsum_experiments.sweep.plan import PlannedRun, counted

#: The address of a Ray of this sweep's own, on this machine.
LOCAL = "local"
# How many workers and nodes an attempt may lose: a cluster of machines that come and go loses many.
_MAX_LOSSES = 10
_POLL_SECONDS, _LOOK_AT_NODES_SECONDS = 0.5, 2.0
_CONNECT_SECONDS = 5.0
#: How long a Ray may take to answer.
START_SECONDS = 30.0
# Ray rounds fractions of a GPU to so many parts.
_PARTS = 10_000
# Connects as a sweep would: where there is no Ray, this waits for minutes, and may end the process.
_PROBE = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What the process of a run has from the sweep."""

    folder: str  # the working directory, against which paths are relative
    n_threads: int
    environment: Mapping[str, str]


class Cluster:
    """A Ray to which sweeps hand their runs; a context manager.

    Args:
        address: `LOCAL` starts one with all cores; ``auto`` and ``HOST:PORT`` connect to one that is running.
        jobs: how many runs share a GPU.
        watcher: is told about nodes.

    Raises:
        UsageError: on entry, if Ray is not installed or cannot be reached.
    """

    def __init__(self, address: str, jobs: int, watcher: Watcher) -> None:
        self.address, self.jobs, self.watcher = address, jobs, watcher
        self.n_threads = n_threads_of(jobs, n_cores=1)
        self._nodes: dict[str, str] = {}
        self._looked_at = 0.0

    def __enter__(self) -> Cluster:
        self.ray = _ray()
        if self.address != LOCAL:
            check_address(self.address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address == LOCAL:
            quiet["include_dashboard"] = False
        self.ray.init(address=self.address, **quiet)
        self._nodes = self._alive()
        self.watcher.say(f"Ray has {counted(len(self._nodes), 'node')}, {self._resources_text()}")
        return self

    def __exit__(self, *_: object) -> None:
        self.ray.shutdown()

    def n_at_a_time(self, plan: Sequence[PlannedRun]) -> int:
        """How many runs of a plan the cluster makes at a time, as it is now; 0 if it has no room for one."""
        found = self.ray.cluster_resources()
        n = n_processes_of(plan)
        n_by_cores = int(found.get("CPU", 0)) // (self.n_threads * n)
        on_gpu = any(self._needs(run)["num_gpus"] for run in plan)
        n_by_gpus = int(found.get("GPU", 0)) * self.jobs if n == 1 else int(found.get("GPU", 0)) // n
        return min(n_by_cores, n_by_gpus) if on_gpu else n_by_cores

    def sweep(
        self, plan: Sequence[PlannedRun], watcher: Watcher, *, grace_seconds: float = GRACE_SECONDS
    ) -> tuple[list[Entry], bool]:
        """As `launch.sweep`, by tasks: all are handed over at once, so that a cluster that grows knows what to grow for."""
        entries = entries_of(plan)
        tasks: dict[Any, Entry] = {}
        with contextlib.suppress(KeyboardInterrupt), signals_as_interrupt():  # Ctrl-C once more: all tasks are killed
            with self._sharing_gpu(entries) as environment:
                make = self._task(environment, grace_seconds)
                try:
                    while unfinished(entries):
                        self._submit(entries, tasks, make)
                        watcher.look(entries)
                        self._collect(tasks, watcher)
                        self._look_at_nodes(plan, watcher)
                except KeyboardInterrupt:
                    watcher.say("stopping: the runs are saving; press Ctrl-C again to stop at once")
                    return entries, True
                finally:
                    self._stop(tasks, grace_seconds)
            return entries, False
        return entries, True

    def _task(self, environment: Mapping[str, str], grace_seconds: float) -> Any:
        """What Ray calls with a run."""
        around = Surroundings(os.getcwd(), self.n_threads, environment)
        remote = self.ray.remote(max_retries=_MAX_LOSSES, retry_exceptions=False)(make_run)
        return lambda run: remote.options(name=run.key, **self._needs(run)).remote(run, around, grace_seconds)

    def _needs(self, run: PlannedRun) -> dict[str, float]:
        """The part of a node that a run takes; on ``--device auto`` of a GPU, if the cluster has one."""
        has_gpu = self.ray.cluster_resources().get("GPU", 0) > 0
        on_gpu = run.args.device == "cuda" or (run.args.device == "auto" and has_gpu)
        n = run.args.devices  # a run of several has whole ones
        return {"num_cpus": self.n_threads * n, "num_gpus": (gpu_share(self.jobs) if n == 1 else n) if on_gpu else 0}

    @contextlib.contextmanager
    def _sharing_gpu(self, entries: Sequence[Entry]) -> Iterator[Mapping[str, str]]:
        """The environment of the runs: what concerns sparsum, and on this machine the daemon by which they share a GPU."""
        ours = {name: value for name, value in os.environ.items() if name.startswith("SPARSUM_")}
        runs = [entry.run for entry in unfinished(entries)] if self.address == LOCAL else []
        with sharing_gpu(runs, self.jobs, self.watcher.say) as environment:
            yield ours | dict(environment)

    def _submit(self, entries: Sequence[Entry], tasks: dict[Any, Entry], make: Any) -> None:
        """Hand over the runs that have no task, and note which have been started."""
        with_task = {id(entry) for entry in tasks.values()}
        for entry in entries:
            if entry.phase is not Phase.WAITING:
                continue
            if id(entry) not in with_task:
                entry.run.folder.mkdir(parents=True, exist_ok=True)  # by which a node sees that the folder is shared
                entry.log_size, entry.n_attempts = log_size(entry.run), entry.n_attempts + 1
                tasks[make(entry.run)] = entry
            elif log_size(entry.run) > entry.log_size:
                entry.begin()

    def _collect(self, tasks: dict[Any, Entry], watcher: Watcher) -> None:
        """Look which tasks have ended, and how."""
        ended, _ = self.ray.wait(list(tasks), num_returns=len(tasks), timeout=_POLL_SECONDS)
        for task in ended:
            entry = tasks.pop(task)
            if entry.phase is Phase.RUNNING:
                entry.seconds += entry.elapsed()
            try:
                settle(entry, self.ray.get(task), watcher)
            except (self.ray.exceptions.RayError, OSError) as error:
                settle(entry, _cause(error), watcher)

    def _look_at_nodes(self, plan: Sequence[PlannedRun], watcher: Watcher) -> None:
        """Name nodes that come and go, and say so if there is no room left."""
        if time.monotonic() - self._looked_at < _LOOK_AT_NODES_SECONDS:
            return
        is_first = not self._looked_at
        self._looked_at, before, self._nodes = time.monotonic(), self._nodes, self._alive()
        for node in before.keys() - self._nodes.keys():
            watcher.say(f"{before[node]} was lost; its runs continue elsewhere from their last checkpoints")
        for node in self._nodes.keys() - before.keys():
            watcher.say(f"{self._nodes[node]} joined")
        if (is_first or before != self._nodes) and not self.n_at_a_time(plan):
            what = f"{counted(self.n_threads * n_processes_of(plan), 'core')} and what --device needs"
            watcher.say(f"no node has {what}: the runs wait for one to join")

    def _alive(self) -> dict[str, str]:
        """The nodes by their ids, in words."""
        nodes = [node for node in self.ray.nodes() if node["Alive"]]
        return {
            node["NodeID"]: f"node {node['NodeManagerHostname']} ({node['NodeManagerAddress']}, id {node['NodeID'][:8]})"
            for node in nodes
        }

    def _resources_text(self) -> str:
        found = self.ray.cluster_resources()
        return " and ".join(f"{found.get(kind, 0):g} {kind}s" for kind in ("CPU", "GPU"))

    def _stop(self, tasks: dict[Any, Entry], grace_seconds: float) -> None:
        """Let all runs save and stop; kill the workers of those that do not in time, or at once after another Ctrl-C."""
        deadline = time.monotonic() + grace_seconds + 2 * _POLL_SECONDS  # in which the tasks themselves end theirs
        for task in tasks:
            self.ray.cancel(task)
        left = list(tasks)
        with contextlib.suppress(KeyboardInterrupt):
            while left and time.monotonic() < deadline:
                _, left = self.ray.wait(left, num_returns=len(left), timeout=_POLL_SECONDS)
        for task in left:
            self.ray.cancel(task, force=True)
        for entry in tasks.values():
            entry.find_phase()


def make_run(run: PlannedRun, around: Surroundings, grace_seconds: float) -> int:
    """The task: make a run on this node, from where it is; returns the exit status of its process."""
    try:
        os.chdir(around.folder)
    except OSError:
        raise FileNotFoundError(_not_shared(around.folder)) from None
    if not run.folder.is_dir():
        raise FileNotFoundError(_not_shared(run.folder.absolute()))
    process = start_process(run, around.n_threads, around.environment)
    try:
        # Cancelling a task raises a KeyboardInterrupt between two instructions; it would not end a wait.
        while process.poll() is None:
            time.sleep(_POLL_SECONDS / 5)
    except KeyboardInterrupt:
        send(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_seconds)
        raise
    finally:
        send(process, signal.SIGKILL)
        process.communicate()  # closes the pipe, too
    return process.returncode


def _not_shared(folder: str | pathlib.Path) -> str:
    return f"{platform.node()} does not have the folder {folder}: it must be on a file system that all nodes share"


def gpu_share(jobs: int) -> float:
    """The part of a GPU that each of so many runs takes, rounded down to what Ray can count: 1/7 seven times is no more.

    >>> gpu_share(1), gpu_share(4), gpu_share(7)
    (1.0, 0.25, 0.1428)
    """
    return math.floor(_PARTS / jobs) / _PARTS


def check_address(address: str) -> None:
    """Raise a UsageError if there is no Ray at an address, within seconds."""
    host, _, port = address.rpartition(":")
    if address != "auto":
        if "//" in address or not (host and port.isdecimal() and 0 < int(port) < 2**16):
            hint = "; for ray:// run the command on a node of the cluster" if address.startswith("ray:") else ""
            raise UsageError(f"--ray must be auto or HOST:PORT, such as 10.0.0.1:6379; got {address!r}{hint}")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            raise UsageError(f"--ray {address}: nothing answers there ({error}); is the head node running?") from None
    try:
        command = [sys.executable, "-c", _PROBE, address]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=START_SECONDS)
    except subprocess.TimeoutExpired:
        raise UsageError(f"--ray {address}: no Ray answers there within {START_SECONDS:.0f} s") from None
    if done.returncode:
        last = [line.strip() for line in done.stderr.splitlines() if line.strip()][-1:]
        hint = "; the cluster wants a token: set RAY_AUTH_MODE=token" if "InvalidAuthToken" in done.stderr else ""
        raise UsageError(f"--ray {address}: {''.join(last) or f'exit status {done.returncode}'}{hint}")


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise UsageError(
            "--ray needs Ray: pip install 'sparsum-experiments[ray]', or from a clone './experiments[ray]'"
        ) from None
    return ray


def _cause(error: BaseException) -> str:
    """Why a task failed, in a line: what it raised, or what became of its worker."""
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {' '.join(str(cause).split())[:300]}"
