"""Kernels for rows that fit into the registers of one program; short rows share a program."""

from __future__ import annotations

import triton
import triton.language as tl

from sparsum.kernels.simplex_math import (
    first_guess,
    load_scores,
    probability,
    round_rows,
    row_offset,
    shift,
    solve_tile,
    weight,
)

# ruff: noqa: N806
# mypy: disable-error-code="no-untyped-def"


@triton.jit(do_not_specialize=["n_rows"])
def tile_forward(
    x, mask, y, n_rows, n, inner, xo, xi, xc, mo, mi, mc, yo, yi, yc,
    EXPONENT: tl.constexpr, HAS_MASK: tl.constexpr, IS_HALF: tl.constexpr, TOLERANCE: tl.constexpr,
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
    peak, guess = first_guess(scores, ROWS, LANES, WIDTH, EXPONENT)
    z = shift(scores, peak[:, None], EXPONENT)
    threshold, step = solve_tile(z, guess, ROWS, EXPONENT, TOLERANCE)
    threshold = tl.where(peak == -float("inf"), threshold + float("inf"), threshold)  # fully masked: zeros, or NaN
    probs = probability(z, threshold[:, None], step[:, None], EXPONENT)
    y_offset = row_offset(row, inner, yo, yi)[:, None] + column.to(tl.int64)[None, :] * yc
    tl.store(y + y_offset, round_rows(probs, y.dtype.element_ty, IS_HALF), mask=is_inside)


@triton.jit(do_not_specialize=["n_rows"])
def tile_backward(
    probs, grad, out, n_rows, n, inner, po, pi, pc, go, gi, gc, yo, yi, yc,
    EXPONENT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, IS_DOUBLE: tl.constexpr,
):  # fmt: skip
    """The Jacobian times ``grad``, which is only read on the support."""
    ACC: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    is_inside = (row < n_rows)[:, None] & (column < n)[None, :]
    p_offset = row_offset(row, inner, po, pi)[:, None] + column.to(tl.int64)[None, :] * pc
    p = tl.load(probs + p_offset, mask=is_inside, other=0.0).to(ACC)
    g_offset = row_offset(row, inner, go, gi)[:, None] + column.to(tl.int64)[None, :] * gc
    g = tl.load(grad + g_offset, mask=is_inside & (p != 0), other=0.0).to(ACC)
    s = weight(p, EXPONENT)
    total = tl.sum(s, 1)
    mean = tl.sum(s * g, 1) / tl.where(total == 0, 1.0, total)
    y_offset = row_offset(row, inner, yo, yi)[:, None] + column.to(tl.int64)[None, :] * yc
    tl.store(out + y_offset, (s * (g - mean[:, None])).to(out.dtype.element_ty), mask=is_inside)
