"""Which solver a structure gets when the user names none."""

from __future__ import annotations

from sparsum.solvers.abstract import AbstractSolver
from sparsum.solvers.active_set import ActiveSet
from sparsum.solvers.sparsemax import Simplex
from sparsum.solvers.splits import Nested, Systematic
from sparsum.structures import AbstractStructure, Bits, Budget, Groups, OneOf, Subset


def default_solver(structure: AbstractStructure) -> AbstractSolver:
    """A closed form where there is one: Systematic for `Bits`, `Budget` and `Subset`, Nested for `Groups`.

    `Bits` have both. The atoms of a nested split all grow together; in training some bits can be lost by it that a
    systematic split keeps in use: docs/reproduction.md, "The default solver".
    """
    if isinstance(structure, OneOf):
        return Simplex()
    if isinstance(structure, Bits | Budget | Subset):
        return Systematic()
    if isinstance(structure, Groups):
        return Nested()
    return ActiveSet()
