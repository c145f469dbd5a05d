"""Estimators of the paper's experiments that are not in the library."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import sparsum as sp
from sparsum.estimators.relaxations import one_hot


class ModeThrough(sp.estimators.StraightThrough):
    r"""`sparsum.estimators.StraightThrough` at the mode instead of a sample, as in the paper's code for bits.

    .. math:: \ell(z), \quad z = \arg\max p, \quad \partial z := \partial\, \mathrm{softmax}((\log p + g) / \tau)

    The decoder never sees samples, and the value does not estimate the expected loss. It exists for comparison with the
    paper's numbers.
    """

    def _relax(self, logits: Tensor, noise: Tensor) -> Tensor:
        sampled = super()._relax(logits, noise)
        # The hard part is a constant.
        return one_hot(logits.detach().expand_as(noise)) + (sampled - sampled.detach())


class ZeroOne(torch.nn.Module):
    r"""REINFORCE for the signal game with a 0/1 loss, in which the receiver samples its answer a to the symbol z.

    .. math:: (\ell - b) \bigl(\log \pi(z) + \log p(a \mid z)\bigr) - c H\bigl(p(\cdot \mid z)\bigr), \quad
        \ell = -[a = y], \quad z \sim \pi, \; a \sim p(\cdot \mid z)

    The receiver's entropy bonus has a gradient with respect to the receiver only: it does not reward the sender for symbols
    that leave the receiver uncertain.

    Args:
        entropy: c, the coefficient of the receiver's entropy bonus.
        is_self_critic: whether the baseline b is the loss of a second, independent sample of (z, a); else it is the mean of
            all earlier losses.
    """

    #: Whether to check that the scores define distributions, which synchronises with the device.
    validate_args: bool = True

    #: See `forward`.
    __call__: Callable[..., sp.estimators.Estimate]

    def __init__(self, entropy: float, *, is_self_critic: bool) -> None:
        super().__init__()
        self.entropy = entropy
        self.baseline = None if is_self_critic else sp.estimators.RunningMean()

    def forward(
        self,
        scores: Tensor,  # shape: (n, n_symbols)
        answer: Callable[[Tensor, Tensor], Tensor],  # symbols and their games -> log p(a | z), (n, n_images)
        target: Tensor,  # shape: (n,), y
        generator: torch.Generator | None = None,
    ) -> sp.estimators.Estimate:
        """Draw one sample per game; the surrogate includes the receiver's entropy bonus."""
        senders = sp.Gibbs(scores, sp.OneOf(scores.shape[-1]), validate_args=self.validate_args)
        z, a, receivers = _draw(senders, answer, generator)
        value = _loss(a, target)
        if self.baseline is None:
            with torch.no_grad():
                _, other, _ = _draw(senders, answer, generator)
            signal = value - _loss(other, target)
        else:
            signal = value - self.baseline.mean
            if self.training:
                self.baseline.update(value)
        surrogate = signal * (senders.log_prob(z) + receivers.log_prob(a))
        # Only the gradient of the surrogate matters, so its value can be the loss.
        surrogate = value + (surrogate - surrogate.detach()) - self.entropy * receivers.entropy()
        calls = torch.full_like(target, 2 if self.baseline is None else 1)
        return sp.estimators.Estimate(surrogate, value, calls, senders)


def _draw(
    senders: sp.Gibbs, answer: Callable[[Tensor, Tensor], Tensor], generator: torch.Generator | None
) -> tuple[Tensor, Tensor, sp.Gibbs]:
    """Sample a symbol and an answer for each game; also returns the distribution of the answer."""
    z = senders.sample(generator=generator)
    log_probs = answer(z, torch.arange(len(z), device=z.device))
    receivers = sp.Gibbs(log_probs, sp.OneOf(log_probs.shape[-1]), validate_args=senders._validate_args)
    return z, receivers.sample(generator=generator), receivers


def _loss(a: Tensor, target: Tensor) -> Tensor:
    return -(a == target).float()
