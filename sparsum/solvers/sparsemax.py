"""The closed form for one of n categories."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.simplex import sparsemax
from sparsum.simplex.packed import packed_entmax
from sparsum.solvers.abstract import AbstractSolver, Solution
from sparsum.solvers.table import Table
from sparsum.structures import BoundScores


@dataclass(frozen=True)
class Sparsemax(AbstractSolver):
    """The closed form for `OneOf`: `sparsum.sparsemax`, returned as its packed support."""

    def solve(self, bound: BoundScores) -> Solution:
        """Project all rows onto the simplex."""
        n = _n_categories(bound)
        packed, probs = packed_entmax(bound.flat, 2.0, on_bad=bound.raise_bad)
        atoms = bound.structure.choices_to_atoms((packed.flat % n).unsqueeze(-1), bound.dtype)
        return Solution.closed_form(atoms, probs, packed.segments)

    def solve_truncated(self, bound: BoundScores, max_atoms: int) -> Solution:
        """The ``max_atoms`` most probable categories of each row."""
        n = _n_categories(bound)
        if not torch.compiler.is_compiling():  # the packed support is smaller than the table
            return super().solve_truncated(bound, max_atoms)

        def atoms(_row: Tensor, column: Tensor) -> Tensor:
            return bound.structure.choices_to_atoms(column.unsqueeze(-1), bound.dtype)

        probs = sparsemax(bound.flat)
        is_bad = ~(probs.detach().sum(-1) > 0.5)
        return Table(probs.masked_fill(is_bad.unsqueeze(-1), 1 / n), is_bad, atoms).truncate(bound, max_atoms)


def _n_categories(bound: BoundScores) -> int:
    structure, n = bound.structure, bound.structure.group_size
    if not structure.has_free_choices or n is None or bound.flat.shape[-1] != n:
        raise TypeError(f"Sparsemax takes OneOf, got {structure!r}; use ActiveSet, which takes any structure")
    return n
