"""The closed-form splits over bits: two launches forward, between which the number of atoms is read, and one backward.

They are launched as they are, outside of torch's dispatcher, whose part would take longer than all else. Their callers see
to it that nothing traces or transforms them.

A program works on one row. What the twins sort is ranked here by counting: as many comparisons as the row has pairs, all of
them independent, are faster than the steps of a sort for the widths that are taken, and ties need no thought. Threads that
read from memory what others wrote wait for them at a barrier.

A split leaves one word per bit, from which atom j of the row is read off: bit i is set iff ``after < j <= until`` or, where
the interval is turned inside out, ``after < j or j <= until``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsum.kernels.launch import unwrapped

# ruff: noqa: N806

#: The widest rows that are taken.
MOST_BITS = 1024
# How many pairs of bits, or of bits and atoms, a program looks at together.
_TILE = tl.constexpr(4096)

# The constants of the same names of the twin.
_NEGLIGIBLE = tl.constexpr(1e-12)
_PLACES = tl.constexpr(40)
_ONE = tl.constexpr(1 << 40)
# A number of this size has no digits after the point, so that adding it rounds, halves to even numbers.
_LARGE = tl.constexpr(1.5 * 2.0**52)
# Below all scores that count, with differences that are numbers.
_LEAST = tl.constexpr(-(2.0**1022))
# The fields of a word.
_FIELD = tl.constexpr(1 << 12)


@triton.jit
def cast(values, dtype: tl.constexpr):
    """By way of float32 if the dtype is smaller than that, which is also how torch does it."""
    return values.to(tl.float64) if dtype == tl.float64 else values.to(tl.float32).to(dtype)


@triton.jit
def load(pointer, mask, other):
    """Floats of any dtype in float32, or in float64 if that is theirs."""
    values = tl.load(pointer, mask=mask, other=other)
    return values if values.dtype == tl.float64 else values.to(tl.float32)


@triton.jit
def _rank(keys, key, column, BLOCK: tl.constexpr):
    """How many keys of the row are smaller, or equal and before, for each of them; those in memory are the same ones."""
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
    """The same order with no gap of more than 2 between neighbours, counted from the largest."""
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
    """A point between the two corners that the sum of the clamped differences falls to the total between."""
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
    # Where the total is not even reached, everything that is allowed is one.
    return (tl.where(before == -float("inf"), after - 2.0, before) + after) / 2.0


@triton.jit
def _project(target, column, space, total, IS_EXACT: tl.constexpr, BLOCK: tl.constexpr):
    """The projection onto the cube and a budget, who is between 0 and 1, and how many if the budget binds, else 0."""
    compact = _compact(target, column, space, BLOCK)
    probe = _segment_of_root(compact, column, space, total, BLOCK)
    is_one = compact - probe >= 1.0
    is_interior = (compact > probe) & (compact - probe < 1.0)
    is_loose = False
    if not IS_EXACT:
        is_loose = tl.sum(tl.minimum(tl.maximum(target, 0.0), 1.0), 0) <= total
        is_one = tl.where(is_loose, target >= 1.0, is_one)
        is_interior = tl.where(is_loose, (target > 0.0) & (target < 1.0), is_interior)
    # Scores may be so large that their sum forgets the budget: count from the largest that is in between.
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
def _systematic_keys(mean, is_fractional, ordinal, n):
    """The fractional parts of the sums of marginals, 1 where nothing is added, and whether an integer was crossed.

    In fixed point, and the last sum an integer where it is one but for rounding.
    """
    scaled = tl.where(is_fractional, mean, 0.0) * (1.0 * _ONE)
    part = ((scaled + _LARGE) - _LARGE).to(tl.int64)
    sums = tl.cumsum(part, 0)
    before = sums - part
    whole_sum = tl.sum(part, 0)
    nearest = ((whole_sum + _ONE // 2) >> _PLACES) << _PLACES
    is_integer = tl.abs(whole_sum - nearest) <= n
    is_last = ordinal == tl.sum(is_fractional.to(tl.int32), 0)
    sums = tl.where(is_last & is_integer, nearest, sums)
    crosses = (sums >> _PLACES) > (before >> _PLACES)
    return tl.where(is_fractional, (sums & (_ONE - 1)).to(tl.float64) / (1.0 * _ONE), 1.0), crosses


@triton.jit(do_not_specialize=["n_rows", "total"])
def _split(
    scores, words, probs, slots, totals, counts, is_solved, keys, n_rows, n, total,
    SYMMETRIC: tl.constexpr, SYSTEMATIC: tl.constexpr, IS_LIMITED: tl.constexpr, IS_EXACT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The words of a row's bits, the probabilities of all its atoms and, if they are kept, their places among them."""
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
    # Comparisons that a NaN fails leave it out; its row is reported.
    is_one = mean >= 1.0 - _NEGLIGIBLE
    is_fractional = (mean > _NEGLIGIBLE) & (mean < 1.0 - _NEGLIGIBLE)
    ordinal = tl.cumsum(is_fractional.to(tl.int32), 0)
    if SYSTEMATIC:
        key, crosses = _systematic_keys(mean, is_fractional, ordinal, n)
        low, high = 0.0, 1.0
    else:
        key = tl.where(is_fractional, -mean, 0.0)
        low, high = -1.0, 0.0
    tl.store(keys + column, tl.where(inside, key, high))
    tl.debug_barrier()
    rank = _rank(keys, tl.where(inside, key, high), column, BLOCK)
    ordered, by_ordinal = keys + BLOCK, keys
    tl.store(ordered + rank, tl.where(inside, key, high))
    tl.debug_barrier()  # the keys have been read, and their space serves the ranks
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
    if IS_LIMITED:  # what is in between but negligibly so still feels the budget
        place = tl.where(is_interior & ~is_fractional, -1, place)
    tl.store(words + row * 2 * n + column, word, mask=inside)
    tl.store(words + row * 2 * n + n + column, place, mask=inside)
    # The gap before each key in order, and the one after the last.
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


@triton.jit(do_not_specialize=["n_rows", "n_atoms"])
def _pack(
    words, probs, slots, ends, atoms, packed, rows, n_rows, n, n_atoms, BLOCK: tl.constexpr, TALL: tl.constexpr
):  # fmt: skip
    """Some atoms of a row; the programs after the last row write the padding."""
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
    """From the gradient of a row's probabilities to that of its scores: each key ends one gap and begins the next."""
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
    """Find the marginals of scores and split them into atoms.

    Args:
        scores: in which a NaN, or +inf, or fewer entries above -inf than are needed mark a bad row.
        total: the largest number of ones, or the exact one.
        symmetric: whether the marginals are those of (t + 1) / 2.
        systematic: which split; else it is the nested one.
        is_limited: whether there is a total.
        is_exact: whether it is exact.

    Returns:
        Words that tell the bits, and the places of the fractional ones in their order, from 1, with 0 for the others and -1
        for those that are fractional but for rounding, (n_rows, 2, n); the probabilities of all atoms and their places among
        those that are kept, (n_rows, n + 1); what the gaps that are kept add up to, and how many marginals share in a budget
        that binds, (n_rows, 2); the number of atoms, whether the row is bad, and zeros, (3, n_rows); and True, (n_rows,).
    """
    n_rows, n = scores.shape
    block = max(16, triton.next_power_of_2(n))
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
        num_warps=max(1, min(8, block // 16)),  # enough threads for all pairs of a row
    )
    return words, probs, slots, totals, counts, is_solved


def pack(
    words: Tensor,
    probs: Tensor,
    slots: Tensor,
    ends: Tensor,  # shape: (n_rows,), int64, where the atoms of each row end
    n_atoms: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """The atoms that are kept, (n_atoms, n), their probabilities and rows; those after the last are padding."""
    n_rows, n = words.shape[0], words.shape[2]
    atoms = words.new_empty((n_atoms, n), dtype=dtype)
    packed = words.new_empty(n_atoms, dtype=dtype)
    rows = words.new_empty(n_atoms, dtype=torch.int64)
    block = max(16, triton.next_power_of_2(n))
    tall = min(_TILE.value // block, triton.next_power_of_2(n + 1))
    # The number of atoms is another one at every call: there is nothing to remember.
    _pack[(n_rows + 1, -(-(n + 1) // tall))](
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
    """The gradient in the scores, of a kind as for `split`, from that in the packed probabilities: (n_rows, n)."""
    n_rows, n = words.shape[0], words.shape[2]
    out = words.new_empty((n_rows, n), dtype=dtype)
    is_symmetric, is_systematic, is_limited = kind
    block = max(16, triton.next_power_of_2(n))
    unwrapped(_pull)[(n_rows,)](
        *(grad.contiguous(), words, slots, totals, ends, out, n),
        SYMMETRIC=is_symmetric,
        SYSTEMATIC=is_systematic,
        IS_LIMITED=is_limited,
        BLOCK=block,
        num_warps=max(1, min(8, block // 128)),
    )
    return out
