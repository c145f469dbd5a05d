"""Exact sums: over all assignments, or over the few that have mass."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from sparsum import kernels
from sparsum.distribution import SparseDistribution
from sparsum.estimators.abstract import AbstractEstimator, Estimate
from sparsum.estimators.arguments import check_chunk_size, check_number
from sparsum.estimators.members import MAX_COUNT, count_of, members
from sparsum.estimators.problem import Problem
from sparsum.gibbs import Gibbs
from sparsum.gibbs.choices import keeps_to
from sparsum.gibbs.gibbs import GIBBS_STRUCTURES
from sparsum.inference import sparsemap, topk_sparsemax
from sparsum.segments import Segments, may_be_padded, positions_of, read_sizes
from sparsum.simplex import entmax, entmax15, sparsemax
from sparsum.simplex.blocks import Packed, support
from sparsum.simplex.dispatch import EXPONENTS
from sparsum.simplex.packed import packed_entmax
from sparsum.solvers import AbstractSolver
from sparsum.structures import AbstractStructure, OneOf
from sparsum.structures.bad_rows import is_unusable, raise_bad_rows
from sparsum.structures.parts import flatten_parts


class Dense(AbstractEstimator):
    r"""The exact sum over all assignments, :math:`\sum_z p(z) \ell(z)` with :math:`p(z) \propto \exp(a_z^\top t)`.

    What all others are measured by, where it can be afforded: one call of the loss per assignment that is not forbidden.

    >>> import sparsum as sp
    >>> estimate = Dense()(torch.zeros(1, 3), sp.Bits(3), lambda z, row: z.sum(-1))
    >>> estimate.value, estimate.calls
    (tensor([1.5000]), tensor([8]))

    Args:
        max_count: the largest number of assignments.
        chunk_size: at most this many atoms at a time, as in `sparsum.SparseDistribution.expect`.
    """

    structures = (AbstractStructure,)
    lists_all = True

    def __init__(self, *, max_count: int = MAX_COUNT, chunk_size: int | None = None) -> None:
        super().__init__()
        check_number("max_count", max_count, least=1, is_whole=True)
        self.max_count, self.chunk_size = max_count, check_chunk_size(chunk_size)

    def n_calls(self, structure: AbstractStructure) -> int:
        """All assignments, if none is forbidden."""
        return count_of(structure, self.max_count, "Dense")

    def estimate(self, problem: Problem) -> Estimate:
        """The weighted sum of all losses."""
        atoms, scores = members(problem, self.n_calls(problem.structure))
        probs = scores.softmax(-1).to(problem.dtype)
        allowed = scores.detach() > -torch.inf
        is_bad = is_unusable(flatten_parts(problem.rows)) | ~allowed.any(-1)
        n_kept, n_bad = read_sizes(allowed.sum(), is_bad.sum(), most=allowed.numel())
        if n_bad:
            raise_bad_rows(is_bad, flatten_parts(problem.rows))
        atoms, probs = atoms.flatten(0, 1), probs.reshape(-1)
        segments = Segments.from_lengths(allowed.sum(-1), n_kept)
        if n_kept < allowed.numel() or may_be_padded():
            kept = positions_of(allowed.reshape(-1), n_kept)
            atoms, probs = atoms[kept], segments.clear_padding(probs.index_select(0, kept))
        q = SparseDistribution._from_segments(atoms, probs, segments, problem.batch_shape, problem.structure)
        found = _sum(problem, q, self.chunk_size)
        if not keeps_to(problem.structure, GIBBS_STRUCTURES):
            return found
        # What was checked above needs no second wait for the device.
        gibbs = Gibbs._from_rows(problem.structure, problem.rows, problem.batch_shape, validate_args=False)
        return Estimate(found.surrogate, found.value, found.calls, gibbs)


class Sparse(AbstractEstimator):
    r"""The exact sum under the entmax of the scores of all assignments: sparsemax by default.

    .. math:: \sum_z q(z) \ell(z), \quad q = \alpha\text{-entmax}\bigl( (a_z^\top t)_z \bigr)

    For categories. Over other structures it lists all assignments, and serves if they are few; else see `TopK`, the same
    cut to the k best, and `SparseMAP`.

    >>> import sparsum as sp
    >>> estimate = Sparse()(torch.tensor([[1.0, 0.8, -0.5]]), sp.OneOf(3), lambda z, row: z.float())
    >>> estimate.value, estimate.calls
    (tensor([0.4000]), tensor([2]))

    Args:
        alpha: 2 is sparsemax, 1.5 has a somewhat larger support; larger than 1.
        max_count: the largest number of assignments, for structures other than `OneOf`.
        chunk_size: at most this many atoms at a time, as in `sparsum.SparseDistribution.expect`.

    References:
        - Efficient marginalization of discrete and structured latent variables via sparsity (Correia, Niculae, Aziz &
          Martins, 2020), section 3, https://arxiv.org/abs/2007.01919
    """

    structures = (AbstractStructure,)
    lists_all = True

    def __init__(self, alpha: float = 2.0, *, max_count: int = MAX_COUNT, chunk_size: int | None = None) -> None:
        super().__init__()
        check_number("alpha", alpha, above=1.0)
        check_number("max_count", max_count, least=1, is_whole=True)
        self.alpha, self.max_count, self.chunk_size = float(alpha), max_count, check_chunk_size(chunk_size)

    def n_calls(self, structure: AbstractStructure) -> None:
        """As many as have mass."""

    def estimate(self, problem: Problem) -> Estimate:
        """The weighted sum of the losses of what has mass."""
        structure, rows = problem.structure, problem.rows
        flat = flatten_parts(rows).detach()
        if isinstance(structure, OneOf):
            # The mapping knows what to do with +inf; elsewhere sums of it would say nothing.
            is_bad = None
            packed, probs, n_bad = self._support(problem.rows, is_bad)
            atoms = packed.flat % structure.n
        else:
            every, scores = members(problem, count_of(structure, self.max_count, "Sparse"))
            is_bad = is_unusable(flat)
            packed, probs, n_bad = self._support(scores, is_bad)
            atoms = every.flatten(0, 1)[packed.flat]
        if n_bad:
            is_empty = packed.segments.lengths == 0
            raise_bad_rows(is_empty if is_bad is None else is_empty | is_bad, flat)
        probs = probs.to(problem.dtype)
        q = SparseDistribution._from_segments(atoms, probs, packed.segments, problem.batch_shape, structure)
        return _sum(problem, q, self.chunk_size)

    def _support(self, scores: Tensor, is_bad: Tensor | None) -> tuple[Packed, Tensor, int]:
        """Positions and probabilities of what has mass in each row, and how many rows are bad or have nothing."""
        if is_bad is None and self.alpha in EXPONENTS and kernels.serve(scores):
            return packed_entmax(scores, self.alpha)
        probs = {2.0: sparsemax, 1.5: entmax15}.get(self.alpha, functools.partial(entmax, alpha=self.alpha))(scores)
        packed, n_bad = support(probs.detach(), is_bad)
        return packed, packed.segments.clear_padding(probs.reshape(-1).index_select(0, packed.flat)), n_bad


class TopK(AbstractEstimator):
    """The exact sum under `sparsum.topk_sparsemax`: the sparsemax of all assignments, cut to the k best.

    >>> import sparsum as sp
    >>> estimate = TopK(4)(torch.zeros(1, 128), sp.Bits(128), lambda z, row: z.sum(-1))
    >>> estimate.calls
    tensor([4])

    Args:
        k: the largest number of atoms per row, at least 1.
        chunk_size: at most this many atoms at a time, as in `sparsum.SparseDistribution.expect`.
    """

    structures = (AbstractStructure,)

    def __init__(self, k: int, *, chunk_size: int | None = None) -> None:
        super().__init__()
        check_number("k", k, least=1, is_whole=True)
        self.k, self.chunk_size = k, check_chunk_size(chunk_size)

    def n_calls(self, structure: AbstractStructure) -> None:
        """As many as have mass, at most k."""

    def estimate(self, problem: Problem) -> Estimate:
        """The weighted sum of the losses of what has mass."""
        return _sum(problem, topk_sparsemax(problem.rows, problem.structure, self.k), self.chunk_size)


class SparseMAP(AbstractEstimator):
    """The exact sum under `sparsum.inference`: few assignments whose mean vector is the closest to the scores.

    >>> import sparsum as sp
    >>> estimate = SparseMAP()(torch.tensor([[0.5, -3.0]]), sp.Bits(2), lambda z, row: z.sum(-1))
    >>> estimate.value, estimate.calls
    (tensor([0.7500]), tensor([2]))

    Args:
        solver: one of `sparsum.solvers`; by default a closed form where there is one, else the active set.
        chunk_size: at most this many atoms at a time, as in `sparsum.SparseDistribution.expect`.
    """

    structures = (AbstractStructure,)

    def __init__(self, solver: AbstractSolver | None = None, *, chunk_size: int | None = None) -> None:
        super().__init__()
        if solver is not None and not isinstance(solver, AbstractSolver):
            raise TypeError(f"solver must be a solver such as sparsum.solvers.ActiveSet(), got {type(solver).__name__}")
        self.solver, self.chunk_size = solver, check_chunk_size(chunk_size)

    def n_calls(self, structure: AbstractStructure) -> None:
        """As many as have mass, at most one more than the structure has parts."""

    def estimate(self, problem: Problem) -> Estimate:
        """The weighted sum of the losses of what has mass."""
        return _sum(problem, sparsemap(problem.rows, problem.structure, solver=self.solver), self.chunk_size)


def _sum(problem: Problem, q: SparseDistribution, chunk_size: int | None) -> Estimate:
    """The sum of all terms, and the distribution in the shape of the batch."""
    generators = () if problem.generator is None else (problem.generator,)
    value = q.expect(problem.losses, chunk_size=chunk_size, generators=generators)
    shaped = SparseDistribution._from_segments(
        q.atoms, q.probs, q._segments, problem.batch_shape, q.structure, is_exact=q.is_exact.reshape(problem.batch_shape)
    )
    return Estimate(value, value, q.n_atoms_per_row, shaped)
