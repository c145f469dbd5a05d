"""The signal game as the paper's REINFORCE rows with a 0/1 loss play it: the receiver draws its answer, too."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import sparsum as sp


class ZeroOne(torch.nn.Module):
    r"""The score function of two choices in a row, a symbol z and an answer a, whose loss is all or nothing.

    .. math:: (\ell - b) \bigl(\log \pi(z) + \log p(a \mid z)\bigr) - c H\bigl(p(\cdot \mid z)\bigr), \quad
        \ell = -[a = y], \quad z \sim \pi, \; a \sim p(\cdot \mid z)

    The bonus for the receiver's entropy, as that for the sender's, is a gradient for the one whose entropy it is: the sender
    gets none for symbols that leave the receiver in doubt.

    Args:
        entropy: c, the coefficient of the receiver's entropy bonus.
        is_self_critic: whether b is the loss of a second, independent draw of both choices; else it is the mean of all
            earlier losses.
    """

    #: Whether to look for rows without a distribution, at the price of waits for the device.
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
        """One draw for each game; the estimate's surrogate has the receiver's entropy bonus in it."""
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
        # Only the gradient of the score function counts, so its value may be the loss.
        surrogate = value + (surrogate - surrogate.detach()) - self.entropy * receivers.entropy()
        calls = torch.full_like(target, 2 if self.baseline is None else 1)
        return sp.estimators.Estimate(surrogate, value, calls, senders)


def _draw(
    senders: sp.Gibbs,
    answer: Callable[[Tensor, Tensor], Tensor],
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor, sp.Gibbs]:
    """A symbol and an answer for each game, and what the answer was drawn from."""
    z = senders.sample(generator=generator)
    log_probs = answer(z, torch.arange(len(z), device=z.device))
    receivers = sp.Gibbs(log_probs, sp.OneOf(log_probs.shape[-1]), validate_args=senders._validate_args)
    return z, receivers.sample(generator=generator), receivers


def _loss(a: Tensor, target: Tensor) -> Tensor:
    return -(a == target).float()
