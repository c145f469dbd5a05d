r"""Antithetic pairs of bit vectors from one draw of uniform noise u.

With logits t and :math:`\sigma` the sigmoid, :math:`b = [u > \sigma(-t)]` and :math:`b' = [u < \sigma(t)]` are both samples
of the bits.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from sparsum.estimators.abstract import AbstractEstimator, Estimate, Needs
from sparsum.estimators.problem import Problem
from sparsum.structures import AbstractStructure
from sparsum.tensors import at_least_float32


class _AbstractPair(AbstractEstimator):
    """Two antithetic samples, and a gradient that depends on the difference of their losses."""

    needs = Needs.BITS

    def n_calls(self, structure: AbstractStructure) -> int:
        """Two samples."""
        return 2

    def estimate(self, problem: Problem) -> Estimate:
        """The average loss of both, and the gradient of their difference."""
        p = problem.gibbs()
        scores = problem.bound.flat
        logits = at_least_float32(scores)
        logits = torch.where(scores == -torch.inf, torch.finfo(logits.dtype).min, logits)
        fixed = logits.detach()
        uniform = torch.rand(fixed.shape, dtype=fixed.dtype, device=fixed.device, generator=problem.generator)
        pair = torch.stack([uniform > (-fixed).sigmoid(), uniform < fixed.sigmoid()], 1)
        losses = problem.sample_losses(pair.to(problem.dtype))
        difference = (losses[:, :1] - losses[:, 1:]).detach()
        gradient = difference * self._weight(fixed, uniform, pair)
        # A forbidden bit does not receive a gradient, but with a large loss the product would overflow.
        along = torch.where(scores == -torch.inf, 0.0, gradient * logits)
        surrogate = losses.mean(1) + along.sum(-1)
        return Estimate(surrogate, losses.mean(1), problem.calls(2), p)

    @abstractmethod
    def _weight(
        self,
        logits: Tensor,  # shape: (n_rows, n)
        uniform: Tensor,  # shape: (n_rows, n)
        pair: Tensor,  # shape: (n_rows, 2, n), bool
    ) -> Tensor:
        """The gradient with respect to each logit for a difference of 1: (n_rows, n)."""


class Arm(_AbstractPair):
    r"""Augment-REINFORCE-merge, for bits.

    .. math:: \nabla_t = (\ell(b) - \ell(b')) (u - \tfrac12)

    >>> import sparsum as sp
    >>> Arm()(torch.zeros(1, 3, requires_grad=True), sp.Bits(3), lambda z, row: z.sum(-1)).calls
    tensor([2])

    References:
        - ARM: augment-REINFORCE-merge gradient for stochastic binary networks (Yin & Zhou, 2019), equation 6,
          https://arxiv.org/abs/1807.11143
    """

    def _weight(self, logits: Tensor, uniform: Tensor, pair: Tensor) -> Tensor:
        return uniform - 0.5


class Disarm(_AbstractPair):
    r"""`Arm` with the noise u integrated out exactly; its variance is never larger.

    .. math:: \nabla_t = \tfrac12 (\ell(b) - \ell(b')) (-1)^{b'} [b \ne b'] \sigma(|t|)

    >>> import sparsum as sp
    >>> Disarm()(torch.zeros(1, 3, requires_grad=True), sp.Bits(3), lambda z, row: z.sum(-1)).calls
    tensor([2])

    References:
        - DisARM: an antithetic gradient estimator for binary latent variables (Dong, Mnih & Tucker, 2020), equation 4,
          https://arxiv.org/abs/2006.10680
    """

    def _weight(self, logits: Tensor, uniform: Tensor, pair: Tensor) -> Tensor:
        first, second = pair.to(logits.dtype).unbind(1)
        return (first - second) * logits.abs().sigmoid() / 2
