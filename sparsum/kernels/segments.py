"""Reductions over the rows of a packed batch, a launch each.

Rows are sorted and their lengths known, so that the first entry of a row is the sum of the lengths before it. Each program
adds these up for itself, which costs less than the launches of a cumulative sum while rows are not too many.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from sparsum.kernels.launch import unwrapped

# mypy: disable-error-code="no-untyped-def"

#: With more rows than this, adding up the lengths would take longer than launching a cumulative sum.
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
    """Some columns of one row, entry after entry: the order, and so the sum, is always the same."""
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
    """The sum of all lengths, and how many are 0."""
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
    """The sum over each row, (n_rows, *rest), added in float64, or in float32 for half precision."""
    sums = values.new_empty(len(lengths), *values.shape[1:])
    width = math.prod(values.shape[1:])
    if not values.numel():
        return sums.zero_()
    columns = min(triton.next_power_of_2(width), 128)
    grid = (len(lengths), triton.cdiv(width, columns))
    unwrapped(_sum)[grid](
        values, lengths, sums, width,
        ACC=tl.float32 if values.dtype.itemsize == 2 else tl.float64,
        AT_ONCE=_ROWS_AT_ONCE, ENTRIES=64 if columns == 1 else max(1, 512 // columns), COLUMNS=columns, num_warps=4,
    )  # fmt: skip
    return sums


def tally(lengths: Tensor) -> Tensor:
    """The two numbers, the sum of all lengths and how many of them are 0: int64, (2,)."""
    sizes = lengths.new_empty(2)
    unwrapped(_tally)[(1,)](lengths, sizes, len(lengths), AT_ONCE=_ROWS_AT_ONCE, num_warps=4)
    return sizes
