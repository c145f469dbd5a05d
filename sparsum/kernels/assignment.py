"""The best matching of rows with columns in one launch, by shortest augmenting paths.

Each program handles one matrix. It adds one row after the other to the matching: Dijkstra's algorithm finds the cheapest way
to move rows that are matched already to other columns, with costs that the dual variables make non-negative. The dual
variables of the last step certify that the matching is the best.

References:
    - On implementing 2D rectangular assignment algorithms (Crouse, 2016), https://doi.org/10.1109/TAES.2016.140952
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsum.kernels.launch import unwrapped

#: The maximum number of columns: a program keeps one number per column in registers.
MOST_COLUMNS = 1024


@triton.jit
def _at(values, index, place):
    """The entry of a vector at a place that is known at run time."""
    return tl.sum(tl.where(index == place, values, 0), 0)


@triton.jit
def _first(is_chosen, index, BLOCK: tl.constexpr):
    """The first index that is chosen."""
    return tl.min(tl.where(is_chosen, index, BLOCK), 0)


@triton.jit
def match(scores, lengths, columns, row_duals, column_duals, is_found, n, m, BLOCK: tl.constexpr):
    """The columns of the best matching, and the dual variables; if there is none, each row has the column of its number.

    All that belongs to matched rows is kept at their columns, so that an index never has to be looked up across lanes.
    """
    example = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    length = tl.load(lengths + example).to(tl.int32)
    is_column = column < length + m - n
    scores += example * n * m
    row_of = tl.full([BLOCK], -1, tl.int32)
    row_dual, column_dual = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
    new, is_possible = length * 0, length > 0
    while new < length:
        row = tl.load(scores + new * m + column, mask=is_column, other=float("-inf"))
        is_possible = is_possible & (tl.min((row < float("inf")).to(tl.int32), 0) > 0)  # neither NaN nor +inf
        new += 1
    new = length * 0
    while is_possible & (new < length):
        distance, is_seen = tl.full([BLOCK], float("inf"), tl.float64), ~is_column
        previous = tl.full([BLOCK], -1, tl.int32)
        covered = tl.sum(tl.zeros([BLOCK], tl.float64), 0)
        current, dual, end = new, covered, new * 0 - 1
        while is_possible & (end < 0):
            cost = -tl.load(scores + current * m + column, mask=is_column, other=float("-inf"))
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
                left = _first(row_of == moved, column, BLOCK)
                dual = tl.where(is_moving, _at(row_dual, column, left), covered)
                row_of, row_dual = tl.where(column == place, moved, row_of), tl.where(column == place, dual, row_dual)
                place = left
        new += 1
    tl.store(columns + example * n + column, tl.where(column < length, column, 0).to(tl.int64), mask=column < n)
    tl.store(is_found + example, is_possible.to(tl.int32))
    tl.debug_barrier()  # before the same addresses are written by other lanes
    is_matched = row_of >= tl.where(is_possible, 0, n)
    tl.store(columns + example * n + row_of, column.to(tl.int64), mask=is_matched)
    tl.store(row_duals + example * n + row_of, row_dual, mask=is_matched)
    tl.store(column_duals + example * m + column, column_dual, mask=column < m)


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
    is_found = torch.empty(n_rows, dtype=torch.int32, device=scores.device)
    duals = scores.new_zeros(n_rows * (n + m)).split([n_rows * n, n_rows * m])
    if n_rows:
        block = max(32, triton.next_power_of_2(m))
        unwrapped(match)[(n_rows,)](
            *(scores.contiguous(), lengths, columns, *duals, is_found, n, m),
            BLOCK=block,
            num_warps=1 if block <= 128 else 4,
        )
    return columns, duals[0].view(n_rows, n), duals[1].view(n_rows, m), is_found > 0
