r"""How probable an observation is under a model with too many latent bit vectors to sum over.

.. math:: p(x) = \sum_{z \in \{0, 1\}^D} p(x, z)

Both ways are unbiased estimates of p(x); their logarithms are low on average, and come with standard errors. `from_samples`
draws z from a distribution that has mass everywhere. `from_atoms` adds up the atoms of a sparse posterior, which has not,
and samples the rest of the sum, without counting an atom twice. Sums are made in log space and float64, and the model is
asked for a bounded number of assignments at a time. No standard error knows of mass where no sample has fallen.

References:
    - Efficient marginalization of discrete and structured latent variables via sparsity (Correia, Niculae, Aziz & Martins,
      2020), section 5.3, https://arxiv.org/abs/2007.01919
    - Monte Carlo theory, methods and examples (Owen, 2013), chapter 9, https://artowen.su.domains/mc/
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

import sparsum as sp
from sparsum.segments import Segments

#: log p(x, z) of packed assignments, (n, n_bits), each with the observation of its own row, (n,): (n,).
LogJoint = Callable[[Tensor, Tensor], Tensor]

#: The largest score that counts: beyond it a bit is flipped once in 400 samples, at a sharpness of 1.
MAX_SCORE = 6.0


class LogLikelihood(NamedTuple):
    """Estimates of log p(x), one per row."""

    value: Tensor  # shape: (n_rows,), float64
    standard_error: Tensor  # shape: (n_rows,), of the sampling alone

    @classmethod
    def concatenate(cls, parts: list[LogLikelihood]) -> LogLikelihood:
        """The estimates of several batches."""
        return cls(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))

    def mean(self) -> tuple[float, float]:
        """The mean over the rows, and its standard error, the rows being sampled independently."""
        return self.value.mean().item(), self.standard_error.norm().item() / len(self.value)


class Sampling(NamedTuple):
    """How an estimate is sampled.

    Args:
        n_samples: how many samples each row gets, at least 2.
        generator: where they come from.
        n_at_once: how many assignments of all rows together are evaluated at a time; at least one per row is.
    """

    n_samples: int
    generator: torch.Generator
    n_at_once: int

    def portions(self, n_rows: int) -> Iterator[int]:
        """How many samples per row to take at a time."""
        n_each = max(1, self.n_at_once // max(1, n_rows))
        for begin in range(0, self.n_samples, n_each):
            yield min(n_each, self.n_samples - begin)


def log_likelihood(log_joint: LogJoint, posterior: Distribution, sampling: Sampling) -> LogLikelihood:
    """Estimate as the paper does: by samples from a dense posterior, by the atoms of a sparse one and samples elsewhere."""
    if isinstance(posterior, sp.SparseDistribution):
        return from_atoms(log_joint, posterior, sampling)
    if isinstance(posterior, sp.Gibbs):
        return from_samples(log_joint, posterior, sampling)
    raise TypeError(f"posterior must be a SparseDistribution or a Gibbs distribution, got {type(posterior).__name__}")


def proposal(
    scores: Tensor,  # shape: (n_rows, n_bits)
    sharpness: float,
) -> sp.Gibbs:
    r"""Independent bits around what a posterior with these scores believes: logits :math:`a \min(\max(t, -6), 6)`.

    The neighbours of an atom explain the observation, too: for a sparse posterior this is a better place to sample from than
    the whole rest.
    """
    return sp.Gibbs(proposal_logits(scores, sharpness), sp.Bits(scores.shape[-1]))


def proposal_logits(scores: Tensor, sharpness: float) -> Tensor:
    """The logits of the bits of a proposal: (n_rows, n_bits)."""
    return scores.clamp(-MAX_SCORE, MAX_SCORE) * sharpness


def from_samples(log_joint: LogJoint, q: sp.Gibbs, sampling: Sampling) -> LogLikelihood:
    r"""Importance sampling, :math:`\log \frac1S \sum_s p(x, z_s) / q(z_s)` with :math:`z_s \sim q`."""
    n_rows = q.batch_shape.numel()
    weights = []
    for n in sampling.portions(n_rows):
        samples = q.sample((n,), generator=sampling.generator).transpose(0, 1)
        weights.append(_values(log_joint, samples) - _values(q.log_prob_of, samples))
    return log_mean(torch.cat(weights, 1))


def from_atoms(log_joint: LogJoint, q: sp.SparseDistribution, sampling: Sampling) -> LogLikelihood:
    r"""The terms of the atoms A, and the mean of the others by samples from the uniform distribution outside of A.

    .. math:: \log \Bigl( \sum_{z \in A} p(x, z) + (2^D - |A|) \frac1S \sum_s p(x, z_s) \Bigr), \quad z_s \notin A

    The probabilities of the atoms do not enter.
    """
    n_rows, n_bits = q.batch_shape.numel(), q.event_shape[0]
    lengths = q.n_atoms_per_row.reshape(-1)
    pairs = zip(q.atoms.split(sampling.n_at_once), q.row.split(sampling.n_at_once), strict=True)
    terms = torch.cat([log_joint(atoms, row).double() for atoms, row in pairs])
    inside = Segments.from_row(q.row, n_rows).logsumexp(terms)
    portions = (draw_outside(q, n, sampling.generator) for n in sampling.portions(n_rows))
    mean = log_mean(torch.cat([_values(log_joint, samples) for samples in portions], 1))
    log_n_others = n_bits * math.log(2) + torch.log1p(-lengths.double() * 2.0**-n_bits)  # -inf if there are none
    value = torch.logaddexp(inside, log_n_others + mean.value)
    # By the delta method: the error of a sum's logarithm is that of its sampled part, times the share of that part.
    share = (log_n_others + mean.value - value).exp()
    return LogLikelihood(value, share * mean.standard_error)


def draw_outside(q: sp.SparseDistribution, n: int, generator: torch.Generator) -> Tensor:
    """Uniform bit vectors that are no atoms of their row, by rejection: (n_rows, n, n_bits).

    In a row whose atoms are all there are, nothing is rejected.
    """
    atoms, n_bits = _padded(q), q.event_shape[0]
    has_others = (q.n_atoms_per_row.reshape(-1, 1).double() < 2.0**n_bits).to(atoms.device)
    shape = (len(atoms), n, n_bits)

    def draw() -> Tensor:
        return torch.randint(0, 2, shape, generator=generator, device=atoms.device).to(atoms.dtype)

    samples = draw()
    while bool((is_rejected := is_among(samples, atoms) & has_others).any()):
        samples = torch.where(is_rejected.unsqueeze(-1), draw(), samples)
    return samples


def _padded(q: sp.SparseDistribution) -> Tensor:
    """The atoms of each row, the last of a row repeated as often as needed: (n_rows, largest number, n_bits)."""
    lengths = q.n_atoms_per_row.reshape(-1, 1)
    place = torch.arange(int(lengths.max()), device=lengths.device).minimum(lengths - 1)
    return q.atoms[lengths.cumsum(0) - lengths + place]


def is_among(
    samples: Tensor,  # shape: (n_rows, n, n_bits)
    atoms: Tensor,  # shape: (n_rows, m, n_bits)
) -> Tensor:
    r"""Whether samples equal an atom of their row, (n_rows, n), without comparing all bits of all pairs.

    :math:`z^\top (2 a - 1)` counts the ones that z has in common with a, less those that a has not: at most the ones of a,
    and as many only if z = a. Sums of so few ones are exact.
    """
    agreement = samples @ (2 * atoms - 1).transpose(1, 2)
    return (agreement == atoms.sum(-1).unsqueeze(1)).any(-1)


def _values(log_density: LogJoint, samples: Tensor) -> Tensor:
    """A log-density of the samples of each row: (n_rows, n, n_bits) -> (n_rows, n)."""
    n_rows, n = samples.shape[:2]
    row = torch.arange(n_rows, device=samples.device).repeat_interleave(n, output_size=n_rows * n)
    return log_density(samples.flatten(0, 1), row).double().reshape(n_rows, n)


def log_mean(
    values: Tensor,  # shape: (n_rows, n_samples), logarithms
) -> LogLikelihood:
    r"""The logarithm of a mean, and its standard error by the delta method: that of the mean, relative to the mean.

    .. math:: \sqrt{\frac{S \sum_s w_s^2 / (\sum_s w_s)^2 - 1}{S - 1}}

    It is at most 1, where one sample outweighs all others: then it says that the estimate is not to be trusted.
    """
    n_samples = values.shape[1]
    total = values.logsumexp(1)
    concentration = ((2 * values).logsumexp(1) - 2 * total).exp()
    variance = (n_samples * concentration - 1).clamp_min(0.0) / (n_samples - 1)
    return LogLikelihood(total - math.log(n_samples), variance.sqrt())
