"""The active set method: SparseMAP over any structure that can find its best assignment."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.segments import Segments
from sparsum.solvers import _kkt
from sparsum.solvers._abstract import AbstractSolver, NotConverged, Solution
from sparsum.solvers._active_rows import NEGLIGIBLE, ActiveRows, Packed, Problem, violation
from sparsum.structures import AbstractStructure
from sparsum.structures._parts import Scores, flatten_parts, tensors_of

#: How often rows whose certificate fails after polishing go back into the loop.
_ROUNDS = 4


@dataclass(frozen=True)
class ActiveSet(AbstractSolver):
    r"""The active set method of the paper, for any structure with an `argmax`, batched.

    .. math:: \max_{\xi \in \triangle} b^\top \mu - \tfrac12 \sum_i w_i \mu_i^2, \qquad \mu = A \xi,

    with b and w from `structure.quadratic`. Each step solves the problem on a few atoms without :math:`\xi \ge 0`, goes towards
    that solution, and drops the atom whose probability hits 0 first; if none does, the oracle `argmax` of the residual
    :math:`r = b - W \mu` names the atom to add. The row is solved when that atom a gains nothing: the Frank-Wolfe gap
    :math:`\langle a - \mu, r \rangle` bounds how far the objective is from its optimum.

    The mean is unique (where w > 0), the distribution is not: which of the optimal ones comes out depends on the start.
    Equal rows of scores give equal atoms, in any batch. The probabilities are differentiable on the atoms found, which are
    affinely independent: at most n_parts + 1. Everything is computed in float64.

    >>> import sparsum as sp
    >>> solution = ActiveSet().solve(torch.tensor([[0.5, 0.4, -1.0]]), sp.OneOf(3))
    >>> solution.atoms, solution.probs
    (tensor([0, 1]), tensor([0.5500, 0.4500]))
    >>> solution.steps, solution.is_solved
    (tensor([1]), tensor([True]))

    Args:
        max_steps: how many atoms a row may add or drop; by default 10 times the number of parts, plus 100.
        tolerance: the gap below which a row is solved; never less than what rounding leaves of the gap, about 1e-11 times
            the distance of the mean to a vertex.
        start: the atoms to start from, instead of the best one: (n_rows, n_start, *event_shape), or the packed pair
            (atoms, row), as a distribution holds it, with at least one atom per row. Repeated, forbidden and
            affinely dependent ones are left out; a row that is left with none starts from its best atom.
        strict: whether to raise if a row is not solved, or else to keep its last feasible iterate.

    References:
        - Efficient marginalization of discrete and structured latent variables via sparsity (Correia, Niculae, Aziz &
          Martins, 2020), appendix B, algorithm 1, https://arxiv.org/abs/2007.01919
        - Numerical optimization (Nocedal & Wright, 2006), sections 16.4 and 16.5
    """

    max_steps: int | None = None
    tolerance: float = 1e-9
    start: Tensor | tuple[Tensor, Tensor] | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        if self.max_steps is not None and (isinstance(self.max_steps, bool) or not isinstance(self.max_steps, int)):
            raise TypeError(f"max_steps must be an int or None, got {type(self.max_steps).__name__}")
        if self.max_steps is not None and self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {self.max_steps}")
        if not self.tolerance >= 0:
            raise ValueError(f"tolerance must not be negative, got {self.tolerance}")

    def solve(
        self,
        scores: Scores,  # shape: (n_rows, *score_shape)
        structure: AbstractStructure,
    ) -> Solution:
        """Solve all rows.

        Raises:
            NotConverged: if strict and a row runs out of steps; it names rows, steps and gaps.
            ValueError: if a row holds a NaN or +inf, or allows nothing; or if the start has a wrong shape.
        """
        flat = flatten_parts(scores).double()
        linear, weight = structure.quadratic(flat)
        is_forbidden = linear.detach() == -torch.inf
        linear = linear.masked_fill(is_forbidden, 0.0)
        with torch.no_grad():
            problem = Problem(structure, scores, linear.detach(), weight, is_forbidden if bool(is_forbidden.any()) else None)
            best = _best_atoms(problem, flat.detach())
            event_dtype = tensors_of(scores)[0].dtype if best.is_floating_point() else best.dtype
            found = self._find(problem, best)
        probs = found.differentiable(linear)
        self._check(found)
        dtype = tensors_of(scores)[0].dtype
        return Solution(
            atoms=found.atoms.to(event_dtype),
            # A probability that the dtype cannot hold is not 0, which would contradict the gradient.
            probs=probs.to(dtype).clamp_min(torch.finfo(dtype).smallest_normal),
            segments=found.segments,
            is_solved=found.is_solved,
            steps=found.steps,
            gap=found.gap,
            outcome=found.outcome(),
        )

    def _find(self, problem: Problem, best: Tensor) -> _Found:
        """The atoms of all rows and their certificates."""
        n_rows, n_parts = problem.linear.shape
        max_steps = 10 * n_parts + 100 if self.max_steps is None else self.max_steps
        steps = torch.zeros(n_rows, dtype=torch.int64, device=best.device)
        every = torch.arange(n_rows, device=best.device)
        atoms, probs = self._start(problem, best)
        done = _run(problem, every, atoms, probs, steps, tolerance=self.tolerance, max_steps=max_steps, is_snapped=True)
        for n_round in range(_ROUNDS):
            found = _Found.polish(problem, done, self.tolerance, max_steps)
            again = (~found.is_solved & (found.steps < max_steps)).nonzero().squeeze(-1)
            if not len(again) or n_round == _ROUNDS - 1:
                break
            # Rounded residuals were too coarse for these rows, or their inverse too inaccurate.
            redone = _run(
                problem.select(again),
                again,
                found.padded(found.atoms)[again],
                found.padded(found.probs)[again],
                found.steps[again],
                tolerance=self.tolerance,
                max_steps=max_steps,
                is_snapped=False,
            )
            done = found.replaced(redone)
        return found

    def _start(self, problem: Problem, best: Tensor) -> tuple[Tensor, Tensor]:
        """Atoms, (n_rows, n_slots, *event_shape), and feasible probabilities to start from, 0 for those left out."""
        ones = problem.linear.new_ones(len(best), 1)
        if self.start is None:
            return best.unsqueeze(1), ones
        atoms = _unpacked(self.start, len(best)) if isinstance(self.start, tuple) else self.start
        if atoms.shape[:1] != best.shape[:1] or atoms.shape[2:] != best.shape[1:] or not atoms.shape[1]:
            raise ValueError(
                f"start must have shape ({len(best)}, n_start, {', '.join(map(str, best.shape[1:]))}), or be the packed pair "
                f"(atoms, row) of {len(best)} rows; got {tuple(atoms.shape)}"
            )
        atoms = torch.cat([atoms.to(best), best.unsqueeze(1)], 1)
        row = torch.arange(len(best), device=best.device).repeat_interleave(atoms.shape[1])
        vectors = problem.vectors(atoms.flatten(0, 1), row).reshape(*atoms.shape[:2], problem.linear.shape[-1])
        is_allowed = torch.ones(atoms.shape[:2], dtype=torch.bool, device=best.device)
        if problem.is_forbidden is not None:
            is_allowed = ~((vectors != 0) & problem.is_forbidden.unsqueeze(1)).any(-1)
        is_allowed[:, -1] = ~is_allowed[:, :-1].any(-1)
        kept = _kkt.independent(_kkt.lifted_gram(vectors, problem.weight, is_allowed), is_allowed)
        return atoms, kept / kept.sum(-1, keepdim=True, dtype=torch.float64)

    def _check(self, found: _Found) -> None:
        if self.strict and not bool(found.is_solved.all()):
            rows = (~found.is_solved).nonzero().squeeze(-1)
            raise NotConverged(rows.tolist(), found.steps[rows].tolist(), found.gap[rows].tolist())


@dataclass(frozen=True)
class _Found:
    """The atoms of all rows, padded to the same number of slots, with their certificates."""

    atoms: Tensor  # shape: (n_atoms, *event_shape)
    probs: Tensor  # shape: (n_atoms,)
    segments: Segments
    flat: Tensor  # shape: (n_atoms,), where each atom stands among the padded ones
    vectors: Tensor  # shape: (n_rows, n_slots, n_parts), less the first of each row
    is_active: Tensor  # shape: (n_rows, n_slots)
    tangent: _kkt.Tangent
    steps: Tensor  # shape: (n_rows,)
    gap: Tensor  # shape: (n_rows,)
    is_solved: Tensor  # shape: (n_rows,)
    max_steps: int

    @classmethod
    def polish(cls, problem: Problem, done: Packed, tolerance: float, max_steps: int) -> _Found:
        """Solve the problem on the atoms found once more, accurately, and ask for the gap of the result."""
        n_rows = len(done.ids)
        order = done.row.argsort(stable=True)
        atoms, probs, row = done.atoms[order], done.probs[order], done.row[order]
        steps = torch.empty_like(done.steps).scatter_(0, done.ids, done.steps)
        while True:
            segments = Segments.from_row(row, n_rows)
            n_slots = int(segments.lengths.max()) if n_rows else 0
            flat = torch.arange(len(row), device=row.device) - segments.starts[row] + row * n_slots
            vectors = problem.vectors(atoms, row)
            origin = vectors[segments.starts]
            shifted = vectors.new_zeros(n_rows * n_slots, vectors.shape[-1])
            shifted = shifted.index_copy_(0, flat, vectors - origin[row]).reshape(n_rows, n_slots, -1)
            xi = vectors.new_zeros(n_rows * n_slots).index_copy_(0, flat, probs).reshape(n_rows, n_slots)
            is_active = xi > 0
            xi = xi / xi.sum(-1, keepdim=True)
            tangent = _kkt.Tangent.factor(_kkt.lifted_gram(shifted, problem.weight, is_active), is_active)
            residual = problem.residual(origin + _kkt.apply_transposed(shifted, xi))
            last, xi = xi, xi + tangent.solve(_kkt.apply(shifted, residual))
            xi = xi / xi.sum(-1, keepdim=True)
            is_out = steps >= max_steps
            xi = torch.where(is_out.unsqueeze(-1), last, xi)
            probs = xi.reshape(-1)[flat]
            kept = probs > NEGLIGIBLE
            if bool(kept.all()):
                break
            atoms, probs, row = atoms[kept], probs[kept], row[kept]
        mean = origin + _kkt.apply_transposed(shifted, xi)
        residual = problem.residual(mean)
        if n_rows:
            gap, resolution = violation(problem.vectors(problem.best(residual)), mean, residual)
        else:
            gap = resolution = mean.new_zeros(0)
        is_solved = gap <= resolution.clamp_min(tolerance)
        return cls(atoms, probs, segments, flat, shifted, is_active, tangent, steps, gap.clamp_min(0), is_solved, max_steps)

    def padded(self, values: Tensor) -> Tensor:
        """One value per atom in padded rows: (n_rows, n_slots, *rest)."""
        n_rows, n_slots = self.is_active.shape
        empty = values.new_zeros(n_rows * n_slots, *values.shape[1:])
        return empty.index_copy_(0, self.flat, values).reshape(n_rows, n_slots, *values.shape[1:])

    def replaced(self, redone: Packed) -> Packed:
        """All rows, some of them replaced."""
        row, every = self.segments.row, torch.arange(len(self.steps), device=self.steps.device)
        kept, is_kept = ~torch.isin(row, redone.ids), ~torch.isin(every, redone.ids)
        return Packed(
            torch.cat([self.atoms[kept], redone.atoms]),
            torch.cat([self.probs[kept], redone.probs]),
            torch.cat([row[kept], redone.row]),
            torch.cat([every[is_kept], redone.ids]),
            torch.cat([self.steps[is_kept], redone.steps]),
        )

    def differentiable(
        self,
        linear: Tensor,  # shape: (n_rows, n_parts)
    ) -> Tensor:
        """The probabilities as a function of b, the atoms being constant: (n_atoms,)."""
        if not linear.requires_grad:
            return self.probs
        scores = _kkt.apply(self.vectors, linear)
        moved = self.tangent.solve(scores - scores.detach())
        return self.probs + moved.reshape(-1).index_select(0, self.flat)

    def outcome(self) -> tuple[str, ...]:
        """How each row ended, in words."""
        rows = zip(self.is_solved.tolist(), self.steps.tolist(), self.gap.tolist(), strict=True)
        return tuple(
            f"{'optimal' if solved else 'out of steps' if steps >= self.max_steps else 'stalled, atoms nearly dependent'}: "
            f"gap {gap:.2g} after {steps} steps"
            for solved, steps, gap in rows
        )


def _run(
    problem: Problem,
    ids: Tensor,
    atoms: Tensor,
    probs: Tensor,
    steps: Tensor,
    *,
    tolerance: float,
    max_steps: int,
    is_snapped: bool,
) -> Packed:
    """Step until all rows are done; rows that are done leave the batch now and then."""
    rows = ActiveRows(problem, ids, atoms, probs, steps, tolerance=tolerance, max_steps=max_steps, is_snapped=is_snapped)
    pieces: list[Packed] = []
    while len(rows.ids):
        rows.step()
        if 4 * rows.n_done >= len(rows.ids):
            pieces.append(rows.take_done())
    return Packed.concatenate(pieces) if pieces else rows.take_done()


def _best_atoms(problem: Problem, flat: Tensor) -> Tensor:
    """The best atom of each row; raises if there is none."""
    is_bad = flat.isnan().any(-1) | (flat == torch.inf).any(-1)
    if bool(is_bad.any()):
        _raise_bad_rows(is_bad, "holds a NaN or +inf")
    best = problem.best(flat)
    if problem.is_forbidden is not None:
        is_bad = ((problem.vectors(best) != 0) & problem.is_forbidden).any(-1)
        if bool(is_bad.any()):
            _raise_bad_rows(is_bad, "allows nothing")
    return best


def _raise_bad_rows(is_bad: Tensor, reason: str) -> None:
    bad = is_bad.nonzero().squeeze(-1).tolist()
    shown = ", ".join(f"row {row} {reason}" for row in bad[:5])
    more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
    raise ValueError(f"scores must give every row a distribution; {shown}{more} (of {len(is_bad)})")


def _unpacked(start: tuple[Tensor, Tensor], n_rows: int) -> Tensor:
    """Packed atoms as (n_rows, n_start, *event_shape), the first of each row repeated to fill it."""
    atoms, row = start
    if row.shape != atoms.shape[:1] or not torch.equal(row.unique(), torch.arange(n_rows, device=row.device)):
        raise ValueError(f"a packed start must be a pair (atoms, row) with at least one atom for each of {n_rows} rows")
    order = row.argsort(stable=True)
    segments = Segments.from_row(row[order], n_rows)
    place = torch.arange(int(segments.lengths.max()) if n_rows else 0, device=row.device)
    index = segments.starts.unsqueeze(-1) + torch.where(place < segments.lengths.unsqueeze(-1), place, 0)
    return atoms[order][index]
