"""The default solver of a structure."""

from __future__ import annotations

from sparsum.solvers.abstract import AbstractSolver
from sparsum.solvers.active_set import ActiveSet
from sparsum.solvers.pulled import Pulled
from sparsum.solvers.sparsemax import Sparsemax
from sparsum.solvers.splits import Nested, Systematic
from sparsum.structures import AbstractStructure


def default_solver(structure: AbstractStructure) -> AbstractSolver:
    """A closed form if there is one: `Systematic` for bits, `Sparsemax` for one choice, `Nested` for several.

    Otherwise `Pulled`, which is continuous, if the structure defines its facets or `pull`, and `ActiveSet` if it does not.
    `Bits` have two closed forms. The atoms of a nested split grow together, and in training some bits can become unused
    that a systematic split keeps in use: see docs/reproduction.md, "The default solver".
    """
    if structure.bit_counts() is not None:
        return Systematic()
    if structure.has_free_choices and structure.group_size is not None:
        return Sparsemax() if structure.score_shape == (structure.group_size,) else Nested()
    return Pulled() if structure.can_pull and structure.has_unique_mean else ActiveSet()
