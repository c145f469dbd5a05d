"""The accurate end of the active set method: one more solve on the atoms found, differentiable, and its certificate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.segments import Segments
from sparsum.solvers import _kkt
from sparsum.solvers._active_rows import NEGLIGIBLE
from sparsum.solvers._problem import Packed, Problem, violation


@dataclass(frozen=True)
class Found:
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
    def polish(cls, problem: Problem, done: Packed, tolerance: float, max_steps: int) -> Found:
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
            shifted = shifted.index_copy_(0, flat, vectors - origin[row]).reshape(n_rows, n_slots, vectors.shape[-1])
            xi = vectors.new_zeros(n_rows * n_slots).index_copy_(0, flat, probs).reshape(n_rows, n_slots)
            is_active = xi > 0
            xi = xi / xi.sum(-1, keepdim=True)
            tangent = _kkt.Tangent.factor(_kkt.lifted_gram(shifted, problem.weight, is_active), is_active)
            residual = problem.residual(origin + _kkt.apply_transposed(shifted, xi))
            solved = xi + tangent.solve(_kkt.apply(shifted, residual))
            solved = solved / solved.sum(-1, keepdim=True)
            xi = torch.where(solved.isfinite().all(-1, keepdim=True), solved, xi)
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
