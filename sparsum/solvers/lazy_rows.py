"""The steps of the active set method on a GPU, with a host-device synchronization only every few steps."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.segments import positions_of
from sparsum.solvers import kkt
from sparsum.solvers.active_rows import CORRECT_EVERY, NEARLY_DEPENDENT, ZERO, ActiveRows, first_hit
from sparsum.solvers.quadratic import Finished

#: The smallest number of steps between synchronizations; these are cheap, but so are a few unnecessary steps.
_PACE = 8


class LazyRows:
    """The steps of `ActiveRows`, with the same operations for all rows and without host-device synchronizations.

    A step adds an atom to the rows that are at their targets, and drops one from those whose target is not feasible. A row
    with more atoms to drop continues dropping in the next step, without adding any. Rows that are done do not change. Rows
    that need a rare operation, a recomputed inverse or an exchange of atoms, wait for the next synchronization.

    Args:
        rows: the rows, at their targets.
    """

    def __init__(self, rows: ActiveRows) -> None:
        self.rows, self.n_active = rows, rows.probs.shape[1]
        self._forget()

    def _forget(self) -> None:
        """Mark all rows as neither dropping atoms nor waiting for a synchronization."""
        self.is_dropping = torch.zeros_like(self.rows.is_done)
        self.is_lost, self.is_dependent = self.is_dropping.clone(), self.is_dropping.clone()

    def run(self) -> list[Finished]:
        """Step until all rows are done."""
        pieces: list[Finished] = []
        while len(self.rows.ids):
            pace = max(_PACE, self.rows.n_steps // 4)
            self.rows.reserve(self.n_active + pace + 1)  # one more for a candidate that is not added
            for _ in range(pace):
                self._step()
            self._look(pieces)
        return pieces

    def _look(self, pieces: list[Finished]) -> None:
        """Synchronize: remove finished rows if they are at least half of all, and handle the waiting rows."""
        rows = self.rows
        kept = rows.is_done.unsqueeze(-1) & rows.is_kept
        n_stuck = (self.is_lost | self.is_dependent).sum()
        counts = [rows.is_done.sum(), n_stuck, kept.sum(), rows.is_active.sum(-1).amax()]
        rows.n_done, n_stuck, n_kept, self.n_active = torch.stack(counts).tolist()
        if 2 * rows.n_done >= len(rows.ids):
            rest = positions_of(~rows.is_done, len(rows.ids) - rows.n_done)
            self.is_dropping, self.is_lost = self.is_dropping[rest], self.is_lost[rest]
            self.is_dependent = self.is_dependent[rest]
            pieces.append(rows.take(positions_of(rows.is_done, rows.n_done), rest, positions_of(kept.reshape(-1), n_kept)))
        if n_stuck:
            rows.restart(self.is_lost.nonzero().squeeze(-1))
            rows.settle()
            rows.n_used = self.n_active
            rows.step()
            self.n_active += 1
            self._forget()

    def _step(self) -> None:
        """Add an atom to rows at their targets, drop one from rows with infeasible targets."""
        rows = self.rows
        rows.n_steps += 1
        if rows.n_steps % CORRECT_EVERY == 0:
            self.is_lost = self.is_lost | rows.correct(self._is_at_target())
        self._add(self._is_at_target())
        self._drop(~(rows.is_done | self.is_lost))

    def _is_at_target(self) -> Tensor:
        """Which rows are ready for another atom: (n_rows,)."""
        return ~(self.rows.is_done | self.is_dropping | self.is_lost | self.is_dependent)

    def _add(
        self,
        is_asked: Tensor,  # shape: (n_rows,)
    ) -> None:
        """Add the atom of the most violated constraint to some rows; those without a violated constraint are done."""
        rows, every = self.rows, self.rows.every
        residual = rows.problem.residual(rows.mean)
        atoms, vectors, is_solved = rows.best(rows.problem, residual, slice(None))
        rows.is_done = rows.is_done | (is_asked & (is_solved | (rows.steps >= rows.max_steps)))
        rows.slot = rows.is_active.to(torch.uint8).argmin(-1)
        rows.atoms[every, rows.slot] = atoms.to(rows.atoms.dtype)
        rows.vectors[every, rows.slot] = vectors - rows.origin
        along = rows.direction(residual, vectors - rows.mean)
        is_adding = is_asked & ~rows.is_done
        self.is_dependent = self.is_dependent | (is_adding & along.is_dependent)
        is_adding = is_adding & ~along.is_dependent
        rows.steps += is_adding
        rows.move(along, is_adding)

    def _drop(
        self,
        is_open: Tensor,  # shape: (n_rows,)
    ) -> None:
        """Move towards the targets of some rows until a coordinate hits 0, and drop its atom."""
        rows, every = self.rows, self.rows.every
        probs, target = rows.probs, rows.target
        is_falling = target < -ZERO
        length, slot = first_hit(torch.where(is_falling, probs / torch.where(is_falling, probs - target, 1.0), torch.inf))
        is_cut = is_open & (length < 1)
        probs = torch.where(is_cut.unsqueeze(-1), probs + length.clamp_max(1).unsqueeze(-1) * (target - probs), target)
        is_left = is_cut.unsqueeze(-1) & (torch.arange(probs.shape[1], device=slot.device) == slot.unsqueeze(-1))

        direction = rows.inverse[every, slot] * is_cut.unsqueeze(-1)
        pivot = direction[every, slot].masked_fill(~is_cut, 1.0)
        target = target - (target[every, slot] / pivot).unsqueeze(-1) * direction
        target = target.masked_fill(is_left, 0.0)
        rows.inverse.addcmul_(direction.unsqueeze(-1), (direction / pivot.unsqueeze(-1)).unsqueeze(-2), value=-1)
        rows.inverse.masked_fill_(is_left.unsqueeze(-1) | is_left.unsqueeze(-2), 0.0)
        rows.is_active = rows.is_active & ~is_left
        rows.steps += is_cut

        size = torch.mv(rows.vectors[every, slot].square(), rows.problem.weight)
        self.is_lost = self.is_lost | (is_cut & ~(pivot * size <= 1 / NEARLY_DEPENDENT))
        self.is_dropping = is_cut & (target < -ZERO).any(-1)
        is_there = is_open & ~self.is_dropping & ~self.is_lost
        probs = torch.where(is_there.unsqueeze(-1), target, probs).masked_fill(is_left, 0.0).clamp_min(0)
        rows.probs = torch.where(is_open.unsqueeze(-1), probs, rows.probs)
        mean = rows.origin + kkt.multiply_transposed(rows.vectors, target)
        rows.target, rows.mean = target, torch.where((is_cut & is_there).unsqueeze(-1), mean, rows.mean)
