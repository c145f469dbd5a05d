"""Gradient estimation by sampling without replacement."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from sparsum.estimators.abstract import AbstractEstimator, Estimate, Needs, check_samples
from sparsum.estimators.distinct import chain_of, instead_of_weightless, sample_without_replacement
from sparsum.estimators.members import count_up_to
from sparsum.estimators.problem import Problem
from sparsum.structures import AbstractStructure
from sparsum.structures.log_space import FORBIDDEN
from sparsum.tensors import tensor_cache

_MOST_SAMPLES = 12

# The logarithm of a negligible probability, finite so that its sums and differences are well defined.
_NEXT_TO_NOTHING = -600.0


class UnorderedSet(AbstractEstimator):
    r"""Samples without replacement, averaged over their order, each with a baseline from the others.

    For a set S of samples without replacement from a domain D, let :math:`R(S, s) = p^{D \setminus s}(S \setminus s) /
    p^D(S)` be the ratio of the probabilities of drawing the set without and with s. The gradient of the scores is

    .. math:: \sum_{s \in S} p(s) R(S, s) \, (\ell(s) - b_s) \nabla \log p(s), \quad
        b_s = p(s) \ell(s) + \sum_{r \ne s} p(r) R^{D \setminus s}(S, r) \, \ell(r)

    Dynamic programming over the subsets sums the probability of a set over all orders.

    >>> import sparsum as sp
    >>> scores = torch.zeros(1, 128, requires_grad=True)
    >>> UnorderedSet(4)(scores, sp.Bits(128), lambda z, row: z.sum(-1)).calls
    tensor([4])

    Args:
        samples: the number of samples, from 2 to 12. If the structure has at most this many assignments, the sum is exact.

    References:
        - Estimating gradients for discrete random variables by sampling without replacement (Kool, van Hoof & Welling,
          2020), equation 13, https://arxiv.org/abs/2002.06043
    """

    needs = Needs.CHAIN

    def __init__(self, samples: int = 4) -> None:
        super().__init__()
        self.samples = check_samples(samples, least=2)
        if samples > _MOST_SAMPLES:
            raise ValueError(f"samples must be at most {_MOST_SAMPLES}, since the cost is 2 ** samples, got {samples}")

    def n_calls(self, structure: AbstractStructure) -> int:
        """One per sample, or all assignments if there are fewer."""
        return count_up_to(structure, self.samples)

    def estimate(self, problem: Problem) -> Estimate:
        """The weighted sum over the set."""
        p = problem.gibbs()
        with torch.no_grad():
            choices, log_probs = sample_without_replacement(chain_of(problem), self.samples, problem.generator)
            weights, others = set_weights(log_probs)
            atoms = problem.structure.choices_to_atoms(choices, problem.dtype)
            atoms = instead_of_weightless(atoms, weights)
        losses = problem.sample_losses(atoms)
        values = losses.detach()
        weights, others = weights.to(values.dtype), others.to(values.dtype)
        signal = values - (others * values.unsqueeze(1)).sum(-1)
        surrogate = weights * (losses + signal * problem.log_probs(p, atoms))
        return Estimate(surrogate.sum(1), (weights * values).sum(1), problem.calls(atoms.shape[1]), p)


def set_weights(
    log_probs: Tensor,  # shape: (n_rows, n), float64
) -> tuple[Tensor, Tensor]:
    r"""The weights p(s) R(S, s) of the samples, (n_rows, n), and of the others in the baseline of each, (n_rows, n, n).

    Let B(U) be the probability that, once U is drawn, the rest of S is drawn next, in any order:

    .. math:: B(S) = 1, \quad B(U) = \sum_{s \in S \setminus U} \frac{p(s)}{1 - p(U)} B(U \cup s)

    Then :math:`R(S, s) = B(\{s\}) / B(\emptyset)` and :math:`R^{D \setminus s}(S, r) = B(\{s, r\}) / B(\{s\})`.
    """
    n = log_probs.shape[1]
    # Forbidden samples fill rows with too few allowed ones: they come last, and have weight 0.
    is_forbidden = log_probs < FORBIDDEN / 2
    filled = torch.where(is_forbidden, _NEXT_TO_NOTHING, log_probs)
    log_rest = _log_rest(filled)
    number = 1 << torch.arange(n, device=log_probs.device)
    single, pairs = log_rest[:, number], log_rest[:, number.unsqueeze(1) | number]
    weights = (filled + single - log_rest[:, :1]).exp().masked_fill(is_forbidden, 0.0)
    others = (filled.unsqueeze(1) + pairs - single.unsqueeze(2)).exp().masked_fill(is_forbidden.unsqueeze(1), 0.0)
    return weights, others


def _log_rest(
    log_probs: Tensor,  # shape: (n_rows, n)
) -> Tensor:
    """The logarithm of B for all subsets, numbered by their bits: (n_rows, 2 ** n)."""
    n_rows, n = log_probs.shape
    probs = log_probs.exp()
    outside = (1 - probs.sum(1, keepdim=True)).clamp_min(0.0)
    result = log_probs.new_zeros(n_rows, 2**n)
    for subsets, left, larger in _levels(n, log_probs.device):
        # Sum the remaining probabilities instead of subtracting from 1, which would cancel small ones.
        not_drawn = (outside + probs[:, left].sum(-1)).clamp_min(torch.finfo(probs.dtype).tiny)
        result[:, subsets] = (log_probs[:, left] + result[:, larger]).logsumexp(-1) - not_drawn.log()
    return result


@tensor_cache
def _levels(n: int, device: torch.device) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For each subset size from n - 1 to 0: subset codes, the samples each leaves out, and the codes with these added."""
    levels = []
    for size in range(n - 1, -1, -1):
        chosen = list(itertools.combinations(range(n), size))
        subsets = [sum(1 << s for s in subset) for subset in chosen]
        left = [[s for s in range(n) if s not in subset] for subset in chosen]
        larger = [[subset | 1 << s for s in others] for subset, others in zip(subsets, left, strict=True)]
        tables = [torch.tensor(table, device=device) for table in (subsets, left, larger)]
        levels.append((tables[0], tables[1], tables[2]))
    return levels
