"""Sums and draws in log space, where what is forbidden is a very low number instead of -inf."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.tensors import at_least_float32

#: Stands for -inf, so that no difference of infinities makes a NaN; sums of many fit into float32.
FORBIDDEN = -1e30


def draw(
    probs: Tensor,  # shape: (m, n_choices)
    uniform: Tensor,  # shape: (m, n), float64
) -> Tensor:
    """The choices at which cumulated probabilities pass uniform numbers, never one of probability 0: (m, n)."""
    ends = probs.detach().double().cumsum(-1)
    total = ends[:, -1:]
    # A product that rounds up to the total would lie behind the last choice that has mass.
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    if probs.shape[-1] == 2:  # a bit needs no search
        return (target >= ends[:, :1]).long()
    return torch.searchsorted(ends, target, right=True).clamp_max(probs.shape[-1] - 1)


def finite(scores: Tensor) -> Tensor:
    """Scores in float32 at least, none below `FORBIDDEN`, which gets no gradient; a NaN stays."""
    scores = at_least_float32(scores)
    return torch.where(scores < FORBIDDEN, FORBIDDEN, scores)


def infinite(log_probs: Tensor) -> Tensor:
    """Log-probabilities with a true -inf for what is forbidden; a NaN stays."""
    return torch.where(log_probs < FORBIDDEN / 2, -torch.inf, log_probs)


def weighted(values: Tensor, probs: Tensor, least: float = 0.0) -> Tensor:
    """The products of values and probabilities, 0 where these are at most ``least``; values may be infinite."""
    is_infinite, is_used = values == torch.inf, probs.abs() > least
    # Infinity comes in last, because 0 times it is a NaN, also in backward.
    product = probs * torch.where(is_used & ~is_infinite, values, 0.0)
    return torch.where(is_used & is_infinite, torch.inf, product)


def take(table: Tensor, places: Tensor) -> Tensor:
    """Entries of a flattened table; of two ways, the one whose gradient is deterministic on a GPU, or fast on a CPU."""
    flat = table.reshape(-1)
    return flat[places] if table.is_cuda else flat.index_select(0, places.flatten()).view_as(places)


def shifted(
    scores: Tensor,  # shape: (*lead, *dims)
    dims: tuple[int, ...] | int = -1,
) -> tuple[Tensor, Tensor]:
    """Scores as `finite` ones with a maximum of 0 over some dimensions, and that maximum, kept as dimensions of size 1.

    However low scores are, only those far below others count as forbidden.
    """
    scores = at_least_float32(scores)
    peak = scores.detach().amax(dims, keepdim=True)
    peak = torch.where(peak.isfinite(), peak, 0.0)
    return finite(scores - peak), peak
