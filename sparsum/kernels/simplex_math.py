"""Newton's steps for sparsemax and 1.5-entmax, as Triton functions on blocks of entries.

The mathematics is that of `sparsum.simplex.thresholds`, to which the names correspond. NaN is kept by comparisons that are
false for it: an entry counts unless it is known to lie below the threshold.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

# mypy: disable-error-code="no-untyped-def"

# Below the row's maximum of 0; any guess in [-1, 0) works, this one saves steps on random scores.
FIRST_GUESS = tl.constexpr(-0.6)
# A lower bound need not be exact: 1.5-entmax stops here, one step before the last digit.
ROUGH = tl.constexpr(1e-3)
_MAX_STEPS = tl.constexpr(64)
# Reductions with functions of our own, which the interpreter would do entry by entry.
FUSED = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1")


@triton.jit
def row_offset(row, inner, outer_stride, inner_stride):
    """Where a row begins: rows are numbered through two dimensions, of which the second has size ``inner``."""
    return (row // inner).to(tl.int64) * outer_stride + (row % inner).to(tl.int64) * inner_stride


@triton.jit
def load_scores(x, mask, x_offset, mask_offset, is_inside, HAS_MASK: tl.constexpr, ACC: tl.constexpr):
    """Scores, -inf where there is no entry or the mask is False; both are read at once, not one after the other."""
    scores = tl.load(x + x_offset, mask=is_inside, other=-float("inf")).to(ACC)
    if HAS_MASK:
        is_allowed = tl.load(mask + mask_offset, mask=is_inside, other=0) != 0
        scores = tl.where(is_allowed, scores, -float("inf"))
    return scores


@triton.jit
def shift(scores, peak, EXPONENT: tl.constexpr):
    """The scores with their maximum at 0; holders of an infinite maximum are at 0 too, so that they share the mass."""
    z = tl.where(scores == peak, 0.0, scores - peak)
    if EXPONENT == 2:
        z = z * 0.5
    return z


@triton.jit
def distance(z, threshold):
    """How far entries lie above the threshold."""
    above = z - threshold
    return tl.where(above <= 0, 0.0, above)


@triton.jit
def second_moment(above, EXPONENT: tl.constexpr):
    """What Newton's step needs besides the sum of the distances: their number, or their squares."""
    if EXPONENT == 1:
        return tl.where(above == 0, 0.0, 1.0).to(above.dtype)
    return above * above


@triton.jit
def advance(threshold, total, second, last, step_number, EXPONENT: tl.constexpr, TOLERANCE: tl.constexpr):
    """Newton's step, whether it is to be taken, and the threshold after it; a row that is done keeps its threshold.

    The first step may go down. From then on the support only shrinks: a tie must not flip to and fro by rounding.
    """
    if EXPONENT == 1:
        step = (total - 1) / second
        is_open = second != last
    else:
        norm = tl.sqrt(second)
        step = (norm - 1) * norm / total
        is_open = step > TOLERANCE
    is_open = (is_open | (step_number == 0)) & (step_number < _MAX_STEPS)
    climbing = tl.where((step < 0) & (step_number > 0), 0.0, step)
    return step, is_open, tl.where(is_open, threshold + climbing, threshold)


@triton.jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def sums(a, b):
    """Sums over the rows of two blocks; fused, threads wait for each other once instead of twice."""
    if FUSED:
        return tl.reduce((a, b), 1, _add_pairs)
    else:  # noqa: RET505 (Triton compiles one branch alone only so)
        return tl.sum(a, 1), tl.sum(b, 1)


@triton.jit
def _max_or_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def peaks_of(scores):
    """Maxima of rows, +inf for one with a NaN; fused, an instruction per entry instead of three."""
    if FUSED:
        peak = tl.reduce(scores, 1, _max_or_nan)
        return tl.where(peak == peak, peak, float("inf"))
    else:  # noqa: RET505 (Triton compiles one branch alone only so)
        return tl.max(tl.where(scores == scores, scores, float("inf")), 1)


@triton.jit
def solve_tile(z, guess, ROWS: tl.constexpr, EXPONENT: tl.constexpr, TOLERANCE: tl.constexpr):
    """Threshold of each row of a block (ROWS, n) with maxima at 0, and the last step, which is left to the distances."""
    threshold = tl.zeros([ROWS], z.dtype) + guess
    step = tl.zeros([ROWS], z.dtype)
    last = tl.zeros([ROWS], z.dtype)
    step_number, n_open = 0, 1
    while n_open > 0:
        above = distance(z, threshold[:, None])
        total, second = sums(above, second_moment(above, EXPONENT))
        step, is_open, threshold = advance(threshold, total, second, last, step_number, EXPONENT, TOLERANCE)
        last = second
        n_open = tl.max(is_open.to(tl.int32), 0)
        step_number += 1
    return threshold, step


@triton.jit
def first_guess(
    scores, ROWS: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, EXPONENT: tl.constexpr
):  # fmt: skip
    """Maxima of rows, and where to begin with their thresholds.

    A long row begins at the threshold of the maxima of LANES parts of it, which is a lower bound. A part is what one thread
    holds, WIDTH neighbours in several places, so that only two or three steps look at all entries.
    """
    if LANES > 1:
        parts = tl.max(tl.reshape(scores, [scores.shape[1] // (LANES * WIDTH), LANES, WIDTH]), 2)
        lanes = tl.max(parts, 0)[None, :]
        peak = tl.max(lanes, 1)
        threshold, step = solve_tile(shift(lanes, peak[:, None], EXPONENT), FIRST_GUESS, 1, EXPONENT, ROUGH)
        return peak, threshold + step
    return tl.max(scores, 1), tl.full([ROWS], FIRST_GUESS, scores.dtype)


@triton.jit
def probability(z, threshold, step, EXPONENT: tl.constexpr):
    """The last step is taken in the size of the distances, where rounding is smaller than in the threshold."""
    above = distance(z, threshold)
    above = tl.where(above == 0, 0.0, above - step)
    above = tl.where(above <= 0, 0.0, tl.where(above >= 1, 1.0, above))
    if EXPONENT == 2:
        above = above * above
    return above


@triton.jit
def neighbour(rounded, is_down):
    """The next number up or down in half precision: positive floats sort as integers."""
    bits = rounded.to(tl.int16, bitcast=True) + tl.where(is_down, -1, 1).to(tl.int16)
    return bits.to(rounded.dtype, bitcast=True)


@triton.jit
def units(rounded, missing):
    """By how much each positive entry moves when it goes to its neighbour in the direction of what is missing."""
    moved = neighbour(rounded, missing < 0)
    value = rounded.to(tl.float32)
    return tl.where(value > 0, tl.abs(moved.to(tl.float32) - value), 0.0)


@triton.jit
def make_up(rounded, unit, reached, missing):
    """Move the first entries by a unit each until less than half of one is missing, as `sparsum.simplex` does elsewhere."""
    size = tl.where(missing < 0, -missing, missing)
    room = tl.where(size < 0.5, size, -1.0)  # a row of zeros, or of NaN, stays as it is
    is_moved = (unit > 0) & (reached - unit / 2 <= room)
    return tl.where(is_moved, neighbour(rounded, missing < 0), rounded)


@triton.jit
def round_rows(probs, DTYPE: tl.constexpr, IS_HALF: tl.constexpr):
    """Probabilities (rows, n) in the dtype of the output, for half precision so that they still sum to 1."""
    rounded = probs.to(DTYPE)
    if IS_HALF:
        missing = (1.0 - tl.sum(rounded.to(tl.float32), 1))[:, None]
        unit = units(rounded, missing)
        rounded = make_up(rounded, unit, tl.cumsum(unit, 1), missing)
    return rounded


@triton.jit
def weight(probs, EXPONENT: tl.constexpr):
    """The weights of the Jacobian: 1 or the root of p on the support, NaN for NaN."""
    on_support = 1.0 + 0.0 * probs if EXPONENT == 1 else tl.sqrt(probs)
    return tl.where(probs == 0, 0.0, on_support)
