"""Charts of spans: sums or maxima over all ways to build long spans from shorter ones, all spans of a width at once.

A table holds one value per span, by width: entry [d, i] is the span from i to i + d. Tables grow by one width at a time,
without operations in place, so that they are differentiable any number of times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.structures.log_space import draw, finite

#: Replaces -inf in the search for a best tree; sums of many do not overflow.
_FORBIDDEN = -1e300
_LOWEST = -1e290

#: Reduces terms over dimension 1: `torch.logsumexp` or `torch.amax`.
Reduce = Callable[[Tensor, int], Tensor]
#: Chooses one of the terms of each row, (m, n): (m,).
Choose = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class SpanTable:
    """Values of all spans up to some width, by their first and by their last position; what is outside is 0."""

    by_first: Tensor  # shape: (n_rows, n_widths, n), the span from i to i + d at [d, i]
    by_last: Tensor  # shape: (n_rows, n_widths, n), the span from j - d to j at [d, j]

    @classmethod
    def of(
        cls,
        values: Tensor,  # shape: (n_rows, n)
    ) -> SpanTable:
        """The spans of width 0."""
        return cls(values.unsqueeze(1), values.unsqueeze(1))

    def extended(
        self,
        values: Tensor,  # shape: (n_rows, n - width)
    ) -> SpanTable:
        """Add the spans of the next width."""
        width = self.by_first.shape[1]
        first, last = (torch.nn.functional.pad(values, sides).unsqueeze(1) for sides in ((0, width), (width, 0)))
        return SpanTable(torch.cat([self.by_first, first], 1), torch.cat([self.by_last, last], 1))

    def square(self) -> Tensor:
        """The value of the span from i to j at [i, j], for i <= j: (n_rows, n, n)."""
        n = self.by_first.shape[-1]
        position = torch.arange(n, device=self.by_first.device)
        width = (position - position.unsqueeze(1)).clamp_min(0)
        return self.by_first[:, width, position.unsqueeze(1)]


def splits(
    left: Tensor,  # shape: (n_rows, n_widths, n), by first position, narrowest first
    right: Tensor,  # shape: (n_rows, n_widths, n), by last position, narrowest first
    width: int,
) -> Tensor:
    """All sums of a left and a right part for the spans of a width: (n_rows, n_widths, n - width)."""
    return left[..., : left.shape[-1] - width] + right.flip(1)[..., width:]


def log_sum(terms: Tensor, dim: int) -> Tensor:
    """`torch.logsumexp`, as a `Reduce`."""
    return terms.logsumexp(dim)


def best(terms: Tensor, dim: int) -> Tensor:
    """`torch.amax`, as a `Reduce`."""
    return terms.amax(dim)


def first_best(terms: Tensor) -> Tensor:
    """Choose the best term, the first one on ties."""
    return terms.argmax(-1)


def drawn(generator: torch.Generator | None) -> Choose:
    """Choose terms with probabilities proportional to their exponentials."""

    def choose(terms: Tensor) -> Tensor:
        uniform = torch.rand(len(terms), 1, dtype=torch.float64, device=terms.device, generator=generator)
        return draw(terms.softmax(-1), uniform).squeeze(-1)

    return choose


def choose_within(terms: Tensor, first: Tensor, last: Tensor, choose: Choose) -> Tensor:
    """Choose among the terms, (m, n), from first to last, (m,) each: (m,)."""
    position = torch.arange(terms.shape[-1], device=terms.device)
    is_inside = (position >= first.unsqueeze(-1)) & (position <= last.unsqueeze(-1))
    chosen = choose(torch.where(is_inside, terms, -torch.inf))
    return torch.minimum(torch.maximum(chosen, first), last)  # NaN and sums that overflow, too, give some tree


def bounded(scores: Tensor) -> Tensor:
    """Scores in float64 for the search of a best tree: a forbidden part is worse than any sum of allowed ones."""
    wide = scores.double()
    return torch.where(wide == -torch.inf, _FORBIDDEN, wide.clamp_min(_LOWEST))


def log_weights(scores: Tensor) -> Tensor:
    """Scores in float64 for sums over all trees: finite."""
    return finite(scores.double())


class Stack:
    """The spans that each of m traversals still has to split; positions of a span, and what else there is to know."""

    def __init__(
        self,
        first: Tensor,  # shape: (m, n_fields), what each traversal starts from
        depth: int,
    ) -> None:
        self.items = first.new_zeros(len(first), depth, first.shape[1])
        self.items[:, 0] = first
        self.size = torch.ones_like(first[:, 0])
        self.row = torch.arange(len(first), device=first.device)

    def pop(self) -> tuple[Tensor, Tensor]:
        """The last item of each traversal, (m, n_fields), and whether there was one, (m,)."""
        is_there = self.size > 0
        self.size = (self.size - 1).clamp_min(0)
        return self.items[self.row, self.size], is_there

    def push(
        self,
        is_pushed: Tensor,  # shape: (m,)
        *fields: Tensor,  # shape: (m,) each
    ) -> None:
        """Add an item to some of the traversals."""
        self.items[self.row, self.size] = torch.stack(fields, -1)  # where it is not pushed, the next one overwrites it
        self.size = self.size + is_pushed
