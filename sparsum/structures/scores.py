"""Batches of scores, bound to their structure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import torch
from torch import Tensor

from sparsum.segments import Packed
from sparsum.simplex.arguments import divide_by_temperature

if TYPE_CHECKING:
    from sparsum.structures.abstract import AbstractStructure

#: A tensor, or a tuple of tensors for a structure with several kinds of parts, for example the tags and transitions of
#: `sparsum.Sequence`. An alias of Any, so that structures that only take tensors can annotate their methods with Tensor.
Scores: TypeAlias = Any

_SHOWN_ROWS = 5


class NoDistribution(ValueError):
    """Raised for rows of scores without a distribution: they contain a NaN or +inf, or forbid every assignment."""


@dataclass(frozen=True)
class BoundScores:
    """A batch of scores, checked, flattened into rows, and bound to its structure; returned by `AbstractStructure.bind`.

    >>> import sparsum as sp
    >>> bound = sp.Bits(3).bind(torch.zeros(2, 4, 3))
    >>> bound.n_rows, bound.batch_shape
    (8, torch.Size([2, 4]))

    Args:
        structure: the structure of these rows; if it has lengths, one for each row.
        tensors: the scores of each kind of part.
        batch_shape: the shape of the batch before flattening.
    """

    structure: AbstractStructure
    tensors: tuple[Tensor, ...]  # shape: (n_rows, *score_shape) each
    batch_shape: torch.Size

    @property
    def scores(self) -> Scores:
        """The rows in the form that the methods of structures take: a tensor, or a tuple of tensors."""
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

    @property
    def flat(self) -> Tensor:
        """All parts of each row, concatenated: (n_rows, n_parts)."""
        # A view needs no cache; `torch.compile` does not trace that of Python 3.11, which has a lock.
        return self._joined if len(self.tensors) > 1 else self.tensors[0].flatten(1)

    @cached_property
    def _joined(self) -> Tensor:
        return flatten(self.scores)

    def map(self, function: Callable[[Tensor], Tensor]) -> BoundScores:
        """Apply a function that keeps the number of rows to each tensor."""
        return dataclasses.replace(self, tensors=tuple(map(function, self.tensors)))

    def with_flat(
        self,
        flat: Tensor,  # shape: (n_rows, n_parts)
    ) -> BoundScores:
        """Replace the scores of all rows."""
        return dataclasses.replace(self, tensors=as_tuple(unflatten(flat, self.scores)))

    def select(
        self,
        index: Tensor,  # shape: (n,), int64
    ) -> BoundScores:
        """Select rows as a new one-dimensional batch."""
        tensors = tuple(tensor[index] for tensor in self.tensors)
        return BoundScores(self.structure.select(index), tensors, torch.Size([len(index)]))

    def split(self, size: int) -> list[BoundScores]:
        """Consecutive rows, at most ``size`` at a time."""
        index = torch.arange(self.n_rows, device=self.device).split(size)
        tensors = zip(*(tensor.split(size) for tensor in self.tensors), strict=True)
        return [
            BoundScores(self.structure.select(rows), each, torch.Size([len(rows)]))
            for rows, each in zip(index, tensors, strict=True)
        ]

    def row(self, n_each: int) -> Tensor:
        """The row of each atom if every row has ``n_each`` atoms: (n_rows * n_each,)."""
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
        """Reshape one value per row to the batch shape: (*batch_shape, *rest)."""
        return values.reshape(self.batch_shape + values.shape[1:])

    @property
    def is_unusable(self) -> Tensor:
        """Which rows contain a NaN or +inf: (n_rows,)."""
        return ~(self.flat < torch.inf).all(-1)

    def pack(
        self,
        is_kept: Tensor,  # shape: (n_rows, width), bool
        is_bad: Tensor,  # shape: (n_rows,), bool
        *,
        most: int | None = None,
    ) -> Packed:
        """Pack the entries to keep, at most ``most`` in each row; costs the only host-device synchronization.

        Raises:
            NoDistribution: if there are bad rows; the message describes their scores.
        """
        most = None if most is None else most * self.n_rows
        return Packed.of(is_kept, is_bad=is_bad, on_bad=self.raise_bad, most=most)

    def raise_bad(
        self,
        is_bad: Tensor,  # shape: (n_rows,), bool
    ) -> NoReturn:
        """Raise a `NoDistribution` that names the bad rows and describes their scores."""
        flat, bad = self.flat.detach(), is_bad.nonzero().squeeze(-1).tolist()
        kinds = [f"row {row} {_what_is_wrong(flat[row])}" for row in bad[:_SHOWN_ROWS]]
        more = f" and {len(bad) - _SHOWN_ROWS} more" if len(bad) > _SHOWN_ROWS else ""
        raise NoDistribution(f"scores must define a distribution in every row; {', '.join(kinds)}{more} (of {len(is_bad)})")


def _what_is_wrong(row: Tensor) -> str:
    if bool(row.isnan().any()):
        return "has a NaN"
    return "has +inf" if bool((row == torch.inf).any()) else "forbids every assignment"


def as_tuple(scores: Scores) -> tuple[Tensor, ...]:
    """The tensors of scores, as a tuple."""
    return scores if isinstance(scores, tuple) else (scores,)


def flatten(
    scores: Scores,  # shape: (n, *score_shape) each
) -> Tensor:
    """All parts of each row, concatenated: (n, n_parts)."""
    tensors = [tensor.flatten(1) for tensor in as_tuple(scores)]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, -1)


def unflatten(
    flat: Tensor,  # shape: (n, n_parts)
    like: Scores,
) -> Scores:
    """Inverse of `flatten`: convert rows of parts to the form of ``like``; the numbers of rows may differ."""
    shapes = [tensor.shape[1:] for tensor in as_tuple(like)]
    pieces = flat.split([shape.numel() for shape in shapes], -1) if len(shapes) > 1 else (flat,)
    tensors = tuple(piece.reshape(len(flat), *shape) for piece, shape in zip(pieces, shapes, strict=True))
    return tensors if isinstance(like, tuple) else tensors[0]


def check_atoms(structure: AbstractStructure, atoms: Tensor, n_rows: int) -> None:
    """Raise a ValueError unless `argmax` has returned one atom per row."""
    if atoms.shape[:1] != (n_rows,):
        raise ValueError(
            f"argmax of {structure!r} must return one atom for each of the {n_rows} rows of scores, got shape "
            f"{tuple(atoms.shape)}; define score_shape if an example's scores have more than one dimension"
        )


def check_vectors(structure: AbstractStructure, vectors: Scores, n_parts: int) -> None:
    """Raise a ValueError unless the flattened vectors of a structure have the number of parts of its scores."""
    n_seen = flatten(vectors).shape[-1] if as_tuple(vectors)[0].ndim > 1 else 1
    if n_seen != n_parts:
        raise ValueError(
            f"vectors of {structure!r} must have {n_parts} entries, one for each score, got {n_seen}; define vectors(atoms) "
            "if an atom is not its own vector"
        )


def masked(scores: Scores, mask: Scores) -> Scores:
    """Set scores to -inf where the mask is False; if scores are a tuple, entries of the mask may be None or missing."""
    tensors, masks = as_tuple(scores), as_tuple(mask)
    if len(masks) > len(tensors):
        raise ValueError(f"mask must have at most as many tensors as scores, {len(tensors)}, got {len(masks)}")
    results = list(tensors)
    for i, (tensor, part) in enumerate(zip(tensors, masks, strict=False)):
        if part is not None:
            results[i] = _masked(tensor, part)
            # Transitions may gain the dimensions of the batch, which they need not have.
            if i == 0 and results[i].shape != tensor.shape:
                raise ValueError(_mask_message(tensor, part))
    return tuple(results) if isinstance(scores, tuple) else results[0]


def _masked(tensor: Tensor, mask: Tensor) -> Tensor:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a tensor of dtype torch.bool, True where a part is allowed, got {kind}")
    try:
        return torch.where(mask, tensor, -torch.inf)
    except RuntimeError:
        raise ValueError(_mask_message(tensor, mask)) from None


def _mask_message(tensor: Tensor, mask: Tensor) -> str:
    return f"mask must broadcast to the shape of scores, {tuple(tensor.shape)}, got {tuple(mask.shape)}"


def divided(bound: BoundScores, temperature: float | Tensor) -> BoundScores:
    """Divide the scores by a temperature: a positive number, or a tensor that broadcasts to the batch.

    Half-precision scores become float32, since their quotients may overflow.
    """
    if isinstance(temperature, Tensor):
        try:
            temperature = temperature.expand(bound.batch_shape).reshape(bound.n_rows)
        except RuntimeError:
            seen = f"got {tuple(temperature.shape)}"
            raise ValueError(f"temperature must broadcast to the batch shape, {tuple(bound.batch_shape)}, {seen}") from None
    return bound.map(lambda tensor: divide_by_temperature(tensor.flatten(1), temperature, -1).view(tensor.shape))
