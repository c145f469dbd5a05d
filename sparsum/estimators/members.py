"""Enumerate all assignments of a small structure."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparsum.structures import AbstractStructure, BoundScores

#: The default limit on the number of assignments.
MAX_COUNT = 2**16


def count_of(structure: AbstractStructure, max_count: int, name: str) -> int:
    """The number of assignments; raises if it is unknown or larger than ``max_count``."""
    log_count = structure.log_count()
    if log_count > math.log(max_count) + 1e-9:
        much = (
            "has an unknown number (define log_count), possibly"
            if math.isinf(log_count)
            else f"has about {_power(log_count)},"
        )
        raise ValueError(
            f"{name} sums over all assignments, and {structure!r} {much} more than max_count={max_count}; use TopK or "
            "SparseMAP, or for structures that sparsum.Gibbs takes a sampling estimator such as ScoreFunction"
        )
    return round(math.exp(log_count))


def _power(log_count: float) -> str:
    return f"{round(math.exp(log_count)):,}" if log_count < 30 else f"10**{log_count / math.log(10):.0f}"


def members(bound: BoundScores, count: int) -> tuple[Tensor, Tensor]:
    """All assignments for each row, (n_rows, count, *event_shape), and their scores in float64, -inf for forbidden ones."""
    structure, n_rows = bound.structure, bound.n_rows
    if structure.is_chain and structure.padding() is None:
        none = torch.zeros(0, dtype=torch.int64, device=bound.device)
        _, length, n_choices = structure.potentials(bound.select(none).scores).unary.shape
        if n_choices**length == count:  # else some combinations of choices are not assignments
            atoms = structure.choices_to_atoms(_all_choices(length, n_choices, bound.device), bound.dtype)
            atoms = atoms.expand(n_rows, *atoms.shape)
            is_valid = torch.ones(n_rows, count, dtype=torch.bool, device=bound.device)
            return atoms, _scores(bound, atoms, is_valid)
    with torch.no_grad():
        atoms, is_valid = bound.kbest(count)
    return atoms, _scores(bound, atoms, is_valid)


def _scores(bound: BoundScores, atoms: Tensor, is_valid: Tensor) -> Tensor:
    values = bound.map(Tensor.double).score(atoms.flatten(0, 1), bound.row(atoms.shape[1]))
    return values.reshape(is_valid.shape).masked_fill(~is_valid, -torch.inf)


def _all_choices(length: int, n_choices: int, device: torch.device) -> Tensor:
    """All sequences of choices, the first choice changing slowest: (n_choices ** length, length)."""
    index = torch.arange(n_choices**length, device=device).unsqueeze(-1)
    return index // n_choices ** torch.arange(length - 1, -1, -1, device=device) % n_choices


def count_up_to(structure: AbstractStructure, most: int) -> int:
    """The number of assignments, or ``most`` if there are more."""
    return round(math.exp(min(structure.log_count(), math.log(most))))
