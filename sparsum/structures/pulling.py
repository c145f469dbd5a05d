r"""Pulling: split a point of a polytope into few vertices, as a continuous function of the point.

From a point of a face, take the vertex of that face that is best for a fixed direction, and go from there through the point
as far as the polytope reaches. This ends in a smaller face, where the same is done again. The simplices that all points visit
are a triangulation of the polytope, so the weights of the vertices are continuous and piecewise linear in the point, and at
most dim + 1 are positive. See docs/pulling.md for the proof.

Instead of a point that moves towards the boundary, the code subtracts weighted vertices: what is *left* after the first k is
the point that is reached, times the *mass* that is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sparsum.structures.scores import Scores, flatten, unflatten
from sparsum.tensors import tensor_cache

if TYPE_CHECKING:
    from sparsum.structures.abstract import AbstractStructure

#: What is below this after subtractions, of numbers up to 1, is 0 up to rounding.
ZERO = 1e-13
#: A row is split once less mass than this is left.
_NEGLIGIBLE = 1e-12
#: More mass than this can only be left if a facet was missing.
STUCK = 1e-10
#: Directions are integers below this power of 2: their sums are exact, and different assignments have different sums.
_DIRECTION_BITS = 24


@dataclass(frozen=True)
class Facets:
    r"""Inequalities that describe a structure's mean vectors, :math:`N \mu \ge l`, together with :math:`\mu \ge 0`.

    Normals and levels are integers. Not every inequality must be a facet, but every facet an inequality, except those that
    `AbstractStructure.violated` finds when they are needed.
    """

    normals: Tensor  # shape: (n_facets, n_parts), float64
    levels: Tensor  # shape: (n_rows, n_facets), or (1, n_facets) if they are the same for all rows; float64

    @classmethod
    def none(cls, n_parts: int, device: torch.device) -> Facets:
        """No inequality but those of the parts."""
        return cls(*(torch.zeros(shape, dtype=torch.float64, device=device) for shape in ((0, n_parts), (1, 0))))

    def select(self, rows: Tensor) -> Facets:
        """The inequalities of some rows."""
        return self if len(self.levels) == 1 else Facets(self.normals, self.levels[rows])

    def joined(self, others: Facets) -> Facets:
        """These and others of the same rows."""
        n_rows = max(len(self.levels), len(others.levels))
        levels = torch.cat([part.levels.expand(n_rows, -1) for part in (self, others)], -1)
        return Facets(torch.cat([self.normals, others.normals]), levels)


@dataclass(frozen=True)
class Split:
    """Vertices of each row, packed and sorted by row, with their weights."""

    atoms: Tensor  # shape: (n_atoms, *event_shape)
    weights: Tensor  # shape: (n_atoms,), positive; their sum is 1 in each row
    row: Tensor  # shape: (n_atoms,)
    left: Tensor  # shape: (n_rows,), the mass for which no vertex was found, before the others were normalised

    @classmethod
    def of(cls, atoms: Tensor, weights: Tensor, row: Tensor, n_rows: int) -> Split:
        """From weighted atoms in any order; negligible ones are dropped."""
        kept = (weights > _NEGLIGIBLE).nonzero().squeeze(-1)
        order = kept[row[kept].argsort(stable=True)]
        atoms, weights, row = atoms[order], weights[order], row[order]
        total = weights.new_zeros(n_rows).index_add_(0, row, weights)
        return cls(atoms, weights / total[row], row, 1 - total)

    def replaced(self, rows: Tensor, others: Split) -> Split:
        """With the vertices of some rows replaced."""
        is_kept = ~torch.isin(self.row, rows)
        pairs = [(self.atoms, others.atoms), (self.weights, others.weights), (self.row, rows[others.row])]
        atoms, weights, row = (torch.cat([mine[is_kept], new]) for mine, new in pairs)
        order = row.argsort(stable=True)
        return Split(atoms[order], weights[order], row[order], self.left.index_copy(0, rows, others.left))


@tensor_cache
def direction(n_parts: int, device: torch.device) -> Tensor:
    """One fixed number per part, pseudo-random integers in float64: (n_parts,)."""
    state, values = 0x9E3779B97F4A7C15, []
    for _ in range(n_parts):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        values.append(float(state >> (64 - _DIRECTION_BITS)))
    return torch.tensor(values, dtype=torch.float64, device=device)


def pull(structure: AbstractStructure, mean: Scores, facets: Facets) -> Split:
    """Split the mean vectors of all rows, (n_rows, *score_shape), into assignments of a structure with 0/1 vectors.

    If a facet is missing and matters for a row, the row gets stuck. It is split again with those that it violates then. A row
    that is split completely never needed others: what is left after a step is the sum of the assignments that follow, so no
    step was too long.
    """
    flat = flatten(mean)
    split, points = _Pulling(structure, mean, flat, facets).run()
    stuck = rows = (split.left > STUCK).nonzero().squeeze(-1)
    while len(rows):
        structure, flat, facets = structure.select(stuck), flat[stuck], facets.select(stuck)
        found = structure.violated(unflatten(points[stuck], like=mean))
        if not len(found.normals):
            break
        facets = facets.joined(found)
        again, points = _Pulling(structure, mean, flat, facets).run()
        split = split.replaced(rows, again)
        stuck = (again.left > STUCK).nonzero().squeeze(-1)
        rows = rows[stuck]
    return split


class _Pulling:
    """What is left of each row, and the steps that take vertices from it; rows that are done are removed."""

    def __init__(
        self,
        structure: AbstractStructure,
        form: Scores,  # any scores of this structure, for the shapes of their parts
        left: Tensor,  # shape: (n_rows, n_parts)
        facets: Facets,
    ) -> None:
        n_rows, n_parts = left.shape
        self.structure, self.form, self.facets = structure, form, facets
        self.ids, self.mass = torch.arange(n_rows, device=left.device), left.new_ones(n_rows)
        self.left = torch.where(left > ZERO, left, 0.0)
        self.slack = left @ facets.normals.T - facets.levels
        self.slack = torch.where(self.slack > ZERO, self.slack, 0.0)
        self.direction = direction(n_parts, left.device)
        # More than the difference of any two assignments.
        self.penalty = 2.0**_DIRECTION_BITS * (1 + int(left.sum(-1).amax()) if n_rows else 1)
        self.points = torch.zeros_like(left)  # the last ones of all rows
        self.pieces: list[tuple[Tensor, Tensor, Tensor]] = []

    def run(self) -> tuple[Split, Tensor]:
        """The vertices of all rows, and the last point of each, (n_rows, n_parts), outside of the polytope if it is stuck."""
        n_rows = len(self.ids)
        while len(self.ids) or not self.pieces:  # a step without rows determines the shape of atoms
            is_done = self._step()
            if bool(is_done.any()):
                self._remove(is_done)
        atoms, weights, row = (torch.cat(tensors) for tensors in zip(*self.pieces, strict=True))
        return Split.of(atoms, weights, row, n_rows), self.points

    def _step(self) -> Tensor:
        """Take the largest possible multiple of a vertex from each row; returns which rows are done."""
        atoms = self._vertices()
        vectors = flatten(self.structure.vectors(atoms)).to(self.left.dtype)
        rate = vectors @ self.facets.normals.T - self.facets.levels
        until_hit = torch.where(rate > 0.5, self.slack / rate, torch.inf)
        step = torch.cat([torch.where(vectors > 0, self.left, torch.inf), until_hit], -1).amin(-1)
        self.pieces.append((atoms, step, self.ids))
        self.mass = self.mass - step
        self.left, self.slack = (_shrunk(old, step, by) for old, by in ((self.left, vectors), (self.slack, rate)))
        return (self.mass <= _NEGLIGIBLE) | (step <= 0)

    def _vertices(self) -> Tensor:
        """The best vertex of each row's face: one that uses no part that is not left, and attains all tight facets."""
        is_tight = (self.slack <= 0).to(self.left.dtype)
        scores = self.direction - self.penalty * (is_tight @ self.facets.normals)
        return self.structure.argmax(unflatten(scores.masked_fill(self.left <= 0, -torch.inf), like=self.form))

    def _remove(self, is_done: Tensor) -> None:
        self.points[self.ids[is_done]] = self.left[is_done] / self.mass[is_done].unsqueeze(-1)
        rest = (~is_done).nonzero().squeeze(-1)
        self.ids, self.mass, self.left, self.slack = (x[rest] for x in (self.ids, self.mass, self.left, self.slack))
        self.structure, self.facets = self.structure.select(rest), self.facets.select(rest)


def _shrunk(
    old: Tensor,  # shape: (n_rows, n)
    step: Tensor,  # shape: (n_rows,)
    by: Tensor,  # shape: (n_rows, n)
) -> Tensor:
    """What is left after a step, with 0 for what is below rounding errors."""
    new = torch.addcmul(old, step.unsqueeze(-1), by, value=-1)
    return torch.where(new > ZERO, new, 0.0)
