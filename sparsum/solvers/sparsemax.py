"""The closed form for one of n categories."""

from __future__ import annotations

from dataclasses import dataclass

from sparsum.simplex.packed import packed_entmax
from sparsum.solvers.abstract import AbstractSolver, Solution
from sparsum.structures import BoundScores


@dataclass(frozen=True)
class Sparsemax(AbstractSolver):
    """The closed form for `OneOf`: `sparsum.sparsemax`, returned as its packed support."""

    def solve(self, bound: BoundScores) -> Solution:
        """Project all rows onto the simplex."""
        structure, n = bound.structure, bound.structure.group_size
        if not structure.has_free_choices or n is None or bound.flat.shape[-1] != n:
            raise TypeError(f"Sparsemax takes OneOf, got {structure!r}; use ActiveSet, which takes any structure")
        packed, probs = packed_entmax(bound.flat, 2.0, on_bad=bound.raise_bad)
        atoms = structure.choices_to_atoms((packed.flat % n).unsqueeze(-1), bound.dtype)
        return Solution.closed_form(atoms, probs, packed.segments)
