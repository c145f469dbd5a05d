"""Newton steps for entmax with a whole exponent 1 / (alpha - 1), as Triton functions on blocks of entries.

Sparsemax has exponent 1, 1.5-entmax exponent 2. The mathematics and the names are those of `sparsum.simplex.thresholds`.
Comparisons are written to propagate NaN: they are false for NaN, and an entry counts unless it is known to lie below the
threshold.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

# mypy: disable-error-code="no-untyped-def"

# The initial threshold, below the row's maximum of 0. Any value in [-1, 0) works; this one saves steps on random scores.
FIRST_GUESS = tl.constexpr(-0.6)
# A lower bound does not have to be exact: 1.5-entmax stops at this tolerance, one step before full precision.
ROUGH = tl.constexpr(1e-3)
_MAX_STEPS = tl.constexpr(64)
# Whether to use reductions with custom functions, which the interpreter would execute entry by entry.
FUSED = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1")


@triton.jit
def row_offset(row, inner, outer_stride, inner_stride):
    """The offset of a row; rows are numbered over two dimensions, the second of size ``inner``."""
    return (row // inner).to(tl.int64) * outer_stride + (row % inner).to(tl.int64) * inner_stride


@triton.jit
def load_scores(x, mask, x_offset, mask_offset, is_inside, HAS_MASK: tl.constexpr, ACC: tl.constexpr):
    """Load scores, -inf outside the row or where the mask is False; both loads are issued together."""
    scores = tl.load(x + x_offset, mask=is_inside, other=-float("inf")).to(ACC)
    if HAS_MASK:
        is_allowed = tl.load(mask + mask_offset, mask=is_inside, other=0) != 0
        scores = tl.where(is_allowed, scores, -float("inf"))
    return scores


@triton.jit
def shift(scores, peak, EXPONENT: tl.constexpr):
    """Shift the scores to a maximum of 0; entries at an infinite maximum are set to 0 too, so that they share the mass."""
    z = tl.where(scores == peak, 0.0, scores - peak)
    if EXPONENT > 1:
        z = z * (1.0 / EXPONENT)
    return z


@triton.jit
def distance(z, threshold):
    """The distance of each entry above the threshold, 0 if it is below."""
    above = z - threshold
    return tl.where(above <= 0, 0.0, above)


@triton.jit
def power(above, EXPONENT: tl.constexpr):
    """A whole power of distances."""
    result = above
    for _ in tl.static_range(EXPONENT - 1):
        result = result * above
    return result


@triton.jit
def first_moment(above, EXPONENT: tl.constexpr):
    """The first quantity whose sum the Newton step needs: the distance, to the power of the exponent minus 1 from 3 on."""
    if EXPONENT > 2:
        return power(above, EXPONENT - 1)
    return above


@triton.jit
def second_moment(above, EXPONENT: tl.constexpr):
    """The second quantity: an indicator of the support for exponent 1, else the distance to the power of the exponent."""
    if EXPONENT == 1:
        return tl.where(above == 0, 0.0, 1.0).to(above.dtype)
    return power(above, EXPONENT)


@triton.jit
def advance(threshold, total, second, last, step_number, EXPONENT: tl.constexpr, TOLERANCE: tl.constexpr):
    """The Newton step, whether it is taken, and the next threshold; a converged row keeps its threshold.

    The first step may be negative. Afterwards the support only shrinks, so that rounding cannot make a tie oscillate.
    """
    if EXPONENT == 1:
        step = (total - 1) / second
        is_open = second != last
    elif EXPONENT == 2:
        norm = tl.sqrt(second)
        step = (norm - 1) * norm / total
        is_open = step > TOLERANCE
    else:
        norm = tl.exp2(tl.log2(second) / EXPONENT)
        step = (norm - 1) / norm * second / total
        is_open = step > TOLERANCE
    is_open = (is_open | (step_number == 0)) & (step_number < _MAX_STEPS)
    climbing = tl.where((step < 0) & (step_number > 0), 0.0, step)
    return step, is_open, tl.where(is_open, threshold + climbing, threshold)


@triton.jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def sums(a, b):
    """Row sums of two blocks; the fused version synchronizes threads once instead of twice."""
    if FUSED:
        return tl.reduce((a, b), 1, _add_pairs)
    else:  # noqa: RET505 (Triton needs the else to compile only one branch)
        return tl.sum(a, 1), tl.sum(b, 1)


@triton.jit
def _max_or_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def peaks_of(scores):
    """Row maxima, +inf for a row with a NaN; the fused version needs one instruction per entry instead of three."""
    if FUSED:
        peak = tl.reduce(scores, 1, _max_or_nan)
        return tl.where(peak == peak, peak, float("inf"))
    else:  # noqa: RET505 (Triton needs the else to compile only one branch)
        return tl.max(tl.where(scores == scores, scores, float("inf")), 1)


@triton.jit
def solve_tile(z, guess, ROWS: tl.constexpr, EXPONENT: tl.constexpr, TOLERANCE: tl.constexpr):
    """The threshold of each row of a block (ROWS, n) with maxima of 0, and the last step, to be applied to distances."""
    threshold = tl.zeros([ROWS], z.dtype) + guess
    step = tl.zeros([ROWS], z.dtype)
    last = tl.zeros([ROWS], z.dtype)
    step_number, n_open = 0, 1
    while n_open > 0:
        above = distance(z, threshold[:, None])
        total, second = sums(first_moment(above, EXPONENT), second_moment(above, EXPONENT))
        step, is_open, threshold = advance(threshold, total, second, last, step_number, EXPONENT, TOLERANCE)
        last = second
        n_open = tl.max(is_open.to(tl.int32), 0)
        step_number += 1
    return threshold, step


@triton.jit
def first_guess(
    scores, ROWS: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, EXPONENT: tl.constexpr
):  # fmt: skip
    """Row maxima, and initial thresholds.

    A long row starts from the threshold of the maxima of LANES subsets of it, which is a lower bound, so that only two or
    three steps read all entries. A subset is what one thread holds: several runs of WIDTH adjacent entries.
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
    """Probabilities of entries; the last step is applied to the distances, whose rounding error is smaller."""
    above = distance(z, threshold)
    above = tl.where(above == 0, 0.0, above - step)
    above = tl.where(above <= 0, 0.0, tl.where(above >= 1, 1.0, above))
    return power(above, EXPONENT)


@triton.jit
def neighbour(rounded, is_down):
    """The adjacent number up or down in half precision: positive floats sort as integers."""
    bits = rounded.to(tl.int16, bitcast=True) + tl.where(is_down, -1, 1).to(tl.int16)
    return bits.to(rounded.dtype, bitcast=True)


@triton.jit
def units(rounded, missing):
    """The change of each positive entry when it moves to the adjacent number in the direction of the missing mass."""
    moved = neighbour(rounded, missing < 0)
    value = rounded.to(tl.float32)
    return tl.where(value > 0, tl.abs(moved.to(tl.float32) - value), 0.0)


@triton.jit
def make_up(rounded, unit, reached, missing):
    """Move the first entries by one unit each until less than half a unit is missing, as in `sparsum.simplex`."""
    size = tl.where(missing < 0, -missing, missing)
    room = tl.where(size < 0.5, size, -1.0)  # a row of zeros or NaN is unchanged
    is_moved = (unit > 0) & (reached - unit / 2 <= room)
    return tl.where(is_moved, neighbour(rounded, missing < 0), rounded)


@triton.jit
def round_rows(probs, DTYPE: tl.constexpr, IS_HALF: tl.constexpr):
    """Round probabilities (rows, n) to the dtype of the output; in half precision, rows still sum to 1."""
    rounded = probs.to(DTYPE)
    if IS_HALF:
        missing = (1.0 - tl.sum(rounded.to(tl.float32), 1))[:, None]
        unit = units(rounded, missing)
        rounded = make_up(rounded, unit, tl.cumsum(unit, 1), missing)
    return rounded


@triton.jit
def weight(probs, EXPONENT: tl.constexpr):
    """The weights of the Jacobian, p^(1 - 1 / EXPONENT) on the support, NaN for NaN."""
    if EXPONENT == 1:
        on_support = 1.0 + 0.0 * probs
    elif EXPONENT == 2:
        on_support = tl.sqrt(probs)
    else:
        on_support = tl.exp2((1 - 1 / EXPONENT) * tl.log2(tl.where(probs == 0, 1.0, probs)))
    return tl.where(probs == 0, 0.0, on_support)
