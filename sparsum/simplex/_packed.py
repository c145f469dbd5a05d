"""Sparsemax straight to its support: no dense probabilities where the rows are long."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparsum.simplex._arguments import compute_dtype
from sparsum.simplex._blocks import Packed, block_peaks, reads_in_blocks, solve_long, support
from sparsum.simplex._solve import solve


def packed_sparsemax(
    x: Tensor,  # shape: (n_rows, n)
) -> tuple[Packed, Tensor, int]:
    """The support of `sparsemax` of each row, its probabilities, differentiable and in the dtype of ``x``, and a count.

    A row of nothing but -inf, or with a NaN, has no entries; the count is that of such rows.
    """
    scores = x.to(compute_dtype(x))
    with torch.no_grad():
        packed, value, n_empty = _find(scores.detach())  # no_grad alone would let forward-mode tangents through
    # The value without gradient, plus the derivative applied to zero: on the support, it is the change minus its mean.
    chosen = scores.reshape(-1).index_select(0, packed.flat)
    change = torch.where(chosen.isfinite(), chosen - chosen.detach(), 0.0)
    mean = packed.segments.sum(change) / packed.segments.lengths.clamp_min(1)
    return packed, (value + change - packed.segments.spread(mean)).to(x.dtype), n_empty


def _find(scores: Tensor) -> tuple[Packed, Tensor, int]:
    if reads_in_blocks(scores) and scores.numel() > 0:
        peaks = block_peaks(scores)
        found = solve_long(scores.contiguous(), peaks, 1) if math.isfinite(peaks.amax(-1).sum().item()) else None
        if found is not None:
            candidates, probs = found
            is_support = probs > 0
            return candidates.select(is_support), probs[is_support], 0
    probs = solve(scores, 2.0)
    packed, n_empty = support(probs)
    return packed, probs.reshape(-1)[packed.flat], n_empty
