"""One small VAE with 8 bits on scikit-learn's digits, trained by every estimator: ``python -m examples.estimators``."""

from __future__ import annotations

import math
import time

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import sparsum as sp
from sparsum import estimators as es


def train(estimator: es.AbstractEstimator, exact: es.AbstractEstimator, images: Tensor, steps: int) -> list[float]:
    """Train on all but 300 images; returns the negative ELBO of these, before and after, and the calls per image."""
    generator = torch.manual_seed(0)  # torch's own, from which the weights are drawn as well
    encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))
    optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters(), *estimator.parameters()], lr=5e-3)

    def negative_elbo(estimator: es.AbstractEstimator, x: Tensor) -> tuple[Tensor, float]:
        def loss(z: Tensor, row: Tensor) -> Tensor:
            return nn.functional.binary_cross_entropy_with_logits(decoder(z), x[row], reduction="none").sum(-1)

        estimate = estimator(encoder(x), sp.Bits(8), loss, context=x, generator=generator)
        divergence = 8 * math.log(2) - estimate.distribution.entropy()  # from a uniform prior
        return (estimate.surrogate + divergence).mean(), estimate.calls.double().mean().item()

    before, calls = negative_elbo(exact, images[:300])[0].item(), 0.0
    for _ in range(steps):
        objective, n_calls = negative_elbo(estimator, images[torch.randint(300, 1797, (64,), generator=generator)])
        optimiser.zero_grad()
        objective.backward()
        optimiser.step()
        calls += n_calls / steps
    return [before, negative_elbo(exact, images[:300])[0].item(), calls]


def main(steps: int = 600) -> dict[str, list[float]]:
    """Print a line for each estimator once it is trained; returns its loss before and after, and its calls per image."""
    torch.manual_seed(0)
    images = (torch.tensor(load_digits().data) > 7).float()[torch.randperm(1797)]
    sums = [es.Dense(), es.Sparse(), es.TopK(8), es.SparseMAP()]
    samples = [es.ScoreFunction(), es.SelfCritic(), es.NVIL(64), es.LeaveOneOut(4), es.SumAndSample(3), es.UnorderedSet(4)]
    samples += [es.Rebar(), es.Relax(8, 64), es.Arm(), es.Disarm()]
    samples += [es.GumbelSoftmax(0.5), es.StraightThrough(), es.ReinMax(), es.Simple(), es.Imle(step=0.3)]
    print(f"{'method':16} {'-ELBO (nats)':>12} {'calls/image':>12} {'seconds':>8}")
    results = {}
    for estimator in sums + samples:
        start, name = time.perf_counter(), type(estimator).__name__
        # One yardstick for all: a sum is exact by itself, and samples are from the distribution that Dense sums over.
        results[name] = train(estimator, estimator if estimator in sums else es.Dense(), images, steps)
        print(f"{name:16} {results[name][1]:12.2f} {results[name][2]:12.1f} {time.perf_counter() - start:8.1f}", flush=True)
    return results


if __name__ == "__main__":
    main()
