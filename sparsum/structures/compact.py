"""Base class of structures with compact atoms, which give the parts that they use."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from sparsum.segments import Segments
from sparsum.structures.abstract import AbstractStructure


class AbstractCompact(AbstractStructure):
    """Structures with 0/1 vectors that define `score_shape` and `parts`, from which vectors, scores and marginals follow."""

    @abstractmethod
    def parts(
        self,
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
    ) -> Tensor:
        """The parts of atoms, and the number of parts for none: (n_atoms, n)."""

    @property
    def n_parts(self) -> int:
        """The number of parts."""
        return math.prod(self.score_shape)

    def vectors(
        self,
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
    ) -> Tensor:
        """Ones for the parts of an assignment: (n_atoms, *score_shape)."""
        flat = torch.zeros(len(atoms), self.n_parts + 1, device=atoms.device)
        return flat.scatter_(1, self.parts(atoms), 1.0)[:, :-1].reshape(-1, *self.score_shape)

    def score(
        self,
        scores: Tensor,  # shape: (n_rows, *score_shape)
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
        row: Tensor,  # shape: (n_atoms,)
    ) -> Tensor:
        """The score of each atom, computed without vectors: (n_atoms,)."""
        selected: Any = self.select(row)
        parts = selected.parts(atoms)
        terms = scores.flatten(1)[row.unsqueeze(-1), parts.clamp_max(self.n_parts - 1)]
        return torch.where(parts < self.n_parts, terms, 0.0).sum(-1)

    def marginals(
        self,
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
        probs: Tensor,  # shape: (n_atoms,)
        segments: Segments,
    ) -> Tensor:
        """The mean vector of each row, computed without vectors: (n_rows, *score_shape)."""
        selected: Any = self.select(segments.row)
        parts = selected.parts(atoms)
        dense = probs.new_zeros(segments.n_rows, self.n_parts + 1)
        mass = probs.unsqueeze(-1).expand(parts.shape)
        # accumulate=True sorts on a GPU, which makes it deterministic
        dense = dense.index_put((segments.row.unsqueeze(-1), parts), mass, accumulate=True)
        return dense[:, :-1].reshape(-1, *self.score_shape)
