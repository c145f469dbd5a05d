"""Kernels for the packed support of rows, without dense output: first its size, then its positions and probabilities."""

from __future__ import annotations

import triton
import triton.language as tl

from sparsum.kernels.segments import start_of
from sparsum.kernels.simplex_groups import columns_of, find_groups, load_peaks, load_shifted, read_peaks, solve_groups
from sparsum.kernels.simplex_math import first_guess, load_scores, probability, row_offset, shift, solve_tile

# ruff: noqa: N806
# mypy: disable-error-code="no-untyped-def"


@triton.jit
def _store_solution(solution, row, peak, threshold, step, mask):
    """Store the values that `probability` needs for a row."""
    tl.store(solution + row * 3, peak, mask=mask)
    tl.store(solution + row * 3 + 1, threshold, mask=mask)
    tl.store(solution + row * 3 + 2, step, mask=mask)


@triton.jit(do_not_specialize=["n_rows"])
def tile_support(
    x, solution, lengths, n_rows, n, inner, xo, xi, xc,
    EXPONENT: tl.constexpr, TOLERANCE: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, IS_DOUBLE: tl.constexpr,
):  # fmt: skip
    """The solution and the size of the support of ROWS rows."""
    ACC: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    is_inside = (row < n_rows)[:, None] & (column < n)[None, :]
    offset = row_offset(row, inner, xo, xi)[:, None] + column.to(tl.int64)[None, :] * xc
    scores = load_scores(x, x, offset, offset, is_inside, False, ACC)
    peak, guess = first_guess(scores, ROWS, LANES, WIDTH, EXPONENT)
    z = shift(scores, peak[:, None], EXPONENT)
    threshold, step = solve_tile(z, guess, ROWS, EXPONENT, TOLERANCE)
    threshold = tl.where(peak == -float("inf"), threshold + float("inf"), threshold)
    probs = probability(z, threshold[:, None], step[:, None], EXPONENT)
    _store_solution(solution, row.to(tl.int64), peak, threshold, step, row < n_rows)
    tl.store(lengths + row, tl.sum((is_inside & (probs > 0)).to(tl.int64), 1), mask=row < n_rows)


@triton.jit
def _store_entries(flat, packed, rows, to, is_kept, place, column, probs, n):
    """Store positions, probabilities and rows of some entries of the support."""
    tl.store(flat + to, place * n + column, mask=is_kept)
    tl.store(packed + to, probs, mask=is_kept)
    tl.store(rows + to, place + tl.zeros_like(column).to(tl.int64), mask=is_kept)


@triton.jit
def _pad(flat, packed, rows, begin, n_entries, n_rows, n, AT_ONCE: tl.constexpr):
    """Fill entries beyond the support with padding: the last position, with probability 0."""
    while begin < n_entries:
        at = begin + tl.arange(0, AT_ONCE)
        nothing = tl.zeros([AT_ONCE], tl.int64)
        tl.store(flat + at, nothing + n_rows * n - 1, mask=at < n_entries)
        tl.store(packed + at, tl.zeros([AT_ONCE], tl.float32), mask=at < n_entries)
        tl.store(rows + at, nothing + n_rows - 1, mask=at < n_entries)
        begin += AT_ONCE


@triton.jit(do_not_specialize=["n_rows", "n_entries"])
def tile_pack(
    x, solution, lengths, flat, packed, rows, n_rows, n, n_entries, inner, xo, xi, xc,
    EXPONENT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, IS_DOUBLE: tl.constexpr,
):  # fmt: skip
    """Pack positions, probabilities and rows of the support of ROWS rows; the last program writes the padding."""
    ACC: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < n_rows
    column = tl.arange(0, BLOCK)
    is_inside = is_row[:, None] & (column < n)[None, :]
    offset = row_offset(row, inner, xo, xi)[:, None] + column.to(tl.int64)[None, :] * xc
    scores = load_scores(x, x, offset, offset, is_inside, False, ACC)
    place = row.to(tl.int64)
    peak = tl.load(solution + place * 3, mask=is_row, other=0.0)
    threshold = tl.load(solution + place * 3 + 1, mask=is_row, other=0.0)
    step = tl.load(solution + place * 3 + 2, mask=is_row, other=0.0)
    probs = probability(shift(scores, peak[:, None], EXPONENT), threshold[:, None], step[:, None], EXPONENT)
    is_support = is_inside & (probs > 0)
    length = tl.load(lengths + row, mask=is_row, other=0)
    before = start_of(lengths, tl.program_id(0) * ROWS, AT_ONCE)
    start = before + tl.cumsum(length, 0) - length
    to = start[:, None] + tl.cumsum(is_support.to(tl.int32), 1) - 1
    is_kept = is_support & (to < n_entries)
    _store_entries(flat, packed, rows, to, is_kept, place[:, None], column[None, :], probs, n)
    if tl.program_id(0) == tl.num_programs(0) - 1:
        _pad(flat, packed, rows, before + tl.sum(length, 0), n_entries, n_rows, n, AT_ONCE)


@triton.jit(do_not_specialize=["n_groups"])
def groups_support(
    x, peaks, ids, solution, lengths, n_ids, n, n_groups, inner, xo, xi, xc,
    EXPONENT: tl.constexpr, TOLERANCE: tl.constexpr, SLACK: tl.constexpr, READ: tl.constexpr,
    GROUP: tl.constexpr, CHUNK: tl.constexpr, BATCH: tl.constexpr, GROUPS: tl.constexpr, IS_DOUBLE: tl.constexpr,
):  # fmt: skip
    """The solution, the size of the support and the groups that can hold it, for a long row.

    READ computes the maxima of the groups; without it, they are given in ``peaks``.
    """
    ACC: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    row = tl.program_id(0)
    x += row_offset(row, inner, xo, xi)
    place = row.to(tl.int64)
    peaks += place * n_groups
    ids += place * n_groups
    if READ:
        read_peaks(x, x, x, peaks, n, xc, xc, xc, 0, n_groups, False, False, GROUP, CHUNK, ACC)
        tl.debug_barrier()
    values = load_peaks(peaks, n_groups, GROUPS)
    peak, bound, n_kept = find_groups(values, ids, n_groups, EXPONENT, SLACK, GROUPS)
    tl.debug_barrier()
    threshold, step = solve_groups(x, x, ids, n_kept, n, xc, xc, peak, bound, EXPONENT, False, TOLERANCE, GROUP, BATCH, ACC)
    count = tl.zeros([BATCH, GROUP], tl.int32)
    start = 0
    while start < n_kept:
        column, is_inside = columns_of(ids, start, n_kept, n, GROUP, BATCH)
        z = load_shifted(x, x, column, is_inside, xc, xc, peak, EXPONENT, False, ACC)
        count += (probability(z, threshold, step, EXPONENT) > 0).to(tl.int32)
        start += BATCH
    _store_solution(solution, place, peak, threshold, step, True)
    tl.store(lengths + place, tl.sum(tl.sum(count, 1), 0).to(tl.int64))
    tl.store(n_ids + place, n_kept)


@triton.jit(do_not_specialize=["n_groups", "n_entries"])
def groups_pack(
    x, ids, solution, lengths, n_ids, flat, packed, rows, n, n_groups, n_entries, inner, xo, xi, xc,
    EXPONENT: tl.constexpr, GROUP: tl.constexpr, BATCH: tl.constexpr, AT_ONCE: tl.constexpr, IS_DOUBLE: tl.constexpr,
):  # fmt: skip
    """Pack positions, probabilities and rows of the support of a long row, from the groups that can hold it."""
    ACC: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    row = tl.program_id(0)
    x += row_offset(row, inner, xo, xi)
    place = row.to(tl.int64)
    ids += place * n_groups
    peak = tl.load(solution + place * 3)
    threshold = tl.load(solution + place * 3 + 1)
    step = tl.load(solution + place * 3 + 2)
    n_kept = tl.load(n_ids + place)
    reached = start_of(lengths, row, AT_ONCE)
    start = 0
    while start < n_kept:
        column, is_inside = columns_of(ids, start, n_kept, n, GROUP, BATCH)
        z = load_shifted(x, x, column, is_inside, xc, xc, peak, EXPONENT, False, ACC)
        probs = probability(z, threshold, step, EXPONENT)
        is_support = is_inside & (probs > 0)
        count = is_support.to(tl.int32)
        of_group = tl.sum(count, 1)
        before = reached + tl.cumsum(of_group, 0) - of_group
        to = before[:, None] + tl.cumsum(count, 1) - 1
        is_kept = is_support & (to < n_entries)
        _store_entries(flat, packed, rows, to, is_kept, place, column, probs, n)
        reached += tl.sum(of_group, 0)
        start += BATCH
    if row == tl.num_programs(0) - 1:
        _pad(flat, packed, rows, reached, n_entries, tl.num_programs(0).to(tl.int64), n, AT_ONCE)


@triton.jit
def packed_backward(
    grad, flat, probs, lengths, result, EXPONENT: tl.constexpr, ENTRIES: tl.constexpr, AT_ONCE: tl.constexpr
):  # fmt: skip
    """The gradient of one row of scores, on its support: s (g - mean of g weighted by s), s = p^(2 - alpha)."""
    row = tl.program_id(0)
    start, n_entries = start_of(lengths, row, AT_ONCE), tl.load(lengths + row)
    weight = tl.zeros([ENTRIES], tl.float64)
    total = tl.zeros([ENTRIES], tl.float64)
    begin = 0
    while begin < n_entries:
        at = begin + tl.arange(0, ENTRIES)
        g = tl.load(grad + start + at, mask=at < n_entries, other=0.0).to(tl.float64)
        p = tl.load(probs + start + at, mask=at < n_entries, other=0.0).to(tl.float64)
        s = (p > 0).to(tl.float64) if EXPONENT == 1 else tl.sqrt(p)
        weight += s
        total += s * g
        begin += ENTRIES
    mean = tl.sum(total, 0) / tl.maximum(tl.sum(weight, 0), 1e-300)
    begin = 0
    while begin < n_entries:
        at = begin + tl.arange(0, ENTRIES)
        g = tl.load(grad + start + at, mask=at < n_entries, other=0.0).to(tl.float64)
        p = tl.load(probs + start + at, mask=at < n_entries, other=0.0).to(tl.float64)
        s = (p > 0).to(tl.float64) if EXPONENT == 1 else tl.sqrt(p)
        to = tl.load(flat + start + at, mask=at < n_entries, other=0)
        tl.store(result + to, s * (g - mean), mask=at < n_entries)
        begin += ENTRIES
