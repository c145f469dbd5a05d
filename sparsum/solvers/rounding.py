"""How the active set method keeps rounding errors from deciding between assignments.

Scores enter relative to what all assignments of a row share. Residuals reach the oracle as multiples of a power of two,
whose sums are exact. Where scores are too large for that, the certificate gives other assignments the benefit of the doubt.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sparsum.structures import AbstractStructure, BitCounts, BoundScores

#: Residuals are rounded to multiples of this before they are passed to the oracle. Sums of these multiples are exact, so
#: that ties remain ties, and rounding errors do not decide between atoms.
GRID = 2.0**-36
#: Residuals up to this are left as they are.
WIDE = 2.0**12
#: The score of the best bit beyond a limited number of them, where the scores of bits are shifted.
_ABOVE = 4.0
#: Sums of multiples of the grid up to this are exact, and so are differences of a few of them.
_EXACT = 2.0**15
#: The distance from 1 to the next float64.
_EPS = 2.0**-52


def centred(bound: BoundScores) -> Tensor:
    """The scores in float64, less what all assignments of a row have in common: (n_rows, n_parts), differentiable.

    With exactly one part of each group, this is the largest score of each group: a large score in one group then does not
    absorb those of another. For other assignments of a fixed size it is the largest score, for bits see `_level`.
    """
    structure, flat = bound.structure, bound.flat.double()
    if not flat.numel():
        return flat
    sizes, counts, lift = structure.group_sizes, structure.bit_counts(), None
    with torch.no_grad():
        if sizes is not None:
            pieces = flat.detach().split([tensor[0].numel() for tensor in bound.tensors], -1)
            peak = torch.cat([_peaks(piece, size) for piece, size in zip(pieces, sizes, strict=True)], -1)
        elif counts is not None and not counts.is_free(flat.shape[-1]):
            peak = _level(flat.detach(), counts)
            lift = None if counts.is_exact else torch.where(peak > 0, _ABOVE, 0.0)
        elif structure.is_fixed_size:
            peak = flat.detach().amax(-1, keepdim=True)
        else:
            return flat
        peak = torch.where(peak.isfinite(), peak, 0.0)
    # Not in one step: a large level less a small number is the level.
    return flat - peak if lift is None else flat - peak + lift


def _level(
    flat: Tensor,  # shape: (n_rows, n)
    counts: BitCounts,
) -> Tensor:
    """What can be subtracted from the scores of a limited number of bits: (n_rows, 1).

    With an exact number of bits, any number: the largest score, or that of the last of the best bits if it is far below.
    Otherwise the number of bits must still be at its limit, which holds as long as the best bit beyond has a score above 1:
    it is the score of this bit, and `_ABOVE` is added to the difference.
    """
    if counts.is_exact:
        peak = flat.amax(-1, keepdim=True)
        last = flat.topk(counts.most, -1).values[:, -1:] if counts.most else peak
        return torch.where(peak - last > WIDE, last, peak)
    beyond = flat.topk(counts.most + 1, -1).values[:, -1:]
    return torch.where(beyond > WIDE, beyond, 0.0)


def _peaks(
    flat: Tensor,  # shape: (n_rows, n_groups * size)
    size: int,
) -> Tensor:
    """The largest entry of each group, repeated: (n_rows, n_groups * size)."""
    groups: Tensor = flat.unflatten(-1, (-1, size))
    return groups.amax(-1).repeat_interleave(size, -1)


def relative_to(
    flat: Tensor,  # shape: (n_rows, n_parts)
    vectors: Tensor,  # shape: (n_rows, n_parts), 0/1, of an assignment of each row
    rows: BoundScores,
) -> Tensor:
    """The scores, less that of the assignment's part in each group, which the structure must have: (n_rows, n_parts)."""
    sizes = rows.structure.group_sizes
    assert sizes is not None
    widths = [tensor[0].numel() for tensor in rows.tensors]
    used = torch.where((vectors != 0) & flat.isfinite(), flat.detach(), 0.0).split(widths, -1)
    return flat - torch.cat([_totals(piece, size) for piece, size in zip(used, sizes, strict=True)], -1)


def _totals(
    flat: Tensor,  # shape: (n_rows, n_groups * size)
    size: int,
) -> Tensor:
    """The sum of each group, repeated: (n_rows, n_groups * size)."""
    groups: Tensor = flat.unflatten(-1, (-1, size))
    return groups.sum(-1).repeat_interleave(size, -1)


def without_swamps(
    residual: Tensor,  # shape: (n_rows, n_parts)
    mean: Tensor,  # shape: (n_rows, n_parts), of 0/1 vectors
    n_used: Tensor,  # shape: (n_rows, 1)
) -> Tensor:
    r"""Residuals beside which the others keep their digits: (n_rows, n_parts).

    Where the mean is 0 and the residual r is negative, or the mean is 1 and r is positive, a smaller residual s of the same
    sign does not hide a better assignment: :math:`(a_i - \mu_i)(r_i - s_i) \le 0` for all assignments a, so that the gap
    under s bounds that under r. These residuals are cut off where they still outweigh all others together.
    """
    size = residual.abs()
    is_settled = ((mean <= 0) & (residual < 0)) | ((mean >= 1) & (residual > 0))
    largest = size.masked_fill(is_settled, 0.0).amax(-1, keepdim=True)
    limit = (2 * n_used.clamp_min(1) * (largest + 1)).clamp_min(WIDE)
    return torch.where(is_settled & (size > limit), limit.copysign(residual), residual)


def snapped(residual: Tensor) -> Tensor:
    """Residuals as multiples of the grid."""
    return torch.round(residual / GRID) * GRID


class Doubted(NamedTuple):
    """Residuals that are in favour of a better assignment wherever rounding leaves a doubt."""

    residual: Tensor  # shape: (n_rows, n_parts)
    noise: Tensor  # shape: (n_rows,), the rounding errors that are left, per part


def doubted(
    residual: Tensor,  # shape: (n_rows, n_parts)
    mean: Tensor,  # shape: (n_rows, n_parts), of 0/1 vectors
    n_used: Tensor,  # shape: (n_rows, 1)
) -> Doubted:
    """Raise residuals where the mean is 0, and lower them where it is 1, by more than what the oracle's sums lose.

    If no assignment is better under these, none is under the true ones that differs from the mean in such a part. Errors
    that are left are those of parts in which the atoms differ, and of what they share with a better one.
    """
    residual = without_swamps(residual, mean, n_used)
    size, is_whole = residual.abs(), (mean <= 0) | (mean >= 1)
    shared = size.masked_fill(mean <= 0, 0.0)
    is_inexact = n_used * shared.amax(-1, keepdim=True) > _EXACT
    common = torch.where(is_inexact, _EPS * n_used * shared.sum(-1, keepdim=True), 0.0)
    error = 4 * _EPS * n_used.clamp_min(1) * size + common
    noise = 4 * _EPS * torch.where(is_inexact, n_used, 1.0) * size + common
    noise = noise.masked_fill(is_whole, 0.0).amax(-1).clamp_min(GRID)
    return Doubted(snapped(residual + torch.where(is_whole, error * (1 - 2 * mean), 0.0)), noise)


def hidden_by_unused(
    residual: Tensor,  # shape: (n_rows, n_parts)
    mean: Tensor,  # shape: (n_rows, n_parts), of 0/1 vectors
    n_used: Tensor,  # shape: (n_rows, 1)
) -> Tensor:
    """What an oracle may not see that adds up scores of parts that it would use, if others did not forbid it: (n_rows,)."""
    wanted = residual.masked_fill((mean > 0) | (residual < 0), 0.0)
    return _EPS * n_used.squeeze(-1) * wanted.sum(-1)


def n_used(
    structure: AbstractStructure,
    vectors: Tensor,  # shape: (n_rows, n_parts), 0/1, of an assignment of each row
) -> Tensor:
    """The largest number of residuals that `argmax` adds up, or 0 if it only compares bits: (n_rows, 1)."""
    total = vectors.sum(-1, keepdim=True)
    if structure.bit_counts() is not None:
        return torch.zeros_like(total)
    if structure.is_fixed_size:
        return total
    return torch.full_like(total, vectors.shape[-1] if structure.most_parts is None else structure.most_parts)
