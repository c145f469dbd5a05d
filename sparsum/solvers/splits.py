r"""Closed forms: the marginals are known, and are split into few assignments that have them as their mean.

The split is not unique, and expectations depend on it. Both splits here are continuous in the scores and piecewise linear,
need one sort, and give at most d + 1 atoms for d fractional marginals.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum import kernels
from sparsum.segments import Segments
from sparsum.simplex import sparsemax
from sparsum.solvers import fused_splits
from sparsum.solvers.abstract import AbstractSolver, Solution
from sparsum.solvers.projections import bit_marginals
from sparsum.solvers.rows import pack_kept
from sparsum.structures import AbstractStructure, Bits, Budget, Groups, Subset
from sparsum.structures.bad_rows import is_unusable

# Atoms that would get less than this are rounding, and are dropped.
_NEGLIGIBLE = 1e-12
# Fixed-point numbers with this many binary places: their sums are exact, so that a sum of 64.0 has 64 ones and not 65.
_PLACES = 40
_ONE = 1 << _PLACES


@dataclass(frozen=True)
class Nested(AbstractSolver):
    r"""Atoms that contain each other: the sets :math:`\{i : \mu_i > u\}` for a threshold u that is uniform on [0, 1].

    Sort the marginals; each gap between neighbours is the probability of the set above it (the Lovasz extension). It does
    not depend on the order of the bits. For `Groups`, whose marginals are a sparsemax per group, all groups read off their
    category at a common quantile u. It takes no account of how many bits are set, so it serves no `Budget` or `Subset`.

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

    def solve(
        self,
        scores: Tensor,  # shape: (n_rows, *score_shape)
        structure: AbstractStructure,
    ) -> Solution:
        """Split the marginals of all rows; takes `Bits` and `Groups`."""
        if isinstance(structure, Groups):
            return _split_groups(scores)
        if not isinstance(structure, Bits):
            raise TypeError(f"Nested takes Bits and Groups, got {structure!r}; ActiveSet takes any structure")
        return _split_bits(scores, structure, False)


@dataclass(frozen=True)
class Systematic(AbstractSolver):
    r"""Atoms of almost equal size, by systematic sampling with a single random offset.

    Lay the marginals end to end, :math:`S_i = \mu_1 + \dots + \mu_i`, and set bit i when one of the points
    :math:`u, u + 1, u + 2, \dots` falls into :math:`(S_{i-1}, S_i]`. As the offset u runs over [0, 1), the set changes only
    at the fractional parts of the sums; each gap between neighbours is a probability. Every atom has the floor or the
    ceiling of :math:`\sum_i \mu_i` ones, so it serves `Budget` and `Subset` as well as `Bits`. It depends on the order of
    the bits.

    >>> import sparsum as sp
    >>> q = sp.sparsemap(torch.tensor([[0.0, 0.5, -0.5]]), sp.Subset(3, 2), solver=Systematic())
    >>> q.atoms.sum(-1)
    tensor([2., 2., 2.])
    >>> q.mean
    tensor([[0.6667, 0.9167, 0.4167]])

    References:
        - On the theory of systematic sampling, II (Madow, 1949)
    """

    def solve(
        self,
        scores: Tensor,  # shape: (n_rows, n)
        structure: AbstractStructure,
    ) -> Solution:
        """Split the marginals of all rows; takes `Bits`, `Budget` and `Subset`."""
        if not isinstance(structure, Bits | Budget | Subset):
            raise TypeError(f"Systematic takes Bits, Budget and Subset, got {structure!r}; ActiveSet takes any structure")
        return _split_bits(scores, structure, True)


@kernels.operation("split_bits", kernel=fused_splits.split, takes=fused_splits.takes)
def _split_bits(
    scores: Tensor,  # shape: (n_rows, n)
    structure: Bits | Budget | Subset,
    systematic: bool,
) -> Solution:
    """Split the marginals of all rows, differentiably."""
    return (_split_systematic if systematic else _split_nested)(scores, structure)


def _split_nested(scores: Tensor, structure: Bits | Budget | Subset) -> Solution:
    marginals = bit_marginals(scores, structure)
    is_one, is_fractional = kinds(marginals)
    gaps, order = nested_gaps(marginals, is_fractional)
    chosen, segments = pack_kept(gaps.detach() > _NEGLIGIBLE, scores, is_unusable(scores))
    rank = _inverse(order)
    rank[~is_fractional] = scores.shape[-1]
    atoms = (rank[segments.row] < chosen.to(rank.dtype).unsqueeze(-1)) | is_one[segments.row]
    return _solution(atoms.to(scores.dtype), gaps, chosen, segments, scores.dtype)


def _split_systematic(scores: Tensor, structure: Bits | Budget | Subset) -> Solution:
    marginals = bit_marginals(scores, structure)
    is_one, is_fractional = kinds(marginals)
    gaps, order, whole = systematic_gaps(marginals, is_fractional)
    is_bad = is_unusable(scores)
    if isinstance(structure, Subset):
        is_bad = is_bad | ((scores > -torch.inf).sum(-1) < structure.k)
    chosen, segments = pack_kept(gaps.detach() > _NEGLIGIBLE, scores, is_bad)
    atoms = _systematic_atoms(order, whole, is_fractional, chosen, segments) | is_one[segments.row]
    return _solution(atoms.to(scores.dtype), gaps, chosen, segments, scores.dtype)


def nested_gaps(marginals: Tensor, is_fractional: Tensor) -> tuple[Tensor, Tensor]:
    """The probabilities of all threshold sets, from none to all fractional bits, (n_rows, n + 1), and the bits' order."""
    inner = torch.where(is_fractional, marginals, 0.0)
    levels, order = inner.sort(dim=-1, descending=True, stable=True)
    edge = torch.ones_like(levels[:, :1])
    return torch.cat([edge, levels], -1) - torch.cat([levels, 0 * edge], -1), order


def systematic_gaps(marginals: Tensor, is_fractional: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The probabilities of all offsets between two fractional parts, (n_rows, n + 1), their order, and the whole parts."""
    inner = torch.where(is_fractional, marginals, 0.0)
    fixed = _prefix_sums(inner.detach(), is_fractional)
    whole = fixed >> _PLACES
    places = torch.where(is_fractional, fixed & (_ONE - 1), _ONE)
    places, order = places.sort(dim=-1, stable=True)
    # The values come from the fixed-point numbers, which tell the order, the derivatives from the sums themselves.
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
    """The place of each entry in its row's order, in the smallest dtype that holds it and saves memory traffic."""
    dtype = torch.int16 if order.shape[-1] < 2**15 - 1 else torch.int32
    places = torch.arange(order.shape[-1], dtype=dtype, device=order.device).expand(order.shape)
    return torch.empty(order.shape, dtype=dtype, device=order.device).scatter_(-1, order, places)


def _solution(atoms: Tensor, gaps: Tensor, chosen: Tensor, segments: Segments, dtype: torch.dtype) -> Solution:
    """Pack the probabilities, and make up for the gaps that were dropped."""
    probs = segments.clear_padding(gaps.reshape(-1).index_select(0, segments.row * gaps.shape[-1] + chosen))
    probs = probs / segments.spread(segments.sum(probs.detach()))
    n_rows, device = segments.n_rows, gaps.device
    zeros = torch.zeros(n_rows, dtype=torch.int64, device=device)
    is_solved = torch.ones(n_rows, dtype=torch.bool, device=device)
    return Solution(atoms, probs.to(dtype), segments, is_solved, zeros, zeros.view(torch.float64))


def _prefix_sums(inner: Tensor, is_fractional: Tensor) -> Tensor:
    """Sums of the fractional marginals in fixed point, the last one an integer where the total is one up to rounding."""
    sums = (inner * _ONE).round().long().cumsum(-1)
    total = sums[:, -1:]
    nearest = (total + _ONE // 2) >> _PLACES << _PLACES
    is_integer = (total - nearest).abs() <= inner.shape[-1]
    n_fractional = is_fractional.sum(-1, keepdim=True)
    is_last = is_fractional.cumsum(-1) == n_fractional
    return torch.where(is_integer & is_last, nearest, sums)


def _systematic_atoms(order: Tensor, whole: Tensor, is_fractional: Tensor, chosen: Tensor, segments: Segments) -> Tensor:
    """Which fractional bits are set in each atom, from ranks alone: comparing rounded sums could set one bit too many.

    In the gap number j, a sum is below its integer plus the offset iff its fractional part has a rank below j. So bit i is
    set iff the previous sum is below and the present one is not, the other way round when an integer lies between the two.
    """
    rank = _inverse(order)
    # Bits that are not fractional leave the sum as it is: what comes before bit i is the last fractional bit before it.
    place = torch.arange(rank.shape[-1], device=rank.device)
    last = torch.where(is_fractional, place, -1).cummax(-1).values
    previous = torch.cat([torch.full_like(last[:, :1], -1), last[:, :-1]], -1)
    before = torch.where(previous < 0, -1, rank.gather(-1, previous.clamp_min(0))).to(rank.dtype)
    crosses = whole > torch.where(previous < 0, 0, whole.gather(-1, previous.clamp_min(0)))
    j = chosen.to(rank.dtype).unsqueeze(-1)
    row = segments.row
    was_below, is_above = before[row] < j, rank[row] >= j
    is_set = torch.where(crosses[row], was_below | is_above, was_below & is_above)
    return is_set & is_fractional[row]


def _split_groups(
    scores: Tensor,  # shape: (n_rows, n_groups, n_each)
) -> Solution:
    """Common quantiles: the categories of all groups change where one of the cumulative distributions has a step."""
    marginals = sparsemax(scores.double())
    sums = marginals.cumsum(-1)
    is_step = (marginals.detach() > 0) & (sums.detach() < 1 - _NEGLIGIBLE)
    steps = torch.where(is_step, sums, 1.0).flatten(1).sort(-1).values
    edge = torch.ones_like(steps[:, :1])
    upper, lower = torch.cat([steps, edge], -1), torch.cat([0 * edge, steps], -1)
    gaps = upper - lower
    is_bad = ~(marginals.detach().sum(-1) > 0.5).all(-1) | is_unusable(scores.flatten(1))
    chosen, segments = pack_kept(gaps.detach() > _NEGLIGIBLE, scores.flatten(1), is_bad)
    quantile = ((upper + lower) / 2).detach().reshape(-1)[segments.row * gaps.shape[-1] + chosen]
    ends = torch.where(sums.detach() < 1 - _NEGLIGIBLE, sums.detach(), 2.0)
    atoms = (ends[segments.row] < quantile.reshape(-1, 1, 1)).sum(-1)
    return _solution(atoms, gaps, chosen, segments, scores.dtype)
