"""Base class of sequences, trees and matchings: one choice at each position, and examples of different sizes."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from sparsum.arguments import check_int
from sparsum.segments import Segments
from sparsum.structures.abstract import AbstractStructure
from sparsum.structures.lawler import kbest
from sparsum.structures.scores import BoundScores, Scores
from sparsum.tensors import tensor_cache


@dataclass(frozen=True)
class AbstractSized(AbstractStructure):
    """One of several choices at each position; with ``lengths``, some examples have fewer positions.

    Positions beyond an example's length are padding: their choice is 0 and, whatever their scores, they contribute 0 to the
    score of an assignment, to the vectors and to the marginals. In bound scores, padding has a score of 0 for choice 0 and
    -inf for other choices.

    With ``lengths``, the vectors of atoms depend on the row: `vectors` takes one atom for each row of the structure. The
    vectors of packed atoms are ``structure.select(row).vectors(atoms)``.
    """

    #: The length of each example: an int64 tensor in the shape of the batch. Lists of ints are converted to a tensor; the
    #: type is Any because a dataclass field has the same type for the argument and the attribute.
    lengths: Any = field(default=None, kw_only=True, repr=False, compare=False)  # shape: batch_shape

    is_fixed_size = True
    #: Whether the number of choices of an example shrinks along with its number of positions.
    has_fewer_choices: ClassVar[bool] = True

    @property
    @abstractmethod
    def score_shape(self) -> tuple[int, int]:
        """The numbers of positions and of choices."""

    @property
    def group_size(self) -> int | None:
        """One choice is made at each position."""
        return self.score_shape[1]

    @abstractmethod
    def _best(
        self,
        rows: Scores,  # shape: (n_rows, n_positions, n_choices)
    ) -> Tensor:
        """The best atom of each row: (n_rows, n_positions)."""

    def __post_init__(self) -> None:
        if self.lengths is None:
            return
        object.__setattr__(self, "lengths", as_lengths(self.lengths))
        most, is_wrong = self.score_shape[0], (self.lengths < 1) | (self.lengths > self.score_shape[0])
        if bool(is_wrong.any()):
            raise ValueError(f"lengths must be from 1 to {most}, got {self.lengths[is_wrong][:5].tolist()}")

    def argmax(
        self,
        scores: Scores,  # shape: (*batch, n_positions, n_choices)
    ) -> Tensor:
        """The best assignment; it has a score of -inf if every assignment is forbidden: (*batch, n_positions)."""
        self.check_scores(scores)
        structure, bound = self._bound(scores)
        with torch.no_grad():
            return bound.shaped(structure._best(bound.scores))

    def topk(
        self,
        scores: Scores,  # shape: (*batch, n_positions, n_choices)
        k: int,
    ) -> Tensor:
        """The k best assignments, best first: (*batch, min(k, number of assignments), n_positions).

        If fewer assignments are allowed, atoms with a score of -inf fill the rest. An example that has too few assignments
        because of its length may repeat its last atom instead; `kbest` returns which atoms are allowed.
        """
        check_int("k", k, least=1)
        self.check_scores(scores)
        structure, bound = self._bound(scores)
        with torch.no_grad():
            return bound.shaped(structure._best_k(bound, k))

    def _best_k(self, bound: BoundScores, k: int) -> Tensor:
        """The k best atoms of each row: (n_rows, n_best, n_positions)."""
        return kbest(bound, k)

    def vectors(
        self,
        atoms: Tensor,  # shape: (n_atoms, n_positions)
    ) -> Scores:
        """One-hot choices, and zeros for padding: (n_atoms, n_positions, n_choices)."""
        vectors, place = torch.zeros(*atoms.shape, self.score_shape[1], device=atoms.device), atoms.unsqueeze(-1)
        if self.lengths is None:
            return vectors.scatter_(-1, place, 1.0)
        return vectors.scatter_(-1, place, (~self._is_padding(atoms)).unsqueeze(-1).to(vectors.dtype))

    def parts(
        self,
        atoms: Tensor,  # shape: (n_atoms, n_positions)
    ) -> Tensor | None:
        """The index of the choice at each position: (n_atoms, n_positions)."""
        parts = self._parts(atoms, torch.zeros_like(atoms[:, 0]))
        if self.lengths is None:
            return parts
        return parts.masked_fill(self._is_padding(atoms), self.score_shape[0] * self.score_shape[1])

    def check_scores(self, scores: Scores) -> None:
        """Raise unless scores have shape (*batch, n_positions, n_choices) and lengths have the shape of the batch."""
        super().check_scores(scores)
        if self.lengths is not None and self.lengths.shape != scores.shape[:-2]:
            seen = f"got {tuple(self.lengths.shape)} for scores of shape {tuple(scores.shape)}"
            raise ValueError(f"lengths must have the shape of the batch, {tuple(scores.shape[:-2])}, {seen}")

    def _bind(self, scores: Scores) -> BoundScores:
        return self._bound(scores)[1]

    def _bound(
        self,
        scores: Scores,  # shape: (*batch, n_positions, n_choices)
    ) -> tuple[Self, BoundScores]:
        """Flatten the batch, and force choice 0 with a score of 0 in padding; returns the rows' structure and scores."""
        flat, batch_shape = scores.reshape(-1, *self.score_shape), scores.shape[:-2]
        if self.lengths is None:
            return self, BoundScores(self, (flat,), batch_shape)
        lengths = self.lengths.reshape(-1).to(scores.device)
        structure = self._with(lengths=lengths)
        choice = torch.arange(self.score_shape[1], device=scores.device)
        if self.has_fewer_choices:
            n_choices = lengths + (self.score_shape[1] - self.score_shape[0])
            flat = torch.where(choice < n_choices[:, None, None], flat, -torch.inf)
        forced = torch.where(choice == 0, 0.0, -torch.inf).to(flat.dtype)
        flat = torch.where(structure._is_padding(flat).unsqueeze(-1), forced, flat)
        return structure, BoundScores(structure, (flat,), batch_shape)

    def select(
        self,
        index: Tensor,  # shape: (n,), int64
    ) -> Self:
        """The structure of the given rows."""
        return self if self.lengths is None else self._with(lengths=of_rows(self.lengths, index))

    def padding(self) -> Tensor | None:
        """All choices of padded positions: (n_rows, n_positions * n_choices)."""
        if self.lengths is None:
            return None
        return self._is_padding(self.lengths).repeat_interleave(self.score_shape[1], -1)

    def score(
        self,
        scores: Scores,  # shape: (n_rows, n_positions, n_choices)
        atoms: Tensor,  # shape: (n_atoms, n_positions)
        row: Tensor,  # shape: (n_atoms,)
    ) -> Tensor:
        """The score of each atom, computed without one-hot vectors: (n_atoms,)."""
        terms: Tensor = scores.reshape(-1)[self._parts(atoms, row)]
        if self.lengths is not None:
            forced = torch.where(atoms == 0, 0.0, -torch.inf).to(terms.dtype)
            terms = torch.where(self.select(row)._is_padding(atoms), forced, terms)
        return terms.sum(-1)

    def marginals(
        self,
        atoms: Tensor,  # shape: (n_atoms, n_positions)
        probs: Tensor,  # shape: (n_atoms,)
        segments: Segments,
    ) -> Scores:
        """The probability of each choice, computed without one-hot vectors: (n_rows, n_positions, n_choices)."""
        dense = probs.new_zeros(segments.n_rows, *self.score_shape)
        mass = probs.unsqueeze(-1).expand(atoms.shape)
        if self.lengths is not None:
            mass = torch.where(self.select(segments.row)._is_padding(atoms), 0.0, mass)
        # accumulate=True sorts on a GPU, which makes it deterministic
        flat = dense.reshape(-1).index_put((self._parts(atoms, segments.row),), mass, accumulate=True)
        return flat.view(dense.shape)

    def _is_in_range(
        self,
        atoms: Tensor,  # shape: (n, n_positions)
    ) -> Tensor:
        """Whether all choices are integers in their range, and 0 for padding: (n,)."""
        most = torch.full(atoms.shape, self.score_shape[1] - 1, device=atoms.device)
        if self.lengths is not None:
            if self.has_fewer_choices:
                most = (most + (self.lengths.to(atoms.device) - self.score_shape[0]).unsqueeze(-1)).expand(atoms.shape)
            most = most.masked_fill(self._is_padding(atoms), 0)
        return ((atoms >= 0) & (atoms <= most) & (atoms == atoms.long())).all(-1)

    def _parts(self, atoms: Tensor, row: Tensor) -> Tensor:
        """The positions of each atom's choices in the flattened scores: (n_atoms, n_positions)."""
        n_positions, n_choices = self.score_shape
        position = torch.arange(n_positions, device=atoms.device)
        return (row.unsqueeze(-1) * n_positions + position) * n_choices + atoms.long()

    def _is_padding(self, rows: Tensor) -> Tensor:
        """Which positions of rows or atoms are padding, on their device: (n, n_positions)."""
        n = len(rows)
        lengths: Tensor = self.lengths.to(rows.device)
        if lengths.shape not in {(n,), (1,)}:
            seen = f"{n} rows or atoms, and lengths of shape {tuple(lengths.shape)}"
            raise ValueError(
                f"lengths must have one entry for each row, got {seen}; for packed atoms, use structure.select(row)"
            )
        position = torch.arange(self.score_shape[0], device=lengths.device)
        return (position >= lengths.unsqueeze(-1)).expand(n, -1)

    def _with(self, **changes: object) -> Self:
        """Replace fields without the checks of `dataclasses.replace`, which would synchronize with the device."""
        changed = copy.copy(self)
        for name, value in changes.items():
            object.__setattr__(changed, name, value)
        return changed


@tensor_cache
def full_lengths(n_rows: int, length: int, device: torch.device) -> Tensor:
    """The same length for all rows: (n_rows,)."""
    return torch.full((n_rows,), length, device=device)


def of_rows(
    lengths: Tensor,  # shape: (n_rows, ...)
    index: Tensor,  # shape: (n,)
) -> Tensor:
    """The lengths of some rows; those on the CPU, where lists are, follow the index to its device."""
    return (lengths.to(index.device) if lengths.is_cpu else lengths)[index]


def as_lengths(lengths: Any) -> Tensor:
    """Lengths as an int64 tensor; lists of ints are converted.

    Raises:
        TypeError: if they are neither.
    """
    if isinstance(lengths, (list, tuple)):
        lengths = _as_tensor(lengths)
    if not isinstance(lengths, Tensor) or lengths.dtype != torch.int64:
        kind = lengths.dtype if isinstance(lengths, Tensor) else type(lengths).__name__
        raise TypeError(f"lengths must be an int64 tensor or a list of ints, got {kind}")
    return lengths.contiguous()  # as kernels read them


def _as_tensor(lengths: Sequence[Any]) -> Tensor:
    """Convert nested lists of ints to a tensor on the CPU, regardless of the default device."""
    try:
        tensor = torch.tensor(lengths, device="cpu")
    except (TypeError, ValueError) as error:
        raise TypeError(f"lengths must be an int64 tensor or a list of ints, got {lengths!r}") from error
    return tensor.long() if tensor.numel() == 0 else tensor
