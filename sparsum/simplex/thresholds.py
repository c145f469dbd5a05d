r"""Solvers for rows of scores whose largest entry is 0, with exact Newton steps and without sorting.

Sparsemax and 1.5-entmax are :math:`p_i = \max(z_i - \tau, 0)^e` with :math:`z = (\alpha - 1) x`, where the exponent
:math:`e = 1 / (\alpha - 1)` is 1 or 2 and the threshold :math:`\tau` is the root of

.. math:: f(\tau) = \lVert \max(z - \tau, 0) \rVert_e - 1 .

As a norm of the positive part, :math:`f` is convex and decreasing. A Newton step from any point ends at or below the root,
and from below the steps increase towards it. For e = 1 they terminate after finitely many steps (Michelot's algorithm), each
of which halves the excess or the number of candidates. For e = 2 they converge quadratically.

References:
    - A finite algorithm for finding the projection of a point onto the canonical simplex (Michelot, 1986)
    - From softmax to sparsemax (Martins & Astudillo, 2016), https://arxiv.org/abs/1602.02068
    - Sparse sequence-to-sequence models (Peters, Niculae & Martins, 2019), Algorithm 2, https://arxiv.org/abs/1905.05702
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparsum.segments import Segments

# Rows up to this size compare all pairs of entries; longer rows use Newton steps.
_PAIRWISE_SIZE = 32
# Larger batches also use Newton steps: with more pairs than this, for exponents 1 and 2, the pairs take longer.
_PAIRS = {1: 1 << 20, 2: 1 << 17}
# The initial threshold, below the row's maximum of 0. Any value in [-1, 0) works; this one saves steps on random scores.
_FIRST_GUESS = -0.6
# Both mappings need about ten steps; the cap only ends oscillations of a tie due to rounding.
_MAX_STEPS = 64


def solve_short(shifted: Tensor, exponent: int) -> Tensor:
    """Probabilities of rows that are read in every step; ``shifted`` (*batch, n) has a maximum of 0."""
    z = shifted if exponent == 1 else shifted / exponent
    if z.shape[-1] <= _PAIRWISE_SIZE and z.numel() * z.shape[-1] <= _PAIRS[exponent]:
        return _power((z - threshold_by_pairs(z, exponent)).clamp_(0.0, 1.0), exponent)
    if z.is_cuda:
        distance = _refined((z - threshold_by_enough_steps(z, exponent)).relu_(), exponent)
    else:
        distance, _ = step_until_done(z, exponent)
    return _power(distance, exponent)


def solve_traceable(shifted: Tensor, exponent: int) -> Tensor:
    """Like `solve_short`, with a sort instead of a data-dependent loop, so that it can be traced into a graph."""
    z = shifted if exponent == 1 else shifted / exponent
    # An exported program must not depend on whether n exceeds a limit: n may be dynamic.
    if exponent == 1 and not torch.compiler.is_exporting() and z.shape[-1] <= _PAIRWISE_SIZE:
        return (z - threshold_by_pairs(z, exponent)).clamp(0.0, 1.0)
    threshold = _threshold_by_sort(z, exponent)
    for _ in range(2):  # two steps restore the precision lost to cancellation in the cumulative sums
        threshold = threshold + _newton_step((z - threshold).relu(), exponent)
    return _power(_refined((z - threshold).relu(), exponent), exponent)


def solve_packed(shifted: Tensor, segments: Segments, guess: Tensor, exponent: int) -> Tensor:
    """Probabilities of packed rows, given a lower bound of each threshold; ``shifted`` (n,), ``guess`` (n_rows,)."""
    z, threshold = shifted / exponent, guess
    for _ in range(_MAX_STEPS):
        distance = (z - segments.spread(threshold)).relu_()
        if exponent == 1:
            step = (segments.sum(distance) - 1) / segments.sum(distance.sign())
        else:
            norm = segments.sum(distance.square()).sqrt()
            step = (norm - 1) * norm / segments.sum(distance)
        threshold = threshold + step
        if not bool((step > _tolerance(z)).any()):
            break
    return _power((z - segments.spread(threshold)).clamp_(0.0, 1.0), exponent)


def threshold_of(shifted: Tensor, exponent: int) -> Tensor:
    """The threshold, (*batch, 1). For a subset of the entries of a row, it is a lower bound of the row's threshold."""
    return step_until_done(shifted if exponent == 1 else shifted / exponent, exponent)[1]


def threshold_by_pairs(z: Tensor, exponent: int) -> Tensor:
    r"""Threshold of short rows: entry i is in the support iff :math:`\sum_j \max(z_j - z_i, 0)^e < 1`."""
    z = z.clamp_min(-2.0)  # the support lies above -1, and a finite floor avoids -inf in the differences
    excess = _power((z.unsqueeze(-2) - z.unsqueeze(-1)).relu_(), exponent).sum(-1)
    is_support = excess.lt_(1)  # in place: ones and zeros in floating point
    size, total = is_support.sum(-1, keepdim=True), (is_support * z).sum(-1, keepdim=True)
    if exponent == 1:
        return (total - 1) / size
    mean = total / size
    spread = ((z - mean).square_() * is_support).sum(-1, keepdim=True)
    return mean - ((1 - spread) / size).clamp_min_(0.0).sqrt_()


def step_until_done(z: Tensor, exponent: int) -> tuple[Tensor, Tensor]:
    """Take Newton steps until convergence; return the distances above the threshold, and the threshold.

    The steps end when the support does not change (e = 1) or the step is within rounding error (e = 2). The initial
    threshold may lie above the root, so the first step may be negative and enlarge the support. Afterwards the support only
    shrinks. This is enforced for e = 1, so that rounding cannot make a tie at the threshold oscillate.
    """
    threshold = z.new_full((*z.shape[:-1], 1), _FIRST_GUESS)
    distance, signs, last_count = torch.empty_like(z), torch.empty_like(z), threshold
    for step_number in range(_MAX_STEPS):
        torch.sub(z, threshold, out=distance).relu_()
        if exponent == 1:
            count = torch.sign(distance, out=signs).sum(-1, keepdim=True)
            step = distance.sum(-1, keepdim=True).sub_(1).div_(count)
            is_done = step_number > 0 and torch.equal(count, last_count)
            if step_number > 0 and not is_done:
                step.clamp_min_(0)
            last_count = count
        else:
            step = _newton_step(distance, exponent)
            is_done = step_number > 0 and step.amax().item() <= _tolerance(z)
        threshold = threshold + step
        if is_done:
            break
    if exponent != 1:
        torch.sign(distance, out=signs)
    # Apply the last step to the distances: over many tied entries, the rounding error of the threshold would accumulate.
    return distance.addcmul_(signs, step, value=-1).clamp_(0.0, 1.0), threshold


def _refined(distance: Tensor, exponent: int) -> Tensor:
    """Apply one more step to the distances: over many tied entries, the threshold's rounding error would accumulate."""
    return (distance - _newton_step(distance, exponent) * distance.sign()).clamp(0.0, 1.0)


def threshold_by_enough_steps(z: Tensor, exponent: int) -> Tensor:
    r"""Take enough steps for any row, so that no host-device synchronization is needed to test for convergence.

    For any convex f, Newton steps from below satisfy :math:`f_{k+1} / f_k + f'_{k+1} / f'_k \le 1`, so that
    :math:`|f_k f'_k| \le 4^{-k} |f_0 f'_0|`. Here :math:`|f_0 f'_0| \le n^{2/e}` and :math:`|f'_k| \ge 1`.
    """
    bits = -math.log2(torch.finfo(z.dtype).eps) + 2 * math.log2(z.shape[-1]) / exponent
    threshold = torch.full_like(z[..., :1], _FIRST_GUESS)
    threshold = threshold + _newton_step((z - threshold).relu_(), exponent)
    for _ in range(math.ceil(bits / 2)):
        threshold = threshold + _newton_step((z - threshold).relu_(), exponent).clamp_min_(0)
    return threshold + _newton_step((z - threshold).relu_(), exponent)


def _newton_step(distance: Tensor, exponent: int) -> Tensor:
    """The Newton step ``-f / f'``, given the distances of the entries above the threshold."""
    if exponent == 1:
        return (distance.sum(-1, keepdim=True) - 1) / distance.sign().sum(-1, keepdim=True)
    norm = distance.square().sum(-1, keepdim=True).sqrt()  # more accurate on long rows than torch.linalg.vector_norm
    return (norm - 1) * norm / distance.sum(-1, keepdim=True)


def _threshold_by_sort(z: Tensor, exponent: int) -> Tensor:
    """Compute the threshold for each size of the support; select the largest size consistent with its threshold."""
    ordered = z.clamp_min(-2.0).sort(dim=-1, descending=True).values
    size = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    mean = ordered.cumsum(-1) / size
    if exponent == 1:
        thresholds = mean - 1 / size
        is_consistent = thresholds < ordered
    else:
        spread = ordered.square().cumsum(-1) - size * mean.square()
        thresholds = mean - ((1 - spread) / size).clamp_min(0.0).sqrt()
        is_consistent = thresholds <= ordered
    return thresholds.gather(-1, is_consistent.sum(-1, keepdim=True).clamp_min(1) - 1)


def _power(distance: Tensor, exponent: int) -> Tensor:
    return distance if exponent == 1 else distance.square()


def _tolerance(z: Tensor) -> float:
    return 4 * torch.finfo(z.dtype).eps
