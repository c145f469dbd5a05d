r"""Closed forms: split the known marginals into few assignments whose mean they are.

The split is not unique, and expectations depend on it. Both splits here are continuous and piecewise linear in the scores,
need one sort, and return at most d + 1 atoms for d fractional marginals.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum import kernels
from sparsum.simplex import sparsemax
from sparsum.solvers import fused_splits
from sparsum.solvers.abstract import AbstractSolver, Solution
from sparsum.solvers.projections import bit_marginals
from sparsum.solvers.table import Table
from sparsum.structures import BitCounts, BoundScores

# Atoms with a smaller probability are due to rounding, and are dropped.
_NEGLIGIBLE = 1e-12
# Fixed-point numbers with this many binary places: their sums are exact, so that marginals with sum 64.0 set 64 bits.
_PLACES = 40
_ONE = 1 << _PLACES


@dataclass(frozen=True)
class Nested(AbstractSolver):
    r"""Nested atoms: the sets :math:`\{i : \mu_i > u\}` for a threshold u that is uniform on [0, 1].

    Sort the marginals; each gap between neighbours is the probability of the set above it (the Lovasz extension). The
    result does not depend on the order of the bits. For `Groups`, whose marginals are a sparsemax per group, all groups
    select their category at a common quantile u. The number of bits set is not limited, so `Budget` and `Subset` are not
    supported.

    >>> import sparsum as sp
    >>> q = sp.sparsemap(torch.tensor([[0.0, 0.5, -2.0]]), sp.Bits(3), solver=Nested())
    >>> q.atoms
    tensor([[0., 0., 0.],
            [0., 1., 0.],
            [1., 1., 0.]])
    >>> q.probs
    tensor([0.2500, 0.2500, 0.5000])

    References:
        - Submodular functions and convexity (Lovasz, 1983)
        - Learning with submodular functions: a convex optimization perspective (Bach, 2013), section 3.1,
          https://arxiv.org/abs/1111.6453
    """

    def solve(self, bound: BoundScores) -> Solution:
        """Split the marginals of all rows; takes `Bits` and `Groups`."""
        group_size = _free_group_size(bound)
        if group_size is not None:
            return _solution(_split_groups(bound, group_size), bound)
        return _split_bits(bound.flat, bound, _free_counts(bound), False)

    def solve_truncated(self, bound: BoundScores, max_atoms: int) -> Solution:
        """The ``max_atoms`` most probable atoms of each row."""
        group_size = _free_group_size(bound)
        if group_size is not None:
            return _truncated(_split_groups(bound, group_size), bound, max_atoms)
        return _truncated(_gaps_of_bits(bound.flat, bound, _free_counts(bound), False), bound, max_atoms)


@dataclass(frozen=True)
class Systematic(AbstractSolver):
    r"""Atoms with almost the same number of ones, by systematic sampling with a single random offset.

    Lay the marginals end to end, :math:`S_i = \mu_1 + \dots + \mu_i`, and set bit i if one of the points
    :math:`u, u + 1, u + 2, \dots` falls into :math:`(S_{i-1}, S_i]`. As the offset u runs over [0, 1), the set changes only
    at the fractional parts of the sums; each gap between neighbours is a probability. The number of ones of every atom is
    the floor or the ceiling of :math:`\sum_i \mu_i`, so `Budget` and `Subset` are supported as well as `Bits`. The result
    depends on the order of the bits.

    >>> import sparsum as sp
    >>> q = sp.sparsemap(torch.tensor([[0.0, 0.5, -0.5]]), sp.Subset(3, 2), solver=Systematic())
    >>> q.atoms.sum(-1)
    tensor([2., 2., 2.])
    >>> q.mean
    tensor([[0.6667, 0.9167, 0.4167]])

    References:
        - On the theory of systematic sampling, II (Madow, 1949)
    """

    def solve(self, bound: BoundScores) -> Solution:
        """Split the marginals of all rows; takes `Bits`, `Budget` and `Subset`."""
        return _split_bits(bound.flat, bound, _counts(bound), True)

    def solve_truncated(self, bound: BoundScores, max_atoms: int) -> Solution:
        """The ``max_atoms`` most probable atoms of each row."""
        return _truncated(_gaps_of_bits(bound.flat, bound, _counts(bound), True), bound, max_atoms)


def _counts(bound: BoundScores) -> BitCounts:
    counts = bound.structure.bit_counts()
    if counts is None:
        raise TypeError(
            f"Systematic takes Bits, Budget and Subset, got {bound.structure!r}; use ActiveSet, which takes any structure"
        )
    return counts


def _free_group_size(bound: BoundScores) -> int | None:
    """The number of categories per group, if choices are free; None otherwise."""
    return bound.structure.group_size if bound.structure.has_free_choices else None


def _free_counts(bound: BoundScores) -> BitCounts:
    counts = bound.structure.bit_counts()
    if counts is None or not counts.is_free(bound.flat.shape[-1]):
        raise TypeError(f"Nested takes Bits and Groups, got {bound.structure!r}; use ActiveSet, which takes any structure")
    return counts


@kernels.operation("split_bits", kernel=fused_splits.split, takes=fused_splits.is_narrow)
def _split_bits(
    scores: Tensor,  # shape: (n_rows, n)
    bound: BoundScores,
    counts: BitCounts,
    systematic: bool,
) -> Solution:
    """Split the marginals of all rows, differentiably."""
    return _solution(_gaps_of_bits(scores, bound, counts, systematic), bound)


def _gaps_of_bits(
    scores: Tensor,  # shape: (n_rows, n)
    bound: BoundScores,
    counts: BitCounts,
    systematic: bool,
) -> Table:
    """The gaps of all rows, and the atoms of these."""
    marginals = bit_marginals(scores, counts)
    is_one, is_fractional = kinds(marginals)
    split = _split_systematic if systematic else _split_nested
    gaps, fractional_atoms = split(marginals, is_fractional)
    is_bad = bound.is_unusable
    if counts.is_exact:
        is_bad = is_bad | ((scores > -torch.inf).sum(-1) < counts.most)

    def atoms(row: Tensor, chosen: Tensor) -> Tensor:
        return (fractional_atoms(row, chosen) | is_one[row]).to(bound.dtype)

    return Table(gaps, is_bad, atoms)


def _split_nested(marginals: Tensor, is_fractional: Tensor) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
    """All gaps, (n_rows, n + 1), and which fractional bits are set in chosen gaps of the given rows, (n_atoms, n)."""
    gaps, order = nested_gaps(marginals, is_fractional)
    rank = _inverse(order).masked_fill(~is_fractional, marginals.shape[-1])
    return gaps, lambda row, chosen: rank[row] < chosen.to(rank.dtype).unsqueeze(-1)


def _split_systematic(marginals: Tensor, is_fractional: Tensor) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
    """As `_split_nested`."""
    gaps, order, whole = systematic_gaps(marginals, is_fractional)
    return gaps, functools.partial(_systematic_atoms, order, whole, is_fractional)


def nested_gaps(marginals: Tensor, is_fractional: Tensor) -> tuple[Tensor, Tensor]:
    """The probabilities of all threshold sets, from none to all fractional bits, (n_rows, n + 1), and the bit order."""
    inner = torch.where(is_fractional, marginals, 0.0)
    levels, order = inner.sort(dim=-1, descending=True, stable=True)
    edge = torch.ones_like(levels[:, :1])
    return torch.cat([edge, levels], -1) - torch.cat([levels, 0 * edge], -1), order


def systematic_gaps(marginals: Tensor, is_fractional: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The probabilities of offsets between two fractional parts, (n_rows, n + 1), their order, and the integer parts."""
    inner = torch.where(is_fractional, marginals, 0.0)
    fixed = _prefix_sums(inner.detach(), is_fractional)
    whole = fixed >> _PLACES
    places = torch.where(is_fractional, fixed & (_ONE - 1), _ONE)
    places, order = places.sort(dim=-1, stable=True)
    # The values come from the fixed-point numbers, which determine the order; the derivatives come from the sums.
    parts = torch.where(is_fractional, inner.cumsum(-1) - whole, 1.0).gather(-1, order)
    edge = torch.ones_like(parts[:, :1])
    gaps = torch.cat([parts, edge], -1) - torch.cat([0 * edge, parts], -1)
    fixed_edge = torch.full_like(places[:, :1], _ONE)
    fixed_gaps = torch.cat([places, fixed_edge], -1) - torch.cat([0 * fixed_edge, places], -1)
    return fixed_gaps.double() / _ONE + (gaps - gaps.detach()), order, whole


def kinds(marginals: Tensor) -> tuple[Tensor, Tensor]:
    """Which marginals are 1, and which are fractional."""
    fixed = marginals.detach()
    is_one = fixed >= 1 - _NEGLIGIBLE
    return is_one, (fixed > _NEGLIGIBLE) & ~is_one


def _inverse(order: Tensor) -> Tensor:
    """The rank of each entry in its row, in the smallest dtype that holds it, to save memory traffic."""
    dtype = torch.int16 if order.shape[-1] < 2**15 - 1 else torch.int32
    places = torch.arange(order.shape[-1], dtype=dtype, device=order.device).expand(order.shape)
    return torch.empty(order.shape, dtype=dtype, device=order.device).scatter_(-1, order, places)


def _solution(table: Table, bound: BoundScores) -> Solution:
    """Pack the atoms, and renormalize their probabilities for the dropped gaps."""
    gaps = table.probs
    packed = bound.pack(gaps.detach() > _NEGLIGIBLE, table.is_bad)
    probs, segments = packed.take(gaps), packed.segments
    probs = probs / segments.spread(segments.sum(probs.detach()))
    return Solution.closed_form(table.atoms(segments.row, packed.flat % gaps.shape[-1]), probs.to(bound.dtype), segments)


def _truncated(table: Table, bound: BoundScores, max_atoms: int) -> Solution:
    """Pack the most probable atoms."""
    gaps = torch.where(table.probs.detach() > _NEGLIGIBLE, table.probs, 0.0)
    probs = gaps / gaps.detach().sum(-1, keepdim=True)
    return dataclasses.replace(table, probs=probs).truncate(bound, max_atoms)


def _prefix_sums(inner: Tensor, is_fractional: Tensor) -> Tensor:
    """Prefix sums of the fractional marginals in fixed point; the last is an integer if the total is one up to rounding.

    What is missing for that comes from the last bits, each of which keeps a marginal from 0 to 1.
    """
    parts = (inner * _ONE).round().long()
    total = parts.sum(-1, keepdim=True)
    nearest = (total + _ONE // 2) >> _PLACES << _PLACES
    missing = nearest - total
    missing = torch.where(missing.abs() <= inner.shape[-1], missing, 0)
    room = torch.where(missing > 0, _ONE - parts, parts).masked_fill(~is_fractional, 0)
    later = room.sum(-1, keepdim=True) - room.cumsum(-1)
    moved = torch.minimum((missing.abs() - later).clamp_min(0), room)
    return (parts + missing.sign() * moved).cumsum(-1)


def _systematic_atoms(order: Tensor, whole: Tensor, is_fractional: Tensor, row: Tensor, chosen: Tensor) -> Tensor:
    """Which fractional bits are set in each atom, from ranks only: comparing rounded sums could set one bit too many.

    In gap j, a sum is below its integer part plus the offset iff its fractional part has a rank below j. So bit i is set iff
    the previous sum is below and the current one is not, and vice versa if an integer lies between the two.
    """
    rank = _inverse(order)
    # Bits that are not fractional do not change the sum, so the predecessor of bit i is the last fractional bit before it.
    place = torch.arange(rank.shape[-1], device=rank.device)
    last = torch.where(is_fractional, place, -1).cummax(-1).values
    previous = torch.cat([torch.full_like(last[:, :1], -1), last[:, :-1]], -1)
    before = torch.where(previous < 0, -1, rank.gather(-1, previous.clamp_min(0))).to(rank.dtype)
    crosses = whole > torch.where(previous < 0, 0, whole.gather(-1, previous.clamp_min(0)))
    j = chosen.to(rank.dtype).unsqueeze(-1)
    was_below, is_above = before[row] < j, rank[row] >= j
    is_set = torch.where(crosses[row], was_below | is_above, was_below & is_above)
    return is_set & is_fractional[row]


def _split_groups(bound: BoundScores, group_size: int) -> Table:
    """Split at common quantiles: the categories change where one of the cumulative distributions has a step."""
    marginals = sparsemax(bound.flat.double().unflatten(-1, (-1, group_size)))
    sums = marginals.cumsum(-1)
    is_step = (marginals.detach() > 0) & (sums.detach() < 1 - _NEGLIGIBLE)
    steps = torch.where(is_step, sums, 1.0).flatten(1).sort(-1).values
    edge = torch.ones_like(steps[:, :1])
    upper, lower = torch.cat([steps, edge], -1), torch.cat([0 * edge, steps], -1)
    gaps = upper - lower
    is_bad = ~(marginals.detach().sum(-1) > 0.5).all(-1) | bound.is_unusable
    middle = ((upper + lower) / 2).detach()
    ends = torch.where(sums.detach() < 1 - _NEGLIGIBLE, sums.detach(), 2.0)

    def atoms(row: Tensor, chosen: Tensor) -> Tensor:
        quantile = middle.flatten().index_select(0, row * middle.shape[-1] + chosen)
        choices = (ends[row] < quantile.reshape(-1, 1, 1)).sum(-1)
        return bound.structure.choices_to_atoms(choices, bound.dtype)

    return Table(gaps, is_bad, atoms)
