"""How the work scales: runs per hour over jobs, and categories over processes.

``python -m benchmarks.scaling`` measures both; ``--only jobs`` or ``--only categories`` one of them.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

import sparsum as sp

#: Categories in all, and rows.
N_CATEGORIES, N_ROWS = 10**7, 4
N_TIMED = 5


def jobs(counts: list[int], device: str) -> None:
    """Print runs per hour of a sweep of short runs on scikit-learn's digits, for numbers of jobs."""
    print(f"runs per hour, ssvae on digits, one epoch and its warm start, device {device}, {os.cpu_count()} CPU cores")
    first = None
    for n_jobs in counts:
        n_runs = max(2 * n_jobs, 4)
        with tempfile.TemporaryDirectory() as folder:
            options = f"--methods sparse --seeds {n_runs} --epochs 1 --warm-epochs 1 --data digits --device {device}"
            command = [sys.executable, "-m", "sparsum_experiments.main", "sweep", "ssvae", *options.split()]
            begin = time.perf_counter()
            subprocess.run([*command, "--jobs", str(n_jobs), "--out", folder], check=True, stdout=subprocess.DEVNULL)
            seconds = time.perf_counter() - begin
        rate = 3600 * n_runs / seconds
        first = first or rate
        print(f"  {n_jobs:2d} job(s): {rate:8.0f} runs per hour, {rate / first:.2f}x", flush=True)


def categories(counts: list[int]) -> None:
    """Print the time of sparsemax and its gradient over sharded categories, for numbers of processes."""
    print(f"sparsemax of {N_ROWS} x {N_CATEGORIES:,}, forward and backward, one thread per process, gloo")
    x = torch.randn(N_ROWS, N_CATEGORIES, generator=torch.Generator().manual_seed(0), requires_grad=True)
    begin = time.perf_counter()
    for _ in range(N_TIMED):
        torch.autograd.grad(sp.sparsemax(x).square().sum(), x)
    single = (time.perf_counter() - begin) / N_TIMED
    print(f"  sp.sparsemax in one process: {1e3 * single:.0f} ms", flush=True)
    del x
    for n_processes in counts:
        with socket.socket() as listener:
            listener.bind(("localhost", 0))
            port = int(listener.getsockname()[1])
        with torch.multiprocessing.get_context("spawn").Manager() as manager:
            found = manager.dict()
            start_processes(_time_categories, (n_processes, port, found), n_processes, start_method="spawn")
            seconds, n_collectives = found[0]
        shown = (
            f"{1e3 * seconds:.0f} ms, {single / seconds:.2f}x, {n_collectives} collectives of at most {2 * N_ROWS} numbers"
        )
        print(f"  {n_processes} process(es): {shown}", flush=True)


def _time_categories(rank: int, n_processes: int, port: int, found: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=n_processes, timeout=timedelta(minutes=2))
    n_local = N_CATEGORIES // n_processes
    x = torch.randn(N_ROWS, n_local, generator=torch.Generator().manual_seed(rank), requires_grad=True)
    plain, n_collectives = dist.all_reduce, 0

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal n_collectives
        n_collectives += 1
        return plain(*args, **options)

    dist.all_reduce = counted
    torch.autograd.grad(sp.distributed.all_reduce_sum(sp.distributed.sparsemax(x).square().sum()), x)
    dist.all_reduce = plain
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(N_TIMED):
        torch.autograd.grad(sp.distributed.all_reduce_sum(sp.distributed.sparsemax(x).square().sum()), x)
    if rank == 0:
        found[0] = ((time.perf_counter() - begin) / N_TIMED, n_collectives)
    dist.destroy_process_group()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["jobs", "categories"], help="measure only this part")
    parser.add_argument("--jobs", default="1,2", help="numbers of jobs, separated by commas (default: %(default)s)")
    parser.add_argument("--processes", default="1,2", help="numbers of processes (default: %(default)s)")
    parser.add_argument(
        "--device", default="cpu", choices=["cpu", "cuda"], help="where the runs train (default: %(default)s)"
    )
    arguments = parser.parse_args()
    if arguments.only != "categories":
        jobs([int(count) for count in arguments.jobs.split(",")], arguments.device)
    if arguments.only != "jobs":
        categories([int(count) for count in arguments.processes.split(",")])


if __name__ == "__main__":
    main()
