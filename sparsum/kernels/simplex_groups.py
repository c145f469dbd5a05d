"""Long rows: read them once for the maxima of groups of entries, then process the few groups that can hold support.

The threshold of the maxima is a lower bound of the row's threshold, as in `sparsum.simplex.blocks`. The first pass also
fills the output with zeros, and entries with mass are written over them, so the memory traffic is that of a copy. A row with
a large support is handled correctly as well, but all its groups are read in every step.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparsum.kernels.simplex_math import (
    FIRST_GUESS,
    ROUGH,
    advance,
    distance,
    first_moment,
    load_scores,
    make_up,
    peaks_of,
    probability,
    round_rows,
    row_offset,
    second_moment,
    shift,
    solve_tile,
    units,
)

# ruff: noqa: N806
# mypy: disable-error-code="no-untyped-def"


@triton.jit
def chunk_peaks(
    x, mask, y, n, xc, mc, yc, start, end,
    HAS_MASK: tl.constexpr, ZERO: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Maxima of CHUNK groups of a row up to ``end``, +inf for a group with a NaN; fills the output with zeros if ZERO."""
    group = start + tl.arange(0, CHUNK)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    is_inside = (column < n) & (group < end)[:, None]
    column = column.to(tl.int64)
    scores = load_scores(x, mask, column * xc, column * mc, is_inside, HAS_MASK, ACC)
    if ZERO:
        tl.store(y + column * yc, tl.zeros([CHUNK, GROUP], y.dtype.element_ty), mask=is_inside)
    return peaks_of(scores)


@triton.jit
def read_peaks(
    x, mask, y, peaks, n, xc, mc, yc, first, end,
    HAS_MASK: tl.constexpr, ZERO: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Store the maxima of the groups from ``first`` to ``end`` of a row in ``peaks``."""
    start = first
    while start < end:
        start = tl.multiple_of(start, CHUNK)
        peak = chunk_peaks(x, mask, y, n, xc, mc, yc, start, end, HAS_MASK, ZERO, GROUP, CHUNK, ACC)
        group = start + tl.arange(0, CHUNK)
        tl.store(peaks + group, peak, mask=group < end)
        start += CHUNK


@triton.jit
def load_peaks(peaks, n_groups, GROUPS: tl.constexpr):
    """Load the stored maxima, -inf beyond them."""
    group = tl.arange(0, GROUPS)
    return tl.load(peaks + group, mask=group < n_groups, other=-float("inf"))


@triton.jit
def find_groups(
    values, ids, n_groups, EXPONENT: tl.constexpr, SLACK: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """The maximum of a row, a lower bound of its threshold, and the number of groups above it, listed in ``ids``."""
    peak = tl.max(values, 0)
    z = shift(values, peak, EXPONENT)
    threshold, step = solve_tile(z[None, :], FIRST_GUESS, 1, EXPONENT, ROUGH)
    bound = tl.sum(threshold + step, 0) - SLACK  # a sum of one
    return peak, bound, list_groups(z, peak, bound, ids, n_groups, GROUPS)


@triton.jit
def list_groups(z, peak, bound, ids, n_groups, GROUPS: tl.constexpr):
    """List the groups of a row whose maxima z are not below a bound in ``ids``; returns their number."""
    group = tl.arange(0, GROUPS)
    floor = tl.where(peak == -float("inf"), float("inf"), bound)  # fully masked: no group
    floor = tl.where(peak == float("inf"), -float("inf"), floor)  # there may be a NaN: keep all groups
    is_kept = ~(z < floor) & (group < n_groups)  # also where the bound is NaN
    position = tl.cumsum(is_kept.to(tl.int32), 0) - 1
    tl.store(ids + position, group, mask=is_kept)
    return tl.sum(is_kept.to(tl.int32), 0)


@triton.jit
def columns_of(ids, start, n_ids, n, GROUP: tl.constexpr, BATCH: tl.constexpr):
    """Columns of a batch of the listed groups, and which of them exist.

    Separate from the loads, so that torch.compile can see that the kernel does not store to the scores.
    """
    place = start + tl.arange(0, BATCH)
    group = tl.load(ids + place, mask=place < n_ids, other=0)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    return column.to(tl.int64), (column < n) & (place < n_ids)[:, None]


@triton.jit
def load_shifted(
    x, mask, column, is_inside, xc, mc, peak, EXPONENT: tl.constexpr, HAS_MASK: tl.constexpr, ACC: tl.constexpr
):  # fmt: skip
    """Shifted scores of the given columns, -inf outside the row."""
    scores = load_scores(x, mask, column * xc, column * mc, is_inside, HAS_MASK, ACC)
    return tl.where(is_inside, shift(scores, peak, EXPONENT), -float("inf"))


@triton.jit
def solve_groups(
    x, mask, ids, n_ids, n, xc, mc, peak, bound,
    EXPONENT: tl.constexpr, HAS_MASK: tl.constexpr, TOLERANCE: tl.constexpr,
    GROUP: tl.constexpr, BATCH: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The threshold of a row and the last step, given a lower bound and the groups whose maxima exceed it."""
    threshold = bound
    step = bound * 0
    last = bound * 0
    step_number, is_open = 0, n_ids > 0
    while is_open:
        total = tl.zeros([BATCH, GROUP], ACC)
        second = tl.zeros([BATCH, GROUP], ACC)
        start = 0
        while start < n_ids:
            column, is_inside = columns_of(ids, start, n_ids, n, GROUP, BATCH)
            z = load_shifted(x, mask, column, is_inside, xc, mc, peak, EXPONENT, HAS_MASK, ACC)
            above = distance(z, threshold)
            total += first_moment(above, EXPONENT)
            second += second_moment(above, EXPONENT)
            start += BATCH
        count = tl.sum(tl.sum(second, 1), 0)
        step, is_open, threshold = advance(
            threshold, tl.sum(tl.sum(total, 1), 0), count, last, step_number, EXPONENT, TOLERANCE
        )
        last = count
        step_number += 1
    return threshold, step


@triton.jit
def write_groups(
    x, mask, y, ids, n_ids, n, xc, mc, yc, peak, threshold, step,
    EXPONENT: tl.constexpr, HAS_MASK: tl.constexpr, IS_HALF: tl.constexpr,
    GROUP: tl.constexpr, BATCH: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Write the probabilities of the listed groups; in half precision, they still sum to 1."""
    dtype = y.dtype.element_ty
    missing = 1.0
    if IS_HALF:
        kept = tl.zeros([BATCH, GROUP], tl.float32)
        start = 0
        while start < n_ids:
            column, is_inside = columns_of(ids, start, n_ids, n, GROUP, BATCH)
            z = load_shifted(x, mask, column, is_inside, xc, mc, peak, EXPONENT, HAS_MASK, ACC)
            kept += probability(z, threshold, step, EXPONENT).to(dtype).to(tl.float32)
            start += BATCH
        missing = 1.0 - tl.sum(tl.sum(kept, 1), 0)
    reached = 0.0
    start = 0
    while start < n_ids:
        column, is_inside = columns_of(ids, start, n_ids, n, GROUP, BATCH)
        z = load_shifted(x, mask, column, is_inside, xc, mc, peak, EXPONENT, HAS_MASK, ACC)
        probs = probability(z, threshold, step, EXPONENT).to(dtype)
        if IS_HALF:
            unit = units(probs, missing)
            of_group = tl.sum(unit, 1)
            before = reached + tl.cumsum(of_group, 0) - of_group
            probs = make_up(probs, unit, before[:, None] + tl.cumsum(unit, 1), missing)
            reached += tl.sum(of_group, 0)
        tl.store(y + column * yc, probs, mask=is_inside)
        start += BATCH


@triton.jit
def solve_few(
    x, mask, y, ids, n_ids, n, xc, mc, yc, peak, bound,
    EXPONENT: tl.constexpr, HAS_MASK: tl.constexpr, IS_HALF: tl.constexpr, TOLERANCE: tl.constexpr,
    GROUP: tl.constexpr, BATCH: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Write the probabilities of at most BATCH groups, which are read once and kept in registers."""
    column, is_inside = columns_of(ids, 0, n_ids, n, GROUP, BATCH)
    z = load_shifted(x, mask, column, is_inside, xc, mc, peak, EXPONENT, HAS_MASK, ACC)
    row = tl.reshape(z, [1, BATCH * GROUP])
    threshold, step = solve_tile(row, bound, 1, EXPONENT, TOLERANCE)
    probs = probability(row, threshold[:, None], step[:, None], EXPONENT)
    rounded = round_rows(probs, y.dtype.element_ty, IS_HALF)
    tl.store(y + column * yc, tl.reshape(rounded, [BATCH, GROUP]), mask=is_inside)


@triton.jit
def solve_row(
    x, mask, y, ids, values, n, n_groups, xc, mc, yc,
    EXPONENT: tl.constexpr, HAS_MASK: tl.constexpr, IS_HALF: tl.constexpr, TOLERANCE: tl.constexpr, SLACK: tl.constexpr,
    GROUP: tl.constexpr, BATCH: tl.constexpr, GROUPS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Write the non-zero probabilities of a row with group maxima ``values``, from the groups that can hold support."""
    peak, bound, n_ids = find_groups(values, ids, n_groups, EXPONENT, SLACK, GROUPS)
    tl.debug_barrier()
    if n_ids <= BATCH:
        solve_few(
            x, mask, y, ids, n_ids, n, xc, mc, yc, peak, bound, EXPONENT, HAS_MASK, IS_HALF, TOLERANCE, GROUP, BATCH, ACC
        )
    else:
        threshold, step = solve_groups(
            x, mask, ids, n_ids, n, xc, mc, peak, bound, EXPONENT, HAS_MASK, TOLERANCE, GROUP, BATCH, ACC
        )
        write_groups(
            x, mask, y, ids, n_ids, n, xc, mc, yc, peak, threshold, step, EXPONENT, HAS_MASK, IS_HALF, GROUP, BATCH, ACC
        )


@triton.jit(do_not_specialize=["n_groups"])
def groups_forward(
    x, mask, y, peaks, ids, n, n_groups, inner, xo, xi, xc, mo, mi, mc, yo, yi, yc,
    EXPONENT: tl.constexpr, HAS_MASK: tl.constexpr, IS_HALF: tl.constexpr, TOLERANCE: tl.constexpr, SLACK: tl.constexpr,
    IN_REGISTERS: tl.constexpr,
    GROUP: tl.constexpr, CHUNK: tl.constexpr, BATCH: tl.constexpr, GROUPS: tl.constexpr, IS_DOUBLE: tl.constexpr,
):  # fmt: skip
    """Solve a row in one program; if IN_REGISTERS, the maxima of its only chunk stay in registers.

    The barriers make the writes of a thread visible to the others.
    """
    ACC: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    row = tl.program_id(0)
    x += row_offset(row, inner, xo, xi)
    mask += row_offset(row, inner, mo, mi)
    y += row_offset(row, inner, yo, yi)
    peaks += row.to(tl.int64) * n_groups
    ids += row.to(tl.int64) * n_groups
    if IN_REGISTERS:
        values = chunk_peaks(x, mask, y, n, xc, mc, yc, 0, n_groups, HAS_MASK, True, GROUP, GROUPS, ACC)
    else:
        read_peaks(x, mask, y, peaks, n, xc, mc, yc, 0, n_groups, HAS_MASK, True, GROUP, CHUNK, ACC)
        tl.debug_barrier()
        values = load_peaks(peaks, n_groups, GROUPS)
    solve_row(
        x, mask, y, ids, values, n, n_groups, xc, mc, yc,
        EXPONENT, HAS_MASK, IS_HALF, TOLERANCE, SLACK, GROUP, BATCH, GROUPS, ACC,
    )  # fmt: skip


@triton.jit(do_not_specialize=["n_groups", "n_each"])
def split_peaks(
    x, mask, y, peaks, n, n_groups, n_each, inner, xo, xi, xc, mo, mi, mc, yo, yi, yc,
    HAS_MASK: tl.constexpr, ZERO: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr, IS_DOUBLE: tl.constexpr,
):  # fmt: skip
    """The maxima of ``n_each`` groups of a row."""
    ACC: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    row = tl.program_id(0)
    first = tl.program_id(1) * n_each
    x += row_offset(row, inner, xo, xi)
    mask += row_offset(row, inner, mo, mi)
    y += row_offset(row, inner, yo, yi)
    peaks += row.to(tl.int64) * n_groups
    end = tl.minimum(first + n_each, n_groups)
    read_peaks(x, mask, y, peaks, n, xc, mc, yc, first, end, HAS_MASK, ZERO, GROUP, CHUNK, ACC)


@triton.jit(do_not_specialize=["n_groups"])
def split_solve(
    x, mask, y, peaks, ids, n, n_groups, inner, xo, xi, xc, mo, mi, mc, yo, yi, yc,
    EXPONENT: tl.constexpr, HAS_MASK: tl.constexpr, IS_HALF: tl.constexpr, TOLERANCE: tl.constexpr, SLACK: tl.constexpr,
    GROUP: tl.constexpr, BATCH: tl.constexpr, GROUPS: tl.constexpr, IS_DOUBLE: tl.constexpr,
):  # fmt: skip
    """Solve a row whose group maxima were computed by `split_peaks`."""
    ACC: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    row = tl.program_id(0)
    x += row_offset(row, inner, xo, xi)
    mask += row_offset(row, inner, mo, mi)
    y += row_offset(row, inner, yo, yi)
    peaks += row.to(tl.int64) * n_groups
    ids += row.to(tl.int64) * n_groups
    values = load_peaks(peaks, n_groups, GROUPS)
    solve_row(
        x, mask, y, ids, values, n, n_groups, xc, mc, yc,
        EXPONENT, HAS_MASK, IS_HALF, TOLERANCE, SLACK, GROUP, BATCH, GROUPS, ACC,
    )  # fmt: skip
