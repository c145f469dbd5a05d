"""Scores of a batch, bound to their structure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import torch
from torch import Tensor

from sparsum.arguments import check_number
from sparsum.segments import Packed

if TYPE_CHECKING:
    from sparsum.structures.abstract import AbstractStructure

#: A tensor, or a tuple of tensors for a structure with parts of several kinds, such as the tags and transitions of
#: `sparsum.Sequence`. It is Any for type checkers, so that a structure that takes tensors alone may say so.
Scores: TypeAlias = Any

_SHOWN_ROWS = 5


class NoDistribution(ValueError):
    """Rows of scores that have no distribution: they hold a NaN or +inf, or forbid every assignment."""


@dataclass(frozen=True)
class BoundScores:
    """A batch of scores, checked, flattened into rows, and bound to its structure: what `AbstractStructure.bind` returns.

    >>> import sparsum as sp
    >>> bound = sp.Bits(3).bind(torch.zeros(2, 4, 3))
    >>> bound.n_rows, bound.batch_shape
    (8, torch.Size([2, 4]))

    Args:
        structure: the structure of these rows; one with lengths has one length for each row.
        tensors: the scores of each kind of part.
        batch_shape: the shape of the batch before it was flattened.
    """

    structure: AbstractStructure
    tensors: tuple[Tensor, ...]  # shape: (n_rows, *score_shape) each
    batch_shape: torch.Size

    @property
    def scores(self) -> Scores:
        """The rows in the form that the methods of structures take: a tensor, or a tuple of several."""
        return self.tensors[0] if len(self.tensors) == 1 else self.tensors

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(self.tensors[0])

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the scores."""
        return self.tensors[0].dtype

    @property
    def device(self) -> torch.device:
        """The device of the scores."""
        return self.tensors[0].device

    @cached_property
    def flat(self) -> Tensor:
        """All parts of each row next to each other: (n_rows, n_parts)."""
        return flatten(self.scores)

    def map(self, function: Callable[[Tensor], Tensor]) -> BoundScores:
        """Apply a function to each tensor, which keeps its rows."""
        return dataclasses.replace(self, tensors=tuple(map(function, self.tensors)))

    def with_flat(
        self,
        flat: Tensor,  # shape: (n_rows, n_parts)
    ) -> BoundScores:
        """The same rows with other scores."""
        return dataclasses.replace(self, tensors=as_tuple(unflatten(flat, self.scores)))

    def select(
        self,
        index: Tensor,  # shape: (n,), int64
    ) -> BoundScores:
        """Some of the rows, as a batch of their own."""
        tensors = tuple(tensor[index] for tensor in self.tensors)
        return BoundScores(self.structure.select(index), tensors, torch.Size([len(index)]))

    def row(self, n_each: int) -> Tensor:
        """The row of each of ``n_each`` atoms per row: (n_rows * n_each,)."""
        rows = torch.arange(self.n_rows, device=self.device)
        return rows.repeat_interleave(n_each, output_size=self.n_rows * n_each)

    def argmax(self) -> Tensor:
        """The best atom of each row: (n_rows, *event_shape)."""
        return self.structure.argmax(self.scores)

    def kbest(self, k: int) -> tuple[Tensor, Tensor]:
        """The k best atoms of each row, (n_rows, n_best, *event_shape), and which are allowed, (n_rows, n_best)."""
        return self.structure.kbest(self.scores, k)

    def score(
        self,
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
        row: Tensor,  # shape: (n_atoms,)
    ) -> Tensor:
        """The score of each atom under the scores of its row, differentiable: (n_atoms,)."""
        return self.structure.score(self.scores, atoms, row)

    def shaped(
        self,
        values: Tensor,  # shape: (n_rows, *rest)
    ) -> Tensor:
        """A value per row in the shape of the batch: (*batch_shape, *rest)."""
        return values.reshape(self.batch_shape + values.shape[1:])

    @property
    def is_unusable(self) -> Tensor:
        """Which rows hold a NaN or +inf: (n_rows,)."""
        return ~(self.flat < torch.inf).all(-1)

    def pack(
        self,
        is_kept: Tensor,  # shape: (n_rows, width), bool
        is_bad: Tensor,  # shape: (n_rows,), bool
        *,
        most: int | None = None,
    ) -> Packed:
        """Pack the entries that are kept, at most ``most`` in each row; the one wait for the device.

        Raises:
            NoDistribution: if rows are bad; it says what is wrong with their scores.
        """
        most = None if most is None else most * self.n_rows
        return Packed.of(is_kept, is_bad=is_bad, on_bad=self.raise_bad, most=most)

    def raise_bad(
        self,
        is_bad: Tensor,  # shape: (n_rows,), bool
    ) -> NoReturn:
        """Raise a `NoDistribution` that names rows and what is wrong with them."""
        flat, bad = self.flat.detach(), is_bad.nonzero().squeeze(-1).tolist()
        kinds = [f"row {row} {_what_is_wrong(flat[row])}" for row in bad[:_SHOWN_ROWS]]
        more = f" and {len(bad) - _SHOWN_ROWS} more" if len(bad) > _SHOWN_ROWS else ""
        raise NoDistribution(f"scores must give every row a distribution; {', '.join(kinds)}{more} (of {len(is_bad)})")


def _what_is_wrong(row: Tensor) -> str:
    if bool(row.isnan().any()):
        return "has a NaN"
    return "has +inf" if bool((row == torch.inf).any()) else "allows nothing"


def as_tuple(scores: Scores) -> tuple[Tensor, ...]:
    """The tensors that scores consist of."""
    return scores if isinstance(scores, tuple) else (scores,)


def flatten(
    scores: Scores,  # shape: (n, *score_shape) each
) -> Tensor:
    """All parts of each row next to each other: (n, n_parts)."""
    tensors = [tensor.flatten(1) for tensor in as_tuple(scores)]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, -1)


def unflatten(
    flat: Tensor,  # shape: (n, n_parts)
    like: Scores,
) -> Scores:
    """The inverse of `flatten`: rows of parts in the form of other scores, with any number of rows."""
    shapes = [tensor.shape[1:] for tensor in as_tuple(like)]
    pieces = flat.split([shape.numel() for shape in shapes], -1) if len(shapes) > 1 else (flat,)
    tensors = tuple(piece.reshape(len(flat), *shape) for piece, shape in zip(pieces, shapes, strict=True))
    return tensors if isinstance(like, tuple) else tensors[0]


def masked(scores: Scores, mask: Scores) -> Scores:
    """The scores with -inf where the mask is False; of a tuple, an entry of the mask may be None or missing."""
    tensors, masks = as_tuple(scores), as_tuple(mask)
    if len(masks) > len(tensors):
        raise ValueError(f"mask must have at most one tensor for each of the {len(tensors)} of scores, got {len(masks)}")
    results = list(tensors)
    for i, (tensor, part) in enumerate(zip(tensors, masks, strict=False)):
        if part is not None:
            results[i] = _masked(tensor, part)
    return tuple(results) if isinstance(scores, tuple) else results[0]


def _masked(tensor: Tensor, mask: Tensor) -> Tensor:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a tensor of dtype torch.bool, True where a part is allowed, got {kind}")
    try:
        return torch.where(mask, tensor, -torch.inf)
    except RuntimeError:
        seen = f"got {tuple(mask.shape)}"
        raise ValueError(f"mask must broadcast to the shape of scores, {tuple(tensor.shape)}, {seen}") from None


def divided(bound: BoundScores, temperature: float | Tensor) -> BoundScores:
    """The scores over a temperature: a positive number, or a tensor that broadcasts to the batch."""
    if not isinstance(temperature, Tensor):
        check_number("temperature", temperature, above=0.0)
        return bound.map(lambda tensor: tensor / temperature)
    try:
        per_row = temperature.expand(bound.batch_shape).reshape(bound.n_rows)
    except RuntimeError:
        seen = f"got {tuple(temperature.shape)}"
        raise ValueError(f"temperature must broadcast to the batch, {tuple(bound.batch_shape)}, {seen}") from None
    return bound.map(lambda tensor: tensor / per_row.reshape(-1, *[1] * (tensor.ndim - 1)).to(tensor.dtype))
