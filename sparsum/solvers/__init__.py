"""Solvers for SparseMAP: the active set method, closed forms, and atoms as a function of the mean."""

from sparsum.solvers.abstract import AbstractSolver as AbstractSolver
from sparsum.solvers.abstract import NotConverged as NotConverged
from sparsum.solvers.abstract import Solution as Solution
from sparsum.solvers.active_set import ActiveSet as ActiveSet
from sparsum.solvers.pulled import Pulled as Pulled
from sparsum.solvers.sparsemax import Sparsemax as Sparsemax
from sparsum.solvers.splits import Nested as Nested
from sparsum.solvers.splits import Systematic as Systematic
