"""All assignments of a structure that has few."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparsum.estimators.problem import Problem
from sparsum.gibbs.choices import CHAINS, atoms_of, keeps_to, potentials
from sparsum.structures import AbstractStructure
from sparsum.structures.parts import select_rows, tensors_of

#: More assignments than this are refused, unless the user allows more.
MAX_COUNT = 2**16


def count_of(structure: AbstractStructure, max_count: int, name: str) -> int:
    """The number of assignments, if it is known and not larger than allowed."""
    log_count = structure.log_count()
    if log_count > math.log(max_count) + 1e-9:
        much = "does not say how many it has, perhaps" if math.isinf(log_count) else f"has about {_power(log_count)}"
        raise ValueError(
            f"{name} sums over all assignments, and {structure!r} {much}, more than max_count={max_count}; TopK and "
            "SparseMAP need no list of all, nor do ScoreFunction and its kind for structures that sparsum.Gibbs takes"
        )
    return round(math.exp(log_count))


def _power(log_count: float) -> str:
    return f"{round(math.exp(log_count)):,}" if log_count < 30 else f"10**{log_count / math.log(10):.0f}"


def members(problem: Problem, count: int) -> tuple[Tensor, Tensor]:
    """All assignments for each row, (n_rows, count, *event_shape), and their scores in float64, -inf for forbidden ones."""
    structure, rows, n_rows = problem.structure, problem.rows, problem.n_rows
    if keeps_to(structure, CHAINS) and getattr(structure, "lengths", None) is None:
        shapes = potentials(structure, select_rows(rows, torch.zeros(0, dtype=torch.int64)))[0].shape
        atoms = atoms_of(structure, _all_choices(shapes[1], shapes[2], problem.device), problem.dtype)
        atoms = atoms.expand(n_rows, *atoms.shape)
        is_valid = torch.ones(n_rows, count, dtype=torch.bool, device=problem.device)
    else:
        with torch.no_grad():
            atoms, is_valid = structure.kbest(rows, count)
    doubles = tuple(tensor.double() for tensor in tensors_of(rows))
    scores = structure.score(
        doubles if isinstance(rows, tuple) else doubles[0], atoms.flatten(0, 1), problem.row(atoms.shape[1])
    )
    return atoms, scores.reshape(is_valid.shape).masked_fill(~is_valid, -torch.inf)


def _all_choices(length: int, n_choices: int, device: torch.device) -> Tensor:
    """All rows of choices, the first one changing slowest: (n_choices ** length, length)."""
    index = torch.arange(n_choices**length, device=device).unsqueeze(-1)
    return index // n_choices ** torch.arange(length - 1, -1, -1, device=device) % n_choices
