"""Which solver a structure gets when the user names none."""

from __future__ import annotations

from sparsum.solvers._abstract import AbstractSolver
from sparsum.solvers._active_set import ActiveSet
from sparsum.solvers._simplex import Simplex
from sparsum.solvers._splits import Nested, Systematic
from sparsum.structures import AbstractStructure, Bits, Budget, Groups, OneOf, Subset


def default_solver(structure: AbstractStructure) -> AbstractSolver:
    """A closed form where there is one: Nested for `Bits` and `Groups`, Systematic for `Budget` and `Subset`."""
    if isinstance(structure, OneOf):
        return Simplex()
    if isinstance(structure, Bits | Groups):
        return Nested()
    if isinstance(structure, Budget | Subset):
        return Systematic()
    return ActiveSet()
