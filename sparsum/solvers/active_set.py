"""The active set method: SparseMAP for any structure with an `argmax`."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparsum import kernels
from sparsum.arguments import check_bool, check_int, check_number, kind_of
from sparsum.segments import may_be_padded
from sparsum.solvers import active_bits, active_steps, kkt
from sparsum.solvers.abstract import AbstractSolver, NotConverged, Solution
from sparsum.solvers.loop import run, run_again
from sparsum.solvers.polish import Found
from sparsum.solvers.quadratic import Padded, Quadratic, scale_of, unpack
from sparsum.solvers.rounding import centred, relative_to
from sparsum.structures import BoundScores
from sparsum.structures.scores import NoDistribution, check_atoms, check_vectors, flatten

#: Sums of scores up to this are exact.
_MODERATE = 256
#: The memory for the vectors of atoms, of which a solve holds a few copies, and the number of atoms that a row may have.
_MOST_BYTES, _MANY_ATOMS = 1 << 27, 48
#: The largest number of polishing rounds; rows whose certificate fails return to the loop.
_ROUNDS = 4


@dataclass(frozen=True)
class ActiveSet(AbstractSolver):
    r"""The batched active set method of the paper, for any structure with an `argmax`.

    .. math:: \max_{\xi \in \triangle} b^\top \mu - \tfrac12 \sum_i w_i \mu_i^2, \qquad \mu = A \xi,

    with b and w from `structure.quadratic`. Each step solves the problem on the current atoms without :math:`\xi \ge 0`,
    and moves towards that solution. If a probability hits 0 on the way, its atom is dropped; otherwise the oracle, `argmax`
    of the residual :math:`r = b - W \mu`, determines the atom to add. A row is solved when this atom a does not improve the
    objective: the Frank-Wolfe gap :math:`\langle a - \mu, r \rangle` bounds the suboptimality. Rounding errors count as part
    of the gap: a row with scores so large that they hide a better atom is not solved. Large scores do no harm where
    assignments do not compete over them: in groups of which one part is used, only differences within a group matter.

    The mean is unique (where w > 0), the distribution is not: which optimal distribution is returned depends on the start,
    and may change with arbitrarily small changes of the scores. So an expected loss is discontinuous, and its gradient is
    correct between the jumps; `Pulled` has none. Equal rows of scores give equal atoms, in any batch. The atoms are affinely
    independent (where w > 0), at most n_parts + 1 per row, in the order of their slots. All computations use float64. On a
    GPU, one kernel runs all steps of `Bits`, `Budget` and `Subset`; for other 0/1 vectors a kernel does each step, beside
    `argmax`, and the loop synchronizes with the device every few steps.

    The gradient is that of the probabilities on the returned atoms. It is the gradient of the optimum if these span the
    optimal face. With many bits the gap closes before they do (44 atoms for 87 fractional bits of 128): the gradient of the
    mean is then the true gradient projected onto the span of the atoms. `Nested` and `Systematic` always span the face.

    >>> import sparsum as sp
    >>> solution = ActiveSet().solve(sp.OneOf(3).bind(torch.tensor([[0.5, 0.4, -1.0]])))
    >>> solution.atoms, solution.probs
    (tensor([0, 1]), tensor([0.5500, 0.4500]))
    >>> solution.steps, solution.is_solved
    (tensor([1]), tensor([True]))

    Args:
        max_steps: the number of atoms added and dropped after which a row stops adding atoms; by default 10 times the
            number of parts, plus 100.
        tolerance: the gap below which a row is solved; at least the rounding error of the gap, about 1e-11 times the
            distance of the mean to a vertex. If vectors are not 0/1, it is relative to the square of their size.
        start: the initial atoms, by default the best one: (n_rows, n_start, *event_shape), or a packed pair (atoms, row),
            as in a `SparseDistribution`, with at least one atom per row. They must be assignments of the structure, which
            is checked by its `contains`. Repeated, forbidden and affinely
            dependent atoms are ignored, and a row without any other starts from its best atom.
        strict: whether to raise `NotConverged` if a row is not solved; if False, keep its last feasible iterate.
        chunk_size: the number of rows to solve at once, which bounds the memory; by default as many as have atoms with
            vectors of about 128 MB. Atoms do not depend on it, and probabilities only by rounding.

    References:
        - Efficient marginalization of discrete and structured latent variables via sparsity (Correia, Niculae, Aziz &
          Martins, 2020), appendix B, algorithm 1, https://arxiv.org/abs/2007.01919
        - Numerical optimization (Nocedal & Wright, 2006), sections 16.4 and 16.5
    """

    max_steps: int | None = None
    tolerance: float = 1e-9
    start: Tensor | tuple[Tensor, Tensor] | None = field(default=None, compare=False)
    strict: bool = True
    chunk_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_steps", "chunk_size"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), least=1)
        check_number("tolerance", self.tolerance, least=0.0)
        check_bool("strict", self.strict)
        parts = self.start if isinstance(self.start, tuple) and len(self.start) == 2 else (self.start,)
        if self.start is not None and not all(isinstance(part, Tensor) for part in parts):
            raise TypeError(f"start must be a torch.Tensor or a packed pair (atoms, row), got {kind_of(self.start)}")

    def solve(self, bound: BoundScores) -> Solution:
        """Solve all rows.

        Raises:
            NotConverged: if ``strict`` and a row does not converge; holds the rows, steps and gaps.
            ValueError: if a row contains NaN or +inf, or is fully masked; or if ``start`` has the wrong shape.
        """
        size = _rows_at_once(bound.flat.shape[-1]) if self.chunk_size is None else self.chunk_size
        if bound.n_rows <= size or may_be_padded():
            solution, n_unsolved = self._solve(bound)
        else:
            solution, n_unsolved = self._solve_chunks(bound, size)
        if self.strict and n_unsolved:
            rows = torch.arange(bound.n_rows, device=bound.device)
            reported = (rows, solution.steps, solution.gap)
            raise NotConverged(*(tensor[~solution.is_solved].tolist() for tensor in reported))
        return solution

    def _solve(self, bound: BoundScores) -> tuple[Solution, int]:
        """The solution of all rows at once, and how many are not solved; if not strict, only of rows with steps left."""
        structure, flat = bound.structure, centred(bound)
        linear, weight = structure.quadratic(flat)
        is_forbidden = linear.detach() == -torch.inf
        linear = linear.masked_fill(is_forbidden, 0.0)
        with torch.no_grad():
            rows = bound.with_flat(flat.detach())
            problem = Quadratic(structure, rows.scores, linear.detach(), weight, is_forbidden, given=bound.flat.detach())
            found = self.find(problem, rows)
        atoms, probs, segments = found.packed(linear, bound.dtype)
        solution = Solution(atoms, probs, segments, found.is_solved, found.padded.steps, found.gap, self.most_steps(flat))
        return solution, found.n_unsolved

    def _solve_chunks(self, bound: BoundScores, size: int) -> tuple[Solution, int]:
        """The same for a few rows at a time."""
        start = _unpacked(self.start, bound.n_rows) if isinstance(self.start, tuple) else self.start
        starts = itertools.repeat(None) if start is None else iter(start.split(size))
        try:
            solved = [
                dataclasses.replace(self, start=each)._solve(rows)
                for rows, each in zip(bound.split(size), starts, strict=False)
            ]
        except NoDistribution:  # names the rows of a chunk
            bound.raise_bad(torch.cat([_is_bad(rows) for rows in bound.split(size)]))
        return Solution.concatenate([solution for solution, _ in solved]), sum(n for _, n in solved)

    def most_steps(
        self,
        flat: Tensor,  # shape: (n_rows, n_parts)
    ) -> int:
        """The largest number of steps of a row."""
        return 10 * flat.shape[-1] + 100 if self.max_steps is None else self.max_steps

    def find(self, problem: Quadratic, rows: BoundScores) -> Found:
        """The atoms of all rows and their certificates."""
        max_steps = self.most_steps(rows.flat)
        if self.start is None:
            problem, done = run_from_best(rows.flat, rows, problem, self.tolerance, max_steps)
        else:
            problem, best = _best_atoms(problem, rows)
            every, atoms, probs = torch.arange(len(best), device=best.device), *self._start(problem, best)
            steps = torch.zeros_like(every)
            done = Padded.from_packed(
                run(problem, every, atoms, probs, steps, tolerance=self.tolerance, max_steps=max_steps, is_snapped=True)
            )
        for n_round in range(_ROUNDS):
            found = Found.polish(problem, done, self.tolerance, max_steps, strict=self.strict)
            if not found.n_left or n_round == _ROUNDS - 1:
                break
            # The rounded residuals were too coarse for these rows, or their inverse too inaccurate.
            again = found.is_left.nonzero().squeeze(-1)
            done = run_again(problem, found.padded, again, tolerance=self.tolerance, max_steps=max_steps, is_snapped=False)
        return found

    def _start(self, problem: Quadratic, best: Tensor) -> tuple[Tensor, Tensor]:
        """Initial atoms, (n_rows, n_slots, *event_shape), and feasible probabilities, 0 for ignored atoms."""
        assert self.start is not None
        atoms = _unpacked(self.start, len(best)) if isinstance(self.start, tuple) else self.start
        if atoms.ndim < 2 or atoms.shape[:1] != best.shape[:1] or atoms.shape[2:] != best.shape[1:] or not atoms.shape[1]:
            shape = f"({', '.join(map(str, [len(best), 'n_start', *best.shape[1:]]))})"
            raise ValueError(f"start must have shape {shape}, or be a packed pair (atoms, row); got {tuple(atoms.shape)}")
        atoms = torch.cat([atoms.to(best), best.unsqueeze(1)], 1)
        row = torch.arange(len(best), device=best.device).repeat_interleave(atoms.shape[1])
        is_other = ~problem.structure.select(row).contains(atoms.flatten(0, 1))
        if bool(is_other.any()):
            first = int(is_other.nonzero()[0])
            seen = f"{atoms.flatten(0, 1)[first].tolist()} in row {int(row[first])}"
            raise ValueError(f"start must hold assignments of {problem.structure!r}, got {seen}")
        vectors = problem.vectors(atoms.flatten(0, 1), row).reshape(*atoms.shape[:2], problem.linear.shape[-1])
        is_allowed = torch.ones(atoms.shape[:2], dtype=torch.bool, device=best.device)
        if problem.is_forbidden is not None:
            is_allowed = ~((vectors != 0) & problem.is_forbidden.unsqueeze(1)).any(-1)
        is_allowed[:, -1] = ~is_allowed[:, :-1].any(-1)
        kept = kkt.independent(kkt.lifted_gram(vectors, problem.weight, is_allowed), is_allowed)
        return atoms, kept / kept.sum(-1, keepdim=True, dtype=torch.float64)


@kernels.operation("active_set_of_bits", kernel=active_bits.run_bits, takes=active_bits.are_few_bits, is_traceable=True)
def run_from_best(
    flat: Tensor,  # noqa: ARG001 (shape: (n_rows, n_parts), the scores, by which the registry chooses)
    rows: BoundScores,
    problem: Quadratic,
    tolerance: float,
    max_steps: int,
) -> tuple[Quadratic, Padded]:
    """The problem, with ``is_forbidden=None`` if no part is forbidden, and the atoms of all rows from the best ones on."""
    problem, best = _best_atoms(problem, rows)
    return problem, run_from(problem.linear, problem, best, tolerance, max_steps)


@kernels.operation("active_set_steps", kernel=active_steps.run_steps, takes=active_steps.are_binary)
def run_from(
    linear: Tensor,  # shape: (n_rows, n_parts), that of the problem
    problem: Quadratic,
    best: Tensor,  # shape: (n_rows, *event_shape)
    tolerance: float,
    max_steps: int,
) -> Padded:
    """The atoms of all rows, from one of each on."""
    every, ones = torch.arange(len(best), device=best.device), linear.new_ones(len(best), 1)
    start = (every, best.unsqueeze(1), ones, torch.zeros_like(every))
    return Padded.from_packed(run(problem, *start, tolerance=tolerance, max_steps=max_steps, is_snapped=True))


def _rows_at_once(n_parts: int) -> int:
    """The number of rows whose atoms have vectors of about `_MOST_BYTES`."""
    return max(1, _MOST_BYTES // (8 * n_parts * min(n_parts + 1, _MANY_ATOMS)))


def _is_bad(bound: BoundScores) -> Tensor:
    """Which rows have no distribution: (n_rows,)."""
    with torch.no_grad():
        best = bound.argmax()
        uses = flatten(bound.structure.vectors(best)) != 0
        return bound.is_unusable | (uses & (bound.flat == -torch.inf)).any(-1)


def _best_atoms(problem: Quadratic, rows: BoundScores) -> tuple[Quadratic, Tensor]:
    """The problem, with ``is_forbidden=None`` if no part is forbidden, and the best atom of each row; raises if none."""
    assert problem.is_forbidden is not None
    is_bad, is_wide = rows.is_unusable, problem.linear.abs() > _MODERATE
    is_any_bad, is_any_forbidden, is_wide = torch.stack([is_bad.any(), problem.is_forbidden.any(), is_wide.any()]).tolist()
    if is_any_bad:
        rows.raise_bad(is_bad)
    is_forbidden = problem.is_forbidden if is_any_forbidden else None
    problem = dataclasses.replace(problem, is_forbidden=is_forbidden, is_wide=is_wide)
    best = problem.best(rows.flat)
    check_atoms(rows.structure, best, rows.n_rows)
    check_vectors(rows.structure, rows.structure.vectors(best), rows.flat.shape[-1])
    if problem.is_forbidden is not None:
        allows_nothing = ((problem.vectors(best) != 0) & problem.is_forbidden).any(-1)
        if bool(allows_nothing.any()):
            rows.raise_bad(allows_nothing)
    if problem.is_wide and rows.structure.group_sizes is not None:
        problem = _relative_to_best(problem, rows, best)
    scale = scale_of(problem, best)
    if scale is not None:
        problem = problem.scaled(scale)
        problem = dataclasses.replace(problem, is_wide=bool((problem.linear.abs() > _MODERATE).any()))
    return problem, best


def _relative_to_best(problem: Quadratic, rows: BoundScores, best: Tensor) -> Quadratic:
    """Subtract the scores of the best assignment, with which the others compete, in rows with large scores.

    Directly from those that are given: each difference is then rounded once.
    """
    linear = problem.linear
    if problem.given is not None:
        linear, _ = problem.structure.quadratic(problem.given.double())
    linear = relative_to(linear, problem.vectors(best), rows)
    if problem.is_forbidden is not None:
        linear = linear.masked_fill(problem.is_forbidden, 0.0)
    is_wide = (problem.linear.abs() > _MODERATE).any(-1, keepdim=True)
    return dataclasses.replace(problem, linear=torch.where(is_wide, linear, problem.linear), given=None)


def _unpacked(start: tuple[Tensor, Tensor], n_rows: int) -> Tensor:
    """Packed atoms as (n_rows, n_start, *event_shape), padded with the first atom of each row."""
    atoms, row = start
    if row.shape != atoms.shape[:1] or not torch.equal(row.unique(), torch.arange(n_rows, device=row.device)):
        raise ValueError(f"a packed start must be a pair (atoms, row) with at least one atom for each of the {n_rows} rows")
    return unpack(atoms, row, n_rows)[0]
