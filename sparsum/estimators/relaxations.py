"""Relaxations: continuous vectors near the assignments, through which the gradient of the loss flows."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from sparsum.estimators.abstract import AbstractEstimator, Estimate, Needs, check_samples
from sparsum.estimators.noise import gumbel
from sparsum.estimators.problem import Problem
from sparsum.estimators.temperature import Anneal, temperature_of
from sparsum.structures import AbstractStructure
from sparsum.structures.log_space import FORBIDDEN
from sparsum.tensors import at_least_float32


def logits_of(problem: Problem) -> Tensor:
    """Log-probabilities of the choices, differentiable; a bit has two choices: (n_rows, n_choosers, n_choices)."""
    logits = problem.structure.potentials(problem.bound.scores).unary
    logits = at_least_float32(logits)
    return torch.where(logits == -torch.inf, FORBIDDEN, logits).log_softmax(-1)


def vectors_of(
    problem: Problem,
    choices: Tensor,  # shape: (n_rows, n_each, n_choosers, n_choices)
) -> Tensor:
    """Relaxed or one-hot choices as vectors of the structure: (n_rows, n_each, *score_shape)."""
    vectors: Tensor = problem.structure.choice_marginals(choices.flatten(0, 1), None, problem.bound.scores)
    return vectors.reshape(*choices.shape[:2], *vectors.shape[1:])


def one_hot(
    values: Tensor,  # shape: (*, n_choices)
) -> Tensor:
    """The argmax of each row as a one-hot vector of the same dtype."""
    return torch.zeros_like(values).scatter_(-1, values.argmax(-1, keepdim=True), 1.0)


class _AbstractRelaxation(AbstractEstimator):
    """The loss of relaxed samples, differentiated through them."""

    is_unbiased = False
    needs_relaxed_loss = True
    needs = Needs.FREE_CHOICES

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples = check_samples(samples)

    def n_calls(self, structure: AbstractStructure) -> int:
        """One per sample."""
        return self.samples

    def estimate(self, problem: Problem) -> Estimate:
        """The average over samples; the distribution is that of the discrete choices."""
        p = problem.gibbs()
        logits = logits_of(problem).unsqueeze(1)
        shape = (problem.n_rows, self.samples, *logits.shape[2:])
        noise = gumbel(shape, logits, problem.generator)
        losses = problem.relaxed_losses(vectors_of(problem, self._relax(logits, noise)))
        return Estimate(losses.mean(1), losses.mean(1), problem.calls(self.samples), p)

    @abstractmethod
    def _relax(
        self,
        logits: Tensor,  # shape: (n_rows, 1, n_choosers, n_choices), log-probabilities
        noise: Tensor,  # shape: (n_rows, samples, n_choosers, n_choices), from the standard Gumbel distribution
    ) -> Tensor:
        """The relaxed choices: (n_rows, samples, n_choosers, n_choices)."""


class GumbelSoftmax(_AbstractRelaxation):
    r"""A softmax of perturbed log-probabilities in place of a choice; for bits, the binary Concrete distribution.

    .. math:: \ell(\mathrm{softmax}((\log p + g) / \tau)), \quad g \text{ Gumbel noise}

    Biased: the loss is differentiated at points between assignments. The lower the temperature, the smaller the bias and
    the larger the variance.

    >>> import sparsum as sp
    >>> estimator, weight = GumbelSoftmax(Anneal(rate=1e-4)), torch.randn(3, 5)
    >>> scores = torch.zeros(2, 3, requires_grad=True)
    >>> estimate = estimator(scores, sp.OneOf(3), lambda z, row: sp.embed(z, weight).square().sum(-1))
    >>> estimate.distribution
    Gibbs(OneOf(n=3), batch_shape=(2,), event_shape=(), dtype=torch.float32)

    Args:
        temperature: a number larger than 0, or `Anneal`.
        samples: the number of samples per element, which are averaged.

    References:
        - Categorical reparameterization with Gumbel-softmax (Jang, Gu & Poole, 2017), https://arxiv.org/abs/1611.01144
        - The Concrete distribution (Maddison, Mnih & Teh, 2017), https://arxiv.org/abs/1611.00712
    """

    def __init__(self, temperature: float | Anneal = 1.0, *, samples: int = 1) -> None:
        super().__init__(samples)
        self.temperature = temperature_of(temperature)

    def _relax(self, logits: Tensor, noise: Tensor) -> Tensor:
        relaxed: Tensor = ((logits + noise) / self.temperature()).softmax(-1)
        if self.training:
            self.temperature.advance()
        return relaxed


class StraightThrough(_AbstractRelaxation):
    r"""Gumbel-softmax with the loss of the sampled assignment and the gradient of the relaxed one.

    .. math:: \ell(z), \quad z = \mathrm{onehot}(\arg\max (\log p + g)), \quad
        \partial z := \partial\, \mathrm{softmax}((\log p + g) / \tau)

    The gradient of the scores is biased; that of the parameters of the loss is not, since it uses true samples.

    >>> import sparsum as sp
    >>> def loss(z, row):
    ...     return (z * torch.tensor([1.0, 2.0, 4.0])).sum(-1)
    >>> value = StraightThrough()(torch.zeros(1, 3, requires_grad=True), sp.Bits(3), loss).value
    >>> value == value.round()
    tensor([True])

    Args:
        temperature: a number larger than 0, or `Anneal`.
        samples: the number of samples per element, which are averaged.

    References:
        - Categorical reparameterization with Gumbel-softmax (Jang, Gu & Poole, 2017), section 2.2,
          https://arxiv.org/abs/1611.01144
    """

    def __init__(self, temperature: float | Anneal = 1.0, *, samples: int = 1) -> None:
        super().__init__(samples)
        self.temperature = temperature_of(temperature)

    def _relax(self, logits: Tensor, noise: Tensor) -> Tensor:
        perturbed = logits + noise
        soft: Tensor = (perturbed / self.temperature()).softmax(-1)
        if self.training:
            self.temperature.advance()
        return one_hot(perturbed.detach()) + (soft - soft.detach())


class ReinMax(_AbstractRelaxation):
    r"""Straight-through with a gradient that is second-order accurate (Heun's method) in the differences of the loss.

    .. math:: \pi = \tfrac12 (z + \mathrm{softmax}(\log p / \tau)), \quad \partial z := \partial (2 \pi - \tfrac12 p)

    where :math:`\pi` is differentiated as a softmax. Unbiased for quadratic losses at :math:`\tau = 1`, otherwise biased.

    >>> import sparsum as sp
    >>> loss = lambda z, row: (z - torch.tensor([0.5, 0.2, 0.1])).square().sum(-1)
    >>> ReinMax()(torch.zeros(1, 3, requires_grad=True), sp.OneOf(3), loss).calls
    tensor([1])

    Args:
        temperature: a number larger than 0, or `Anneal`; at least 1 is recommended.
        samples: the number of samples per element, which are averaged.

    References:
        - Bridging discrete and backpropagation: straight-through and beyond (Liu, Dong, Liu, Yu & Gao, 2023),
          algorithm 2, https://arxiv.org/abs/2304.08612
    """

    def __init__(self, temperature: float | Anneal = 1.0, *, samples: int = 1) -> None:
        super().__init__(samples)
        self.temperature = temperature_of(temperature)

    def _relax(self, logits: Tensor, noise: Tensor) -> Tensor:
        hard = one_hot((logits + noise).detach())
        soft: Tensor = (logits / self.temperature()).softmax(-1)
        if self.training:
            self.temperature.advance()
        middle = ((hard + soft) / 2).detach()
        # The gradient at the middle is that of a softmax whose value is the middle.
        moved = (middle.log().clamp_min(FORBIDDEN) - logits.detach() + logits).softmax(-1)
        path = 2 * moved - logits.exp() / 2
        return hard + (path - path.detach())
