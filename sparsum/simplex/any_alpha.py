r"""Entmax for any :math:`\alpha \ge 1`, which may differ between rows.

With :math:`a = \alpha - 1`, the probabilities are

.. math:: p_i = [1 + a (x_i - \nu)]_+^{1/a} = \exp\bigl(\tfrac1a \operatorname{log1p}(a (x_i - \nu))\bigr) ,

which at :math:`a = 0` is :math:`\exp(x_i - \nu)`. This form remains accurate as :math:`\alpha` tends to 1. The shift
:math:`\nu` is the root of :math:`F(\nu) = \sum_i p_i - 1`, whose slope is :math:`-\sum_i p_i^{2-\alpha}`. For
:math:`\alpha \le 2`, :math:`F` is convex and Newton steps from below never overshoot the root. For :math:`\alpha > 2` it is
not convex, and a bracket safeguards the steps.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Newton's method needs about 10 steps; bisection alone would need 53 to reach double precision.
_MAX_STEPS = 100
_TRACED_STEPS = 48


def solve_any_alpha(shifted: Tensor, alpha: Tensor, *, traceable: bool) -> Tensor:
    """Probabilities of float64 rows ``shifted`` (*batch, n), whose maxima are 0, for ``alpha`` (*batch, 1)."""
    a = alpha - 1
    log_n = math.log(shifted.shape[-1])
    # The largest probability lies between 1/n and 1, which brackets the shift.
    low = torch.zeros_like(shifted[..., :1])
    high = _divide(-torch.expm1(-a * log_n), a, limit=torch.full_like(low, log_n))
    # The rounding error of a sum of n terms: below it, the sign of the excess is not reliable.
    tolerance = (8 + 4 * log_n) * torch.finfo(shifted.dtype).eps
    shift = low
    for step in range(_TRACED_STEPS if traceable else _MAX_STEPS):
        probs = _probs(shifted, shift, a)
        excess = probs.sum(-1, keepdim=True) - 1
        low, high = torch.where(excess >= 0, shift, low), torch.where(excess <= 0, shift, high)
        middle = (low + high) / 2
        is_open = (excess.abs() > tolerance) & (low < middle) & (middle < high)
        if not traceable and not bool(is_open.any()):
            break
        newton = shift + excess / _slope(probs, a)
        takes_newton = (low < newton) & (newton < high)
        if step % 3 == 2:  # without convexity, Newton's method may converge slowly: bisect every third step
            takes_newton = takes_newton & (a <= 1)
        shift = torch.where(takes_newton, newton, middle)
    return _between(_probs(shifted, low, a), _probs(shifted, high, a))


def _between(above: Tensor, below: Tensor) -> Tensor:
    """Mix probabilities that sum to at least 1 with probabilities that sum to at most 1, for a sum of exactly 1.

    For alpha > 2, an entry at the boundary grows so steeply that no shift in float64 gives it the missing mass.
    """
    excess, lack = above.sum(-1, keepdim=True) - 1, 1 - below.sum(-1, keepdim=True)
    return torch.lerp(above, below, _divide(excess, excess + lack, limit=torch.zeros_like(excess)))


def _probs(shifted: Tensor, shift: Tensor, a: Tensor) -> Tensor:
    distance = shifted - shift
    return _divide(torch.log1p((a * distance).clamp_min(-1.0)), a, limit=distance).exp()


def _slope(probs: Tensor, a: Tensor) -> Tensor:
    is_support = probs > 0
    return torch.where(is_support, probs, 1.0).pow(1 - a).mul(is_support).sum(-1, keepdim=True)


def _divide(numerator: Tensor, a: Tensor, *, limit: Tensor) -> Tensor:
    """``numerator / a``, replaced by ``limit`` where a is 0."""
    return torch.where(a == 0, limit, numerator / torch.where(a == 0, 1.0, a))
