"""The mean of SparseMAP, without regard to the atoms."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.segments import Segments
from sparsum.solvers.active_set import ActiveSet
from sparsum.solvers.flows import flow_mean
from sparsum.solvers.rounding import GRID, centred
from sparsum.structures import AbstractStructure, BoundScores
from sparsum.structures.pulling import Decomposition
from sparsum.structures.scores import flatten, unflatten

#: Larger scores have larger rounding errors.
_MODERATE = 256
#: The size of the sample from which the method is chosen, and the number of steps that are few.
_SAMPLE, FEW_STEPS = 2, 12


@dataclass(frozen=True)
class Mean:
    """The optimal mean vectors of all rows, with their certificates."""

    vector: Tensor  # shape: (n_rows, n_parts)
    gap: Tensor  # shape: (n_rows,)
    is_solved: Tensor  # shape: (n_rows,)
    steps: Tensor  # shape: (n_rows,)
    split: Decomposition | None = None  # of these vectors by pulling, if it is known

    @classmethod
    def by_active_set(cls, bound: BoundScores, solver: ActiveSet) -> Mean:
        """For any structure."""
        solution = solver.solve(bound)
        vector = flatten(bound.structure.marginals(solution.atoms, solution.probs, solution.segments))
        return cls(vector, solution.gap, solution.is_solved, solution.steps)

    @classmethod
    def closed_form(cls, vector: Tensor) -> Mean:
        """Without steps."""
        steps = torch.zeros(len(vector), dtype=torch.int64, device=vector.device)
        return cls(vector, steps.double(), steps == 0, steps)

    def replaced(self, rows: Tensor, others: Mean) -> Mean:
        """With some rows replaced, and no split."""
        pairs = [(self.vector, others.vector), (self.gap, others.gap), (self.is_solved, others.is_solved)]
        pairs.append((self.steps, self.steps[rows] + others.steps))
        vector, gap, is_solved, steps = (mine.index_copy(0, rows, new) for mine, new in pairs)
        return Mean(vector, gap, is_solved, steps)


def find_mean(bound: BoundScores, solver: ActiveSet) -> Mean:
    """The optimal means of float64 scores: in closed form, by Newton's method for flows, by the active set elsewhere."""
    structure = bound.structure
    has_closed_form = type(structure).closest is not AbstractStructure.closest
    lengths = structure.flow_lengths(bound.n_rows, bound.device)
    if lengths is None and not has_closed_form:
        return Mean.by_active_set(bound, solver)
    is_bad = bound.is_unusable | (bound.score(bound.argmax(), bound.row(1)) == -torch.inf)
    if bool(is_bad.any()):
        bound.raise_bad(is_bad)
    if (vector := structure.closest(bound.scores)) is not None:
        return Mean.closed_form(vector)
    assert lengths is not None
    linear, weight, shape = _flow_problem(bound, lengths)
    problem = (linear, weight, shape, lengths)
    if not flow_mean.serves(*problem) and _is_sparse(bound, solver):
        return Mean.by_active_set(bound, solver)
    mean = _by_newton(bound, *problem, solver.tolerance)
    rows = (~mean.is_solved).nonzero().squeeze(-1)
    return mean.replaced(rows, Mean.by_active_set(bound.select(rows), solver)) if len(rows) else mean


def _is_sparse(bound: BoundScores, solver: ActiveSet) -> bool:
    """Whether the active set solves most rows of a sample in a few steps: it is then faster than Newton's method."""
    sample = torch.linspace(0, bound.n_rows - 1, min(bound.n_rows, _SAMPLE), device=bound.device).long()
    solution = dataclasses.replace(solver, max_steps=FEW_STEPS, strict=False).solve(bound.select(sample))
    return bool(solution.is_solved.double().mean() >= 0.5)


def _flow_problem(bound: BoundScores, lengths: Tensor) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """The linear terms, with -inf for forbidden parts and padding, the weights, and the shape."""
    length, n_choices = bound.structure.score_shape
    linear, weight = bound.structure.quadratic(centred(bound))
    place = torch.arange(length, device=linear.device)
    is_padding = (place >= lengths.unsqueeze(-1)).unsqueeze(-1)
    parts = [is_padding.expand(-1, -1, n_choices), is_padding[:, 1:].expand(-1, -1, n_choices**2)]
    return linear.masked_fill(torch.cat([part.flatten(1) for part in parts], -1), -torch.inf), weight, (length, n_choices)


def _by_newton(
    bound: BoundScores, linear: Tensor, weight: Tensor, shape: tuple[int, int], lengths: Tensor, tolerance: float
) -> Mean:
    """Flows, certified by the oracle; rows with large scores, where rounding errors matter, are left to the active set.

    Flows whose equations have no error are the mean of the sequences that they consist of: the mean comes with its split.
    """
    structure = bound.structure
    is_allowed = linear > -torch.inf
    vector, steps = flow_mean(linear, weight, shape, lengths)
    is_found = vector.isfinite().all(-1) & (torch.where(is_allowed, linear, 0.0).abs().amax(-1) <= _MODERATE)
    vector = torch.where(is_found.unsqueeze(-1), vector, 0.0)
    split = structure.pull(unflatten(vector, like=bound.scores))
    vector = flatten(structure.marginals(split.atoms, split.weights, Segments.from_row(split.row, len(vector))))
    residual = linear - weight * vector
    best = flatten(structure.vectors(structure.argmax(unflatten(residual, like=bound.scores)))).to(vector.dtype)
    gap = torch.where(is_allowed, (best - vector) * residual, 0.0).sum(-1)
    resolution = GRID * (best - vector).abs().sum(-1)
    is_solved = is_found & (gap <= resolution.clamp_min(tolerance))
    return Mean(vector, gap.clamp_min(0), is_solved, steps, split)
