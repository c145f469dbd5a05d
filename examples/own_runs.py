"""A page for the runs of one's own training loop: `sparsum report` of what this loop writes.

A categorical latent variable explains points in the plane; three ways to train it are compared over two seeds. The loop is
an ordinary one. What makes it reportable is a `RunWriter`: a folder for each run, a line for each epoch.

Run it with ``python -m examples.own_runs``, then open ``runs/own/report.html``.
"""

from __future__ import annotations

import argparse
import pathlib

import torch
from sparsum_experiments.report import write_report
from sparsum_experiments.runs import RunWriter
from torch import Tensor

import sparsum as sp

ESTIMATORS = {"sparse": sp.estimators.Sparse, "dense": sp.estimators.Dense, "sfe": sp.estimators.ScoreFunction}


def train(method: str, seed: int, n_epochs: int, folder: pathlib.Path) -> None:
    """One run: which of 16 prototypes explains a point."""
    torch.manual_seed(seed)
    centres = 4 * torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    scorer = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
    prototypes = torch.nn.Parameter(torch.randn(16, 2))
    estimator = ESTIMATORS[method]()
    optimiser = torch.optim.Adam([*scorer.parameters(), prototypes, *estimator.parameters()], lr=0.01)
    writer = RunWriter(
        folder, "prototypes", method, epochs=n_epochs, seed=seed, data="points", criterion="loss", better="smaller"
    )
    for _ in range(n_epochs):
        for _ in range(50):
            x = centres[torch.randint(8, (64,))] + 0.3 * torch.randn(64, 2)

            def distance(z: Tensor, row: Tensor, x: Tensor = x) -> Tensor:
                return (prototypes[z] - x[row]).square().sum(-1)

            # Small scores and an entropy bonus keep several prototypes in the support of sparsemax while they are learned.
            estimate = estimator(scorer(x) / 3, sp.OneOf(16), distance)
            optimiser.zero_grad()
            (estimate.surrogate - estimate.distribution.entropy()).mean().backward()
            optimiser.step()
        loss, calls = estimate.value.mean().item(), estimate.calls.double().mean().item()
        writer.epoch({"loss": loss}, calls=calls)
    writer.test({"loss": loss})


def main() -> None:
    """Train, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/own"))
    args = parser.parse_args()
    for method in ESTIMATORS:
        for seed in range(2):
            train(method, seed, args.epochs, args.out / method / f"seed-{seed}")
    print(write_report([args.out], args.out))


if __name__ == "__main__":
    main()
