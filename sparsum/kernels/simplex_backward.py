"""The derivative for long rows: read the probabilities once, then process only the groups that hold support."""

from __future__ import annotations

import triton
import triton.language as tl

from sparsum.kernels.simplex_groups import columns_of
from sparsum.kernels.simplex_math import row_offset, weight

# ruff: noqa: N806
# mypy: disable-error-code="no-untyped-def"


@triton.jit
def read_support(
    probs, out, ids, n, n_groups, pc, yc, GROUP: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """List the groups of a row that hold support in ``ids``, fill its output with zeros; return their number."""
    n_ids = 0
    start = 0
    while start < n_groups:
        group = tl.multiple_of(start, CHUNK) + tl.arange(0, CHUNK)
        column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        is_inside = column < n
        column = column.to(tl.int64)
        p = tl.load(probs + column * pc, mask=is_inside, other=0.0)
        tl.store(out + column * yc, tl.zeros([CHUNK, GROUP], out.dtype.element_ty), mask=is_inside)
        is_kept = tl.max((p != 0).to(tl.int32), 1)
        tl.store(ids + n_ids + tl.cumsum(is_kept, 0) - 1, group, mask=is_kept > 0)
        n_ids += tl.sum(is_kept, 0)
        start += CHUNK
    return n_ids


@triton.jit
def _load_support(
    probs, grad, column, is_inside, pc, gc, EXPONENT: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Weights and gradients of the given columns, 0 off the support."""
    p = tl.load(probs + column * pc, mask=is_inside, other=0.0).to(ACC)
    g = tl.load(grad + column * gc, mask=is_inside, other=0.0).to(ACC)
    return weight(p, EXPONENT), tl.where(p == 0, 0.0, g)


@triton.jit(do_not_specialize=["n_groups"])
def groups_backward(
    probs, grad, out, ids, n, n_groups, inner, po, pi, pc, go, gi, gc, yo, yi, yc,
    EXPONENT: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr, BATCH: tl.constexpr, IS_DOUBLE: tl.constexpr,
):  # fmt: skip
    """The Jacobian times ``grad``: read the probabilities once, then only the groups that hold support."""
    ACC: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    row = tl.program_id(0)
    probs += row_offset(row, inner, po, pi)
    grad += row_offset(row, inner, go, gi)
    out += row_offset(row, inner, yo, yi)
    ids += row.to(tl.int64) * n_groups
    n_ids = read_support(probs, out, ids, n, n_groups, pc, yc, GROUP, CHUNK)
    tl.debug_barrier()
    total = tl.zeros([BATCH, GROUP], ACC)
    weighted = tl.zeros([BATCH, GROUP], ACC)
    start = 0
    while start < n_ids:
        column, is_inside = columns_of(ids, start, n_ids, n, GROUP, BATCH)
        s, g = _load_support(probs, grad, column, is_inside, pc, gc, EXPONENT, ACC)
        total += s
        weighted += s * g
        start += BATCH
    whole = tl.sum(tl.sum(total, 1), 0)
    mean = tl.sum(tl.sum(weighted, 1), 0) / tl.where(whole == 0, 1.0, whole)
    start = 0
    while start < n_ids:
        column, is_inside = columns_of(ids, start, n_ids, n, GROUP, BATCH)
        s, g = _load_support(probs, grad, column, is_inside, pc, gc, EXPONENT, ACC)
        tl.store(out + column * yc, (s * (g - mean)).to(out.dtype.element_ty), mask=is_inside)
        start += BATCH
