r"""Entmax for any :math:`\alpha \ge 1`, which may differ between rows.

With :math:`a = \alpha - 1` and :math:`d_i = 1 + a (x_i - \nu)`, the probabilities are

.. math:: p_i = \max(d_i, 0)^{1/a} = \exp\bigl(\tfrac1a \operatorname{log1p}(a (x_i - \nu))\bigr) ,

which at :math:`a = 0` is :math:`\exp(x_i - \nu)`. This form remains accurate as :math:`\alpha` tends to 1. The shift
:math:`\nu` is the root of

.. math:: f(\nu) = \frac1a \Bigl(\bigl(\sum_i p_i\bigr)^a - 1\Bigr), \qquad
          -\frac{f}{f'} = \frac{\sum_i p_i}{\sum_i p_i / d_i} \cdot \frac{1 - (\sum_i p_i)^{-a}}{a} .

For :math:`\alpha \le 2`, :math:`f` is a norm of the positive part of :math:`d`, up to constants, and thus convex and
decreasing: Newton steps from below increase towards the root. At 1.5 and 2 they are those of `sparsum.simplex.thresholds`,
and at :math:`\alpha = 1` the first one ends at the root.

For :math:`\alpha > 2`, :math:`f` has infinite slope where an entry enters the support. There, a binary search finds the
smallest entry k of the support, and the unknown is its probability q: with :math:`b_i = (a (x_i - x_k))^{1/a}`,

.. math:: p_i = (b_i^a + q^a)^{1/a}, \qquad \frac{\partial p_i}{\partial q} = (q / p_i)^{a - 1} .

As a norm of :math:`(b_i, q)`, each probability is convex and increasing in q, with slopes between 0 and 1, so that Newton
steps from above decrease towards the root.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Rows are solved in chunks of this many entries, which fit into the cache of a core.
_CHUNK = 1 << 17
# Newton's method needs about 5 steps; the cap only ends oscillations due to rounding.
_MAX_STEPS = 64
_TRACED_STEPS = 48
# Steps in single precision end at this excess of the sum over 1: one more step reaches their rounding error.
_ROUGH = 2e-4
# For results in single precision, the excess up to which the last step is applied to the probabilities in first order.
_CORRECTED = 1e-6
# Replaces a = 0: log1p(a y) / a is then y, and a y is a normal number for all y that matter.
_LEAST = 1e-30
_LN_2 = math.log(2)


def solve_any_alpha(shifted: Tensor, alpha: Tensor, *, traceable: bool) -> Tensor:
    """Probabilities of rows ``shifted`` (*batch, n), whose maxima are 0, for ``alpha`` (*batch, 1), in their dtype.

    If ``traceable``, control flow does not depend on values, as a graph requires.
    """
    a = torch.where(alpha < 1, torch.nan, (alpha.double() - 1).clamp_min(_LEAST))
    if traceable:
        return _bisect(shifted.double(), a).to(shifted.dtype)
    rows, a = shifted.reshape(-1, shifted.shape[-1]), a.reshape(-1, 1)
    n_rows = max(_CHUNK // rows.shape[-1], 1)
    solved = [_solve_chunk(*chunk) for chunk in zip(rows.split(n_rows), a.split(n_rows), strict=True)]
    return (solved[0] if len(solved) == 1 else torch.cat(solved)).view(shifted.shape)


def _solve_chunk(x: Tensor, a: Tensor) -> Tensor:
    is_steep = a.squeeze(-1) > 1
    n_steep = int(is_steep.sum())
    if n_steep in (0, len(x)):
        return _descend(x, a) if n_steep else _climb(x, a)
    probs = torch.empty_like(x)
    probs[is_steep], probs[~is_steep] = _descend(x[is_steep], a[is_steep]), _climb(x[~is_steep], a[~is_steep])
    return probs


def _climb(x: Tensor, a: Tensor) -> Tensor:
    """Newton steps from below, for alpha <= 2: the first ones in single precision, the last ones in double."""
    rough, rough_a = x.float(), a.float()
    shift = torch.zeros_like(rough_a)
    for _ in range(_MAX_STEPS):
        probs, slopes = probs_and_slopes(rough, shift, rough_a)
        total = probs.sum(-1, keepdim=True)
        step = _newton_step(total, slopes, rough_a)
        shift = shift + step
        if not bool(((total > 1 + _ROUGH) & _is_significant(step, shift)).any()):
            break
    exact, shift = x.double(), shift.double()
    tolerance = _CORRECTED if x.dtype == torch.float32 else _tolerance(exact)
    for _ in range(_MAX_STEPS):
        probs, slopes = probs_and_slopes(exact, shift, a)
        total = probs.sum(-1, keepdim=True)
        step = _newton_step(total, slopes, a)
        if not bool((((total - 1).abs() > tolerance) & _is_significant(step, shift)).any()):
            break
        shift = shift + step
    return probs.addcmul_(slopes, step, value=-1).clamp_(0.0, 1.0).to(x.dtype)


def probs_and_slopes(x: Tensor, shift: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities for a shift, and their derivatives with respect to it with the sign changed, p / d."""
    u = (x - shift).mul_(a).clamp_min_(-1.0)
    probs = torch.log1p(u).mul_(1 / (a * _LN_2)).exp2_()  # torch.exp would be slow at -inf on the CPU
    d = u.add_(1.0).clamp_min_(_LEAST)
    return probs, torch.div(probs, d, out=d)


def _newton_step(total: Tensor, slopes: Tensor, a: Tensor) -> Tensor:
    return total / slopes.sum(-1, keepdim=True) * (-torch.expm1(-a * total.log()) / a)


def _is_significant(step: Tensor, shift: Tensor) -> Tensor:
    """Whether a step exceeds the rounding error of the shift, which many entries amplify to a large error of the sum."""
    return step.abs() > 4 * torch.finfo(step.dtype).eps * (1 + shift)


def _tolerance(x: Tensor) -> Tensor:
    """The rounding error of a sum of n terms: below it, the sign of the excess is not reliable."""
    return (8 + 4 * x.new_full((1,), x.shape[-1]).log()) * torch.finfo(x.dtype).eps


def _descend(x: Tensor, a: Tensor) -> Tensor:
    """Newton steps in the smallest probability of the support, for alpha > 2, in double precision."""
    z = x.double() * a
    n_candidates = int((z > -1).sum(-1).amax())  # the largest probability is at most 1
    z, index = z.topk(n_candidates, dim=-1)
    first, last = torch.zeros_like(index[:, :1]), torch.full_like(index[:, :1], n_candidates - 1)
    for _ in range((n_candidates - 1).bit_length()):  # entry k is in the support iff the entries above it sum to less than 1
        k = (first + last + 1) // 2
        is_support = (z - z.gather(-1, k)).relu_().pow_(1 / a).sum(-1, keepdim=True) < 1
        first, last = torch.where(is_support, k, first), torch.where(is_support, last, k - 1)
    n_kept = int(first.amax()) + 1
    base = (z[:, :n_kept] - z.gather(-1, first)).relu_().pow_(1 / a)
    is_support = torch.arange(n_kept, device=x.device) <= first
    smallest = 1 / (first + 1.0)
    tolerance = _tolerance(z)
    for _ in range(_MAX_STEPS):
        larger = torch.maximum(base, smallest)
        ratio = torch.minimum(base, smallest) / larger
        probs = torch.log1p(ratio.pow_(a)).div_(a).exp_().mul_(larger).mul_(is_support)
        excess = probs.sum(-1, keepdim=True) - 1
        if not bool((excess > tolerance).any()):
            break
        slope = ((smallest / probs).pow_(a - 1).clamp_max_(1.0) * is_support).sum(-1, keepdim=True)
        smallest = (smallest - excess / slope).clamp_min(0.0)
    return torch.zeros_like(x).scatter_(-1, index[:, :n_kept], probs.to(x.dtype))


def _bisect(x: Tensor, a: Tensor) -> Tensor:
    """A fixed number of Newton steps within a bracket of the shift, for any alpha and any size."""
    # The largest probability lies between 1/n and 1.
    low = torch.zeros_like(x[..., :1])
    high = -torch.expm1(-a * low.new_full((1,), x.shape[-1]).log()) / a
    shift = low
    for step_number in range(_TRACED_STEPS):
        probs, slopes = probs_and_slopes(x, shift, a)
        total = probs.sum(-1, keepdim=True)
        low, high = torch.where(total >= 1, shift, low), torch.where(total <= 1, shift, high)
        newton = shift + _newton_step(total, slopes, a)
        takes_newton = (low < newton) & (newton < high)
        if step_number % 3 == 2:  # without convexity, Newton's method may converge slowly: bisect every third step
            takes_newton = takes_newton & (a <= 1)
        shift = torch.where(takes_newton, newton, (low + high) / 2)
    # Mix both ends of the bracket for a sum of 1: for alpha > 2, an entry at the boundary grows so steeply that no shift in
    # double precision gives it the missing mass.
    above, below = probs_and_slopes(x, low, a)[0], probs_and_slopes(x, high, a)[0]
    excess, lack = above.sum(-1, keepdim=True) - 1, 1 - below.sum(-1, keepdim=True)
    whole = excess + lack
    return torch.lerp(above, below, excess / torch.where(whole == 0, 1.0, whole))
