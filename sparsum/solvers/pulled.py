"""SparseMAP with atoms that are a continuous function of the mean."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsum import kernels
from sparsum.segments import Segments
from sparsum.solvers import kkt
from sparsum.solvers.abstract import AbstractSolver, NotConverged, Solution
from sparsum.solvers.active_set import ActiveSet
from sparsum.solvers.quadratic import unpack
from sparsum.structures import AbstractStructure, BoundScores
from sparsum.structures.pulling import STUCK, Split
from sparsum.structures.scores import flatten


@dataclass(frozen=True)
class Pulled(AbstractSolver):
    r"""SparseMAP whose atoms are a function of the mean, found by *pulling*: expected losses are continuous.

    The mean :math:`\mu` is unique, and a continuous function of the scores. `ActiveSet` finds it. Its atoms are then replaced:
    from :math:`\mu`, take the vertex of its face that is best for one fixed direction, go from there through :math:`\mu` as
    far as the mean vectors reach, and continue with the smaller face that this ends in. The probabilities are continuous and
    piecewise linear in the scores. There are at most dim + 1 atoms, affinely independent. Where the scores are in general
    position they span the face, so the gradient is that of the optimum, for the mean and for every expected loss.

    The direction is fixed, but arbitrary: another one gives other atoms with the same mean. For `Sequence` it orders sequences
    by their first different tag.

    >>> import sparsum as sp
    >>> q = sp.sparsemap(torch.tensor([[0.3, 0.0], [0.0, 0.2]]), sp.Matching(2), solver=Pulled())
    >>> q.atoms, q.probs
    (tensor([[1, 0],
            [0, 1]]), tensor([0.3750, 0.6250]))

    The structure must define its `facets`, as `Sequence`, `Tree` and `Matching` do, which have this solver by default. A
    `Sequence` with ``regularise_transitions=False`` is not supported: the mean of its transitions is not unique.

    Args:
        max_steps: of the active set, as for `ActiveSet`.
        tolerance: on the duality gap of the mean, as for `ActiveSet`; smaller by default, because errors of the mean become
            errors of the probabilities.
        strict: whether to raise `NotConverged` if a row is not solved; if False, split the last feasible mean.

    References:
        - Subdivisions and triangulations of polytopes (Lee & Santos, 2017), section 16.2.2, on pulling,
          https://www.csun.edu/~ctoth/Handbook/chap16.pdf
        - Three observations on linear algebra (Birkhoff, 1946), the decomposition of doubly stochastic matrices
    """

    max_steps: int | None = None
    tolerance: float = 1e-12
    strict: bool = True

    def __post_init__(self) -> None:
        self._active_set()

    def _active_set(self) -> ActiveSet:
        return ActiveSet(max_steps=self.max_steps, tolerance=self.tolerance, strict=self.strict)

    def solve(self, bound: BoundScores) -> Solution:
        """Solve all rows.

        Raises:
            TypeError: if the structure has no `facets`, or the mean is not unique.
            NotConverged: if ``strict`` and a row does not converge.
            ValueError: if a row contains NaN or +inf, or is fully masked.
        """
        structure = bound.structure
        if not structure.has_unique_mean:
            raise TypeError(f"Pulled needs a unique mean, got {structure!r} whose transitions are not regularised; use ActiveSet")
        flat = bound.flat.double()
        with torch.no_grad():
            solution = self._active_set().solve(bound.with_flat(flat.detach()))
            split = structure.pull(structure.marginals(solution.atoms, solution.probs, solution.segments))
            solution = replace(solution, is_solved=solution.is_solved & (split.left <= STUCK))
            if self.strict and not bool(solution.is_solved.all()):
                rows = (~solution.is_solved).nonzero().squeeze(-1)
                raise NotConverged(rows.tolist(), solution.steps[rows].tolist(), solution.gap[rows].tolist())
            segments = Segments.from_row(split.row, bound.n_rows)
        probs = _differentiable(structure, split, flat).to(bound.dtype)
        # float16 would round the smallest probabilities to 0, and so drop their atoms.
        probs = probs.clamp_min(torch.finfo(bound.dtype).smallest_normal * torch.finfo(bound.dtype).eps)
        return replace(solution, atoms=split.atoms, probs=probs, segments=segments)


def _differentiable(
    structure: AbstractStructure,
    split: Split,
    flat: Tensor,  # shape: (n_rows, n_parts), the scores
) -> Tensor:
    """The probabilities as a differentiable function of the scores, for constant atoms: (n_atoms,)."""
    if not (flat.requires_grad or kernels.is_transformed()):
        return split.weights
    linear, weight = structure.quadratic(flat)
    linear = linear.masked_fill(linear.detach() == -torch.inf, 0.0)
    with torch.no_grad():
        atoms, index, is_filled = unpack(split.atoms, split.row, len(flat))
        row = torch.arange(len(flat), device=flat.device).repeat_interleave(atoms.shape[1])
        vectors = flatten(structure.select(row).vectors(atoms.flatten(0, 1))).to(weight.dtype)
        vectors = vectors.reshape(*is_filled.shape, flat.shape[-1])
        # Parts that all atoms share do not matter; without them the matrix is well conditioned, and 0 in empty slots.
        vectors = vectors - vectors[:, :1]
        tangent = kkt.Tangent.factor(kkt.lifted_gram(vectors, weight, is_filled), is_filled)
    scores = kkt.multiply(vectors, linear)
    moved = tangent.solve(scores - scores.detach())
    return split.weights + moved[is_filled]
