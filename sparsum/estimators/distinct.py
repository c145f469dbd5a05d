"""Sampling without replacement, and sampling outside of a given set, from chains of choices."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.estimators.noise import gumbel
from sparsum.estimators.problem import Problem
from sparsum.gibbs.chain import Chain
from sparsum.structures.log_space import draw


def sample_without_replacement(chain: Chain, k: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """The first k distinct samples of each row, (n_rows, k, length), and their log-probabilities, (n_rows, k).

    Returns all assignments if there are fewer than k. If a row allows fewer than k, forbidden assignments, with a
    log-probability of `FORBIDDEN` or less, fill the rest.

    The samples are the assignments with the largest log-probabilities after adding Gumbel noise. A beam search finds them:
    for each prefix, it draws the largest perturbed value of all completions before it extends the prefix.

    References:
        - Stochastic beams and where to find them (Kool, van Hoof & Welling, 2019), algorithm 1,
          https://arxiv.org/abs/1903.06059
    """
    first = chain.first.detach().double()
    perturbed = first + gumbel(first.shape, first, generator)
    perturbed, kept = perturbed.topk(min(k, first.shape[-1]), -1)
    log_probs, choices = first.gather(1, kept), kept.unsqueeze(-1)
    for i in range(1, chain.length):
        below = log_probs.unsqueeze(-1) + chain.step(i, choices[:, :, -1]).detach().double()
        noisy = _given_largest(below + gumbel(below.shape, below, generator), perturbed)
        n_choices = below.shape[-1]
        perturbed, kept = noisy.flatten(1).topk(min(k, noisy.shape[1] * n_choices), -1)
        log_probs = below.flatten(1).gather(1, kept)
        beginning = choices.gather(1, (kept // n_choices).unsqueeze(-1).expand(-1, -1, i))
        choices = torch.cat([beginning, (kept % n_choices).unsqueeze(-1)], -1)
    return choices, log_probs


def _given_largest(
    noisy: Tensor,  # shape: (*, n)
    largest: Tensor,  # shape: (*,)
) -> Tensor:
    """Shift perturbed log-probabilities to a given maximum, as if they were drawn conditioned on it."""
    peak = noisy.amax(-1, keepdim=True)
    target = largest.unsqueeze(-1)
    gap = target - noisy + torch.log(-torch.expm1((noisy - peak).clamp_max(0.0)))  # -inf at the peak itself
    return target - gap.clamp_min(0.0) - torch.log1p(torch.exp(-gap.abs()))


def sample_outside(
    chain: Chain,
    excluded: Tensor,  # shape: (n_rows, k, length), int64
    log_probs: Tensor,  # shape: (n_rows, k), of the excluded ones, -inf for entries to ignore
    generator: torch.Generator | None,
) -> Tensor:
    """One sample per row, conditioned on not being an excluded assignment: (n_rows, length).

    Each choice, from first to last, is drawn with its probability minus that of the excluded assignments with the same
    prefix as the sample. Where no probability is left, the sample is arbitrary.
    """
    # The probability of each excluded assignment given the choices so far; conditional, to avoid underflow.
    share = log_probs.detach().double().exp()
    n_rows = len(share)
    uniform = torch.rand((n_rows, chain.length, 1), dtype=torch.float64, device=share.device, generator=generator)
    choices: list[Tensor] = []
    for i in range(chain.length):
        table = chain.first.unsqueeze(1) if i == 0 else chain.step(i, choices[-1].unsqueeze(1))
        probs = table.squeeze(1).detach().double().exp()
        left = (probs - torch.zeros_like(probs).scatter_add_(1, excluded[:, :, i], share)).clamp_min(0.0)
        left = torch.where(left > 1e-14 * probs, left, 0.0)  # remove rounding errors
        drawn = draw(left, uniform[:, i]).squeeze(1)
        chosen = probs.gather(1, drawn.unsqueeze(1)).clamp_min(torch.finfo(torch.float64).tiny)
        share = torch.where(excluded[:, :, i] == drawn.unsqueeze(1), share / chosen, 0.0)
        choices.append(drawn)
    return torch.stack(choices, -1)


def instead_of_weightless(
    atoms: Tensor,  # shape: (n_rows, n, *event_shape)
    weights: Tensor,  # shape: (n_rows, n)
) -> Tensor:
    """Replace atoms without weight, which may be forbidden, by the first atom of their row."""
    has_weight = (weights > 0).reshape(*weights.shape, *[1] * (atoms.ndim - 2))
    return torch.where(has_weight, atoms, atoms[:, :1])


def chain_of(problem: Problem) -> Chain:
    """The chain of choices of a problem, without gradient, in float64 to resolve small remaining probabilities."""
    bound = problem.bound.map(lambda tensor: tensor.detach().double())
    return Chain.from_potentials(bound.structure.potentials(bound.scores))
