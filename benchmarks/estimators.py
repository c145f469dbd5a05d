"""Variance of each estimator's gradient at equal cost: times calls of the loss, and times milliseconds.

A random decoder with one hidden layer predicts 64 random pixels from the latent variable; the scores are those of a random
encoder, scaled to a standard deviation of 1.5. Estimators with a choice make 4 calls of the loss; learned baselines are
trained for 500 steps first. The bias is measured where all assignments can be enumerated. Run it with
``OMP_NUM_THREADS=1 python -m benchmarks.estimators``.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import Tensor

import sparsum as sp
from sparsum.diagnosis import Diagnosis
from sparsum.estimators import AbstractEstimator

STRUCTURES: list[sp.OneOf | sp.Bits] = [sp.OneOf(10), sp.OneOf(256), sp.Bits(20), sp.Bits(128)]
BATCH, N_PIXELS, N_HIDDEN, SPREAD = 16, 64, 64, 1.5
CALLS, WARM_UP = 4, 500
MAX_TERMS = BATCH * 2**20


def estimators(n_scores: int) -> list[AbstractEstimator]:
    """All estimators, with budgets as equal as possible."""
    es = sp.estimators
    return [
        es.Dense(),
        es.Sparse(),
        es.TopK(CALLS),
        es.SparseMAP(),
        es.ScoreFunction(CALLS),
        es.SelfCritic(),
        es.NVIL(N_PIXELS),
        es.LeaveOneOut(CALLS),
        es.SumAndSample(CALLS - 1),
        es.UnorderedSet(CALLS),
        es.Rebar(),
        es.Relax(n_scores, N_PIXELS),
        es.Arm(),
        es.Disarm(),
        es.GumbelSoftmax(0.5, samples=CALLS),
        es.StraightThrough(samples=CALLS),
        es.ReinMax(samples=CALLS),
        es.Simple(CALLS),
        es.Imle(1.0, samples=CALLS),
    ]


class Autoencoder(torch.nn.Module):
    """Random networks from pixels to scores and from the latent variable to pixels."""

    encoder: Tensor  # shape: (64, n_scores)

    def __init__(self, structure: sp.OneOf | sp.Bits, generator: torch.Generator) -> None:
        super().__init__()
        n_ones = 1 if isinstance(structure, sp.OneOf) else structure.n / 2  # of a typical assignment
        embedding = torch.randn(structure.n, N_HIDDEN, generator=generator) / n_ones**0.5
        decoder = torch.randn(N_HIDDEN, N_PIXELS, generator=generator) / N_HIDDEN**0.5
        self.register_buffer("encoder", torch.randn(N_PIXELS, structure.n, generator=generator))
        self.embedding, self.decoder = torch.nn.Parameter(embedding), torch.nn.Parameter(decoder)

    def scores(self, x: Tensor) -> Tensor:
        """Scores of the images with a given spread: (batch, n_scores)."""
        scores = (x - x.mean()) @ self.encoder
        return SPREAD * scores / scores.std()

    def loss(self, z: Tensor, x: Tensor) -> Tensor:
        """Negative log-likelihood of images: (n,)."""
        logits = sp.embed(z, self.embedding).relu() @ self.decoder
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1)


def diagnose(structure: sp.OneOf | sp.Bits, draws: int, device: str) -> Diagnosis:
    """Measure all estimators that support the structure."""
    torch.manual_seed(0)  # of the learned baselines
    generator = torch.Generator().manual_seed(0)
    model = Autoencoder(structure, generator).to(device)
    x = torch.rand(BATCH, N_PIXELS, generator=generator).round().to(device)
    return sp.diagnose(
        model.scores(x),
        structure,
        lambda z, row: model.loss(z, x[row]),
        [e.to(device) for e in estimators(structure.n) if e.needs.is_met(structure)],
        context=x,
        draws=draws,
        warm_up=WARM_UP,
        max_terms=MAX_TERMS,
        progress=show,
    )


def show(what: str, done: int, total: int) -> None:
    """Show the progress in one line, which the next call overwrites."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}: {done:,} of {total:,}\r", end="", file=sys.stderr, flush=True)


def compare(diagnoses: dict[str, Diagnosis], attribute: str) -> None:
    """Print one number per method and structure; biased methods have a star."""
    print(f"\n{attribute.replace('_', ' '):28}" + "".join(f"{structure:>11}" for structure in diagnoses))
    for estimator in estimators(1):
        line = f"{type(estimator).__name__ + ('' if estimator.is_unbiased else ' *'):28}"
        for diagnosis in diagnoses.values():
            found = [row for row in diagnosis.rows if row.name == type(estimator).__name__ and not row.reason]
            line += f"{getattr(found[0], attribute):11.3g}" if found else f"{'-':>11}"
        print(line)


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=500, help="gradients of each estimator (%(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where it runs (%(default)s)")
    args = parser.parse_args()
    machine = torch.cuda.get_device_name() if args.device == "cuda" else f"{torch.get_num_threads()} CPU thread(s)"
    print(f"torch {torch.__version__}, {machine}, forward and backward of a batch of {BATCH}, {args.draws} draws")
    diagnoses = {}
    for structure in STRUCTURES:
        name = f"{type(structure).__name__}({structure.n})"
        diagnoses[name] = diagnose(structure, args.draws, args.device)
        print(f"\n{name}\n{diagnoses[name]}", flush=True)
    for attribute in ("variance_times_calls", "variance_times_milliseconds"):
        compare(diagnoses, attribute)


if __name__ == "__main__":
    main()
