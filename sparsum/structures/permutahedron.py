r"""The permutahedron: the means of distributions over the permutations of the ranks 0, ..., n - 1.

It consists of the points x with the sum of all ranks, :math:`f(n) = n (n - 1) / 2`, in which every set S of items satisfies
:math:`x(S) \ge f(|S|)`. Among sets of one size, the inequality is tightest for the items with the smallest values, so that
sorting finds out which points belong to it. A face is an ordered partition of the items into blocks, where the items of a
block have the ranks that the blocks before leave over.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.structures.pulling import NEGLIGIBLE, Decomposition

# Bounds the memory of all averages of neighbouring scores, n^2 per row: 128 MB.
_MOST_AVERAGES = 2**24
# Sums of ranks are integers; what is closer than this to one is equal up to rounding.
_CLOSE = 1e-9


def closest(
    scores: Tensor,  # shape: (n_rows, n), without NaN and +inf
) -> Tensor:
    """The point of the permutahedron that is closest to the scores, in float64: (n_rows, n).

    It is the sorted scores less an isotonic regression of their distances to the ranks. A gap of at least n between sorted
    scores is as good as one of n, which keeps sums accurate for scores of any size, and replaces -inf.

    References:
        - Fast differentiable sorting and ranking (Blondel, Teboul, Berthet & Djolonga, 2020), proposition 3,
          https://arxiv.org/abs/2002.08871
    """
    n = scores.shape[-1]
    values, order = scores.double().sort(-1)
    gaps = values.diff(dim=-1).nan_to_num(n, n).clamp_max(n)
    values = torch.nn.functional.pad(gaps.cumsum(-1), (1, 0))
    steps = torch.arange(n, dtype=torch.float64, device=scores.device)
    step = max(1, _MOST_AVERAGES // max(n * n, 1))
    fitted = torch.cat([_isotonic(rows) for rows in (values - steps).split(step)])
    return torch.empty_like(values).scatter_(-1, order, values - fitted)


def _isotonic(
    targets: Tensor,  # shape: (n_rows, n)
) -> Tensor:
    r"""Isotonic regression, :math:`v_i = \max_{j \le i} \min_{k \ge i} \operatorname{mean}(u_j, \dots, u_k)`: (n_rows, n).

    This takes n^2 operations, all at once; pooling adjacent violators takes n, one after the other.
    """
    n = targets.shape[-1]
    sums = torch.nn.functional.pad(targets.cumsum(-1), (1, 0))
    place = torch.arange(n, device=targets.device)
    width = place - place.unsqueeze(-1) + 1  # [j, k]
    means = (sums[:, None, 1:] - sums[:, :-1, None]) / width.clamp_min(1)
    means = torch.where(width > 0, means, torch.inf)
    least = means.flip(-1).cummin(-1).values.flip(-1)  # [j, i]
    return torch.where(width > 0, least, -torch.inf).amax(1)


def rankings_of(
    points: Tensor,  # shape: (n_rows, n), float64
) -> Decomposition:
    """Split points into permutations by pulling; see `sparsum.structures.pulling`. At most n have a positive weight.

    The vertex of a face orders the items of each block by their index. The ray from it through the point is followed by
    Newton's method: a set of items whose inequality is violated shortens it.
    """
    n_rows, n = points.shape
    ids, mass = torch.arange(n_rows, device=points.device), points.new_ones(n_rows)
    order = points.argsort(-1)
    is_cut = _slack(points.gather(-1, order)) <= _CLOSE
    taken = []
    for _ in range(n):
        block = _blocks(order, is_cut)
        vertex = ranks(block * n + torch.arange(n, device=points.device))
        away = _balanced(points, block) - vertex
        share, order, is_cut = _follow(vertex, away)
        taken.append((vertex, mass * (1 - share), ids))
        mass = mass * share
        rest = (mass > NEGLIGIBLE).nonzero().squeeze(-1)
        if not len(rest):
            break
        points = (vertex + away / share.unsqueeze(-1))[rest]
        ids, mass, order, is_cut = ids[rest], mass[rest], order[rest], is_cut[rest]
    atoms, weights, row = (torch.cat(tensors) for tensors in zip(*taken, strict=True))
    return Decomposition.of(atoms, weights, row, n_rows)


def _follow(
    vertex: Tensor,  # shape: (n_rows, n), int64
    away: Tensor,  # shape: (n_rows, n), from the vertex to the point
) -> tuple[Tensor, Tensor, Tensor]:
    """Go from a vertex through a point until the polytope ends.

    Returns which share of the way to the end the point is at, (n_rows,), the order of the items at the end, (n_rows, n),
    and at which places of this order a block ends, (n_rows, n).
    """
    n = vertex.shape[-1]
    share, order = away.new_zeros(len(away)), away.argsort(-1)
    is_moving = away.abs().amax(-1) > _CLOSE
    for _ in range(n * n):
        # Each prefix of the order is a set of items whose inequality must hold at the end.
        room, change = _slack(vertex.gather(-1, order)), away.gather(-1, order).cumsum(-1)
        longest, place = torch.where(room > 0.5, -change / room, 0.0).max(-1)
        is_longer = is_moving & (longest > share * (1 + _CLOSE**1.5))
        share = torch.where(is_longer, longest, share).clamp_max(1.0)
        ends = room * share.unsqueeze(-1) + change <= _CLOSE * share.unsqueeze(-1)
        ends = ends | (torch.arange(n, device=away.device) == place.unsqueeze(-1))
        if not bool(is_longer.any()):
            break
        end = vertex + away / share.clamp_min(1e-300).unsqueeze(-1)
        order = torch.where(is_longer.unsqueeze(-1), end.argsort(-1), order)
    return share, order, ends


def _slack(
    ordered: Tensor,  # shape: (n_rows, n)
) -> Tensor:
    """By how much the inequality of each prefix holds: (n_rows, n)."""
    return (ordered - torch.arange(ordered.shape[-1], device=ordered.device)).cumsum(-1)


def _blocks(
    order: Tensor,  # shape: (n_rows, n)
    is_end: Tensor,  # shape: (n_rows, n), whether a block ends at this place of the order
) -> Tensor:
    """The number of the block of each item: (n_rows, n)."""
    number = is_end.long().cumsum(-1) - is_end.long()
    return torch.empty_like(number).scatter_(-1, order, number)


def _balanced(
    points: Tensor,  # shape: (n_rows, n)
    block: Tensor,  # shape: (n_rows, n)
) -> Tensor:
    """Points without rounding errors in the sums of their blocks: (n_rows, n)."""
    wanted = ranks(block)
    missing, count = (
        torch.zeros_like(points).scatter_add_(-1, block, what) for what in (wanted - points, torch.ones_like(points))
    )
    return points + (missing / count.clamp_min(1)).gather(-1, block)


def ranks(keys: Tensor) -> Tensor:
    """The rank of each key in its row, by index on ties: int64, in the shape of the keys."""
    order = keys.argsort(dim=-1, stable=True)
    place = torch.arange(keys.shape[-1], device=keys.device).expand(keys.shape)
    return torch.empty_like(order).scatter_(-1, order, place)
