r"""Importance sampling of log p(x) for models with too many latent bit vectors to enumerate.

.. math:: p(x) = \sum_{z \in \{0, 1\}^D} p(x, z)

Both estimates of p(x) are unbiased; their logarithms are biased downwards and come with standard errors. `from_samples`
draws z from a distribution with full support. `from_atoms` sums over the atoms of a sparse posterior and samples the rest of
the sum, so that no atom is counted twice. Sums are computed in log space and float64; the model evaluates a bounded number
of assignments at a time. A standard error does not account for mass that no sample has hit.

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

#: log p(x, z) of packed assignments (n, n_bits) and the observations given by their rows (n,): (n,).
LogJoint = Callable[[Tensor, Tensor], Tensor]

#: Scores are clamped to this absolute value, at which a bit is flipped once in 400 samples if the sharpness is 1.
MAX_SCORE = 6.0


class LogLikelihood(NamedTuple):
    """Estimates of log p(x), one per row."""

    value: Tensor  # shape: (n_rows,), float64
    standard_error: Tensor  # shape: (n_rows,), of the sampling

    @classmethod
    def concatenate(cls, parts: list[LogLikelihood]) -> LogLikelihood:
        """Concatenate the estimates of several batches."""
        return cls(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))

    def mean(self) -> tuple[float, float]:
        """The mean over rows and its standard error; rows are sampled independently."""
        return self.value.mean().item(), self.standard_error.norm().item() / len(self.value)


class Sampling(NamedTuple):
    """The settings of importance sampling."""

    n_samples: int  # per row, at least 2
    generator: torch.Generator  # the source of all noise
    n_at_once: int  # assignments, of all rows together, to evaluate at a time; at least one per row is evaluated

    def portions(self, n_rows: int) -> Iterator[int]:
        """The numbers of samples per row to draw at a time."""
        n_each = max(1, self.n_at_once // max(1, n_rows))
        for begin in range(0, self.n_samples, n_each):
            yield min(n_each, self.n_samples - begin)


def log_likelihood(log_joint: LogJoint, posterior: Distribution, sampling: Sampling) -> LogLikelihood:
    """The paper's estimate: `from_atoms` for a sparse posterior, `from_samples` for a dense one."""
    if isinstance(posterior, sp.SparseDistribution):
        return from_atoms(log_joint, posterior, sampling)
    if isinstance(posterior, sp.Gibbs):
        return from_samples(log_joint, posterior, sampling)
    raise TypeError(f"posterior must be a SparseDistribution or a Gibbs distribution, got {type(posterior).__name__}")


def proposal(scores: Tensor, sharpness: float) -> sp.Gibbs:  # shape: (n_rows, n_bits)
    r"""Independent bits with logits :math:`a \min(\max(t, -6), 6)`, where t are the scores and a is the sharpness.

    Neighbours of an atom also explain the observation, so for a sparse posterior this is a better proposal than the uniform
    distribution outside its support.
    """
    return sp.Gibbs(proposal_logits(scores, sharpness), sp.Bits(scores.shape[-1]))


def proposal_logits(scores: Tensor, sharpness: float) -> Tensor:
    """The logits of `proposal`: (n_rows, n_bits)."""
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
    r"""Sum over the atoms A, and sample uniformly outside of A.

    .. math:: \log \Bigl( \sum_{z \in A} p(x, z) + (2^D - |A|) \frac1S \sum_s p(x, z_s) \Bigr), \quad z_s \notin A

    The probabilities of the atoms are not used.
    """
    n_rows, n_bits = q.batch_shape.numel(), q.event_shape[0]
    lengths = q.n_atoms_per_row.reshape(-1)
    pairs = zip(q.atoms.split(sampling.n_at_once), q.row.split(sampling.n_at_once), strict=True)
    terms = torch.cat([log_joint(atoms, row).double() for atoms, row in pairs])
    inside = Segments.from_row(q.row, n_rows).logsumexp(terms)
    portions = (draw_outside(q, n, sampling.generator) for n in sampling.portions(n_rows))
    mean = log_mean(torch.cat([_values(log_joint, samples) for samples in portions], 1))
    log_n_others = n_bits * math.log(2) + torch.log1p(-lengths.double() * 2.0**-n_bits)  # -inf if A is everything
    value = torch.logaddexp(inside, log_n_others + mean.value)
    # Delta method: the relative error of the sampled part, times its share of the sum.
    share = (log_n_others + mean.value - value).exp()
    return LogLikelihood(value, share * mean.standard_error)


def draw_outside(q: sp.SparseDistribution, n: int, generator: torch.Generator) -> Tensor:
    """Sample uniform bit vectors that are not atoms of their row, by rejection: (n_rows, n, n_bits).

    If all bit vectors are atoms of a row, nothing is rejected.
    """
    lengths, n_bits = q.n_atoms_per_row.reshape(-1, 1), q.event_shape[0]
    place = torch.arange(int(lengths.max()), device=lengths.device).minimum(lengths - 1)
    atoms = q.atoms[lengths.cumsum(0) - lengths + place]  # shape: (n_rows, max_atoms, n_bits), the last one repeated
    has_others = (lengths.double() < 2.0**n_bits).to(atoms.device)
    shape = (len(atoms), n, n_bits)

    def draw() -> Tensor:
        return torch.randint(0, 2, shape, generator=generator, device=atoms.device).to(atoms.dtype)

    samples = draw()
    while bool((is_rejected := is_among(samples, atoms) & has_others).any()):
        samples = torch.where(is_rejected.unsqueeze(-1), draw(), samples)
    return samples


def is_among(
    samples: Tensor,  # shape: (n_rows, n, n_bits)
    atoms: Tensor,  # shape: (n_rows, m, n_bits)
) -> Tensor:
    r"""Whether samples equal an atom of their row, (n_rows, n), computed by one matrix product.

    :math:`z^\top (2 a - 1)` counts the ones that z shares with a, minus those that a lacks. It is at most the number of ones
    in a, with equality only if z = a. Sums of so few ones are exact in floating point.
    """
    agreement = samples @ (2 * atoms - 1).transpose(1, 2)
    return (agreement == atoms.sum(-1).unsqueeze(1)).any(-1)


def _values(log_density: LogJoint, samples: Tensor) -> Tensor:
    """Evaluate a log-density at the samples of each row: (n_rows, n, n_bits) -> (n_rows, n)."""
    n_rows, n = samples.shape[:2]
    row = torch.arange(n_rows, device=samples.device).repeat_interleave(n, output_size=n_rows * n)
    return log_density(samples.flatten(0, 1), row).double().reshape(n_rows, n)


def log_mean(values: Tensor) -> LogLikelihood:  # shape: (n_rows, n_samples), logarithms
    r"""The logarithm of a mean, and its standard error by the delta method.

    .. math:: \sqrt{\frac{S \sum_s w_s^2 / (\sum_s w_s)^2 - 1}{S - 1}}

    The error is at most 1, which it reaches when one sample outweighs all others and the estimate is unreliable.
    """
    n_samples = values.shape[1]
    total = values.logsumexp(1)
    concentration = ((2 * values).logsumexp(1) - 2 * total).exp()
    variance = (n_samples * concentration - 1).clamp_min(0.0) / (n_samples - 1)
    return LogLikelihood(total - math.log(n_samples), variance.sqrt())
