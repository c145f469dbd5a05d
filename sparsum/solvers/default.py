"""Which solver a structure gets when the user names none."""

from __future__ import annotations

from sparsum.solvers.abstract import AbstractSolver
from sparsum.solvers.active_set import ActiveSet
from sparsum.solvers.sparsemax import Sparsemax
from sparsum.solvers.splits import Nested, Systematic
from sparsum.structures import AbstractStructure


def default_solver(structure: AbstractStructure) -> AbstractSolver:
    """A closed form where there is one: `Systematic` for bits, `Sparsemax` for one choice, `Nested` for several.

    `Bits` have two. The atoms of a nested split all grow together; in training some bits can be lost by it that a
    systematic split keeps in use: docs/reproduction.md, "The default solver".
    """
    if structure.bit_counts() is not None:
        return Systematic()
    if structure.has_free_choices and structure.group_size is not None:
        return Sparsemax() if structure.score_shape == (structure.group_size,) else Nested()
    return ActiveSet()
