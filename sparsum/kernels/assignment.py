"""The best matching of rows with columns in one launch, by shortest augmenting paths, and splits into matchings by it.

Each program handles one matrix. A search adds one row after the other to the matching: Dijkstra's algorithm finds the
cheapest way to move rows that are matched already to other columns, with costs that the dual variables make non-negative.
The dual variables of the last step certify that the matching is the best.

References:
    - On implementing 2D rectangular assignment algorithms (Crouse, 2016), https://doi.org/10.1109/TAES.2016.140952
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsum.kernels.launch import next_power_of_2, unwrapped

#: The maximum number of columns: a program keeps one number per column in registers.
MOST_COLUMNS = 1024
#: The maximum memory for the matchings into which matrices are split.
MOST_BYTES = 1 << 28


@triton.jit
def _at(values, index, place):
    """The entry of a vector at a place that is known at run time."""
    return tl.sum(tl.where(index == place, values, 0), 0)


@triton.jit
def _first(is_chosen, index, BLOCK: tl.constexpr):
    """The first index that is chosen."""
    return tl.min(tl.where(is_chosen, index, BLOCK), 0)


@triton.jit
def _scores_of(row, scores, left, column, is_column, m, IS_MASKED: tl.constexpr):
    """The scores of a row of the matrix; -inf where nothing is left, if IS_MASKED."""
    values = tl.load(scores + row * m + column, mask=is_column, other=float("-inf"))
    if IS_MASKED:
        values = tl.where(tl.load(left + row * m + column, mask=is_column, other=0.0) > 0, values, float("-inf"))
    return values


@triton.jit
def _search(scores, left, length, n_columns, m, BLOCK: tl.constexpr, IS_MASKED: tl.constexpr):
    """The row that is matched with each column, -1 if none, the dual variables of both, and whether there is a matching.

    All that belongs to matched rows is kept at their columns, so that an index never has to be looked up across lanes.
    """
    column = tl.arange(0, BLOCK)
    is_column = column < n_columns
    row_of = tl.full([BLOCK], -1, tl.int32)
    row_dual, column_dual = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
    new, is_possible = length * 0, length > 0
    while new < length:
        row = _scores_of(new, scores, left, column, is_column, m, IS_MASKED)
        is_possible = is_possible & (tl.min((row < float("inf")).to(tl.int32), 0) > 0)  # neither NaN nor +inf
        new += 1
    new = length * 0
    while is_possible & (new < length):
        distance, is_seen = tl.full([BLOCK], float("inf"), tl.float64), ~is_column
        previous = tl.full([BLOCK], -1, tl.int32)
        covered = tl.sum(tl.zeros([BLOCK], tl.float64), 0)
        current, dual, end = new, covered, new * 0 - 1
        while is_possible & (end < 0):
            cost = -_scores_of(current, scores, left, column, is_column, m, IS_MASKED)
            reduced = covered + (cost - dual - column_dual)
            is_closer = ~is_seen & (reduced < distance)
            distance, previous = tl.where(is_closer, reduced, distance), tl.where(is_closer, current, previous)
            covered = tl.min(tl.where(is_seen, float("inf"), distance), 0)
            is_possible = covered < float("inf")
            is_nearest = ~is_seen & (distance == covered)
            # A free column ends the search.
            free = _first(is_nearest & (row_of < 0), column, BLOCK)
            nearest = tl.where(free < BLOCK, free, _first(is_nearest, column, BLOCK))
            is_seen = is_seen | (column == nearest)
            current, dual = _at(row_of, column, nearest), _at(row_dual, column, nearest)
            end = tl.where(is_possible & (free < BLOCK), nearest, -1)
        if is_possible:
            # The columns that were reached, and the rows that are matched with them, become tight.
            change = tl.where(is_seen & is_column, covered - distance, 0.0)
            column_dual -= change
            row_dual += change
            place, is_moving = end, end >= 0
            while is_moving:
                moved = _at(previous, column, place)
                is_moving = moved != new
                origin = _first(row_of == moved, column, BLOCK)
                dual = tl.where(is_moving, _at(row_dual, column, origin), covered)
                row_of, row_dual = tl.where(column == place, moved, row_of), tl.where(column == place, dual, row_dual)
                place = origin
        new += 1
    return row_of, row_dual, column_dual, is_possible


@triton.jit
def match(scores, lengths, columns, row_duals, column_duals, is_found, n, m, BLOCK: tl.constexpr):
    """The columns of the best matching, and the dual variables; if there is none, each row has the column of its number."""
    example = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    length = tl.load(lengths + example).to(tl.int32)
    scores += example * n * m
    row_of, row_dual, column_dual, is_possible = _search(scores, scores, length, length + m - n, m, BLOCK, False)
    tl.store(columns + example * n + column, tl.where(column < length, column, 0).to(tl.int64), mask=column < n)
    tl.store(row_duals + example * n + column, tl.zeros([BLOCK], tl.float64), mask=column < n)
    tl.store(is_found + example, is_possible)
    tl.debug_barrier()  # before the same addresses are written by other lanes
    is_matched = row_of >= tl.where(is_possible, 0, n)
    tl.store(columns + example * n + row_of, column.to(tl.int64), mask=is_matched)
    tl.store(row_duals + example * n + row_of, row_dual, mask=is_matched)
    tl.store(column_duals + example * m + column, column_dual, mask=column < m)


@triton.jit
def _pull(direction, lengths, left, atoms, weights, n, ZERO: tl.constexpr, NEGLIGIBLE: tl.constexpr, BLOCK: tl.constexpr):
    """Take the best matching of what is left of one matrix as often as it fits, then the best of the rest."""
    example = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    length = tl.load(lengths + example).to(tl.int32)
    left += example * n * n
    atoms, weights = atoms + example * n * n * n, weights + example * n * n
    mass, is_any_left = tl.sum(tl.zeros([BLOCK], tl.float64), 0) + 1, length > 0
    while is_any_left:
        row_of, _, _, is_any_left = _search(direction, left, length, length, n, BLOCK, True)
        if is_any_left:
            is_matched = row_of >= 0
            place = left + row_of * n + column
            value = tl.load(place, mask=is_matched, other=float("inf"))
            step = tl.min(value, 0)
            tl.store(place, tl.where(value - step > ZERO, value - step, 0.0), mask=is_matched)
            tl.store(atoms + row_of, column.to(tl.int64), mask=is_matched)
            tl.store(weights, step)
            tl.debug_barrier()  # before other lanes read what is left
            atoms, weights, mass = atoms + n, weights + 1, mass - step
            is_any_left = mass > NEGLIGIBLE


def _warps(block: int) -> int:
    return 1 if block <= 128 else 4


def best(
    scores: Tensor,  # shape: (n_rows, n, m), float64, finite or -inf
    lengths: Tensor,  # shape: (n_rows,), int64, from 1 to n
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The columns of the best matching, (n_rows, n), and the dual variables of rows, (n_rows, n), and columns, (n_rows, m).

    An example of length l uses the first l rows and the first l + m - n columns; its other columns are 0. Costs are negative
    scores: they are at least the sum of their dual variables, and the costs of the matching are equal to it.

    Returns:
        The columns, the dual variables, and whether there is a best matching, (n_rows,). If there is none, because all are
        forbidden or a score is NaN or +inf, each row has the column of its number.
    """
    n_rows, n, m = scores.shape
    columns = torch.empty(n_rows, n, dtype=torch.int64, device=scores.device)
    is_found = torch.empty(n_rows, dtype=torch.bool, device=scores.device)
    row_duals, column_duals = scores.new_empty(n_rows, n), scores.new_empty(n_rows, m)
    if n_rows:
        block = max(32, next_power_of_2(m))
        unwrapped(match)[(n_rows,)](
            *(scores.contiguous(), lengths, columns, row_duals, column_duals, is_found, n, m),
            BLOCK=block,
            num_warps=_warps(block),
        )
    return columns, row_duals, column_duals, is_found


def pull(
    left: Tensor,  # shape: (n_rows, n, n), float64, contiguous; overwritten
    direction: Tensor,  # shape: (n * n,), float64, finite
    lengths: Tensor,  # shape: (n_rows,), int64, from 1 to n
    zero: float,
    negligible: float,
) -> tuple[Tensor, Tensor]:
    """Split doubly stochastic matrices into matchings, each the best one for a direction in the face that is left.

    Every step ends with one more entry at 0, below ``zero``, so that there are at most n * n.

    Returns:
        The matchings, (n_rows, n * n, n), and their weights, (n_rows, n * n), which are 0 after the last one.
    """
    n_rows, n, _ = left.shape
    atoms = torch.zeros(n_rows, n * n, n, dtype=torch.int64, device=left.device)
    weights = left.new_zeros(n_rows, n * n)
    if n_rows:
        block = max(32, next_power_of_2(n))
        unwrapped(_pull)[(n_rows,)](
            *(direction, lengths, left, atoms, weights, n),
            ZERO=zero,
            NEGLIGIBLE=negligible,
            BLOCK=block,
            num_warps=_warps(block),
        )
    return atoms, weights
