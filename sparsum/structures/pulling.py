r"""Pulling: split a point of a polytope into few vertices, as a continuous function of the point.

From a point of a face, take the vertex of that face that is best for a fixed direction, and go from there through the point
as far as the polytope reaches. This ends in a smaller face, where the same is done again. The simplices that points visit
are a triangulation of the polytope, so the weights of the vertices are continuous and piecewise linear in the point, and at
most dim + 1 are positive. See docs/pulling.md for the proof.

Instead of a point that moves towards the boundary, the code subtracts weighted vertices: what is *left* after the first k is
the point that is reached, times the *mass* that is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from sparsum.structures.scores import Scores, flatten, unflatten
from sparsum.tensors import tensor_cache

if TYPE_CHECKING:
    from sparsum.structures.abstract import AbstractStructure

#: What is below this after subtractions, of numbers up to 1, is 0 up to rounding.
ZERO = 1e-13
#: A row is split once less mass than this is left.
NEGLIGIBLE = 1e-12
#: More mass than this is only left if the mean is not one of the structure.
STUCK = 1e-10
#: Directions are integers below this power of 2: their sums are exact, and different assignments have different sums.
_DIRECTION_BITS = 24
#: The number of steps between searches for facets that are not listed, and on a GPU between looks at what is left.
_BLOCK = 8


@dataclass(frozen=True)
class Facets:
    r"""Inequalities that hold for a structure's mean vectors, :math:`N \mu \ge l`, beside :math:`\mu \ge 0`.

    Normals and levels are integers. An inequality need not be a facet.
    """

    normals: Tensor  # shape: (n_facets, n_parts), float64
    levels: Tensor  # shape: (n_rows, n_facets), or (1, n_facets) if they are the same for all rows; float64
    is_complete: bool = True  # whether there are no others; if False, the structure defines `violated`

    @classmethod
    def none(cls, n_parts: int, device: torch.device) -> Facets:
        """No inequality but those of the parts."""
        normals = torch.zeros(0, n_parts, dtype=torch.float64, device=device)
        return cls(normals, normals.new_zeros(1, 0))


class Violated(NamedTuple):
    """Inequalities that some points violate."""

    row: Tensor  # shape: (n,), the row of each, sorted
    normals: Tensor  # shape: (n, n_parts), float64
    levels: Tensor  # shape: (n,), float64


@dataclass(frozen=True)
class Decomposition:
    """Vertices of each row, packed and sorted by row, with their weights."""

    atoms: Tensor  # shape: (n_atoms, *event_shape)
    weights: Tensor  # shape: (n_atoms,), positive; their sum is 1 in each row
    row: Tensor  # shape: (n_atoms,)
    left: Tensor  # shape: (n_rows,), the mass for which no vertex was found, before the others were normalised

    @classmethod
    def of(cls, atoms: Tensor, weights: Tensor, row: Tensor, n_rows: int) -> Decomposition:
        """From weighted atoms, in order within each row; negligible ones are dropped."""
        kept = (weights > NEGLIGIBLE).nonzero().squeeze(-1)
        order = kept[row[kept].argsort(stable=True)]
        atoms, weights, row = atoms[order], weights[order], row[order]
        total = weights.new_zeros(n_rows).index_add_(0, row, weights)
        return cls(atoms, weights / total[row], row, 1 - total)


@tensor_cache
def direction(n_parts: int, device: torch.device) -> Tensor:
    """One fixed number per part, pseudo-random integers in float64: (n_parts,)."""
    state, values = 0x9E3779B97F4A7C15, []
    for _ in range(n_parts):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        values.append(float(state >> (64 - _DIRECTION_BITS)))
    return torch.tensor(values, dtype=torch.float64, device=device)


def pull(structure: AbstractStructure, mean: Scores, facets: Facets) -> Decomposition:
    """Split the mean vectors of all rows, (n_rows, *score_shape), into assignments of a structure with 0/1 vectors."""
    rows = _Rows(structure, mean, facets)
    pace = _BLOCK if looks_rarely(rows.left) else 1
    while len(rows.ids) or not rows.taken:  # without rows, one step determines the shape of atoms
        rows.remove(rows.steps(pace) if facets.is_complete else rows.checked_steps())
    atoms, weights, row = (torch.cat(tensors) for tensors in zip(*rows.taken, strict=True))
    return Decomposition.of(atoms, weights, row, len(flatten(mean)))


def looks_rarely(left: Tensor) -> bool:
    """Whether to look only every few steps which rows are done: on a GPU, steps in vain, which take nothing, cost less."""
    return left.is_cuda


class _Rows:
    """What is left of each row, and the steps that take vertices from it."""

    def __init__(
        self,
        structure: AbstractStructure,
        mean: Scores,  # shape: (n_rows, *score_shape)
        facets: Facets,
    ) -> None:
        left = flatten(mean)
        n_rows, n_parts = left.shape
        self.structure, self.form = structure, mean
        self.ids, self.mass = torch.arange(n_rows, device=left.device), left.new_ones(n_rows)
        self.left = torch.where(left > ZERO, left, 0.0)
        #: The facets that all rows share, and those that were found for each: (n_rows, n, n_parts).
        self.shared, self.own = facets.normals, left.new_zeros(n_rows, 0, n_parts)
        self.levels = facets.levels.expand(n_rows, -1)
        self.direction = direction(n_parts, left.device)
        # More than the difference of any two assignments.
        self.penalty = 2.0**_DIRECTION_BITS * (1 + int(left.sum(-1).amax()) if n_rows else 1)
        self.taken: list[tuple[Tensor, Tensor, Tensor]] = []  # atoms, their weights, and their rows
        self._measure()

    def _measure(self) -> None:
        """Compute how far the facets are."""
        slack = self._values(self.left) - self.mass.unsqueeze(-1) * self.levels
        self.slack = torch.where(slack > ZERO, slack, 0.0)

    def _values(self, vectors: Tensor) -> Tensor:
        """The products of vectors, (n_rows, n_parts), with the normals of all facets: (n_rows, n_facets)."""
        if not self.own.shape[1]:
            return vectors @ self.shared.T
        own = torch.bmm(self.own, vectors.unsqueeze(-1)).squeeze(-1)
        return torch.cat([vectors @ self.shared.T, own], -1)

    def step(self) -> Tensor:
        """Take the largest possible multiple of a vertex from each row; returns which rows are done."""
        atoms = self._vertices()
        vectors = flatten(self.structure.vectors(atoms)).to(self.left.dtype)
        step = torch.where(vectors > 0, self.left, torch.inf).amin(-1)
        if self.slack.shape[1]:
            rate = self._values(vectors) - self.levels
            step = torch.minimum(step, torch.where(rate > 0.5, self.slack / rate, torch.inf).amin(-1))
            self.slack = _shrunk(self.slack, step, rate)
        self.taken.append((atoms, step, self.ids))
        self.mass, self.left = self.mass - step, _shrunk(self.left, step, vectors)
        return (self.mass <= NEGLIGIBLE) | (step <= 0)

    def _vertices(self) -> Tensor:
        """The best vertex of each row's face: one that uses no part that is not left, and attains all tight facets."""
        scores = self.direction
        if self.slack.shape[1]:
            is_tight, n_shared = (self.slack <= 0).to(self.left.dtype), len(self.shared)
            normals = is_tight[:, :n_shared] @ self.shared
            if self.own.shape[1]:
                normals = normals + torch.bmm(is_tight[:, None, n_shared:], self.own).squeeze(1)
            scores = scores - self.penalty * normals
        scores = torch.where(self.left > 0, scores, -torch.inf)
        return self.structure.argmax(unflatten(scores, like=self.form))

    def steps(self, n: int) -> Tensor:
        """Take several steps, at least one; returns which rows are done."""
        for _ in range(n):
            is_done = self.step()
        return is_done

    def checked_steps(self) -> Tensor:
        """Take several vertices; a row that left the polytope, because a facet is not listed, returns with this facet.

        A row of which nothing is left never needed others: what is left after a step is the sum of the vertices that follow.
        """
        left, mass, first = self.left, self.mass, len(self.taken)
        is_done = self.steps(_BLOCK)
        rows = (self.mass > NEGLIGIBLE).nonzero().squeeze(-1)
        points = self.left[rows] / self.mass[rows].unsqueeze(-1)
        found = self.structure.select(rows).violated(unflatten(points, like=self.form))
        if not len(found.row):
            return is_done
        row = rows[found.row]
        is_back = torch.zeros_like(is_done).index_fill(0, row, True)
        self.left = torch.where(is_back.unsqueeze(-1), left, self.left)
        self.mass = torch.where(is_back, mass, self.mass)
        self.taken[first:] = [(atoms, step.masked_fill(is_back, 0.0), ids) for atoms, step, ids in self.taken[first:]]
        self._extend(row, found)
        self._measure()
        return is_done & ~is_back

    def _extend(self, row: Tensor, found: Violated) -> None:
        """Add facets to rows; the others get as many that always hold, 0 >= -1."""
        count = torch.zeros_like(self.ids).index_add_(0, row, torch.ones_like(row))
        place = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
        normals = self.own.new_zeros(len(self.ids), int(count.amax()), self.own.shape[-1])
        levels = normals.new_full(normals.shape[:2], -1.0)
        normals[row, place], levels[row, place] = found.normals, found.levels
        self.own, self.levels = torch.cat([self.own, normals], 1), torch.cat([self.levels, levels], -1)

    def remove(self, is_done: Tensor) -> None:
        """Remove the rows that are done."""
        rest = (~is_done).nonzero().squeeze(-1)
        if len(rest) == len(is_done):
            return
        self.structure = self.structure.select(rest)
        for name in ("ids", "mass", "left", "slack", "own", "levels"):
            setattr(self, name, getattr(self, name)[rest])


def _shrunk(
    old: Tensor,  # shape: (n_rows, n)
    step: Tensor,  # shape: (n_rows,)
    by: Tensor,  # shape: (n_rows, n)
) -> Tensor:
    """What is left after a step, with 0 for what is below rounding errors."""
    new = torch.addcmul(old, step.unsqueeze(-1), by, value=-1)
    return torch.where(new > ZERO, new, 0.0)
