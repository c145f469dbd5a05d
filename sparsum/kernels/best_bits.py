"""The k best bit vectors in one launch.

Each program handles one row. It searches first for the bits that are cheapest to flip, then for the cheapest sets of these
bits. Both searches repeatedly take the minimum of the remaining candidates: k is small, and rows and tables are short.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sparsum.kernels.bits import cast, load
from sparsum.kernels.launch import next_power_of_2, unwrapped

#: The maximum number of bits per row.
MOST_BITS = 4096
#: The maximum number of vectors per row: sets of bits to flip are stored in an int64.
MOST_BEST = 64


@triton.jit
def _best(scores, sets, atoms, n, n_sets, WIDTH: tl.constexpr, K: tl.constexpr, SETS: tl.constexpr, BLOCK: tl.constexpr):
    """The best bit vectors of a row: find the cheapest bits to flip, the costs of sets of them, and the cheapest sets."""
    row = tl.program_id(0).to(tl.int64)
    column, index = tl.arange(0, BLOCK), tl.arange(0, SETS)
    inside = column < n
    score = load(scores + row * n + column, inside, 0.0)
    best, cost = score > 0, tl.abs(score)
    members = tl.load(sets + index, mask=index < n_sets, other=0)
    sums = tl.where(index < n_sets, 0.0, float("inf")).to(tl.float64)
    place, is_left = tl.full([BLOCK], 63, tl.int64), inside  # bit 63 is in no set
    for p in range(WIDTH):
        least = tl.min(tl.where(is_left, cost, float("inf")), 0)
        is_next = column == tl.min(tl.where(is_left & (cost == least), column, BLOCK), 0)
        place = tl.where(is_next, p, place)
        is_left = is_left & ~is_next
        # As in the twin, a large number replaces infinity, and sums are computed in the same order.
        added = tl.where(least == float("inf"), 1e300, least.to(tl.float64))
        sums += tl.where(((members >> p) & 1) != 0, added, 0.0)
    atoms += row * K * n
    tl.store(atoms + column, cast(best, atoms.dtype.element_ty), mask=inside)
    is_open = index < n_sets
    for i in range(1, K):
        least_sum = tl.min(tl.where(is_open, sums, float("inf")), 0)
        is_next_set = index == tl.min(tl.where(is_open & (sums == least_sum), index, SETS), 0)
        is_open = is_open & ~is_next_set
        chosen = tl.sum(tl.where(is_next_set, members, 0), 0)
        is_flipped = ((chosen >> place) & 1) != 0
        tl.store(atoms + i * n + column, cast(best ^ is_flipped, atoms.dtype.element_ty), mask=inside)


def best(
    scores: Tensor,  # shape: (n_rows, n)
    sets: Tensor,  # shape: (n_sets,), int64, candidate sets as bit masks over positions in order of cost
    k: int,
) -> Tensor:
    """The k best bit vectors of each row: (n_rows, k, n)."""
    n_rows, n = scores.shape
    atoms = scores.new_empty(n_rows, k, n)
    if n_rows == 0:
        return atoms
    block = max(32, next_power_of_2(n))
    unwrapped(_best)[(n_rows,)](
        *(scores.contiguous(), sets, atoms, n, len(sets)),
        WIDTH=min(k - 1, n),
        K=k,
        SETS=max(32, next_power_of_2(len(sets))),
        BLOCK=block,
        num_warps=max(1, min(4, block // 512)),
    )
    return atoms
