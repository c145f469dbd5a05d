r"""Bits per pixel under a model with latent bit vectors: three estimates of :math:`-\log_2 p(x)`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.distributions import Distribution

from sparsum_experiments.models import importance
from sparsum_experiments.models.annealing import Annealing, from_annealing
from sparsum_experiments.models.importance import LogJoint, LogLikelihood, Sampling

#: Candidate factors of the proposal's scores; one is selected per model, on validation data.
SHARPNESSES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


class BitModel(Protocol):
    """A model whose latent variable is a bit vector."""

    def scores(self, x: Tensor) -> Tensor:
        """The scores of the posterior: (n_rows, n_bits)."""

    def posterior(self, x: Tensor, generator: torch.Generator) -> Distribution:
        """The distribution q(z | x) of each observation."""

    def log_joint(self, x: Tensor) -> LogJoint:
        """The log-density log p(x, z)."""


class _Work:
    """Reports the fraction of the work that is done."""

    def __init__(self, amount: float, progress: Callable[[float], None] | None) -> None:
        self.amount, self.progress, self.done = amount, progress, 0.0

    def advance(self, amount: float) -> None:
        self.done += amount
        if self.progress is not None:
            self.progress(min(self.done / self.amount, 1.0))

    def in_batches(self, images: Tensor, size: int, estimate: Callable[[Tensor], LogLikelihood]) -> LogLikelihood:
        """Estimate batch by batch; each image is one unit of work."""
        parts = []
        for part in images.split(size):
            parts.append(estimate(part))
            self.advance(len(part))
        return LogLikelihood.concatenate(parts)


def bits_per_dim(
    model: BitModel,
    x: Tensor,  # shape: (n, n_pixels)
    held_out: Tensor,  # shape: (m, n_pixels)
    sampling: Sampling,
    batch_size: int,
    *,
    n_annealed: int = 0,
    progress: Callable[[float], None] | None = None,  # called with the fraction of the work that is done
) -> dict[str, float]:
    r"""Estimate the mean of :math:`-\log_2 p(x)` per pixel by the paper's method, importance sampling and annealing.

    The sharpness of the `proposal` is selected on ``held_out``, which are other images. The first ``n_annealed`` images, 0
    or at least 2, are annealed, each of which costs as much as 8,000 samples.

    Returns:
        ``bits_per_dim_paper``, ``bits_per_dim_proposal``, their standard errors ``..._se`` and the ``sharpness``; with
        ``n_annealed`` also ``bits_per_dim_annealed``, which is for all images (see `annealed_mean`), its ``..._se``, and
        ``n_annealed``. The first two errors are those of the sampling, not of the choice of images.
    """
    if sampling.n_samples < 2:
        raise ValueError(f"n_samples must be at least 2, got {sampling.n_samples}")
    if n_annealed < 0 or n_annealed == 1:
        raise ValueError(f"n_annealed must be 0 or at least 2, got {n_annealed}")
    annealing, first = Annealing(sampling.generator), x[:n_annealed]
    step = annealing.n_chains / sampling.n_samples  # of an image, relative to all of its samples
    work = _Work(len(SHARPNESSES) * len(held_out) + 2 * len(x) + (step * annealing.n_steps + 1) * len(first), progress)

    def by_posterior(part: Tensor) -> LogLikelihood:
        return importance.log_likelihood(model.log_joint(part), model.posterior(part, sampling.generator), sampling)

    def by_proposal(part: Tensor, sharpness: float) -> LogLikelihood:
        q = importance.proposal(model.scores(part), sharpness)
        return importance.from_samples(model.log_joint(part), q, sampling)

    def by_annealing(part: Tensor, sharpness: float) -> LogLikelihood:
        logits = importance.proposal_logits(model.scores(part), sharpness)
        return from_annealing(model.log_joint(part), logits, annealing, lambda: work.advance(step * len(part)))

    proposals = {a: functools.partial(by_proposal, sharpness=a) for a in SHARPNESSES}
    sharpness = max(SHARPNESSES, key=lambda a: work.in_batches(held_out, batch_size, proposals[a]).mean()[0])
    paper = work.in_batches(x, batch_size, by_posterior)
    sampled = work.in_batches(x, batch_size, proposals[sharpness])
    found = {"paper": paper.mean(), "proposal": sampled.mean()}
    if n_annealed:
        size = max(1, sampling.n_at_once // annealing.n_chains)
        annealed = work.in_batches(first, size, functools.partial(by_annealing, sharpness=sharpness))
        found["annealed"] = annealed_mean(annealed, sampled)
    metrics, nats = {"sharpness": sharpness}, x.shape[1] * math.log(2)
    for name, (value, standard_error) in found.items():
        metrics |= {f"bits_per_dim_{name}": -value / nats, f"bits_per_dim_{name}_se": standard_error / nats}
    return metrics | ({"n_annealed": float(len(first))} if n_annealed else {})


def annealed_mean(annealed: LogLikelihood, sampled: LogLikelihood) -> tuple[float, float]:  # of the first m and all n rows
    """Estimate the mean of the annealed log-likelihood over all rows, and its standard error, from the first m rows.

    A control variate: the mean gain of annealing on the first rows is added to the sampled mean of all rows. The gain varies
    far less between rows than the likelihood. The error assumes that the first rows were chosen at random.
    """
    m, n = len(annealed.value), len(sampled.value)
    gain = annealed.value - sampled.value[:m]
    # The variance between rows includes the noise of the chains, which is added in full only if m = n.
    by_choice = gain.std().item() * math.sqrt((1 - m / n) / m) if m < n else 0.0
    return sampled.mean()[0] + gain.mean().item(), math.hypot(by_choice, math.sqrt(m / n) * annealed.mean()[1])
