"""The mean of SparseMAP, without regard to the atoms."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.solvers.active_set import ActiveSet
from sparsum.solvers.flows import flow_mean
from sparsum.solvers.rounding import centred
from sparsum.structures import BoundScores
from sparsum.structures.scores import flatten, unflatten

#: Rounding errors of the gap for scores up to the other.
_ROUNDING, _MODERATE = 1e-10, 256


@dataclass(frozen=True)
class Mean:
    """The optimal mean vectors of all rows, with their certificates."""

    vector: Tensor  # shape: (n_rows, n_parts)
    gap: Tensor  # shape: (n_rows,)
    is_solved: Tensor  # shape: (n_rows,)
    steps: Tensor  # shape: (n_rows,)

    @classmethod
    def by_active_set(cls, bound: BoundScores, solver: ActiveSet) -> Mean:
        """For any structure."""
        solution = solver.solve(bound)
        vector = flatten(bound.structure.marginals(solution.atoms, solution.probs, solution.segments))
        return cls(vector, solution.gap, solution.is_solved, solution.steps)

    def replaced(self, rows: Tensor, others: Mean) -> Mean:
        """With some rows replaced."""
        pairs = [(self.vector, others.vector), (self.gap, others.gap), (self.is_solved, others.is_solved)]
        pairs.append((self.steps, self.steps[rows] + others.steps))
        return Mean(*(mine.index_copy(0, rows, new) for mine, new in pairs))


def find_mean(bound: BoundScores, solver: ActiveSet) -> Mean:
    """The optimal means of float64 scores: by Newton's method where they are flows, and by the active set elsewhere."""
    lengths = bound.structure.flow_lengths(bound.n_rows, bound.device)
    if lengths is None:
        return Mean.by_active_set(bound, solver)
    if bool((is_bad := bound.is_unusable).any()):
        bound.raise_bad(is_bad)
    mean = _by_newton(bound, lengths, solver.tolerance)
    rows = (~mean.is_solved).nonzero().squeeze(-1)
    if not len(rows):
        return mean
    allows_nothing = bound.score(bound.argmax(), bound.row(1)) == -torch.inf
    if bool(allows_nothing.any()):
        bound.raise_bad(allows_nothing)
    return mean.replaced(rows, Mean.by_active_set(bound.select(rows), solver))


def _by_newton(bound: BoundScores, lengths: Tensor, tolerance: float) -> Mean:
    """Flows, certified by the oracle; rows with large scores, where rounding errors matter, are left to the active set."""
    structure = bound.structure
    length, n_choices = structure.score_shape
    linear, weight = structure.quadratic(centred(bound))
    place = torch.arange(length, device=linear.device)
    is_padding = (place >= lengths.unsqueeze(-1)).unsqueeze(-1)
    parts = [is_padding.expand(-1, -1, n_choices), is_padding[:, 1:].expand(-1, -1, n_choices**2)]
    allowed = linear.masked_fill(torch.cat([part.flatten(1) for part in parts], -1), -torch.inf)
    vector, steps = flow_mean(allowed, weight, (length, n_choices), lengths)
    residual = torch.where(allowed == -torch.inf, allowed, linear - weight * vector)
    atoms = structure.argmax(unflatten(residual.nan_to_num(nan=0.0), like=bound.scores))
    difference = flatten(structure.vectors(atoms)).to(vector.dtype) - vector
    gap = torch.where(difference == 0, 0.0, difference * residual).sum(-1)
    size = torch.where(allowed == -torch.inf, 0.0, allowed).abs().amax(-1)
    is_solved = (gap <= max(tolerance, _ROUNDING)) & (size <= _MODERATE)
    return Mean(vector, torch.where(is_solved, gap.clamp_min(0), torch.inf), is_solved, steps)
