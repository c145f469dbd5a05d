r"""Newton steps for entmax with any alpha per row, as Triton functions on blocks of entries.

The mathematics is that of `sparsum.simplex.any_alpha`, for scaled scores z = a x with a maximum of 0, and a threshold s that
is a times the shift: :math:`p = \max(1 + z - s, 0)^{1/a}`. Both tend to 0 with a, and :math:`z - s` keeps its relative
precision. Comparisons are false for NaN, which thus propagates to its row.

For alpha at most 2, steps are of third order. With :math:`d = 1 + z - s`, and the sums S of p, Q of p / d and R of p / d^2,

.. math:: g = S^a, \qquad g' = -S^{a-1} Q, \qquad g'' = (1/a - 1) S^{a-2} (S R - Q^2) \ge 0 .

Only the last evaluation has to be accurate: the others use the fast logarithm of the hardware.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from sparsum.kernels.simplex_math import FUSED, sums

# mypy: disable-error-code="no-untyped-def"

# What is known of all alphas when a kernel is compiled: nothing, near 1, in between, near 2, or above 2.
ANY, NEAR_1, BETWEEN, NEAR_2, STEEP = (tl.constexpr(kind) for kind in range(5))
NEAR_1_BELOW, NEAR_2_ABOVE = tl.constexpr(0.1), tl.constexpr(0.8)
# Steps of third order end at this excess of the sum, since one more step leaves its cube; those of second order, its square.
CUBIC_EXCESS, CUBIC_EXCESS_DOUBLE = tl.constexpr(5e-4), tl.constexpr(1e-6)
SQUARE_EXCESS, SQUARE_EXCESS_DOUBLE = tl.constexpr(2e-5), tl.constexpr(1e-9)
# Third-order steps may go too far, from where few of them lead back; after these, Newton's method converges from anywhere.
_MOST_CUBIC = tl.constexpr(6)
# Convex problems need about 3 steps, the others bisect in every third of these.
_MAX_STEPS = tl.constexpr(64)
_LOG2_E = tl.constexpr(1.4426950408889634)
# Replaces a d that is not positive.
_SMALLEST = tl.constexpr(1e-37)
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
def rate_of(bits, ACC: tl.constexpr):
    """The rate a = alpha - 1, given the bits of a float64: Triton would pass a number in single precision."""
    return bits.to(tl.int64).to(tl.float64, bitcast=True).to(ACC)


@triton.jit
def scaled(scores, peak, a):
    """Scores with a maximum of 0, times a; entries at an infinite maximum are set to 0 too, so that they share the mass."""
    return tl.where(scores == peak, 0.0, (scores - peak) * a)


@triton.jit
def expm1(x):
    """``exp(x) - 1``, accurate near 0."""
    small = x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5))))
    return tl.where(tl.abs(x) < 0.03125, small, tl.exp(x) - 1)


@triton.jit
def steep_terms(z, threshold, inverse):
    """Probabilities and p / d for alpha > 2. The threshold is less by 1: rounding errors of 1 + z - s would be amplified."""
    d = z - threshold
    is_off = d <= 0
    safe = tl.where(is_off, 1.0, d)
    probs = tl.where(is_off, 0.0, tl.exp2(tl.log2(safe) * inverse))
    return probs, probs / safe


@triton.jit
def high_of(a, n):
    """The largest possible threshold for alpha > 2, less by 1: the largest probability is at least 1 / n."""
    return -tl.exp(-a * tl.log(n + 0 * a))


@triton.jit
def narrow(threshold, low, high, total, slope, a, step_number, TOLERANCE: tl.constexpr):
    """The next threshold for alpha > 2, the narrower bracket, and whether the row is not yet solved.

    Newton steps out of the bracket, and every third one, bisect it.
    """
    low = tl.where(total >= 1, threshold, low)
    high = tl.where(total <= 1, threshold, high)
    newton = threshold - expm1(-a * tl.log(total)) * total / slope
    middle = (low + high) / 2
    is_newton = (low < newton) & (newton < high) & (step_number % 3 != 2)
    is_open = (tl.abs(total - 1) > TOLERANCE) & (low < middle) & (middle < high) & (step_number < _MAX_STEPS) & (a > 1)
    return tl.where(is_open, tl.where(is_newton, newton, middle), threshold), low, high, is_open


@triton.jit
def solve_steep(z, a, n, ROWS: tl.constexpr, TOLERANCE: tl.constexpr):
    """A bracket of the threshold of each row of a block (ROWS, n) with maxima of 0, for alpha > 2; others are ignored."""
    threshold = tl.zeros([ROWS], z.dtype) - 1
    low, high = threshold, high_of(a, n)
    step_number, n_open = 0, 1
    while n_open > 0:
        probs, slopes = steep_terms(z, threshold[:, None], (1 / a)[:, None])
        total, slope = sums(probs, slopes)
        threshold, low, high, is_open = narrow(threshold, low, high, total, slope, a, step_number, TOLERANCE)
        n_open = tl.max(is_open.to(tl.int32), 0)
        step_number += 1
    return low, high


@triton.jit
def _add_triples(a, b, c, x, y, z):
    return a + x, b + y, c + z


@triton.jit
def sums_of_three(a, b, c):
    """Row sums of three blocks, with one synchronization of threads."""
    if FUSED:
        return tl.reduce((a, b, c), 1, _add_triples)
    else:  # noqa: RET505 (Triton needs the else to compile only one branch)
        return tl.sum(a, 1), tl.sum(b, 1), tl.sum(c, 1)


@triton.jit
def _fast_log2(x):
    if FUSED and x.dtype == tl.float32:
        return libdevice.fast_log2f(x)
    else:  # noqa: RET505 (Triton needs the else to compile only one branch)
        return tl.log2(x)


@triton.jit
def is_cubic(a):
    """Whether p / d^2 is bounded, so that steps can be of third order."""
    return a <= 0.5


@triton.jit
def is_careful(a):
    """Whether the quick evaluation of `moments` is not enough, or alpha is NaN."""
    return ~((a >= NEAR_1_BELOW) & (a <= NEAR_2_ABOVE))


@triton.jit
def moments(z, threshold, a, FINE: tl.constexpr, MASKED: tl.constexpr):
    """p, p / d and p / d^2, by the fast logarithm.

    FINE takes an exact one, corrected by the rounding error of d, since powers are large for alpha near 1. MASKED sets what
    is off the support to 0, where the smallest d to such a small power is not negligible, for alpha near 2.
    """
    if FINE:
        u = z - threshold
        u = tl.where(u <= -1, -1.0, u)
        d = 1 + u
        log = tl.log2(d) + (u - (d - 1)) * _LOG2_E
    else:
        d = tl.maximum(z + (1 - threshold), _SMALLEST, propagate_nan=tl.PropagateNan.ALL)
        log = _fast_log2(d)
    last = tl.exp2(log * (1 / a - 2))
    if MASKED:
        last = tl.where(d <= _SMALLEST, 0.0, last)
    slope = last * d
    return slope * d, slope, last


@triton.jit
def smooth_step(total, slope, curvature, a, step_number):
    """The change of the threshold, given the sums of `moments`."""
    shrink = -expm1(-a * tl.log(total))
    bend = 0.5 * shrink * (1 / a - 1) * (total * curvature / (slope * slope) - 1)
    bend = tl.where(is_cubic(a) & (step_number < _MOST_CUBIC), tl.where(bend > 0.5, 0.5, bend), 0.0)
    return shrink * total / slope / (1 - bend)


@triton.jit
def is_rough(total, step, threshold, a, step_number, EPS: tl.constexpr):
    """Whether another step has to be evaluated before the last one."""
    if a.dtype == tl.float64:
        excess = tl.where(is_cubic(a), CUBIC_EXCESS_DOUBLE, SQUARE_EXCESS_DOUBLE)
    else:
        excess = tl.where(is_cubic(a), CUBIC_EXCESS, SQUARE_EXCESS)
    is_significant = tl.abs(step) > 2 * EPS * tl.abs(threshold)
    return (tl.abs(total - 1) > excess) & is_significant & (step_number < _MAX_STEPS) & (a <= 1)


@triton.jit
def solve_smooth(z, a, guess, ROWS: tl.constexpr, EPS: tl.constexpr, KIND: tl.constexpr):
    """The threshold of each row of a block (ROWS, n) with maxima of 0, for alpha <= 2, and the last step, not yet taken."""
    if KIND == ANY:
        if tl.max(is_careful(a).to(tl.int32), 0) > 0:
            threshold, step = _solve(z, a, guess, ROWS, EPS, True, True)
        else:
            threshold, step = _solve(z, a, guess, ROWS, EPS, False, False)
    else:
        threshold, step = _solve(z, a, guess, ROWS, EPS, KIND == NEAR_1, KIND == NEAR_2)
    return threshold, step


@triton.jit
def _solve(z, a, guess, ROWS: tl.constexpr, EPS: tl.constexpr, FINE: tl.constexpr, MASKED: tl.constexpr):
    threshold = tl.zeros([ROWS], z.dtype) + guess
    step = tl.zeros([ROWS], z.dtype)
    step_number, n_open = 0, 1
    while n_open > 0:
        total, slope, curvature = sums_of_three(*moments(z, threshold[:, None], a[:, None], FINE, MASKED))
        step = smooth_step(total, slope, curvature, a, step_number)
        is_open = is_rough(total, step, threshold, a, step_number, EPS)
        threshold = tl.where(is_open, threshold + step, threshold)
        n_open = tl.max(is_open.to(tl.int32), 0)
        step_number += 1
    return threshold, step


@triton.jit
def settled(z, threshold, step, a):
    """Probabilities for alpha <= 2, with the last step applied to distances, whose rounding error is smaller."""
    u = (z - threshold) - step
    u = tl.where(u <= -1, -1.0, u)
    d = 1 + u
    log = tl.log2(d) + (u - (d - 1)) * _LOG2_E
    probs = tl.exp2(log * (1 / a))
    return tl.where(d <= 0, 0.0, tl.where(probs >= 1, 1.0, probs))


@triton.jit
def lane_scores(scores, a, LANES: tl.constexpr, WIDTH: tl.constexpr):
    """The scaled maxima of the entries that each of LANES threads holds: (1, LANES), and the maximum of the row, (1,)."""
    parts = tl.max(tl.reshape(scores, [scores.shape[1] // (LANES * WIDTH), LANES, WIDTH]), 2)
    lanes = tl.max(parts, 0)[None, :]
    peak = tl.max(lanes, 1)
    return scaled(lanes, peak[:, None], a[:, None]), peak


@triton.jit
def clamped(probs):
    """Limit to [0, 1], keeping NaN."""
    return tl.where(probs <= 0, 0.0, tl.where(probs >= 1, 1.0, probs))


@triton.jit
def weights_of(p, a):
    """The weights of the Jacobian, p^(1 - a) on the support, NaN for NaN, and the logarithm of p, 0 off the support."""
    log = tl.log2(tl.where(p == 0, 1.0, p))
    return tl.where(p == 0, 0.0, tl.exp2((1 - a) * log)), log / _LOG2_E


@triton.jit
def backward_terms(p, g, a, WITH_ALPHA: tl.constexpr):
    """The terms of the sums that the gradients need: weights, weighted gradient, and the same for alpha."""
    s, log = weights_of(p, a)
    g = tl.where(p == 0, 0.0, g)
    if WITH_ALPHA:
        c = alpha_change(p, s, log, a)
        return s, s * g, c, c * g
    return s, s * g, 0 * s, 0 * s


@triton.jit
def alpha_change(p, s, log, a):
    """The derivative of p with respect to alpha for a fixed shift: -p log(p)^2 (exp(u) - 1 - u) / u^2, u = -a log(p)."""
    u = -a * log
    series = tl.full(p.shape, 1.0, p.dtype)
    for k in tl.static_range(20, 2, -1):
        series = 1 + series * u / k
    directly = (p * (1 + u) - s) / (a * a)
    return tl.where(u < _SMALL, -p * log * log * series / 2, directly)
