r"""The unique marginals of SparseMAP over bits, exact and differentiable.

They are the projection of u onto the unit cube, intersected with the budget:
:math:`\mu = \operatorname{clamp}(u - \tau, 0, 1)`, where u is the scores t or, for symmetric structures, (t + 1) / 2. The
shift :math:`\tau` is 0 without a budget or with a loose one, otherwise the root of

.. math:: g(\tau) = \sum_i \operatorname{clamp}(u_i - \tau, 0, 1) - B ,

which is decreasing and piecewise linear, with its corners at :math:`u_i` and :math:`u_i - 1`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.structures import BitCounts


def bit_marginals(
    scores: Tensor,  # shape: (n_rows, n)
    counts: BitCounts,
) -> Tensor:
    """The marginals in float64, differentiable: (n_rows, n)."""
    target = scores.double()
    if counts.is_symmetric:
        target = (target + 1) / 2
    if counts.is_free(scores.shape[-1]):
        return target.clamp(0.0, 1.0)
    total, may_be_loose = counts.most, not counts.is_exact
    with torch.no_grad():
        compact = _without_wide_gaps(target)
        probe = _segment_of_root(compact, total)
        is_one, is_interior = compact - probe >= 1, (compact > probe) & (compact - probe < 1)
        if may_be_loose:
            is_loose = target.clamp(0.0, 1.0).sum(-1, keepdim=True) <= total
            is_one = torch.where(is_loose, target >= 1, is_one)
            is_interior = torch.where(is_loose, (target > 0) & (target < 1), is_interior)
        # Large scores would absorb the budget in their sum: subtract the largest interior one.
        origin = torch.where(is_interior, target, -torch.inf).amax(-1, keepdim=True)
        origin = torch.where(origin == -torch.inf, 0.0, origin)
    # Within a segment everything is linear: solve for the shift, given which entries are 1 and which are interior.
    inside = torch.where(is_interior, target - origin, 0.0)
    n_interior = is_interior.sum(-1, keepdim=True).clamp_min(1)
    shift = (inside.sum(-1, keepdim=True) + is_one.sum(-1, keepdim=True) - total) / n_interior
    if may_be_loose:
        shift = torch.where(is_loose, -origin, shift)
    marginals = torch.where(is_interior, inside - shift, is_one.double())
    return marginals - (marginals - marginals.clamp(0.0, 1.0)).detach()  # clamp rounding errors, keep the gradient


def _without_wide_gaps(target: Tensor) -> Tensor:
    """Shrink the gaps between sorted neighbours to at most 2, relative to the largest entry.

    The shift only depends on entries within 1 of it, so wider gaps only affect rounding.
    """
    ordered, order = target.sort(dim=-1, descending=True, stable=True)
    gaps = (ordered[:, :-1] - ordered[:, 1:]).nan_to_num(0.0, 2.0).clamp_max(2.0)
    falling = torch.cat([torch.zeros_like(ordered[:, :1]), -gaps.cumsum(-1)], -1)
    compact = torch.empty_like(target).scatter_(-1, order, falling)
    return torch.where(target == -torch.inf, -torch.inf, compact)


def _segment_of_root(
    target: Tensor,  # shape: (n_rows, n), with a largest entry of 0
    total: int,
) -> Tensor:
    """A point inside the segment between two corners that contains the root of g: (n_rows, 1)."""
    is_finite = target > -torch.inf
    n_allowed = is_finite.sum(-1, keepdim=True)  # the limit of the sum as the shift tends to minus infinity
    limit = torch.ones_like(target[:, :1])
    # Forbidden entries do not have corners: theirs are moved behind the last one.
    corners = torch.cat([torch.where(is_finite, target - 1, limit), torch.where(is_finite, target, limit)], -1)
    change = torch.cat([is_finite.double(), -is_finite.double()], -1)
    corners, order = corners.sort(-1)
    n_interior = change.gather(-1, order).cumsum(-1)
    widths = corners.diff(dim=-1)
    fallen = (n_interior[:, :-1] * widths).cumsum(-1)
    values = n_allowed - torch.cat([torch.zeros_like(limit), fallen], -1)
    last_above = (values > total).sum(-1, keepdim=True) - 1  # the sum reaches the total after this corner
    before = corners.gather(-1, last_above.clamp_min(0))
    after = corners.gather(-1, (last_above + 1).clamp_max(corners.shape[-1] - 1))
    return torch.where(last_above < 0, corners[:, :1] - 1, (before + after) / 2)
