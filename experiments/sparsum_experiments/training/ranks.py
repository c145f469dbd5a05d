"""The processes that train one model together, one for each device, and what they agree on.

What is agreed never depends on the support of a distribution, which has another size on every rank. Flags and objects travel
between the hosts by gloo, so that no GPU is waited for; gradients by NCCL where there are GPUs.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from torch import distributed

from sparsum_experiments.errors import LostRankError, UsageError

#: How long a rank waits for another one that does not answer. That a process has ended is noticed at once.
TIMEOUT = datetime.timedelta(minutes=10)
#: After how many seconds of waiting for the others to join a rank says so, one on each machine.
PATIENCE_SECONDS = 20.0
#: The end of messages about a process that is gone.
RESUMABLE = "the last checkpoint is whole, and --resume continues from it"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Ranks:
    """This process among those of a training; by default it is the only one.

    Args:
        rank: the index of this process.
        n: the number of processes.
        local_rank: the index among those of this machine, which is that of its GPU.
    """

    rank: int = 0
    n: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    @property
    def gpu(self) -> int:
        """The index of this process's GPU among those that it sees; SLURM can show each task its own alone."""
        n = torch.cuda.device_count()
        if self.local_rank >= n > 1:
            raise UsageError(f"process {self.local_rank} of this machine has no GPU: torch finds {n}")
        return self.local_rank if self.local_rank < n else 0

    def gather(self, value: Result) -> list[Result]:
        """The values of all ranks."""
        if self.n == 1:
            return [value]
        found: list[Any] = [None] * self.n
        distributed.all_gather_object(found, value)
        return found

    def any(self, *flags: bool) -> list[bool]:
        """Whether each flag is set on any rank."""
        if self.n == 1:
            return list(flags)
        found = torch.tensor(flags, dtype=torch.uint8)
        distributed.all_reduce(found, distributed.ReduceOp.MAX)
        return [bool(flag) for flag in found.tolist()]

    def wait(self) -> None:
        """Wait until all ranks are here."""
        self.any(False)

    def together(self, work: Callable[[], Result]) -> Result:
        """What this rank's work returns; an error on one rank is an error on all, so that none waits for it."""
        if self.n == 1:
            return work()
        try:
            result = work()
        except Exception as error:
            self.gather(str(error) or type(error).__name__)
            raise
        for rank, problem in enumerate(self.gather("")):
            if problem:
                raise LostRankError(f"rank {rank} failed: {problem}")
        return result

    def check_same(self, what: str, values: dict[str, Any]) -> None:
        """Raise a UsageError on all ranks if any value is not the same on all of them."""
        first, *others = self.gather(values)
        for rank, other in enumerate(others, 1):
            if name := next((name for name in first | other if first.get(name) != other.get(name)), None):
                seen = f"{first.get(name)} on rank 0 and {other.get(name)} on rank {rank}"
                raise UsageError(f"all processes of a run need the same {what}, but {name} is {seen}")


#: A training in one process.
ALONE = Ranks()
_joined: Ranks | None = None


def joined_ranks() -> Ranks | None:
    """This process among those that it has joined, be it that they have parted since; None if it never did."""
    return _joined


@dataclass(frozen=True)
class Launch:
    """A process that a launcher started, before it has joined the others.

    Args:
        ranks: this process.
        devices: processes of each machine.
        nodes: machines.
        address: of the store through which the processes find each other, host and port; None if the environment says it.
        is_server: whether this process has to open the store.
    """

    ranks: Ranks
    devices: int
    nodes: int
    address: tuple[str, int] | None = None
    is_server: bool = False

    @contextlib.contextmanager
    def joined(self) -> Iterator[Ranks]:
        """The process group. An error of its network becomes a `LostRankError`."""
        global _joined
        with _clear_errors():
            if torch.cuda.is_available():
                torch.cuda.set_device(self.ranks.gpu)
            # Both by name: on a machine with a GPU, the default of torch 2.11 has no backend for CPU tensors.
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            with _interruptible(), self._said_when_waiting():
                distributed.init_process_group(
                    backend, store=self._store(), rank=self.ranks.rank, world_size=self.ranks.n, timeout=TIMEOUT
                )
            _joined = self.ranks
            try:
                yield self.ranks
                self.ranks.wait()  # rank 0 may hold the store, and writes last
            finally:
                distributed.destroy_process_group()

    def _store(self) -> Any:
        if self.address is None:
            return None
        try:
            return store_at(*self.address, self.ranks.n, is_server=self.is_server)
        except distributed.DistNetworkError as error:
            if not self.is_server:
                raise
            raise UsageError(
                f"rank {self.ranks.rank} cannot open port {self.address[1]}, through which the processes of a run find each "
                f"other; MASTER_PORT chooses another one ({str(error).splitlines()[0]})"
            ) from error

    @contextlib.contextmanager
    def _said_when_waiting(self) -> Iterator[None]:
        where = "" if self.address is None else " at {}:{}".format(*self.address)
        text = f"rank {self.ranks.rank} waits{where} for all {self.ranks.n} processes of the run to start\n"
        timer = threading.Timer(PATIENCE_SECONDS, lambda: sys.stderr.write(text))
        timer.daemon = True
        if self.ranks.local_rank == 0:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()


def store_at(host: str, port: int, n: int, *, is_server: bool) -> Any:
    """A store through which n processes find each other; a server with port 0 has one that is free."""
    options: dict[str, Any] = {"is_master": is_server, "timeout": TIMEOUT, "wait_for_workers": False}
    return distributed.TCPStore(host, port, n, **options)  # type: ignore[attr-defined]


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends the process at once: torch's C++ code would not let Python see it before all others are there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _clear_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, distributed.DistError) and "gloo" not in str(error):
            raise
        raise LostRankError(
            f"another process of this run ended, or did not answer for {TIMEOUT.seconds // 60} minutes; {RESUMABLE}"
        ) from error


def found_launch(wanted: int) -> Launch | None:
    """How torchrun, or srun with as many tasks as processes are wanted, started this process; None if neither did.

    The tasks of srun may be runs of their own, such as one per seed, so that they join only if asked to. Within an sbatch
    script, but outside of srun, there is one process, whatever SLURM_NTASKS says.
    """
    values = os.environ
    if {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= values.keys() and (n := int(values["WORLD_SIZE"])) > 1:
        ranks = Ranks(int(values["RANK"]), n, int(values.get("LOCAL_RANK", 0)))
        devices = int(values.get("LOCAL_WORLD_SIZE", n))
        return Launch(ranks, devices, n // devices)
    if wanted > 1 and "SLURM_PROCID" in values and (n := int(values.get("SLURM_STEP_NUM_TASKS", 1))) > 1:
        ranks = Ranks(int(values["SLURM_PROCID"]), n, int(values["SLURM_LOCALID"]))
        nodes = int(values["SLURM_STEP_NUM_NODES"])
        host = SLURMEnvironment.resolve_root_node_address(values["SLURM_STEP_NODELIST"])
        # All processes know it, another step of the job has another one, and other jobs hardly have it.
        port = 15_000 + (int(values["SLURM_JOB_ID"]) + 1009 * int(values.get("SLURM_STEP_ID", 0))) % 10_000
        address = values.get("MASTER_ADDR", host), int(values.get("MASTER_PORT", port))
        return Launch(ranks, n // nodes, nodes, address, ranks.is_first)
    return None
