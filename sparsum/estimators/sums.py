"""Exact sums: over all assignments, or over the few that have mass."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from sparsum import kernels
from sparsum.arguments import check_int, check_number
from sparsum.distribution import SparseDistribution
from sparsum.distribution.loss import call_for_numbers
from sparsum.estimators.abstract import AbstractEstimator, Estimate, Needs, check_chunk_size
from sparsum.estimators.members import MAX_COUNT, count_of, members
from sparsum.estimators.problem import Problem
from sparsum.gibbs import Gibbs
from sparsum.inference import check_max_atoms, check_solver, sparsemap_of, topk_sparsemax_of
from sparsum.segments import OnBad, Packed
from sparsum.simplex import entmax, entmax15, sparsemax
from sparsum.simplex.blocks import support
from sparsum.simplex.dispatch import EXPONENTS
from sparsum.simplex.packed import packed_entmax
from sparsum.solvers import AbstractSolver
from sparsum.structures import AbstractStructure


class Dense(AbstractEstimator):
    r"""The exact sum over all assignments, :math:`\sum_z p(z) \ell(z)` with :math:`p(z) \propto \exp(a_z^\top t)`.

    The reference for all other estimators where it is affordable: one call of the loss per allowed assignment.

    >>> import sparsum as sp
    >>> estimate = Dense()(torch.zeros(1, 3), sp.Bits(3), lambda z, row: z.sum(-1))
    >>> estimate.value, estimate.calls
    (tensor([1.5000]), tensor([8]))

    Args:
        max_count: the largest number of assignments to enumerate.
        chunk_size: the largest number of atoms per call of the loss, as in `sparsum.SparseDistribution.expect`.
    """

    needs = Needs.LIST

    def __init__(self, *, max_count: int = MAX_COUNT, chunk_size: int | None = None) -> None:
        super().__init__()
        check_int("max_count", max_count, least=1)
        self.max_count, self.chunk_size = max_count, check_chunk_size(chunk_size)

    def n_calls(self, structure: AbstractStructure) -> int:
        """The number of assignments; forbidden ones are not evaluated."""
        return count_of(structure, self.max_count, "Dense")

    def estimate(self, problem: Problem) -> Estimate:
        """The weighted sum of all losses."""
        bound = problem.bound
        atoms, scores = members(bound, self.n_calls(problem.structure))
        allowed = scores.detach() > -torch.inf
        packed = Packed.of(allowed, is_bad=bound.is_unusable, is_empty_bad=True, on_bad=bound.raise_bad)
        q = SparseDistribution.from_segments(
            packed.take(atoms),
            packed.take(scores.softmax(-1).to(problem.dtype)),
            packed.segments,
            bound.batch_shape,
            bound.structure,
        )
        found = _sum(problem, q, self.chunk_size)
        if not problem.structure.has_partition:
            return found
        # The rows were checked above: avoid a second host-device synchronization.
        gibbs = Gibbs.from_bound(bound, validate_args=False)
        return Estimate(found.surrogate, found.value, found.calls, gibbs)


class Sparse(AbstractEstimator):
    r"""The exact sum under the entmax of the scores of all assignments: sparsemax by default.

    .. math:: \sum_z q(z) \ell(z), \quad q = \alpha\text{-entmax}\bigl( (a_z^\top t)_z \bigr)

    Intended for `OneOf`. For other structures it enumerates all assignments, which must be few; otherwise use `TopK`, which
    keeps the k best of the same distribution, or `SparseMAP`.

    >>> import sparsum as sp
    >>> estimate = Sparse()(torch.tensor([[1.0, 0.8, -0.5]]), sp.OneOf(3), lambda z, row: z.float())
    >>> estimate.value, estimate.calls
    (tensor([0.4000]), tensor([2]))

    Args:
        alpha: larger than 1; 2 is sparsemax, 1.5 has a somewhat larger support.
        max_count: the largest number of assignments to enumerate, for structures other than `OneOf`.
        chunk_size: the largest number of atoms per call of the loss, as in `sparsum.SparseDistribution.expect`.

    References:
        - Efficient marginalization of discrete and structured latent variables via sparsity (Correia, Niculae, Aziz &
          Martins, 2020), section 3, https://arxiv.org/abs/2007.01919
    """

    needs = Needs.LIST

    def __init__(self, alpha: float = 2.0, *, max_count: int = MAX_COUNT, chunk_size: int | None = None) -> None:
        super().__init__()
        check_number("alpha", alpha, above=1.0)
        check_int("max_count", max_count, least=1)
        self.alpha, self.max_count, self.chunk_size = float(alpha), max_count, check_chunk_size(chunk_size)

    def n_calls(self, structure: AbstractStructure) -> None:
        """None: the size of the support depends on the scores."""

    def estimate(self, problem: Problem) -> Estimate:
        """The weighted sum of the losses over the support."""
        bound, structure = problem.bound, problem.structure
        if structure.has_free_choices and bound.flat.shape[-1] == structure.group_size:
            # A single choice: entmax handles +inf. For other structures, sums of infinite scores would be meaningless.
            packed, probs = self._support(bound.flat, None, bound.raise_bad)
            choices = (packed.flat % bound.flat.shape[-1]).unsqueeze(-1)
            atoms = structure.choices_to_atoms(choices, bound.dtype)
        else:
            every, scores = members(bound, count_of(structure, self.max_count, "Sparse"))
            packed, probs = self._support(scores, bound.is_unusable, bound.raise_bad)
            atoms = packed.take(every)
        probs = probs.to(problem.dtype)
        q = SparseDistribution.from_segments(atoms, probs, packed.segments, bound.batch_shape, structure)
        return _sum(problem, q, self.chunk_size)

    def _support(self, scores: Tensor, is_bad: Tensor | None, on_bad: OnBad) -> tuple[Packed, Tensor]:
        """Positions and probabilities of the support of each row."""
        if is_bad is None and self.alpha in EXPONENTS and kernels.serve(scores):
            return packed_entmax(scores, self.alpha, on_bad=on_bad)
        probs = {2.0: sparsemax, 1.5: entmax15}.get(self.alpha, functools.partial(entmax, alpha=self.alpha))(scores)
        packed = support(probs.detach(), is_bad=is_bad, on_bad=on_bad)
        return packed, packed.take(probs)


class TopK(AbstractEstimator):
    """The exact sum under `sparsum.topk_sparsemax`: sparsemax over the k best assignments.

    >>> import sparsum as sp
    >>> estimate = TopK(4)(torch.zeros(1, 128), sp.Bits(128), lambda z, row: z.sum(-1))
    >>> estimate.calls
    tensor([4])

    Args:
        k: the largest number of atoms per row, at least 1.
        chunk_size: the largest number of atoms per call of the loss, as in `sparsum.SparseDistribution.expect`.
    """

    needs = Needs.NOTHING

    def __init__(self, k: int, *, chunk_size: int | None = None) -> None:
        super().__init__()
        check_int("k", k, least=1)
        self.k, self.chunk_size = k, check_chunk_size(chunk_size)

    def n_calls(self, structure: AbstractStructure) -> None:
        """None: the size of the support depends on the scores; at most k."""

    def estimate(self, problem: Problem) -> Estimate:
        """The weighted sum of the losses over the support."""
        return _sum(problem, topk_sparsemax_of(problem.bound, self.k), self.chunk_size)


class SparseMAP(AbstractEstimator):
    """The exact sum under `sparsum.sparsemap`: few assignments whose mean vector is the closest to the scores.

    >>> import sparsum as sp
    >>> estimate = SparseMAP()(torch.tensor([[0.5, -3.0]]), sp.Bits(2), lambda z, row: z.sum(-1))
    >>> estimate.value, estimate.calls
    (tensor([0.7500]), tensor([2]))

    Args:
        solver: one of `sparsum.solvers`; by default a closed form if there is one, otherwise the active set method.
        max_atoms: the largest number of atoms per row, as in `sparsum.sparsemap`; by default unlimited.
        chunk_size: the largest number of atoms per call of the loss, as in `sparsum.SparseDistribution.expect`.
    """

    needs = Needs.NOTHING

    def __init__(
        self, solver: AbstractSolver | None = None, *, max_atoms: int | None = None, chunk_size: int | None = None
    ) -> None:
        super().__init__()
        check_solver(solver)
        self.solver, self.max_atoms, self.chunk_size = solver, check_max_atoms(max_atoms), check_chunk_size(chunk_size)

    def n_calls(self, structure: AbstractStructure) -> None:
        """None: the size of the support depends on the scores; at most the number of parts plus 1."""

    def estimate(self, problem: Problem) -> Estimate:
        """The weighted sum of the losses over the support."""
        return _sum(problem, sparsemap_of(problem.bound, self.solver, self.max_atoms), self.chunk_size)


def _sum(problem: Problem, q: SparseDistribution, chunk_size: int | None) -> Estimate:
    """The expected loss under q as an estimate."""
    generators = () if problem.generator is None else (problem.generator,)

    def losses(z: Tensor, row: Tensor) -> Tensor:  # expect passes copies
        return call_for_numbers("loss", problem.loss, z, row, problem.n_rows, copy=False)

    value = q.expect(losses, chunk_size=chunk_size, generators=generators)
    return Estimate(value, value, q.n_atoms_per_row, q)
