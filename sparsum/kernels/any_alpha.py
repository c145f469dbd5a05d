"""Kernels of entmax with any alpha per row: rows that fit into the registers of one program, and longer ones."""

from __future__ import annotations

import triton
import triton.language as tl

from sparsum.kernels.any_alpha_math import (
    advance,
    alpha_change,
    clamped,
    corrected,
    first_guess,
    load_rates,
    newton_step,
    probs_and_slopes,
    scaled,
    solve_tile,
    weights_of,
)
from sparsum.kernels.simplex_math import load_scores, make_up, round_rows, row_offset, units

# ruff: noqa: N806
# mypy: disable-error-code="no-untyped-def"


@triton.jit
def mixed(z, low, high, inverse):
    """Probabilities at both ends of a bracket, mixed for a sum of 1; for alpha > 2, where no threshold gives that sum."""
    above, _ = probs_and_slopes(z, low, inverse)
    below, _ = probs_and_slopes(z, high, inverse)
    excess = tl.sum(above, 1)[:, None] - 1
    whole = excess + 1 - tl.sum(below, 1)[:, None]
    return clamped(above + (below - above) * (excess / tl.where(whole == 0, 1.0, whole)))


@triton.jit(do_not_specialize=["n_rows"])
def any_tile_forward(
    x, mask, alphas, y, n_rows, n, inner, xo, xi, xc, mo, mi, mc, yo, yi, yc, alpha_stride,
    HAS_MASK: tl.constexpr, IS_HALF: tl.constexpr, TOLERANCE: tl.constexpr, EPS: tl.constexpr,
    LANES: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, IS_DOUBLE: tl.constexpr,
):  # fmt: skip
    """Probabilities of ROWS rows; strides are given for the outer, inner and row dimension."""
    ACC: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    is_inside = (row < n_rows)[:, None] & (column < n)[None, :]
    x_offset = row_offset(row, inner, xo, xi)[:, None] + column.to(tl.int64)[None, :] * xc
    mask_offset = row_offset(row, inner, mo, mi)[:, None] + column.to(tl.int64)[None, :] * mc
    scores = load_scores(x, mask, x_offset, mask_offset, is_inside, HAS_MASK, ACC)
    a = load_rates(alphas, row, row < n_rows, alpha_stride, ACC)
    peak, guess = first_guess(scores, a, n, ROWS, LANES, WIDTH, EPS)
    z = scaled(scores, peak[:, None], a[:, None])
    inverse = (1 / a)[:, None]
    threshold, step, total, low, high = solve_tile(z, a, guess, n, ROWS, TOLERANCE, EPS)
    probs = corrected(z, threshold[:, None], step[:, None], inverse)
    if tl.max((a > 1).to(tl.int32), 0) > 0:
        probs = tl.where((a > 1)[:, None], mixed(z, low[:, None], high[:, None], inverse), probs)
    probs = tl.where((peak == -float("inf"))[:, None], (0 * total)[:, None], probs)  # fully masked: zeros, or NaN
    y_offset = row_offset(row, inner, yo, yi)[:, None] + column.to(tl.int64)[None, :] * yc
    tl.store(y + y_offset, round_rows(probs, y.dtype.element_ty, IS_HALF), mask=is_inside)


@triton.jit
def _load_block(
    x, mask, start, n, xc, mc, peak, a, HAS_MASK: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr
):  # fmt: skip
    """Scaled scores of a block of a row, -inf outside, and their columns."""
    column = start + tl.arange(0, BLOCK)
    wide = column.to(tl.int64)
    scores = load_scores(x, mask, wide * xc, wide * mc, column < n, HAS_MASK, ACC)
    return tl.where(column < n, scaled(scores, peak, a), -float("inf")), column


@triton.jit
def _row_sums(
    x, mask, n, xc, mc, peak, a, threshold, HAS_MASK: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr
):  # fmt: skip
    """The sums of the probabilities of a row and of p / d, which read the row once."""
    total = tl.zeros([BLOCK], ACC)
    slope = tl.zeros([BLOCK], ACC)
    start = 0
    while start < n:
        z, _ = _load_block(x, mask, start, n, xc, mc, peak, a, HAS_MASK, BLOCK, ACC)
        probs, slopes = probs_and_slopes(z, threshold, 1 / a)
        total += probs
        slope += slopes
        start += BLOCK
    return tl.sum(total, 0), tl.sum(slope, 0)


@triton.jit
def any_loop_forward(
    x, mask, alphas, y, n, inner, xo, xi, xc, mo, mi, mc, yo, yi, yc, alpha_stride,
    HAS_MASK: tl.constexpr, IS_HALF: tl.constexpr, TOLERANCE: tl.constexpr, EPS: tl.constexpr,
    BLOCK: tl.constexpr, IS_DOUBLE: tl.constexpr,
):  # fmt: skip
    """Probabilities of a row that is read in every step, from the L2 cache if it fits there."""
    ACC: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    row = tl.program_id(0)
    x += row_offset(row, inner, xo, xi)
    mask += row_offset(row, inner, mo, mi)
    y += row_offset(row, inner, yo, yi)
    a = load_rates(alphas, row.to(tl.int64), True, alpha_stride, ACC)
    peaks = tl.full([BLOCK], -float("inf"), ACC)
    start = 0
    while start < n:
        column = (start + tl.arange(0, BLOCK)).to(tl.int64)
        peaks = tl.maximum(peaks, load_scores(x, mask, column * xc, column * mc, column < n, HAS_MASK, ACC))
        start += BLOCK
    peak = tl.max(peaks, 0)
    # Start from the threshold of the maxima of the columns of the blocks, which is a lower bound.
    z = scaled(peaks, peak, a)[None, :]
    of_maxima = solve_tile(z, a + tl.zeros([1], ACC), 0.0, BLOCK, 1, TOLERANCE, EPS)
    threshold = tl.sum(of_maxima[3], 0)  # a sum of one
    low, high = threshold, 1 - tl.exp2(-a * tl.log2(n * (1.0 + 0 * a)))
    step = 0 * a
    total = 0 * a
    step_number, is_open = 0, True
    while is_open:
        total, slope = _row_sums(x, mask, n, xc, mc, peak, a, threshold, HAS_MASK, BLOCK, ACC)
        step = newton_step(total, slope, a)
        threshold, low, high, is_open = advance(threshold, low, high, total, step, a, step_number, TOLERANCE, EPS)
        step_number += 1
    share = 0 * a
    if a > 1:
        above = _row_sums(x, mask, n, xc, mc, peak, a, low, HAS_MASK, BLOCK, ACC)[0]
        below = _row_sums(x, mask, n, xc, mc, peak, a, high, HAS_MASK, BLOCK, ACC)[0]
        share = (above - 1) / tl.where(above == below, 1.0, above - below)
    _write_row(
        x, mask, y, n, xc, mc, yc, peak, a, threshold, step, total, low, high, share, HAS_MASK, IS_HALF, BLOCK, ACC
    )  # fmt: skip


@triton.jit
def _block_probs(z, a, peak, threshold, step, total, low, high, share):
    """Probabilities of a block of a row, given its solution."""
    if a > 1:
        above = probs_and_slopes(z, low, 1 / a)[0]
        below = probs_and_slopes(z, high, 1 / a)[0]
        probs = clamped(above + (below - above) * share)
    else:
        probs = corrected(z, threshold, step, 1 / a)
    return tl.where(peak == -float("inf"), 0 * total, probs)  # fully masked: zeros, or NaN


@triton.jit
def _write_row(
    x, mask, y, n, xc, mc, yc, peak, a, threshold, step, total, low, high, share,
    HAS_MASK: tl.constexpr, IS_HALF: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Write the probabilities of a row; in half precision, they still sum to 1."""
    dtype = y.dtype.element_ty
    missing = 1.0
    if IS_HALF:
        kept = tl.zeros([BLOCK], tl.float32)
        start = 0
        while start < n:
            z, column = _load_block(x, mask, start, n, xc, mc, peak, a, HAS_MASK, BLOCK, ACC)
            probs = _block_probs(z, a, peak, threshold, step, total, low, high, share)
            kept += tl.where(column < n, probs.to(dtype).to(tl.float32), 0.0)
            start += BLOCK
        missing = 1.0 - tl.sum(kept, 0)
    reached = 0.0
    start = 0
    while start < n:
        z, column = _load_block(x, mask, start, n, xc, mc, peak, a, HAS_MASK, BLOCK, ACC)
        rounded = _block_probs(z, a, peak, threshold, step, total, low, high, share).to(dtype)
        if IS_HALF:
            unit = tl.where(column < n, units(rounded, missing), 0.0)
            rounded = make_up(rounded, unit, reached + tl.cumsum(unit, 0), missing)
            reached += tl.sum(unit, 0)
        tl.store(y + column.to(tl.int64) * yc, rounded, mask=column < n)
        start += BLOCK


@triton.jit
def _backward_sums(p, g, a, WITH_ALPHA: tl.constexpr):
    """The terms of the sums that the gradients need: weights, weighted gradient, and the same for alpha."""
    s, log = weights_of(p, a)
    g = tl.where(p == 0, 0.0, g)
    if WITH_ALPHA:
        c = alpha_change(p, s, log, a)
        return s, s * g, c, c * g
    return s, s * g, 0 * s, 0 * s


@triton.jit
def any_backward(
    probs, grad, alphas, out, alpha_out, n, inner, po, pi, pc, go, gi, gc, yo, yi, yc, alpha_stride,
    WITH_ALPHA: tl.constexpr, BLOCK: tl.constexpr, IS_DOUBLE: tl.constexpr,
):  # fmt: skip
    """The Jacobian of a row times ``grad``, and the derivative with respect to its alpha if WITH_ALPHA."""
    ACC: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    row = tl.program_id(0)
    probs += row_offset(row, inner, po, pi)
    grad += row_offset(row, inner, go, gi)
    out += row_offset(row, inner, yo, yi)
    a = load_rates(alphas, row.to(tl.int64), True, alpha_stride, ACC)
    weight = tl.zeros([BLOCK], ACC)
    weighted = tl.zeros([BLOCK], ACC)
    change = tl.zeros([BLOCK], ACC)
    changed = tl.zeros([BLOCK], ACC)
    start = 0
    while start < n:
        column = (start + tl.arange(0, BLOCK)).to(tl.int64)
        p = tl.load(probs + column * pc, mask=column < n, other=0.0).to(ACC)
        g = tl.load(grad + column * gc, mask=(column < n) & (p != 0), other=0.0).to(ACC)
        s, sg, c, cg = _backward_sums(p, g, a, WITH_ALPHA)
        weight += s
        weighted += sg
        change += c
        changed += cg
        start += BLOCK
    whole = tl.sum(weight, 0)
    mean = tl.sum(weighted, 0) / tl.where(whole == 0, 1.0, whole)
    if WITH_ALPHA:
        tl.store(alpha_out + row, tl.sum(changed, 0) - mean * tl.sum(change, 0))
    start = 0
    while start < n:
        column = (start + tl.arange(0, BLOCK)).to(tl.int64)
        p = tl.load(probs + column * pc, mask=column < n, other=0.0).to(ACC)
        g = tl.load(grad + column * gc, mask=(column < n) & (p != 0), other=0.0).to(ACC)
        s, _ = weights_of(p, a)
        tl.store(out + column * yc, (s * (g - mean)).to(out.dtype.element_ty), mask=column < n)
        start += BLOCK
