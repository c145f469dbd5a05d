"""A sample forward, the gradient of the exact marginals backward."""

from __future__ import annotations

import torch

from sparsum.estimators.abstract import AbstractEstimator, Estimate, check_samples
from sparsum.estimators.problem import Problem
from sparsum.structures import AbstractStructure
from sparsum.structures.scores import as_tuple


class Simple(AbstractEstimator):
    r"""The loss of a sample, with the exact marginals in place of the sample in the gradient: SIMPLE.

    .. math:: \ell(a_z), \quad z \sim p, \quad \partial a_z := \partial \mu, \quad \mu = \mathbb{E}_p[a_z]

    It was proposed for `Subset`, and applies to every structure that `sparsum.Gibbs` takes, because that has
    differentiable marginals; over `OneOf` it is the straight-through estimator without noise. The gradient is exact for a
    loss that is linear in the vector of z. Otherwise that of the scores is biased, because the loss is differentiated at
    one vertex for all steps away from it; that of the parameters of the loss is not. If the scores are a pair, the loss
    receives the first part of the vectors, the one-hot tags.

    >>> import sparsum as sp
    >>> scores, cost = torch.zeros(1, 4, requires_grad=True), torch.tensor([1.0, 0.0, 0.0, 0.0])
    >>> estimate = Simple()(scores, sp.Subset(4, 2), lambda z, row: z @ cost)
    >>> estimate.surrogate.sum().backward()
    >>> scores.grad
    tensor([[ 0.2500, -0.0833, -0.0833, -0.0833]])

    Args:
        samples: the number of samples per element, which are averaged.

    References:
        - SIMPLE: a gradient estimator for k-subset sampling (Ahmed, Zeng, Niepert & Van den Broeck, 2023), section 3,
          https://arxiv.org/abs/2210.01941
    """

    is_unbiased = False
    needs_relaxed_loss = True

    def __init__(self, samples: int = 1) -> None:
        super().__init__()
        self.samples = check_samples(samples)

    def n_calls(self, structure: AbstractStructure) -> int:
        """One per sample."""
        return self.samples

    def estimate(self, problem: Problem) -> Estimate:
        """The average over samples."""
        p = problem.gibbs()
        atoms = problem.sample(p, self.samples)
        structure = problem.structure.select(problem.row(self.samples))
        vectors = as_tuple(structure.vectors(atoms.flatten(0, 1)))[0].unflatten(0, atoms.shape[:2]).to(problem.dtype)
        if torch.is_grad_enabled():
            mean = as_tuple(p.model.mean())[0].unsqueeze(1)
            vectors = vectors + (mean - mean.detach()).to(problem.dtype)
        losses = problem.relaxed_losses(vectors)
        return Estimate(losses.mean(1), losses.mean(1), problem.calls(self.samples), p)
