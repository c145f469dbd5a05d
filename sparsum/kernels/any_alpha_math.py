r"""Newton steps for entmax with any alpha per row, as Triton functions on blocks of entries.

The mathematics is that of `sparsum.simplex.any_alpha`, for scaled scores z = a x with a maximum of 0, and a threshold s that
is a times the shift: :math:`p = \max(1 + z - s, 0)^{1/a}`. Both tend to 0 with a, and :math:`z - s` keeps its relative
precision. Comparisons are false for NaN, which thus propagates to its row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparsum.kernels.simplex_math import sums

# mypy: disable-error-code="no-untyped-def"

# A lower bound does not have to be exact: the maxima of subsets of a row are solved to this excess of their sum.
ROUGH = tl.constexpr(1e-2)
# Convex problems need about 5 steps, the others bisect in every third of these.
_MAX_STEPS = tl.constexpr(64)
_LOG2_E = tl.constexpr(1.4426950408889634)
# Replaces a = 0.
_LEAST = tl.constexpr(1e-30)
# Up to this value of u, the derivative with respect to alpha needs a series.
_SMALL = tl.constexpr(1.0)


@triton.jit
def load_rates(alphas, row, is_row, stride, ACC: tl.constexpr):
    """Load a = alpha - 1 of some rows, NaN for an alpha below 1."""
    a = tl.load(alphas + row * stride, mask=is_row, other=2.0).to(ACC) - 1
    return tl.where(a < 0, float("nan"), tl.where(a < _LEAST, _LEAST, a))


@triton.jit
def scaled(scores, peak, a):
    """Scores with a maximum of 0, times a; entries at an infinite maximum are set to 0 too, so that they share the mass."""
    return tl.where(scores == peak, 0.0, (scores - peak) * a)


@triton.jit
def probs_and_slopes(z, threshold, inverse):
    """Probabilities and p / d, with d = 1 + z - threshold; the logarithm is corrected by the rounding error of d."""
    u = z - threshold
    d = 1 + u
    is_off = d <= 0
    safe = tl.where(is_off, 1.0, d)
    reciprocal = 1 / safe
    log = tl.log2(safe) + (u - (d - 1)) * reciprocal * _LOG2_E
    probs = tl.where(is_off, 0.0, tl.exp2(log * inverse))
    return probs, probs * reciprocal


@triton.jit
def expm1(x):
    """``exp(x) - 1``, accurate near 0."""
    small = x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5))))
    return tl.where(tl.abs(x) < 0.03125, small, tl.exp(x) - 1)


@triton.jit
def newton_step(total, slope, a):
    """The change of the threshold, given the sums of the probabilities and of p / d."""
    return -expm1(-a * tl.log(total)) * total / slope


@triton.jit
def advance(threshold, low, high, total, step, a, step_number, TOLERANCE: tl.constexpr, EPS: tl.constexpr):
    """The next threshold, the bracket narrowed by the current one, and whether the row is not yet solved.

    From below, Newton steps stay below the root if alpha is at most 2. Otherwise, steps out of the bracket bisect it.
    """
    low = tl.where(total >= 1, threshold, low)
    high = tl.where(total <= 1, threshold, high)
    newton = threshold + step
    is_steep = a > 1
    is_newton = ((low < newton) & (newton < high) & (step_number % 3 != 2)) | ~is_steep
    middle = (low + high) / 2
    is_wide = tl.where(is_steep, (low < middle) & (middle < high), tl.abs(step) > 2 * EPS * tl.abs(threshold))
    is_open = (tl.abs(total - 1) > TOLERANCE) & is_wide & (step_number < _MAX_STEPS)
    return tl.where(is_open, tl.where(is_newton, newton, middle), threshold), low, high, is_open


@triton.jit
def solve_tile(z, a, guess, n, ROWS: tl.constexpr, TOLERANCE: tl.constexpr, EPS: tl.constexpr):
    """The threshold of each row of a block (ROWS, n) with maxima of 0, the last step, the sum, and a bracket."""
    threshold = tl.zeros([ROWS], z.dtype) + guess
    low, high = threshold, 1 - tl.exp2(-a * tl.log2(n * tl.full([ROWS], 1.0, z.dtype)))
    step = tl.zeros([ROWS], z.dtype)
    total = tl.zeros([ROWS], z.dtype)
    step_number, n_open = 0, 1
    while n_open > 0:
        probs, slopes = probs_and_slopes(z, threshold[:, None], (1 / a)[:, None])
        total, slope = sums(probs, slopes)
        step = newton_step(total, slope, a)
        threshold, low, high, is_open = advance(threshold, low, high, total, step, a, step_number, TOLERANCE, EPS)
        n_open = tl.max(is_open.to(tl.int32), 0)
        step_number += 1
    return threshold, step, total, low, high


@triton.jit
def first_guess(scores, a, n, ROWS: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, EPS: tl.constexpr):
    """Row maxima, and initial thresholds below the roots, as in `sparsum.kernels.simplex_math`."""
    if LANES > 1:
        parts = tl.max(tl.reshape(scores, [scores.shape[1] // (LANES * WIDTH), LANES, WIDTH]), 2)
        lanes = tl.max(parts, 0)[None, :]
        peak = tl.max(lanes, 1)
        z = scaled(lanes, peak[:, None], a[:, None])
        _, _, _, low, _ = solve_tile(z, a, 0.0, n, 1, ROUGH, EPS)
        return peak, low
    return tl.max(scores, 1), tl.zeros([ROWS], scores.dtype)


@triton.jit
def clamped(probs):
    """Limit to [0, 1], keeping NaN."""
    return tl.where(probs <= 0, 0.0, tl.where(probs >= 1, 1.0, probs))


@triton.jit
def corrected(z, threshold, step, inverse):
    """Probabilities, with the last step applied to first order."""
    probs, slopes = probs_and_slopes(z, threshold, inverse)
    return clamped(probs - step * inverse * slopes)


@triton.jit
def weights_of(p, a):
    """The weights of the Jacobian, p^(1 - a) on the support, NaN for NaN, and the logarithm of p, 0 off the support."""
    log = tl.log2(tl.where(p == 0, 1.0, p))
    return tl.where(p == 0, 0.0, tl.exp2((1 - a) * log)), log / _LOG2_E


@triton.jit
def alpha_change(p, s, log, a):
    """The derivative of p with respect to alpha for a fixed shift: -p log(p)^2 (exp(u) - 1 - u) / u^2, u = -a log(p)."""
    u = -a * log
    series = tl.full(p.shape, 1.0, p.dtype)
    for k in tl.static_range(20, 2, -1):
        series = 1 + series * u / k
    directly = (p * (1 + u) - s) / (a * a)
    return tl.where(u < _SMALL, -p * log * log * series / 2, directly)
