"""The mean of SparseMAP over chains in one launch: all of Newton's steps of `sparsum.solvers.flows`, one program per row.

The names are those of that module, where the formulas are explained. A step makes four passes over the positions of a chain:
it measures the errors of the equations, eliminates one position after the other, goes back, and moves the multipliers.
Positions exchange numbers through memory; a barrier precedes every read of what other threads wrote. All threads must agree
on when to stop: see `FUSION` in `sparsum.kernels.launch`. A mask of tags by tags is not combined with a condition on the
position, which the interpreter of Triton 3.9 refuses.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsum.kernels.launch import FUSION, next_power_of_2, unwrapped

#: The maximum number of tags: a program keeps a few matrices of tags by tags in registers.
MOST_TAGS = 64

# Constants of the same names as in `sparsum.solvers.flows`.
_TOLERANCE = tl.constexpr(1e-12)
_RIDGE, _LEAST_RIDGE = tl.constexpr(1e-4), tl.constexpr(1e-13)
_OVERSHOOT, _MAX_CUTS = tl.constexpr(0.7), tl.constexpr(12)


@triton.jit
def _measure(values, inverse, errors, size, most, n, TAGS: tl.constexpr):
    """Write the errors of the equations of alpha, and after all of them those of beta; return the largest."""
    tag, a, b = tl.arange(0, TAGS), tl.arange(0, TAGS)[:, None], tl.arange(0, TAGS)[None, :]
    is_tag = tag < n
    into, error = tl.zeros([TAGS], tl.float64), tl.sum(tl.zeros([TAGS], tl.float64), 0)
    i = size * 0
    while i < size:
        has_next, here, next_ = i < size - 1, i * n, (most + i * n) * n
        is_next = (a < tl.where(has_next, n, 0)) & (b < n)
        u = tl.maximum(tl.load(values + here + tag, mask=is_tag, other=0.0), 0.0)
        u = u * tl.load(inverse + here + tag, mask=is_tag, other=0.0)
        v = tl.maximum(tl.load(values + next_ + a * n + b, mask=is_next, other=0.0), 0.0)
        v = v * tl.load(inverse + next_ + a * n + b, mask=is_next, other=0.0)
        after, before = tl.where(has_next, u - tl.sum(v, 1), 0.0), u - into
        before = tl.where(i == 0, tl.where(tag == 0, tl.sum(before, 0) - 1, 0.0), before)
        tl.store(errors + here + tag, after, mask=is_tag)
        tl.store(errors + most * n + here + tag, before, mask=is_tag)
        error = tl.maximum(error, tl.max(tl.maximum(tl.abs(after), tl.abs(before)), 0))
        into = tl.sum(v, 0)
        i += 1
    tl.debug_barrier()
    return error


@triton.jit
def _eliminate(values, inverse, errors, gains, lines, size, most, n, ridge, TAGS: tl.constexpr):
    """Forward elimination: beta_i is a line minus gains times beta_{i+1}. Lines also hold ratio, scaled and diagonal."""
    tag, a, b = tl.arange(0, TAGS), tl.arange(0, TAGS)[:, None], tl.arange(0, TAGS)[None, :]
    is_tag, is_pair = tag < n, (a < n) & (b < n)
    into, moved = tl.zeros([TAGS], tl.float64), tl.zeros([TAGS], tl.float64)
    carried = tl.zeros([TAGS, TAGS], tl.float64)
    i = size * 0
    while i < size:
        has_next, here, next_ = i < size - 1, i * n, (most + i * n) * n
        is_next = (a < tl.where(has_next, n, 0)) & (b < n)
        p = tl.load(inverse + here + tag, mask=is_tag, other=0.0)
        p = tl.where(tl.load(values + here + tag, mask=is_tag, other=0.0) > 0, p, 0.0)
        q = tl.load(inverse + next_ + a * n + b, mask=is_next, other=0.0)
        q = tl.where(tl.load(values + next_ + a * n + b, mask=is_next, other=0.0) > 0, q, 0.0)
        after = tl.load(errors + here + tag, mask=is_tag, other=0.0)
        before = tl.load(errors + most * n + here + tag, mask=is_tag, other=0.0)
        coupling = tl.where(has_next, p, 0.0)
        diagonal = tl.where(has_next, p + tl.sum(q, 1) + ridge, 1.0)
        ratio, scaled = coupling / diagonal, after / diagonal
        # At the first position, beta is one number for all tags, in the place of tag 0.
        main, right = p + into - coupling * ratio, coupling * scaled
        first = tl.where(tag == 0, tl.sum(main, 0) + ridge, 1.0)
        main = tl.where(i == 0, first, tl.where(is_tag, main + ridge, 1.0))
        right = tl.where(i == 0, tl.where(tag == 0, tl.sum(right, 0), 0.0), right) - before + moved
        gain = -ratio[:, None] * q
        gain = tl.where(i == 0, tl.where(a == 0, tl.sum(gain, 0)[None, :], 0.0), gain)
        block = tl.where(a == b, main[:, None], 0.0) - carried
        k = size * 0
        while k < n:  # Gauss and Jordan: positive definite matrices need no exchange of rows
            row, gain_row = tl.sum(tl.where(a == k, block, 0.0), 0), tl.sum(tl.where(a == k, gain, 0.0), 0)
            column = tl.sum(tl.where(b == k, block, 0.0), 1)
            pivot, right_k = tl.sum(tl.where(tag == k, column, 0.0), 0), tl.sum(tl.where(tag == k, right, 0.0), 0)
            scale = 1 / pivot  # one division: they would take most of the time
            factor = column * scale
            block = tl.where(a == k, row[None, :] * scale, block - factor[:, None] * row[None, :])
            gain = tl.where(a == k, gain_row[None, :] * scale, gain - factor[:, None] * gain_row[None, :])
            right = tl.where(tag == k, right_k * scale, right - factor * right_k)
            k += 1
        tl.store(gains + here * n + a * n + b, gain, mask=is_pair)
        line = lines + 4 * here + tag
        tl.store(line, right, mask=is_tag)
        tl.store(line + n, ratio, mask=is_tag)
        tl.store(line + 2 * n, scaled, mask=is_tag)
        tl.store(line + 3 * n, diagonal, mask=is_tag)
        # What the next position gets: q' (q / diagonal - ratio * gain), and q' (scaled + ratio * right).
        gain = tl.where(i == 0, tl.sum(tl.where(a == 0, gain, 0.0), 0)[None, :], gain)
        right = tl.where(i == 0, tl.sum(tl.where(tag == 0, right, 0.0), 0), right)
        moved, into = tl.sum(q * (scaled + ratio * right)[:, None], 0), tl.sum(q, 0)
        factors, across = q / diagonal[:, None] - ratio[:, None] * gain, tl.trans(q)
        carried = tl.zeros([TAGS, TAGS], tl.float64)
        k = size * 0
        while k < n:
            column, row = tl.sum(tl.where(b == k, across, 0.0), 1), tl.sum(tl.where(a == k, factors, 0.0), 0)
            carried += column[:, None] * row[None, :]
            k += 1
        i += 1
    tl.debug_barrier()


@triton.jit
def _return(values, inverse, errors, gains, lines, change, size, most, n, TAGS: tl.constexpr):
    """Backward substitution: write the change of all values; return its slope, and the change of beta_0."""
    tag, a, b = tl.arange(0, TAGS), tl.arange(0, TAGS)[:, None], tl.arange(0, TAGS)[None, :]
    is_tag = tag < n
    beta, slope = tl.zeros([TAGS], tl.float64), tl.sum(tl.zeros([TAGS], tl.float64), 0)
    normaliser, i = slope, size - 1
    while i >= 0:
        has_next, here, next_ = i < size - 1, i * n, (most + i * n) * n
        is_next = (a < tl.where(has_next, n, 0)) & (b < n)
        gain = tl.load(gains + here * n + a * n + b, mask=is_next, other=0.0)
        q = tl.load(inverse + next_ + a * n + b, mask=is_next, other=0.0)
        q = tl.where(tl.load(values + next_ + a * n + b, mask=is_next, other=0.0) > 0, q, 0.0)
        line = lines + 4 * here + tag
        mine = tl.load(line, mask=is_tag, other=0.0) - tl.sum(gain * beta[None, :], 1)
        normaliser = tl.sum(tl.where(tag == 0, mine, 0.0), 0)
        mine = tl.where(i == 0, normaliser, mine)
        ratio, scaled = tl.load(line + n, mask=is_tag, other=0.0), tl.load(line + 2 * n, mask=is_tag, other=0.0)
        moved = tl.sum(q * beta[None, :], 1) / tl.load(line + 3 * n, mask=is_tag, other=1.0)
        alpha = tl.where(has_next, -(scaled + ratio * mine + moved), 0.0)
        tl.store(change + here + tag, alpha + mine, mask=is_tag)
        tl.store(change + next_ + a * n + b, -alpha[:, None] - beta[None, :], mask=is_next)
        after = tl.load(errors + here + tag, mask=is_tag, other=0.0)
        before = tl.load(errors + most * n + here + tag, mask=is_tag, other=0.0)
        slope += tl.sum(after * alpha + before * mine, 0)
        beta = mine
        i -= 1
    tl.debug_barrier()
    return slope, normaliser


@triton.jit
def _slope_at(values, inverse, change, length, normaliser, n_parts, BLOCK: tl.constexpr):
    """The slope of the dual at a length of the step."""
    total, first = tl.zeros([BLOCK], tl.float64), n_parts * 0
    while first < n_parts:
        part = first + tl.arange(0, BLOCK)
        along = tl.load(change + part, mask=part < n_parts, other=0.0)
        value = tl.load(values + part, mask=part < n_parts, other=0.0)
        total += tl.maximum(value + length * along, 0.0) * along * tl.load(inverse + part, mask=part < n_parts, other=0.0)
        first += BLOCK
    return tl.sum(total, 0) - normaliser


@triton.jit
def _length(values, inverse, change, slope, normaliser, n_parts, BLOCK: tl.constexpr):
    """The length of the step, at most 1, by regula falsi on the slope, which increases."""
    most, low, at_low = slope * -_OVERSHOOT, slope * 0, slope
    high = low + 1
    length = high
    now = _slope_at(values, inverse, change, length, normaliser, n_parts, BLOCK)
    at_high, n_cuts = now, n_parts * 0
    while (now > most) & (n_cuts < _MAX_CUTS):
        share = tl.minimum(tl.maximum(-at_low / (at_high - at_low), 0.05), 0.95)
        length = low + share * (high - low)
        now = _slope_at(values, inverse, change, length, normaliser, n_parts, BLOCK)
        is_high = now > 0
        high, at_high = tl.where(is_high, length, high), tl.where(is_high, now, at_high)
        low, at_low = tl.where(is_high, low, length), tl.where(is_high, at_low, now)
        n_cuts += 1
    return length


@triton.jit
def minimise(
    values, inverse, lengths, change, errors, gains, lines, mean, steps, most, n, n_parts, max_steps,
    TAGS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Take Newton's steps until the errors are rounding errors; a row without a solution gets NaN."""
    row = tl.program_id(0).to(tl.int64)
    size = tl.load(lengths + row).to(tl.int32)
    values, change, mean = values + row * n_parts, change + row * n_parts, mean + row * n_parts
    errors, lines, gains = errors + row * 2 * most * n, lines + row * 4 * most * n, gains + row * most * n * n
    error = _measure(values, inverse, errors, size, most, n, TAGS)
    last, n_steps = float("inf") + error * 0, size * 0
    # The mean is off by a multiple of the error, which grows with the length: continue down to rounding.
    is_done = (error <= _TOLERANCE) & (error >= last / 2)
    while ~is_done & (n_steps < max_steps) & (error < float("inf")):
        ridge = tl.maximum(tl.minimum(error, 1.0) * _RIDGE, _LEAST_RIDGE)
        _eliminate(values, inverse, errors, gains, lines, size, most, n, ridge, TAGS)
        slope, normaliser = _return(values, inverse, errors, gains, lines, change, size, most, n, TAGS)
        length = _length(values, inverse, change, slope, normaliser, n_parts, BLOCK)
        first = n_parts * 0
        while first < n_parts:
            part = first + tl.arange(0, BLOCK)
            value = tl.load(values + part, mask=part < n_parts, other=0.0)
            value += length * tl.load(change + part, mask=part < n_parts, other=0.0)
            tl.store(values + part, value, mask=part < n_parts)
            first += BLOCK
        tl.debug_barrier()
        last, n_steps = error, n_steps + 1
        error = _measure(values, inverse, errors, size, most, n, TAGS)
        is_done = (error <= _TOLERANCE) & (error >= last / 2)
    first = n_parts * 0
    while first < n_parts:
        part = first + tl.arange(0, BLOCK)
        value = tl.maximum(tl.load(values + part, mask=part < n_parts, other=0.0), 0.0)
        value = value * tl.load(inverse + part, mask=part < n_parts, other=0.0)
        tl.store(mean + part, tl.where(is_done, value, float("nan")), mask=part < n_parts)
        first += BLOCK
    tl.store(steps + row, tl.where(is_done, n_steps, max_steps).to(tl.int64))


def newton(
    values: Tensor,  # shape: (n_rows, n_parts), float64, the linear terms; overwritten
    inverse: Tensor,  # shape: (n_parts,), one over the weight
    shape: tuple[int, int],  # the length, and the number of tags
    lengths: Tensor,  # shape: (n_rows,), int64
    max_steps: int,
) -> tuple[Tensor, Tensor]:
    """The mean of each row, (n_rows, n_parts), and its number of steps; a row without a solution has NaN."""
    (n_rows, n_parts), (length, n) = values.shape, shape
    mean, steps = torch.empty_like(values), torch.empty_like(lengths)
    errors, lines = values.new_empty(n_rows, 2, length, n), values.new_empty(n_rows, 4, length, n)
    gains, tags = values.new_empty(n_rows, length, n, n), max(4, next_power_of_2(n))
    if n_rows:
        unwrapped(minimise)[(n_rows,)](
            *(values, inverse, lengths, torch.zeros_like(values), errors, gains, lines, mean, steps),
            *(length, n, n_parts, max_steps),
            TAGS=tags,
            BLOCK=min(512, next_power_of_2(n_parts)),
            num_warps=1 if tags <= 16 else 4 if tags <= 32 else 8,
            enable_fp_fusion=FUSION,
        )
    return mean, steps
