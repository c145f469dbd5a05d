"""Training steps of the three experiments, one run at a time."""

from __future__ import annotations

import pathlib
import statistics
import time
from collections.abc import Iterator

import torch
from lightning_fabric import Fabric
from sparsum_experiments import bitvector_vae, signal_game, ssvae
from sparsum_experiments.data import load_games
from sparsum_experiments.experiment import AbstractExperiment
from sparsum_experiments.registry import make_args
from sparsum_experiments.training.steps import Steps, steps_for
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.table import Line
from benchmarks.steps import random_games, random_images

_EARLY, _WARM, _TIMED = 60, 300, 100


def experiments(data_dir: pathlib.Path | None = None) -> Iterator[tuple[str, AbstractExperiment, float | None]]:
    """All methods of all experiments on data of the paper's sizes, and the target in milliseconds per step."""
    device, images = torch.device("cuda"), random_images().to(torch.device("cuda"))
    games = random_games() if data_dir is None else load_games("signal-game", data_dir, device=device)
    for method in ssvae.SemisupervisedVAE.methods:
        args = make_args("ssvae", method, {"data": "mnist", "warm_epochs": 0})
        assert isinstance(args, ssvae.Args)
        yield f"ssvae {method}", ssvae.SemisupervisedVAE(args, device, images), 2.5 if method == "sparse" else None
    for method in signal_game.SignalGame.methods:
        game_args = make_args("signal-game", method, {"data": "random"})
        assert isinstance(game_args, signal_game.Args)
        wanted = 1.5 if method == "sparse" else None
        yield f"signal game {method}", signal_game.SignalGame(game_args, device, games), wanted
    for bits in (32, 128):
        for method in bitvector_vae.BitvectorVAE.methods:
            if method in {"dense", "sparse", "entmax15"}:  # they enumerate all vectors
                continue
            vae_args = make_args("bitvector-vae", method, {"data": "fashion-mnist", "bits": bits})
            assert isinstance(vae_args, bitvector_vae.Args)
            wanted = 2.0 if (method, bits) == ("topk", 32) else None
            yield f"bit-vector VAE {method} D={bits}", bitvector_vae.BitvectorVAE(vae_args, device, images), wanted


def take(steps: Steps, n: int) -> list[float]:
    """Run the first n steps of an epoch; the milliseconds of each."""
    generator = steps.generator.manual_seed(0)
    order = steps.experiment.start_epoch(generator)
    times = []
    for i in range(n):
        begin = time.perf_counter()
        steps.take(order, i % steps.experiment.n_steps)
        torch.cuda.current_stream().synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return times


def lines(data_dir: pathlib.Path | None = None) -> Iterator[Line]:
    """The median time of synchronised steps, early and after the support has shrunk."""
    for title, experiment, wanted in experiments(data_dir):
        steps = steps_for(experiment, Fabric(accelerator="cuda", devices=1))
        experiment.model.train()
        with steps.epoch():
            early = statistics.median(take(steps, _EARLY))
            take(steps, _WARM)
            late = statistics.median(take(steps, _TIMED))
            kernels, floor = _kernels(steps)
        is_met = None if wanted is None else late < wanted and early < wanted
        yield Line(
            f"{title}, batch 64: steps {_EARLY // 2} / {_EARLY + _WARM + _TIMED // 2}",
            f"{early:.2f} / {late:.2f} ms",
            "" if wanted is None else f"< {wanted} ms",
            is_met,
            f"{kernels} kernels that run for {floor:.2f} ms",
            "starts of dependent kernels, about 1 us each, and one reading of a size" if wanted else "",
        )


def _kernels(steps: Steps) -> tuple[int, float]:
    """The number of kernels of a step, and their total milliseconds."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        take(steps, 1)
    events = [event for event in profiled.events() if event.device_type == DeviceType.CUDA]
    return len(events), sum(event.device_time for event in events) / 1e3
