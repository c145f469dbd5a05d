"""Sums and sampling in log space, where a very low number represents forbidden entries instead of -inf."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.tensors import at_least_float32, number

#: Replaces -inf, so that differences of infinities do not become NaN; sums of many of them fit into float32.
FORBIDDEN = -1e30
#: The same in float64, below all sums of scores that were given in float32.
_FORBIDDEN_DOUBLE = -1e300


def forbidden(dtype: torch.dtype) -> float:
    """The number that replaces -inf in a dtype."""
    return _FORBIDDEN_DOUBLE if dtype == torch.float64 else FORBIDDEN


def draw(
    probs: Tensor,  # shape: (m, n_choices)
    uniform: Tensor,  # shape: (m, n), float64
) -> Tensor:
    """Sample choices by inverting the cumulative probabilities; choices of probability 0 are never drawn: (m, n), int64."""
    return draw_bits(probs, uniform).long() if probs.shape[-1] == 2 else _search(probs, uniform)


def draw_bits(
    probs: Tensor,  # shape: (m, 2)
    uniform: Tensor,  # shape: (m, n), float64
) -> Tensor:
    """`draw` from two choices, which does not need a search: whether it is the second one, (m, n)."""
    ends = probs.detach().double().cumsum(-1)
    end, total = ends[:, :1], ends[:, 1:]
    return uniform * total >= torch.where(end < total, end, number(torch.inf, end))


def _search(probs: Tensor, uniform: Tensor) -> Tensor:
    ends = probs.detach().double().cumsum(-1)
    total = ends[:, -1:]
    # A product that rounds up to the total would fall beyond the last choice with mass.
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(ends, target, right=True).clamp_max(probs.shape[-1] - 1)


def finite(scores: Tensor) -> Tensor:
    """Convert scores to at least float32, and clamp them at `forbidden`, with zero gradient below; NaN is kept."""
    scores = at_least_float32(scores)
    least = forbidden(scores.dtype)
    return torch.where(scores < least, number(least, scores), scores)


def infinite(log_probs: Tensor) -> Tensor:
    """Set forbidden log-probabilities to -inf; NaN is kept."""
    return torch.where(log_probs < forbidden(log_probs.dtype) / 2, number(-torch.inf, log_probs), log_probs)


def weighted(values: Tensor, probs: Tensor, least: float = 0.0) -> Tensor:
    """Multiply values by probabilities; 0 where a probability is at most ``least``, even if the value is infinite."""
    is_infinite, is_used = values == torch.inf, probs.abs() > least
    # Insert infinity last, because 0 * inf is NaN, also in backward.
    product = probs * torch.where(is_used & ~is_infinite, values, 0.0)
    return torch.where(is_used & is_infinite, torch.inf, product)


def take(table: Tensor, places: Tensor) -> Tensor:
    """Gather from a flattened table: indexing has a deterministic gradient on a GPU, `index_select` is fast on a CPU."""
    flat = table.reshape(-1)
    return flat[places] if table.is_cuda else flat.index_select(0, places.flatten()).view_as(places)


def shifted(
    scores: Tensor,  # shape: (*lead, *dims)
    dims: tuple[int, ...] | int = -1,
) -> tuple[Tensor, Tensor]:
    """Shift scores to a maximum of 0 over ``dims`` and make them `finite`; also returns the maximum, with keepdim.

    This way, low scores only count as forbidden if they are far below other scores.
    """
    scores = at_least_float32(scores)
    peak = scores.detach().amax(dims, keepdim=True)
    peak = torch.where(peak.isfinite(), peak, number(0.0, peak))
    return finite(scores - peak), peak
