r"""Pulling for any structure with an `argmax`: facets are found by projections.

How far the ray from a vertex v through a point m reaches is found by cuts. Project a point y of the ray, outside of the
polytope, to its nearest point p. The hyperplane through p that is normal to y - p separates y from the polytope, and the
next y is where the ray crosses it. If y is close to the exit, p is in the facet of the exit, and the next y is the exit. The
normal is that of the facet: later vertices must be the best in its direction.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.solvers.active_set import ActiveSet
from sparsum.solvers.quadratic import Quadratic
from sparsum.structures import BoundScores
from sparsum.structures.pulling import Decomposition, direction
from sparsum.structures.scores import flatten

#: Points closer than this, relative to the size of the vectors, are equal.
_SAME = 1e-9
#: The first point on a ray is this far beyond m, in distances of m to the vertex.
_FAR = 4.0
#: How much more normals of facets count than the direction.
_PENALTY = 1e7
_MAX_CUTS = 50


@dataclass(frozen=True)
class _Exit:
    """Where rays leave the polytope."""

    length: Tensor  # shape: (n_rows,), the distance from the vertex, relative to that of the point
    normal: Tensor  # shape: (n_rows, n_parts), of unit length


class Rays:
    """Splits the mean vectors of rows by projections onto the polytope, which takes many runs of the active set.

    Args:
        bound: the rows.
        weight: the weights of the quadratic term, all positive, which determine distances.
        solver: finds the projections.
    """

    def __init__(
        self,
        bound: BoundScores,
        weight: Tensor,  # shape: (n_parts,)
        solver: ActiveSet,
    ) -> None:
        is_forbidden = bound.flat == -torch.inf
        self.bound, self.solver = bound, dataclasses.replace(solver, tolerance=0.0)
        self.problem = Quadratic(bound.structure, bound.scores, torch.zeros_like(bound.flat), weight, is_forbidden)
        self.direction = direction(len(weight), weight.device)
        self.direction = self.direction / self.direction.norm()

    def split(
        self,
        mean: Tensor,  # shape: (n_rows, n_parts)
    ) -> Decomposition:
        """Split the mean vectors of all rows."""
        rows = torch.arange(len(mean), device=mean.device)
        point, mass, normals = mean, mean.new_ones(len(mean)), self._of_cube(mean)
        pieces = []
        for _ in range(2 * mean.shape[-1] + 2):
            problem = self.problem.select(rows)
            atoms = problem.best(_PENALTY * normals + self.direction)
            vertex = problem.vectors(atoms)
            # Errors of the point are divided by the mass with each step.
            is_last = mass * (point - vertex).abs().amax(-1) <= _SAME * _size(vertex)
            found = self._exit(rows, vertex, torch.where(is_last.unsqueeze(-1), vertex, point))
            length = torch.where(is_last, torch.inf, found.length)
            pieces.append((atoms, mass * (1 - 1 / length), rows))
            rest = (~is_last).nonzero().squeeze(-1)
            if not len(rest):
                break
            ahead = (length - 1).unsqueeze(-1) * (point - vertex)
            rows, point, mass, normals = (x[rest] for x in (rows, point + ahead, mass / length, normals + found.normal))
        atoms, weights, row = (torch.cat(tensors) for tensors in zip(*pieces, strict=True))
        return Decomposition.of(atoms, weights, row, len(mean))

    def _of_cube(self, mean: Tensor) -> Tensor:
        """The normals of the facets of the cube on which the mean of 0/1 vectors lies exactly: (n_rows, n_parts)."""
        structure = self.problem.structure
        if not structure.is_fixed_size and structure.bit_counts() is None:
            return torch.zeros_like(mean)
        return (mean >= 1).to(mean.dtype) - (mean <= 0).to(mean.dtype)

    def _exit(
        self,
        rows: Tensor,  # shape: (n,)
        vertex: Tensor,  # shape: (n, n_parts)
        point: Tensor,  # shape: (n, n_parts)
    ) -> _Exit:
        """Where the rays from vertices through points leave the polytope."""
        along, size = point - vertex, _SAME * _size(vertex)
        length, normal = torch.full_like(size, _FAR), torch.zeros_like(point)
        # Rays of no length do not move.
        open_ = (along.abs().amax(-1) > size).nonzero().squeeze(-1)
        for _ in range(_MAX_CUTS):
            if not len(open_):
                break
            start, step = point[open_], along[open_]
            target = start + (length[open_] - 1).unsqueeze(-1) * step
            nearest = self._project(rows[open_], target)
            outward = target - nearest
            distance = (outward.square() * self.problem.weight).sum(-1).sqrt()
            outward = outward * self.problem.weight / distance.unsqueeze(-1)
            is_inside = distance <= size[open_]
            is_cut = normal[open_].abs().amax(-1) > 0
            reach = (outward * (nearest - start)).sum(-1) / (outward * step).sum(-1)
            length[open_] = torch.where(is_inside, length[open_] * torch.where(is_cut, 1, _FAR), 1 + reach.clamp_min(0))
            normal[open_] = torch.where(is_inside.unsqueeze(-1), normal[open_], outward)
            open_ = open_[~(is_inside & is_cut)]
        return _Exit(length, normal)

    def _project(self, rows: Tensor, points: Tensor) -> Tensor:
        """The points of the polytope of some rows that are closest to given ones: (n, n_parts)."""
        problem = self.problem.select(rows)
        assert problem.is_forbidden is not None
        linear = points * problem.weight
        bound = self.bound.select(rows).with_flat(linear.masked_fill(problem.is_forbidden, -torch.inf))
        problem = dataclasses.replace(problem, linear=linear.masked_fill(problem.is_forbidden, 0.0))
        atoms, probs, segments = self.solver.find(problem, bound).packed(problem.linear, points.dtype)
        return flatten(problem.structure.marginals(atoms, probs, segments))


def _size(vectors: Tensor) -> Tensor:
    return vectors.abs().amax(-1).clamp_min(1)
