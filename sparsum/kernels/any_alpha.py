"""Kernels of entmax with any alpha per row, for rows that fit into the registers of one program."""

from __future__ import annotations

import triton
import triton.language as tl

from sparsum.kernels.any_alpha_math import (
    ANY,
    STEEP,
    backward_terms,
    clamped,
    lane_scores,
    load_rates,
    rate_of,
    scaled,
    settled,
    solve_smooth,
    solve_steep,
    steep_terms,
)
from sparsum.kernels.simplex_math import load_scores, round_rows, row_offset, sums

# Conditions that are known when a kernel is compiled stand alone, since then only one branch is compiled.
# ruff: noqa: N806, SIM102, SIM109
# mypy: disable-error-code="no-untyped-def"


@triton.jit
def mixed(z, low, high, inverse):
    """Probabilities at both ends of a bracket, mixed for a sum of 1; for alpha > 2, where no threshold gives that sum."""
    above, _ = steep_terms(z, low, inverse)
    below, _ = steep_terms(z, high, inverse)
    excess = tl.sum(above, 1)[:, None] - 1
    whole = excess + 1 - tl.sum(below, 1)[:, None]
    return clamped(above + (below - above) * (excess / tl.where(whole == 0, 1.0, whole)))


@triton.jit(do_not_specialize=["n_rows", "rate"])
def any_tile_forward(
    x, mask, alphas, y, rate, n_rows, n, inner, xo, xi, xc, mo, mi, mc, yo, yi, yc, alpha_stride,
    KIND: tl.constexpr, HAS_MASK: tl.constexpr, IS_HALF: tl.constexpr, TOLERANCE: tl.constexpr, EPS: tl.constexpr,
    LANES: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, IS_DOUBLE: tl.constexpr,
):  # fmt: skip
    """Probabilities of ROWS rows; strides are given for the outer, inner and row dimension.

    Rows have alphas of their own if nothing is known of them, and otherwise ``rate`` has that of all.
    """
    ACC: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    is_inside = (row < n_rows)[:, None] & (column < n)[None, :]
    x_offset = row_offset(row, inner, xo, xi)[:, None] + column.to(tl.int64)[None, :] * xc
    mask_offset = row_offset(row, inner, mo, mi)[:, None] + column.to(tl.int64)[None, :] * mc
    scores = load_scores(x, mask, x_offset, mask_offset, is_inside, HAS_MASK, ACC)
    if KIND == ANY:
        a = load_rates(alphas, row, row < n_rows, alpha_stride, ACC)
    else:
        a = rate_of(rate, ACC) + tl.zeros([ROWS], ACC)
    guess = tl.zeros([ROWS], ACC)
    if LANES > 1:
        # A long row starts from the threshold of the maxima of what each thread holds, which is a lower bound.
        lanes, peak = lane_scores(scores, a, LANES, WIDTH)
        guess, _ = solve_smooth(lanes, a, guess, ROWS, EPS, KIND)
    else:
        peak = tl.max(scores, 1)
    z = scaled(scores, peak[:, None], a[:, None])
    threshold, step = solve_smooth(z, a, guess, ROWS, EPS, KIND)
    probs = settled(z, threshold[:, None], step[:, None], a[:, None])
    if KIND == ANY or KIND == STEEP:
        if tl.max((a > 1).to(tl.int32), 0) > 0:
            low, high = solve_steep(z, a, n, ROWS, TOLERANCE)
            probs = tl.where((a > 1)[:, None], mixed(z, low[:, None], high[:, None], (1 / a)[:, None]), probs)
    probs = tl.where((peak == -float("inf"))[:, None], (0 * step)[:, None], probs)  # fully masked: zeros, or NaN
    y_offset = row_offset(row, inner, yo, yi)[:, None] + column.to(tl.int64)[None, :] * yc
    tl.store(y + y_offset, round_rows(probs, y.dtype.element_ty, IS_HALF), mask=is_inside)


@triton.jit(do_not_specialize=["rate", "n_rows"])
def any_tile_backward(
    probs, grad, alphas, out, alpha_out, rate, n_rows, n, inner, po, pi, pc, go, gi, gc, yo, yi, yc, alpha_stride,
    HAS_ALPHAS: tl.constexpr, WITH_ALPHA: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, IS_DOUBLE: tl.constexpr,
):  # fmt: skip
    """The Jacobian of ROWS rows times ``grad``, and the derivatives with respect to their alphas if WITH_ALPHA."""
    ACC: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    is_inside = (row < n_rows)[:, None] & (column < n)[None, :]
    wide = column.to(tl.int64)[None, :]
    p = tl.load(probs + row_offset(row, inner, po, pi)[:, None] + wide * pc, mask=is_inside, other=0.0).to(ACC)
    g_offset = row_offset(row, inner, go, gi)[:, None] + wide * gc
    g = tl.load(grad + g_offset, mask=is_inside & (p != 0), other=0.0).to(ACC)
    if HAS_ALPHAS:
        a = load_rates(alphas, row, row < n_rows, alpha_stride, ACC)
    else:
        a = rate_of(rate, ACC) + tl.zeros([ROWS], ACC)
    s, sg, c, cg = backward_terms(p, g, a[:, None], WITH_ALPHA)
    whole, weighted = sums(s, sg)
    mean = weighted / tl.where(whole == 0, 1.0, whole)
    if WITH_ALPHA:
        change, changed = sums(c, cg)
        tl.store(alpha_out + row, changed - mean * change, mask=row < n_rows)
    y_offset = row_offset(row, inner, yo, yi)[:, None] + wide * yc
    tl.store(out + y_offset, (s * (g - mean[:, None])).to(out.dtype.element_ty), mask=is_inside)
