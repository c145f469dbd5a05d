"""Time of a training step of every experiment and method, compared with the authors' code.

Run it with ``python -m benchmarks.steps`` on an idle machine; it uses one thread. The data has the sizes of the paper's:
MNIST and Fashion-MNIST if ``--data-dir`` contains them, else random images; random features for the signal game. The
authors' times are CPU milliseconds on one core, measured for this project's specification.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from sparsum_experiments import bitvector_vae, signal_game, ssvae
from sparsum_experiments.data import Features, Games, Images, Split, load_images
from sparsum_experiments.experiment import AbstractExperiment
from sparsum_experiments.registry import make_args

# Milliseconds of the authors' code; the lower end where times varied.
AUTHORS = {
    ("ssvae", "sparse"): 32.0,
    ("signal-game", "sparse"): 9_000.0,
    ("signal-game", "dense"): 14_400.0,
    ("bitvector-vae 32", "topk"): 2_359.0,
    ("bitvector-vae 32", "sparsemap"): 7_126.0,
    ("bitvector-vae 128, batch 16", "sparsemap"): 4_236.0,
}


@dataclass(frozen=True)
class Case:
    """An experiment to measure."""

    title: str
    method: str
    experiment: AbstractExperiment


def random_images(n: int = 6000) -> Images:
    """Random images of the size of MNIST's; a tenth as many."""
    generator = torch.Generator().manual_seed(0)

    def split(n: int) -> Split:
        x = torch.randint(0, 256, (n, 784), generator=generator, dtype=torch.uint8)
        return Split(x, torch.randint(0, 10, (n,), generator=generator))

    is_labelled = torch.arange(n) < n // 10
    return Images("random", (28, 28), 256, split(n), split(500), split(500), is_labelled)


def random_games() -> Games:
    """Random features of the paper's size: 4,096 per image, 100 concepts of 20 images."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 4096, generator=generator)
    features = Features.from_unsorted(x, torch.arange(2000) % 100)
    return Games("random", features, features, features, tuple(map(str, range(100))), 16)


def cases(data_dir: pathlib.Path | None, only: str | None) -> Iterator[Case]:
    """All experiments and methods."""
    device = torch.device("cpu")
    digits = random_images() if data_dir is None else load_images("mnist", data_dir)
    clothes = random_images() if data_dir is None else load_images("fashion-mnist", data_dir, n_validation=5000)
    games = random_games()
    if only in {None, "ssvae"}:
        for method in ssvae.SemisupervisedVAE.methods:
            args = make_args("ssvae", method, {"data": "mnist", "warm_epochs": 100 if data_dir is not None else 5})
            assert isinstance(args, ssvae.Args)
            vae = ssvae.SemisupervisedVAE(args, device, digits)
            vae.start(lambda _: None)
            yield Case("ssvae", method, vae)
    if only in {None, "signal-game"}:
        for method in signal_game.SignalGame.methods:
            args = make_args("signal-game", method, {"data": "random"})
            assert isinstance(args, signal_game.Args)
            yield Case("signal-game", method, signal_game.SignalGame(args, device, games))
    if only in {None, "bitvector-vae"}:
        for bits, batch in ((32, 64), (128, 16)):
            for method in bitvector_vae.BitvectorVAE.methods:
                if method in {"dense", "sparse", "entmax15"}:  # they enumerate all vectors
                    continue
                args = make_args("bitvector-vae", method, {"data": "fashion-mnist", "bits": bits, "batch_size": batch})
                assert isinstance(args, bitvector_vae.Args)
                title = f"bitvector-vae {bits}" + (f", batch {batch}" if batch != 64 else "")
                yield Case(title, method, bitvector_vae.BitvectorVAE(args, device, clothes))


def measure(case: Case, seconds: float) -> tuple[float, float]:
    """Median milliseconds of a step, starting with the first, and calls per example."""
    experiment, times, calls = case.experiment, [], []
    optimiser, generator = experiment.optimiser(), torch.Generator().manual_seed(0)
    order = experiment.start_epoch(generator)
    experiment.model.train()
    begin = time.perf_counter()
    for i in range(experiment.n_steps):
        start = time.process_time()
        step = experiment.model(experiment.batch(order, i, generator), generator)
        optimiser.zero_grad(set_to_none=True)
        step.objective.backward()
        optimiser.step()
        times.append(1000 * (time.process_time() - start))
        calls.append(step.calls.double().mean().item())
        if i >= 5 and time.perf_counter() - begin > seconds:
            break
    return statistics.median(times), statistics.mean(calls)


def main() -> None:
    """Print one line per experiment and method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=pathlib.Path, help="folder with the files of mnist and fashion-mnist")
    parser.add_argument("--experiment", choices=["ssvae", "signal-game", "bitvector-vae"], help="measure only this one")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds per line (5)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kind = "real" if arguments.data_dir else "random"
    print(f"torch {torch.__version__}, CPU time of one thread, median over the first steps, {kind} data")
    print(f"{'experiment':28} {'method':17} {'ms/step':>9} {'steps/s':>8} {'calls':>7} {'authors ms':>11} {'ratio':>7}")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SPARSUM_CACHE"] = cache  # keep these warm starts out of the cache of runs
        for case in cases(arguments.data_dir, arguments.experiment):
            milliseconds, calls = measure(case, arguments.seconds)
            theirs = AUTHORS.get((case.title, case.method))
            compared = f"{theirs:11,.0f} {theirs / milliseconds:6.1f}x" if theirs is not None else ""
            line = f"{case.title:28} {case.method:17} {milliseconds:9.1f} {1000 / milliseconds:8.1f} {calls:7.2f}"
            print(f"{line} {compared}", flush=True)
    print(f"peak memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GB")


if __name__ == "__main__":
    main()
