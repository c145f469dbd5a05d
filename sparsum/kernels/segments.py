"""Reductions over the rows of a packed batch, in one launch each.

Rows are sorted and their lengths are known, so the position of the first entry of a row is the sum of the previous lengths.
Each program computes this sum itself, which is faster than launching a cumulative sum if there are not too many rows.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from sparsum.kernels.launch import next_power_of_2, unwrapped

# mypy: disable-error-code="no-untyped-def"

#: With more rows than this, summing the lengths takes longer than launching a cumulative sum.
MOST_ROWS = 4096
_ROWS_AT_ONCE = 256


@triton.jit
def start_of(lengths, row, AT_ONCE: tl.constexpr):
    """The position of the first entry of a row."""
    start = tl.zeros([AT_ONCE], tl.int64)
    begin = 0
    while begin < row:
        at = begin + tl.arange(0, AT_ONCE)
        start += tl.load(lengths + at, mask=at < row, other=0)
        begin += AT_ONCE
    return tl.sum(start, 0)


@triton.jit(do_not_specialize=["width"])
def _sum(
    values, lengths, sums, width,
    ACC: tl.constexpr, AT_ONCE: tl.constexpr, ENTRIES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sum some columns of one row in a fixed order, so that the result is deterministic."""
    row = tl.program_id(0)
    start, n = start_of(lengths, row, AT_ONCE), tl.load(lengths + row)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ENTRIES, COLUMNS], ACC)
    begin = 0
    while begin < n:
        at = begin + tl.arange(0, ENTRIES)
        mask = (at < n)[:, None] & (column < width)[None, :]
        total += tl.load(values + (start + at)[:, None] * width + column[None, :], mask=mask, other=0.0).to(ACC)
        begin += ENTRIES
    tl.store(sums + row.to(tl.int64) * width + column, tl.sum(total, 0), mask=column < width)


@triton.jit(do_not_specialize=["n_rows"])
def _tally(lengths, sizes, n_rows, AT_ONCE: tl.constexpr):
    """The sum of all lengths, and the number of zeros."""
    total = tl.zeros([AT_ONCE], tl.int64)
    empty = tl.zeros([AT_ONCE], tl.int64)
    begin = 0
    while begin < n_rows:
        at = begin + tl.arange(0, AT_ONCE)
        length = tl.load(lengths + at, mask=at < n_rows, other=0)
        total += length
        empty += ((length == 0) & (at < n_rows)).to(tl.int64)
        begin += AT_ONCE
    tl.store(sizes, tl.sum(total, 0))
    tl.store(sizes + 1, tl.sum(empty, 0))


def segment_sum(
    values: Tensor,  # shape: (n, *rest), contiguous
    lengths: Tensor,  # shape: (n_rows,), int64
) -> Tensor:
    """Sum each row, (n_rows, *rest), accumulating in float64, or in float32 for half precision."""
    sums = values.new_empty(len(lengths), *values.shape[1:])
    width = math.prod(values.shape[1:])
    if not values.numel():
        return sums.zero_()
    columns = min(next_power_of_2(width), 128)
    grid = (len(lengths), triton.cdiv(width, columns))
    unwrapped(_sum)[grid](
        values, lengths, sums, width,
        ACC=tl.float32 if values.dtype.itemsize == 2 else tl.float64,
        AT_ONCE=_ROWS_AT_ONCE, ENTRIES=64 if columns == 1 else max(1, 512 // columns), COLUMNS=columns, num_warps=4,
    )  # fmt: skip
    return sums


def tally(lengths: Tensor) -> Tensor:
    """The sum of all lengths, and the number of zeros: int64, (2,)."""
    sizes = lengths.new_empty(2)
    unwrapped(_tally)[(1,)](lengths, sizes, len(lengths), AT_ONCE=_ROWS_AT_ONCE, num_warps=4)
    return sizes
