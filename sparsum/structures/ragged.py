"""Base class of structures whose examples have one or several sizes, and parts that smaller examples do not have."""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from sparsum.structures.abstract import AbstractStructure
from sparsum.structures.scores import BoundScores
from sparsum.structures.sized import as_lengths, of_rows


@dataclass(frozen=True)
class AbstractRagged(AbstractStructure):
    """Assignments that depend on one size of the example, or on several.

    With ``lengths``, examples may be smaller than the structure. Parts that an example does not have are never used; in
    bound scores they have a score of 0, since solvers measure their accuracy by all scores.

    With ``lengths``, the vectors of atoms may depend on the row: those of packed atoms are
    ``structure.select(row).vectors(atoms)``.
    """

    #: The sizes of each example: an int64 tensor in the shape of the batch, with a last dimension if there are several.
    #: Lists of ints are converted to a tensor.
    lengths: Any = field(default=None, kw_only=True, repr=False, compare=False)  # shape: (*batch_shape, *one_example)

    @property
    @abstractmethod
    def sizes(self) -> int | tuple[int, ...]:
        """The sizes of an example of full size."""

    @abstractmethod
    def has_part(
        self,
        sizes: Tensor,  # shape: (n_rows, *one_example)
    ) -> Tensor:
        """Which parts examples of the given sizes have; broadcasts to (n_rows, *score_shape)."""

    def __post_init__(self) -> None:
        if self.lengths is None:
            return
        object.__setattr__(self, "lengths", as_lengths(self.lengths))
        most = torch.tensor(self.sizes, device=self.lengths.device)
        n_sizes = most.shape[0] if most.ndim else 1
        if most.ndim and (not self.lengths.ndim or self.lengths.shape[-1] != n_sizes):
            raise ValueError(f"lengths must have a last dimension of {n_sizes}, got shape {tuple(self.lengths.shape)}")
        if bool((is_wrong := (self.lengths < 1) | (self.lengths > most)).any()):
            seen = self.lengths[is_wrong.any(-1) if most.ndim else is_wrong][:5].tolist()
            raise ValueError(f"lengths must be from 1 to {self.sizes}, got {seen}")

    @property
    def _n_size_dims(self) -> int:
        return 0 if isinstance(self.sizes, int) else 1

    def sizes_of(self, n_rows: int, device: torch.device) -> Tensor:
        """The sizes of each row: (n_rows, *one_example)."""
        if self.lengths is None:
            if isinstance(self.sizes, int):
                return torch.full((n_rows,), self.sizes, device=device)
            # A tensor of the tuple would wait for the device.
            return torch.stack([torch.full((n_rows,), size, device=device) for size in self.sizes], -1)
        lengths: Tensor = self.lengths.to(device)
        shape = lengths.shape[: lengths.ndim - self._n_size_dims]
        if shape not in {(n_rows,), (1,)}:
            seen = f"{n_rows} rows or atoms, and lengths of shape {tuple(lengths.shape)}"
            raise ValueError(
                f"lengths must have one entry for each row, got {seen}; for packed atoms, use structure.select(row)"
            )
        return lengths.expand(n_rows, *lengths.shape[1:])

    def check_scores(self, scores: Tensor) -> None:
        """Raise unless scores have the shape of the structure, and lengths the shape of the batch."""
        super().check_scores(scores)
        if self.lengths is None:
            return
        batch_shape = scores.shape[: scores.ndim - self.score_ndim]
        if self.lengths.shape[: self.lengths.ndim - self._n_size_dims] != batch_shape:
            seen = f"got {tuple(self.lengths.shape)} for scores of shape {tuple(scores.shape)}"
            more = ", and the numbers of sizes of an example last" if self._n_size_dims else ""
            raise ValueError(f"lengths must have the shape of the batch, {tuple(batch_shape)}{more}, {seen}")

    def _bind(self, scores: Tensor) -> BoundScores:
        """Flatten the batch; what is not a part of an example has a score of 0."""
        bound = super()._bind(scores)
        structure = self
        if self.lengths is not None:
            lengths = self.lengths.to(scores.device)
            structure = self._with(lengths=lengths.reshape(-1, *lengths.shape[lengths.ndim - self._n_size_dims :]))
        has_part = structure.has_part(structure.sizes_of(bound.n_rows, bound.device))
        tensors = tuple(torch.where(has_part, tensor, 0.0) for tensor in bound.tensors)
        return BoundScores(structure, tensors, bound.batch_shape)

    def select(
        self,
        index: Tensor,  # shape: (n,), int64
    ) -> Self:
        """The structure of the given rows."""
        return self if self.lengths is None else self._with(lengths=of_rows(self.lengths, index))

    def padding(self) -> Tensor | None:
        """The parts that rows do not have: (n_rows, n_parts)."""
        if self.lengths is None:
            return None
        return ~self.has_part(self.lengths).expand(-1, *self.score_shape).flatten(1)

    def _with(self, **changes: object) -> Self:
        """Replace fields without the checks of `dataclasses.replace`, which would synchronize with the device."""
        changed = copy.copy(self)
        for name, value in changes.items():
            object.__setattr__(changed, name, value)
        return changed
