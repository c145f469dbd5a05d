"""Sum the most probable assignments exactly, estimate the rest by a sample."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.arguments import check_int
from sparsum.estimators.abstract import AbstractEstimator, Estimate, Needs
from sparsum.estimators.baselines import RunningMean
from sparsum.estimators.distinct import chain_of, instead_of_weightless, sample_outside
from sparsum.estimators.members import count_up_to
from sparsum.estimators.problem import Problem
from sparsum.estimators.score_function import current
from sparsum.gibbs import Gibbs
from sparsum.structures import AbstractStructure


class SumAndSample(AbstractEstimator):
    r"""The exact sum of the k most probable assignments, plus one sample of the others, weighted by their probability.

    With C the k most probable assignments, :math:`p_C` their probability, and z a sample from outside of C,

    .. math:: \sum_{c \in C} p(c) (\ell(c) - b) + (1 - p_C) \, (\ell(z) - b) \log p(z)

    has an unbiased gradient if the weight of the sample is treated as a constant. The baseline b, the mean of earlier
    losses, must be the same in all terms, since its gradients only cancel in the sum over all assignments.

    >>> import sparsum as sp
    >>> scores = torch.tensor([[5.0, 0.0, 0.0]], requires_grad=True)
    >>> SumAndSample(k=1)(scores, sp.OneOf(3), lambda z, row: z.float()).calls
    tensor([2])

    Args:
        k: the number of assignments to sum exactly, at least 1. If the structure has at most k, the result is exact.
        baseline: whether to subtract the mean of earlier losses.

    References:
        - Rao-Blackwellized stochastic gradients for discrete distributions (Liu, Regier, Tripuraneni, Jordan & McAuliffe,
          2019), section 3, https://arxiv.org/abs/1810.04777
    """

    needs = Needs.CHAIN

    def __init__(self, k: int = 1, *, baseline: bool = True) -> None:
        super().__init__()
        check_int("k", k, least=1)
        self.k = k
        self.baseline = RunningMean() if baseline else None

    def n_calls(self, structure: AbstractStructure) -> int:
        """The k best and one sample, or all assignments if there are at most k."""
        return min(self.k + 1, count_up_to(structure, self.k + 1))

    def estimate(self, problem: Problem) -> Estimate:
        """The exact terms and the weighted one."""
        p = problem.gibbs()
        atoms, weights, log_probs = self._terms(problem, p)
        losses = problem.sample_losses(atoms)
        signal = losses.detach() - current(self.baseline)
        # p(c) and p(z) have the gradients p(c) d log p(c) and p(z) d log p(z), so one formula covers both kinds of terms.
        surrogate = weights * (losses + signal * log_probs)
        value = (weights * losses.detach()).sum(1)
        if self.training and self.baseline is not None:
            self.baseline.update(value)
        return Estimate(surrogate.sum(1), value, problem.calls(atoms.shape[1]), p)

    def _terms(self, problem: Problem, p: Gibbs) -> tuple[Tensor, Tensor, Tensor]:
        """Atoms, (n_rows, n, *event_shape), with their weights and log-probabilities, (n_rows, n); weights may be 0."""
        with torch.no_grad():
            atoms, is_valid = problem.bound.kbest(self.k)
            # In the float64 of the chain: in half precision the remaining probability would be rounded away.
            excluded, chain = problem.structure.atoms_to_choices(atoms), chain_of(problem)
            log_probs = chain.log_prob(excluded.flatten(0, 1), problem.row(excluded.shape[1])).reshape(is_valid.shape)
            log_probs = log_probs.double().masked_fill(~is_valid, -torch.inf)
            weights = log_probs.exp()
            if self.n_calls(problem.structure) > self.k:
                drawn = sample_outside(chain, excluded, log_probs, problem.generator)
                other = problem.structure.choices_to_atoms(drawn, problem.dtype).unsqueeze(1)
                rest = (1 - weights.sum(1, keepdim=True)).clamp_min(0.0)
                # Where the rest is only a rounding error, the sample may be forbidden.
                rest = torch.where(problem.log_probs(p, other) > -torch.inf, rest, 0.0)
                atoms, weights = torch.cat([atoms, other], 1), torch.cat([weights, rest], 1)
            atoms = instead_of_weightless(atoms, weights)
        log_probs = problem.log_probs(p, atoms)
        return atoms, weights.to(torch.promote_types(log_probs.dtype, torch.float32)), log_probs
