r"""Tsallis entropy, the regularizer of the entmax family.

.. math:: H_\alpha(p) = \frac{1}{\alpha (\alpha - 1)} \sum_i (p_i - p_i^\alpha)
          = -\frac1\alpha \sum_i p_i \log p_i \, E\bigl((\alpha - 1) \log p_i\bigr), \qquad E(u) = \frac{e^u - 1}{u}

The second form includes :math:`\alpha = 1`, the Shannon entropy, because :math:`E(0) = 1`.

References:
    - Possible generalization of Boltzmann-Gibbs statistics (Tsallis, 1988)
    - Learning with Fenchel-Young losses (Blondel, Martins & Niculae, 2020), section 4.3, https://arxiv.org/abs/1901.02324
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def tsallis_entropy(probs: Tensor, alpha: float | Tensor) -> Tensor:
    """Entropy over the last dimension of ``probs`` (*batch, n), with 0 log 0 = 0; ``alpha`` is a number or (*batch, 1)."""
    if not isinstance(alpha, Tensor) and alpha in _CLOSED_FORMS:
        return _CLOSED_FORMS[alpha](probs)
    log_probs = log_on_support(probs)
    terms = probs * log_probs * _mean_growth((alpha - 1) * log_probs) / alpha
    return -terms.sum(-1)


# For sparsemax and 1.5-entmax: a few operations instead of the fifty that keep the general form accurate near alpha = 1.
_CLOSED_FORMS: dict[float, Callable[[Tensor], Tensor]] = {
    2.0: lambda probs: (probs * (1 - probs)).sum(-1) / 2,
    1.5: lambda probs: (probs * (1 - torch.where(probs > 0, probs, 1.0).sqrt())).sum(-1) * (4 / 3),
}


def entropy_slope(probs: Tensor, alpha: Tensor) -> Tensor:
    """Derivative of the entropy with respect to ``alpha`` (*batch, 1), for fixed probabilities."""
    log_probs = log_on_support(probs)
    u = (alpha - 1) * log_probs
    terms = log_probs.square() * _mean_growth_slope(u) - log_probs * _mean_growth(u) / alpha
    return -(probs * terms / alpha).sum(-1, keepdim=True)


def log_on_support(probs: Tensor) -> Tensor:
    """Logarithm of positive entries, 0 elsewhere."""
    return torch.where(probs > 0, probs, 1.0).log()


def _mean_growth(u: Tensor) -> Tensor:
    """``(exp(u) - 1) / u``, which is 1 at 0."""
    is_small = u.abs() < 0.5
    series = torch.ones_like(u)
    small = torch.where(is_small, u, 0.0)
    for k in range(15, 1, -1):  # sum_k u^k / (k + 1)!
        series = 1 + series * small / k
    return torch.where(is_small, series, torch.expm1(u) / torch.where(is_small, 1.0, u))


def _mean_growth_slope(u: Tensor) -> Tensor:
    """The derivative ``(exp(u) (u - 1) + 1) / u^2``, which is 1/2 at 0."""
    is_small = u.abs() < 0.5
    small = torch.where(is_small, u, 0.0)
    series, power = torch.zeros_like(u), torch.ones_like(u)
    for k in range(15):  # sum_k u^k / (k! (k + 2))
        series = series + power / (k + 2)
        power = power * small / (k + 1)
    large = torch.where(is_small, 1.0, u)
    return torch.where(is_small, series, (large.exp() * (large - 1) + 1) / large.square())
