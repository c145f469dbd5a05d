"""SparseMAP with atoms that are a continuous function of the mean."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum import kernels
from sparsum.arguments import check_bool
from sparsum.segments import Segments
from sparsum.solvers import kkt
from sparsum.solvers.abstract import AbstractSolver, NotConverged, Solution
from sparsum.solvers.active_set import ActiveSet
from sparsum.solvers.mean import Mean, find_mean
from sparsum.solvers.rays import Rays
from sparsum.structures import AbstractStructure, BoundScores
from sparsum.structures.pulling import STUCK, Decomposition
from sparsum.structures.scores import flatten, unflatten

#: With more parts, it is faster to use only those of each row.
_FEW_PARTS = 256


@dataclass(frozen=True)
class Pulled(AbstractSolver):
    r"""SparseMAP whose atoms are a function of the mean, found by *pulling*: expected losses are continuous.

    The mean :math:`\mu` is unique, and a continuous function of the scores. Given :math:`\mu`, take the vertex of its face
    that is best for one fixed direction, go from there through :math:`\mu` as far as the mean vectors reach, and continue
    with the point where this ends, in a smaller face. The probabilities are continuous and piecewise linear in the scores.
    There are at most dim + 1 atoms, affinely independent. Where the scores are in general position they span the face, so
    that the gradient is that of the optimum, for the mean and for every expected loss. docs/pulling.md has the proofs.

    The direction is fixed, but arbitrary: another one gives other atoms with the same mean. For `Sequence`, it orders
    sequences by their first different tag.

    >>> import sparsum as sp
    >>> q = sp.sparsemap(torch.tensor([[0.3, 0.0], [0.0, 0.2]]), sp.Matching(2), solver=Pulled())
    >>> q.atoms, q.probs
    (tensor([[1, 0],
            [0, 1]]), tensor([0.3750, 0.6250]))

    `Sequence`, `Tree` and `Matching` have this solver by default. Other structures are supported as well, but one that does
    not define its `facets` takes hundreds of runs of the active set: for small problems only. A `Sequence` with
    ``regularise_transitions=False`` is not supported, because the mean of its transitions is not unique.

    The mean is found by `ActiveSet`, and for `Sequence` with transitions by Newton's method on the dual. All computations
    use float64.

    Args:
        max_steps: of the active set, as for `ActiveSet`.
        tolerance: on the duality gap of the mean, as for `ActiveSet`; smaller by default, because errors of the mean become
            errors of the probabilities.
        strict: whether to raise `NotConverged` if a row is not solved; if False, split the last feasible mean.

    References:
        - Subdivisions and triangulations of polytopes (Lee & Santos, 2017), section 16.2, on pulling,
          https://www.csun.edu/~ctoth/Handbook/chap16.pdf
        - Tres observaciones sobre el algebra lineal (Birkhoff, 1946), on doubly stochastic matrices
    """

    max_steps: int | None = None
    tolerance: float = 1e-12
    strict: bool = True

    def __post_init__(self) -> None:
        check_bool("strict", self.strict)
        self._active_set()  # checks the other arguments

    def _active_set(self) -> ActiveSet:
        return ActiveSet(max_steps=self.max_steps, tolerance=self.tolerance, strict=False)

    def solve(self, bound: BoundScores) -> Solution:
        """Solve all rows.

        Raises:
            TypeError: if the mean is not unique.
            NotConverged: if ``strict`` and a row does not converge.
            ValueError: if a row contains NaN or +inf, or is fully masked.
        """
        structure, flat = bound.structure, bound.flat.double()
        if not structure.has_unique_mean:
            raise TypeError(f"Pulled needs a unique mean, which {structure!r} does not have; use ActiveSet")
        linear, weight = structure.quadratic(flat)
        with torch.no_grad():
            rows, solver = bound.with_flat(flat.detach()), self._active_set()
            mean = find_mean(rows, solver)
            if mean.split is not None:
                split = mean.split
            elif structure.can_pull:
                split = structure.pull(unflatten(mean.vector, like=rows.scores))
            else:
                split = Rays(rows, weight, solver).split(mean.vector)
            mean = self._checked(mean, split)
        probs, segments = split.weights, Segments.from_row(split.row, bound.n_rows)
        if flat.requires_grad or kernels.is_transformed():
            probs = _differentiable(
                structure, split, segments, linear.masked_fill(linear.detach() == -torch.inf, 0.0), weight
            )
        # float16 would round the smallest probabilities to 0, and so drop their atoms.
        least = torch.finfo(bound.dtype).smallest_normal * torch.finfo(bound.dtype).eps
        max_steps = solver.most_steps(flat)
        return Solution(
            split.atoms, probs.to(bound.dtype).clamp_min(least), segments, mean.is_solved, mean.steps, mean.gap, max_steps
        )

    def _checked(self, mean: Mean, split: Decomposition) -> Mean:
        """Mark rows that could not be split as not solved; if strict, raise for rows that are not solved."""
        is_solved = mean.is_solved & (split.left <= STUCK)
        if self.strict and not bool(is_solved.all()):
            rows = (~is_solved).nonzero().squeeze(-1)
            raise NotConverged(rows.tolist(), mean.steps[rows].tolist(), mean.gap[rows].tolist())
        return dataclasses.replace(mean, is_solved=is_solved)


def _differentiable(
    structure: AbstractStructure,
    split: Decomposition,
    segments: Segments,
    linear: Tensor,  # shape: (n_rows, n_parts), b
    weight: Tensor,  # shape: (n_parts,)
) -> Tensor:
    """The probabilities as a differentiable function of b, for constant atoms: (n_atoms,)."""
    with torch.no_grad():
        starts = segments.starts
        n_slots = int(segments.lengths.max()) if len(linear) else 1
        slot = torch.arange(n_slots, device=linear.device)
        is_filled = slot < segments.lengths.unsqueeze(-1)
        atoms = split.atoms[starts.unsqueeze(-1) + torch.where(is_filled, slot, 0)]
        place = torch.arange(len(split.row), device=linear.device) - starts[split.row] + split.row * n_slots
        vectors, parts = _vectors(structure, atoms, linear.shape[-1])
        # Parts that all atoms share do not matter; without them, the matrix is well conditioned.
        vectors = (vectors - vectors[:, :1]) * is_filled.unsqueeze(-1)
        gram = kkt.lifted_gram(vectors * weight[parts].sqrt().unsqueeze(1), torch.ones_like(weight[:1]), is_filled)
        tangent = kkt.Tangent.factor(gram, is_filled)
    scores = kkt.multiply(vectors, linear.gather(1, parts))
    return split.weights + tangent.solve(scores - scores.detach()).flatten().index_select(0, place)


def _vectors(
    structure: AbstractStructure,
    atoms: Tensor,  # shape: (n_rows, n_slots, *event_shape)
    n_parts: int,
) -> tuple[Tensor, Tensor]:
    """The vectors of atoms, (n_rows, n_slots, n), of the parts that each row uses, or of all if few: (n_rows, n)."""
    n_rows, n_slots = atoms.shape[:2]
    row = torch.arange(n_rows, device=atoms.device).repeat_interleave(n_slots, output_size=n_rows * n_slots)
    rows, flat = structure.select(row), atoms.flatten(0, 1)
    used = rows.parts(flat) if n_parts > _FEW_PARTS else None
    if used is None:
        vectors = flatten(rows.vectors(flat)).double().reshape(n_rows, n_slots, n_parts)
        return vectors, torch.arange(n_parts, device=atoms.device).expand(n_rows, n_parts)
    n_each = used.shape[-1]
    used = used.reshape(n_rows, n_slots * n_each)
    is_used = torch.zeros(n_rows, n_parts + 1, dtype=torch.bool, device=atoms.device).scatter_(1, used, True)[:, :-1]
    place = is_used.cumsum(-1)
    n = int(place[:, -1].amax()) if n_rows else 0
    # Parts that a row does not use go to the last place, which is cut off; a row with fewer parts repeats part 0 in vain.
    parts = torch.zeros(n_rows, n + 1, dtype=torch.int64, device=atoms.device)
    every = torch.arange(n_parts, device=atoms.device).expand(n_rows, n_parts)
    parts.scatter_(1, torch.where(is_used, place - 1, n), every)
    place = torch.nn.functional.pad(place - 1, (0, 1), value=n).gather(1, used).reshape(n_rows, n_slots, n_each)
    vectors = torch.zeros(n_rows, n_slots, n + 1, dtype=torch.float64, device=atoms.device).scatter_(2, place, 1.0)
    return vectors[..., :-1], parts[:, :-1]
