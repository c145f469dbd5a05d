"""Ways to find the sparse distribution of SparseMAP."""

from sparsum.solvers._abstract import AbstractSolver as AbstractSolver
from sparsum.solvers._abstract import NotConverged as NotConverged
from sparsum.solvers._abstract import Solution as Solution
from sparsum.solvers._active_set import ActiveSet as ActiveSet
from sparsum.solvers._simplex import Simplex as Simplex
from sparsum.solvers._splits import Nested as Nested
from sparsum.solvers._splits import Systematic as Systematic
