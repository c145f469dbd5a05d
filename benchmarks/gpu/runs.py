"""Concurrent runs on one GPU: time of a step of the signal game relative to a single run.

Each run is a process, as in `sparsum sweep --jobs N`; the same private MPS daemon runs their kernels concurrently.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

import torch
from lightning_fabric import Fabric
from sparsum_experiments import signal_game
from sparsum_experiments.data import load_games
from sparsum_experiments.registry import make_args
from sparsum_experiments.sweep.mps import private_daemon
from sparsum_experiments.training.steps import steps_for

from benchmarks.gpu.table import Line
from benchmarks.steps import random_games

_WARM_STEPS, _SECONDS = 1000, 3.0


def lines(data_dir: pathlib.Path | None = None, counts: tuple[int, ...] = (16,)) -> Iterator[Line]:
    """The median step of concurrent runs, relative to a single run, with and without the daemon."""
    alone = statistics.median(_side_by_side(1, {}, data_dir))
    yield Line("signal game sparse, one run alone, a step in a process of its own", f"{alone:.3f} ms")
    with private_daemon(lambda _: None) as environment:
        if not environment:
            yield Line("several runs at once, MPS", "its daemon did not start", "<= 1.5x of one alone", is_met=False)
        for n in counts if environment else ():
            together = statistics.median(_side_by_side(n, environment, data_dir))
            ratio = together / alone
            wanted, is_met = ("<= 1.5x of one alone", ratio <= 1.5) if n == 16 else ("", None)
            yield Line(f"signal game sparse, {n} runs at once, MPS", f"{together:.3f} ms, {ratio:.2f}x", wanted, is_met)
    together = statistics.median(_side_by_side(16, {}, data_dir))
    yield Line("signal game sparse, 16 runs at once, without MPS", f"{together:.3f} ms, {together / alone:.2f}x")


def _side_by_side(n: int, environment: Mapping[str, str], data_dir: pathlib.Path | None) -> list[float]:
    """The median milliseconds of a step in each of n concurrent processes."""
    command = [sys.executable, "-m", "benchmarks.gpu.runs", *([str(data_dir)] if data_dir else [])]
    whole = os.environ | {"OMP_NUM_THREADS": "1"} | dict(environment)
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=whole, text=True) for _ in range(n)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [float(process.communicate()[0]) for process in processes]


def _run() -> None:
    """One run: train until the support has its typical size, then wait for a line on stdin and measure."""
    torch.set_num_threads(1)
    data_dir = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else None
    device = torch.device("cuda")
    args = make_args("signal-game", "sparse", {"data": "random", "lr": 1e-3, "entropy": 0.1})
    assert isinstance(args, signal_game.Args)
    games = random_games() if data_dir is None else load_games("signal-game", data_dir, device=device)
    experiment = signal_game.SignalGame(args, device, games)
    steps = steps_for(experiment, Fabric(accelerator="cuda", devices=1))
    experiment.model.train()
    order = experiment.start_epoch(steps.generator.manual_seed(0))
    with steps.epoch():
        for i in range(_WARM_STEPS):
            steps.take(order, i % experiment.n_steps)
        torch.cuda.current_stream().synchronize()
        print("ready", flush=True)
        sys.stdin.readline()
        times, begin = list[float](), time.perf_counter()
        while time.perf_counter() - begin < _SECONDS:
            start = time.perf_counter()
            steps.take(order, len(times) % experiment.n_steps)
            torch.cuda.current_stream().synchronize()
            times.append(1e3 * (time.perf_counter() - start))
    print(statistics.median(times), flush=True)


if __name__ == "__main__":
    _run()
