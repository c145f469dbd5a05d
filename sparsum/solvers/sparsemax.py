"""The closed form over one of n categories: sparsemax."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.simplex.packed import packed_sparsemax
from sparsum.solvers.abstract import AbstractSolver, Solution
from sparsum.structures import AbstractStructure, OneOf
from sparsum.structures.bad_rows import raise_bad_rows


@dataclass(frozen=True)
class Simplex(AbstractSolver):
    """The closed form for `OneOf`: sparsemax, straight to its support."""

    def solve(
        self,
        scores: Tensor,  # shape: (n_rows, n)
        structure: AbstractStructure,
    ) -> Solution:
        """Project all rows onto the simplex."""
        if not isinstance(structure, OneOf):
            raise TypeError(f"Simplex takes OneOf, got {structure!r}; ActiveSet takes any structure")
        packed, probs, n_empty = packed_sparsemax(scores)
        lengths = packed.segments.lengths
        if n_empty:
            raise_bad_rows(lengths == 0, scores)
        zeros = torch.zeros_like(lengths)
        return Solution(packed.flat % structure.n, probs, packed.segments, zeros == 0, zeros, zeros.double())
