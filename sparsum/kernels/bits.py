"""The closed-form splits over bits: three launches forward, with a read of the number of atoms in between, and one backward.

The kernels are launched outside of torch's dispatcher, whose overhead would exceed their own time. Callers must ensure that
they are not traced or transformed.

Each program handles one row. Where the twins sort, the kernels rank by counting: comparing all pairs of a row independently
is faster than sorting for the supported widths, and ties are resolved by position. Barriers separate writes to memory from
reads by other threads.

A split stores one word per bit, which encodes the bit in each atom j of the row: bit i is set iff ``after < j <= until`` or,
if the interval is inverted, ``after < j or j <= until``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsum.kernels.launch import next_power_of_2, unwrapped

# ruff: noqa: N806

#: The maximum number of bits per row.
MOST_BITS = 1024
# The number of pairs of bits, or of bits and atoms, that a program processes at once.
_TILE = tl.constexpr(4096)

# The number of rows that are counted at once.
_ROWS_AT_ONCE = 512

# Constants of the same names as in the twin.
_NEGLIGIBLE = tl.constexpr(1e-12)
_PLACES = tl.constexpr(40)
_ONE = tl.constexpr(1 << 40)
# A float64 of this size has no fractional digits, so adding it rounds to the nearest integer, halves to even.
_LARGE = tl.constexpr(1.5 * 2.0**52)
# Below all relevant scores, but with finite differences.
_LEAST = tl.constexpr(-(2.0**1022))
# The size of a field of a word.
_FIELD = tl.constexpr(1 << 12)


@triton.jit
def cast(values, dtype: tl.constexpr):
    """Convert values to a dtype; to half precision via float32, as torch does."""
    return values.to(tl.float64) if dtype == tl.float64 else values.to(tl.float32).to(dtype)


@triton.jit
def load(pointer, mask, other):
    """Load floats of any dtype as float32, or as float64 if that is their dtype."""
    values = tl.load(pointer, mask=mask, other=other)
    return values if values.dtype == tl.float64 else values.to(tl.float32)


@triton.jit
def _rank(keys, key, column, BLOCK: tl.constexpr):
    """The rank of each key: the number of keys that are smaller, or equal and before it; ``keys`` holds them in memory."""
    TALL: tl.constexpr = BLOCK if BLOCK * BLOCK < _TILE else _TILE // BLOCK
    n_before = tl.zeros([TALL, BLOCK], tl.int32)
    for first in range(0, BLOCK, TALL):
        others = first + tl.arange(0, TALL)
        other = tl.load(keys + others)[:, None]
        is_first = (other == key[None, :]) & (others[:, None] < column[None, :])
        n_before += ((other < key[None, :]) | is_first).to(tl.int32)
    return tl.sum(n_before, 0)


@triton.jit
def _compact(target, column, space, BLOCK: tl.constexpr):
    """Values in the same order, relative to the largest, with gaps of at most 2 between adjacent values."""
    tl.store(space + column, -target)
    tl.debug_barrier()
    rank = _rank(space, -target, column, BLOCK)
    tl.store(space + BLOCK + rank, tl.maximum(target, _LEAST))
    tl.debug_barrier()
    gap = tl.load(space + BLOCK + column - 1, mask=column > 0, other=0.0) - tl.load(space + BLOCK + column)
    tl.store(space + column, -tl.cumsum(tl.where(column == 0, 0.0, tl.minimum(gap, 2.0)), 0))
    tl.debug_barrier()
    return tl.where(target == -float("inf"), target, tl.load(space + rank))


@triton.jit
def _segment_of_root(compact, column, space, total, BLOCK: tl.constexpr):
    """A point between the two breakpoints at which the sum of the clamped differences decreases to the total."""
    TALL: tl.constexpr = BLOCK if BLOCK * BLOCK < _TILE // 4 else _TILE // 4 // BLOCK  # two sums in float64
    tl.store(space + BLOCK + column, compact)
    tl.debug_barrier()
    corner = tl.where(compact == -float("inf"), 0.0, compact)
    at_one, at_zero = tl.zeros([TALL, BLOCK], tl.float64), tl.zeros([TALL, BLOCK], tl.float64)
    for first in range(0, BLOCK, TALL):
        other = tl.load(space + BLOCK + first + tl.arange(0, TALL))[:, None]
        at_one += tl.minimum(tl.maximum(other - (corner - 1.0)[None, :], 0.0), 1.0)
        at_zero += tl.minimum(tl.maximum(other - corner[None, :], 0.0), 1.0)
    n_ones, n_zeros = tl.sum(at_one, 0), tl.sum(at_zero, 0)
    is_corner = compact > -float("inf")
    before = tl.maximum(
        tl.max(tl.where(is_corner & (n_ones > total), corner - 1.0, -float("inf")), 0),
        tl.max(tl.where(is_corner & (n_zeros > total), corner, -float("inf")), 0),
    )
    after = tl.minimum(
        tl.min(tl.where(is_corner & (n_ones <= total), corner - 1.0, float("inf")), 0),
        tl.min(tl.where(is_corner & (n_zeros <= total), corner, float("inf")), 0),
    )
    # If the sum never reaches the total, all allowed bits are 1.
    return (tl.where(before == -float("inf"), after - 2.0, before) + after) / 2.0


@triton.jit
def _project(target, column, space, total, IS_EXACT: tl.constexpr, BLOCK: tl.constexpr):
    """The projection onto the cube and a budget, which entries are in (0, 1), and their number if the budget binds, or 0."""
    compact = _compact(target, column, space, BLOCK)
    probe = _segment_of_root(compact, column, space, total, BLOCK)
    is_one = compact - probe >= 1.0
    is_interior = (compact > probe) & (compact - probe < 1.0)
    is_loose = False
    if not IS_EXACT:
        is_loose = tl.sum(tl.minimum(tl.maximum(target, 0.0), 1.0), 0) <= total
        is_one = tl.where(is_loose, target >= 1.0, is_one)
        is_interior = tl.where(is_loose, (target > 0.0) & (target < 1.0), is_interior)
    # For large scores, the budget would be lost to rounding in their sum: subtract the largest interior score.
    origin = tl.max(tl.where(is_interior, target, -float("inf")), 0)
    origin = tl.where(origin == -float("inf"), 0.0, origin)
    inner = tl.where(is_interior, target - origin, 0.0)
    n_interior = tl.maximum(tl.sum(is_interior.to(tl.int32), 0), 1).to(tl.float64)
    shift = (tl.sum(inner, 0) + tl.sum(is_one.to(tl.int32), 0).to(tl.float64) - total) / n_interior
    if not IS_EXACT:
        shift = tl.where(is_loose, -origin, shift)
        n_interior = tl.where(is_loose, 0.0, n_interior)
    mean = tl.where(is_interior, inner - shift, is_one.to(tl.float64))
    tl.debug_barrier()
    return tl.minimum(tl.maximum(mean, 0.0), 1.0), is_interior, n_interior


@triton.jit
def _systematic_keys(mean, is_fractional, n):
    """Fractional parts of the cumulative marginals, 1 for bits that are not fractional, and whether they cross an integer.

    Sums are computed in fixed point; the last sum is rounded to an integer if it differs from one only by rounding.
    """
    scaled = tl.where(is_fractional, mean, 0.0) * (1.0 * _ONE)
    part = ((scaled + _LARGE) - _LARGE).to(tl.int64)
    whole_sum = tl.sum(part, 0)
    missing = (((whole_sum + _ONE // 2) >> _PLACES) << _PLACES) - whole_sum
    missing = tl.where(tl.abs(missing) <= n, missing, 0)
    # What is missing comes from the last bits, each of which keeps a marginal from 0 to 1.
    room = tl.where(is_fractional, tl.where(missing > 0, _ONE - part, part), 0)
    later = tl.sum(room, 0) - tl.cumsum(room, 0)
    moved = tl.minimum(tl.maximum(tl.abs(missing) - later, 0), room)
    part += tl.where(missing > 0, moved, -moved)
    sums = tl.cumsum(part, 0)
    before = sums - part
    crosses = (sums >> _PLACES) > (before >> _PLACES)
    return tl.where(is_fractional, (sums & (_ONE - 1)).to(tl.float64) / (1.0 * _ONE), 1.0), crosses


@triton.jit(do_not_specialize=["n_rows", "total"])
def _split(
    scores, words, probs, slots, totals, counts, is_solved, keys, n_rows, n, total,
    SYMMETRIC: tl.constexpr, SYSTEMATIC: tl.constexpr, IS_LIMITED: tl.constexpr, IS_EXACT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The words of a row's bits, the probabilities of its atoms, and the slots of the atoms that are kept."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < n
    score = load(scores + row * n + column, inside, -float("inf"))
    is_bad = tl.sum((~(score < float("inf"))).to(tl.int32), 0) > 0
    mean, n_interior = score.to(tl.float64), 0.0
    if SYMMETRIC:
        mean = (mean + 1.0) / 2.0
    keys += row * 2 * BLOCK
    if IS_LIMITED:
        mean, is_interior, n_interior = _project(mean, column, keys, total, IS_EXACT, BLOCK)
        if IS_EXACT:
            is_bad = is_bad | (tl.sum((score > -float("inf")).to(tl.int32), 0) < total)
    # Comparisons are false for NaN, which excludes it; its row is reported.
    is_one = mean >= 1.0 - _NEGLIGIBLE
    is_fractional = (mean > _NEGLIGIBLE) & (mean < 1.0 - _NEGLIGIBLE)
    ordinal = tl.cumsum(is_fractional.to(tl.int32), 0)
    if SYSTEMATIC:
        key, crosses = _systematic_keys(mean, is_fractional, n)
        low, high = 0.0, 1.0
    else:
        key = tl.where(is_fractional, -mean, 0.0)
        low, high = -1.0, 0.0
    tl.store(keys + column, tl.where(inside, key, high))
    tl.debug_barrier()
    rank = _rank(keys, tl.where(inside, key, high), column, BLOCK)
    ordered, by_ordinal = keys + BLOCK, keys
    tl.store(ordered + rank, tl.where(inside, key, high))
    tl.debug_barrier()  # all keys have been read, and their memory is reused for the ranks
    tl.store(by_ordinal + ordinal - 1, rank.to(tl.float64), mask=is_fractional)
    tl.debug_barrier()
    if SYSTEMATIC:
        has_previous = is_fractional & (ordinal > 1)
        after = tl.load(by_ordinal + ordinal - 2, mask=has_previous, other=-1.0).to(tl.int32)
        until, is_inverted = rank, crosses
    else:
        after, until, is_inverted = rank, tl.full([BLOCK], -1, tl.int32), tl.full([BLOCK], 1, tl.int1)
    after = tl.where(is_fractional, after, tl.where(is_one, -1, n + 1))
    until = tl.where(is_fractional, until, -1)
    is_inverted = is_inverted | ~is_fractional
    word = (after + 1) + (until + 1) * _FIELD + is_inverted.to(tl.int32) * (_FIELD * _FIELD)
    place = tl.where(is_fractional, rank + 1, 0)
    if IS_LIMITED:  # entries within rounding of 0 or 1 are still affected by the budget
        place = tl.where(is_interior & ~is_fractional, -1, place)
    tl.store(words + row * 2 * n + column, word, mask=inside)
    tl.store(words + row * 2 * n + n + column, place, mask=inside)
    # The gap before each sorted key, and the gap after the last key.
    lower = tl.load(ordered + column - 1, mask=column > 0, other=low)
    gap = tl.where(inside, tl.load(ordered + column) - lower, 0.0)
    last_gap = high - tl.load(ordered + n - 1)
    kept, last_kept = gap > _NEGLIGIBLE, last_gap > _NEGLIGIBLE
    total_kept = tl.sum(tl.where(kept, gap, 0.0), 0) + tl.where(last_kept, last_gap, 0.0)
    n_kept = tl.sum(kept.to(tl.int32), 0)
    slot = tl.where(kept, tl.cumsum(kept.to(tl.int32), 0) - 1, -1)
    first = row * (n + 1)
    tl.store(probs + first + column, gap / total_kept, mask=inside)
    tl.store(probs + first + n, last_gap / total_kept)
    tl.store(slots + first + column, slot, mask=inside)
    tl.store(slots + first + n, tl.where(last_kept, n_kept, -1))
    tl.store(totals + 2 * row, total_kept)
    tl.store(totals + 2 * row + 1, n_interior)
    tl.store(is_solved + row, True)
    tl.store(counts + row, (n_kept + last_kept.to(tl.int32)).to(tl.int64))
    tl.store(counts + n_rows + row, is_bad.to(tl.int64))
    tl.store(counts + 2 * n_rows + row, tl.zeros([], tl.int64))


@triton.jit(do_not_specialize=["n_rows"])
def _tally(counts, ends, sizes, n_rows, AT_ONCE: tl.constexpr):
    """Where the atoms of each row end, and the numbers of all atoms and of bad rows."""
    n_atoms, n_bad = tl.sum(tl.zeros([AT_ONCE], tl.int64), 0), tl.sum(tl.zeros([AT_ONCE], tl.int64), 0)
    begin = n_rows * 0
    while begin < n_rows:
        row = begin + tl.arange(0, AT_ONCE)
        count = tl.load(counts + row, mask=row < n_rows, other=0)
        tl.store(ends + row, n_atoms + tl.cumsum(count, 0), mask=row < n_rows)
        n_atoms += tl.sum(count, 0)
        n_bad += tl.sum(tl.load(counts + n_rows + row, mask=row < n_rows, other=0), 0)
        begin += AT_ONCE
    tl.store(sizes, n_atoms)
    tl.store(sizes + 1, n_bad)


@triton.jit(do_not_specialize=["n_rows", "n_atoms"])
def _pack(
    words, probs, slots, ends, atoms, packed, rows, n_rows, n, n_atoms, BLOCK: tl.constexpr, TALL: tl.constexpr
):  # fmt: skip
    """Write some atoms of a row; the programs after the last row write the padding."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    j, column = tile * TALL + tl.arange(0, TALL), tl.arange(0, BLOCK)
    inside = (column < n)[None, :]
    if row < n_rows:
        start = tl.load(ends + row - 1, mask=row > 0, other=0)
        slot = tl.load(slots + row * (n + 1) + j, mask=j <= n, other=-1)
        word = tl.load(words + row * 2 * n + column, mask=column < n, other=0)[None, :]
        was_below = word % _FIELD - 1 < j[:, None]
        is_above = word // _FIELD % _FIELD - 1 >= j[:, None]
        is_set = tl.where(word >= _FIELD * _FIELD, was_below | is_above, was_below & is_above)
        place, kept = start + slot, slot >= 0
        tl.store(
            atoms + place[:, None] * n + column[None, :], cast(is_set, atoms.dtype.element_ty), mask=kept[:, None] & inside
        )
        prob = tl.load(probs + row * (n + 1) + j, mask=kept, other=0.0)
        tl.store(packed + place, cast(prob, packed.dtype.element_ty), mask=kept)
        tl.store(rows + place, tl.zeros([TALL], tl.int64) + row, mask=kept)
    else:
        place = tl.load(ends + n_rows - 1) + j
        while tl.min(place, 0) < n_atoms:
            kept = place < n_atoms
            nothing = tl.zeros([TALL, BLOCK], atoms.dtype.element_ty)
            tl.store(atoms + place[:, None] * n + column[None, :], nothing, mask=kept[:, None] & inside)
            tl.store(packed + place, tl.zeros([TALL], packed.dtype.element_ty), mask=kept)
            tl.store(rows + place, tl.zeros([TALL], tl.int64) + n_rows - 1, mask=kept)
            place += tl.num_programs(1) * TALL


@triton.jit
def _pull(
    grad, words, slots, totals, ends, out, n,
    SYMMETRIC: tl.constexpr, SYSTEMATIC: tl.constexpr, IS_LIMITED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of a row's scores, given that of its probabilities: each key ends one gap and starts the next."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    start = tl.load(ends + row - 1, mask=row > 0, other=0)
    place = tl.load(words + row * 2 * n + n + column, mask=column < n, other=0)
    is_fractional = place > 0
    slots += row * (n + 1)
    before = tl.load(slots + place - 1, mask=is_fractional, other=-1)
    behind = tl.load(slots + place, mask=is_fractional, other=-1)
    of_key = load(grad + start + before, before >= 0, 0.0).to(tl.float64)
    of_key -= load(grad + start + behind, behind >= 0, 0.0).to(tl.float64)
    of_key /= tl.load(totals + 2 * row)
    of_mean = tl.where(is_fractional, tl.cumsum(of_key, 0, reverse=True) if SYSTEMATIC else -of_key, 0.0)
    if IS_LIMITED:
        n_interior = tl.load(totals + 2 * row + 1)
        shift = tl.where(n_interior > 0.0, tl.sum(of_mean, 0) / tl.maximum(n_interior, 1.0), 0.0)
        of_mean = tl.where(place != 0, of_mean - shift, of_mean)
    if SYMMETRIC:
        of_mean /= 2.0
    tl.store(out + row * n + column, cast(of_mean, out.dtype.element_ty), mask=column < n)


def split(
    scores: Tensor,  # shape: (n_rows, n)
    total: int,
    symmetric: bool,
    systematic: bool,
    is_limited: bool,
    is_exact: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute marginals from scores and split them into atoms.

    Args:
        scores: the scores; a row is bad if it contains NaN or +inf, or fewer entries above -inf than required.
        total: the maximum number of ones, or the exact number.
        symmetric: whether the marginals are those of (t + 1) / 2.
        systematic: whether to use the systematic split instead of the nested one.
        is_limited: whether there is a total.
        is_exact: whether the total is exact.

    Returns:
        - words that encode the bits, and the places of the fractional bits in sorted order, starting at 1, with 0 for other
          bits and -1 for bits that share the budget but are within rounding of 0 or 1, (n_rows, 2, n);
        - the probabilities of all atoms, (n_rows, n + 1);
        - their slots among the atoms that are kept, -1 for others, (n_rows, n + 1);
        - the sum of the gaps that are kept, and the number of marginals that share a binding budget, (n_rows, 2);
        - the number of atoms, whether the row is bad, and zeros, (3, n_rows);
        - True, (n_rows,).
    """
    n_rows, n = scores.shape
    block = max(16, next_power_of_2(n))
    words = scores.new_empty((n_rows, 2, n), dtype=torch.int32)
    probs = scores.new_empty((n_rows, n + 1), dtype=torch.float64)
    slots = scores.new_empty((n_rows, n + 1), dtype=torch.int32)
    totals = scores.new_empty((n_rows, 2), dtype=torch.float64)
    counts = scores.new_empty((3, n_rows), dtype=torch.int64)
    is_solved = scores.new_empty(n_rows, dtype=torch.bool)
    keys = scores.new_empty((n_rows, 2, block), dtype=torch.float64)
    unwrapped(_split)[(n_rows,)](
        *(scores.contiguous(), words, probs, slots, totals, counts, is_solved, keys, n_rows, n, total),
        SYMMETRIC=symmetric,
        SYSTEMATIC=systematic,
        IS_LIMITED=is_limited,
        IS_EXACT=is_exact,
        BLOCK=block,
        num_warps=max(1, min(8, block // 16)),  # enough threads to compare all pairs of a row
    )
    return words, probs, slots, totals, counts, is_solved


def tally(
    counts: Tensor,  # shape: (3, n_rows), as from `split`
) -> tuple[Tensor, Tensor]:
    """Where the atoms of each row end, (n_rows,), and the numbers of all atoms and of bad rows, (2,)."""
    n_rows = counts.shape[1]
    ends, sizes = counts.new_empty(n_rows), counts.new_empty(2)
    unwrapped(_tally)[(1,)](counts, ends, sizes, n_rows, AT_ONCE=_ROWS_AT_ONCE, num_warps=4)
    return ends, sizes


def pack(
    words: Tensor,
    probs: Tensor,
    slots: Tensor,
    ends: Tensor,  # shape: (n_rows,), int64, where the atoms of each row end
    n_atoms: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """The atoms that are kept, (n_atoms, n), their probabilities and rows, followed by padding."""
    n_rows, n = words.shape[0], words.shape[2]
    atoms = words.new_empty((n_atoms, n), dtype=dtype)
    packed = words.new_empty(n_atoms, dtype=dtype)
    rows = words.new_empty(n_atoms, dtype=torch.int64)
    block = max(16, next_power_of_2(n))
    tall = min(_TILE.value // block, next_power_of_2(n + 1))
    unwrapped(_pack)[(n_rows + 1, -(-(n + 1) // tall))](
        words, probs, slots, ends, atoms, packed, rows, n_rows, n, n_atoms, BLOCK=block, TALL=tall, num_warps=4
    )
    return atoms, packed, rows


def pull(
    grad: Tensor,  # shape: (n_atoms,)
    words: Tensor,
    slots: Tensor,
    totals: Tensor,
    ends: Tensor,
    *,
    kind: tuple[bool, bool, bool],
    dtype: torch.dtype,
) -> Tensor:
    """The gradient with respect to the scores, (n_rows, n), given that of the packed probabilities.

    ``kind`` holds the arguments symmetric, systematic and is_limited of `split`.
    """
    n_rows, n = words.shape[0], words.shape[2]
    out = words.new_empty((n_rows, n), dtype=dtype)
    is_symmetric, is_systematic, is_limited = kind
    block = max(16, next_power_of_2(n))
    unwrapped(_pull)[(n_rows,)](
        *(grad.contiguous(), words, slots, totals, ends, out, n),
        SYMMETRIC=is_symmetric,
        SYSTEMATIC=is_systematic,
        IS_LIMITED=is_limited,
        BLOCK=block,
        num_warps=max(1, min(8, block // 128)),
    )
    return out
