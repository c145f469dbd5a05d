"""The steps of the active set method, batched over rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sparsum.solvers import kkt
from sparsum.solvers.quadratic import NEGLIGIBLE, Finished, Quadratic, violation
from sparsum.solvers.rounding import GRID, n_used, snapped, without_swamps

#: The number of steps between corrections of the targets.
CORRECT_EVERY = 4
#: A correction of the target above this means that the inverse is inaccurate.
_LOST = 1e-6
#: Dropping an atom whose squared distance to the hull of the others is below this fraction of its squared norm makes the
#: inverse inaccurate.
NEARLY_DEPENDENT = 1e-6
#: An atom lies in the hull if its squared distance to it is below the first times that to the mean, or below the second.
_DEPENDENT, _NO_DISTANCE = 1e-13, 1e-22
#: A target above minus this counts as 0, not as negative, so that rounding does not decide which atoms to drop.
ZERO = 1e-14
#: The tensors with one entry per row, from which finished rows are removed.
_PER_ROW = (
    "ids",
    "steps",
    "atoms",
    "origin",
    "vectors",
    "inverse",
    "probs",
    "target",
    "mean",
    "is_active",
    "slot",
    "is_done",
)


def first_hit(
    length: Tensor,  # shape: (n_rows, n_slots), the step length at which each coordinate is 0
) -> tuple[Tensor, Tensor]:
    """The minimum of each row, and the first slot that attains it up to rounding."""
    least = length.amin(-1)
    return least, (length <= (least * (1 + 1e-10) + ZERO).unsqueeze(-1)).to(torch.uint8).argmax(-1)


class Direction(NamedTuple):
    """The direction in which the targets move when the atoms in `ActiveRows.slot` are added."""

    direction: Tensor  # shape: (n_rows, n_slots), v
    moved: Tensor  # shape: (n_rows, n_parts), A v
    distance: Tensor  # shape: (n_rows,), the squared distance of the atom to the hull of the others
    ascent: Tensor  # shape: (n_rows,), the slope of the objective
    is_dependent: Tensor  # shape: (n_rows,), whether the atom lies in the hull, up to rounding


class ActiveRows:
    r"""The active sets of some rows, one slot per atom, and the steps that update them.

    Each row has atoms with vectors A, probabilities :math:`\xi`, the *target* :math:`\hat\xi`, which solves the problem on
    its atoms without :math:`\xi \ge 0`, the mean :math:`A \hat\xi`, and the reduced inverse K (see `kkt`). Adding an atom a
    and dropping the one in slot j both move the target along a direction v with sum 0:

    - add: :math:`v = (\hat\xi + K A^\top W (a - A \hat\xi), -1)`, the projection of a onto the hull of the others minus a;
      K increases by :math:`v v^\top / s`, with the squared distance to the hull :math:`s = \lVert A v \rVert_W^2`;
    - drop: :math:`v = K e_j`; K decreases by :math:`v v^\top / v_j`.

    Vectors are stored relative to the row's first atom, its *origin*. This does not change the formulas above, but parts
    that all atoms of a row share are then exactly 0, however large their scores. Between steps all rows are at their
    targets.
    """

    def __init__(
        self,
        problem: Quadratic,
        ids: Tensor,  # shape: (n_rows,), indices of the rows in the batch
        atoms: Tensor,  # shape: (n_rows, n_slots, *event_shape)
        probs: Tensor,  # shape: (n_rows, n_slots), feasible; 0 in empty slots
        steps: Tensor,  # shape: (n_rows,), taken before
        *,
        tolerance: float,
        max_steps: int,
        is_snapped: bool,
    ) -> None:
        self.problem, self.ids, self.steps = problem, ids, steps.clone()
        self.tolerance, self.max_steps, self.is_snapped = tolerance, max_steps, is_snapped
        self.atoms, self.probs, self.is_active = atoms.clone(), probs.clone(), probs > 0
        n_rows, n_slots = probs.shape
        self.every = torch.arange(n_rows, device=ids.device)
        vectors = problem.vectors(atoms.flatten(0, 1), self.every.repeat_interleave(n_slots))
        vectors = vectors.reshape(n_rows, n_slots, problem.linear.shape[-1])
        self.origin = vectors[self.every, self.is_active.to(torch.uint8).argmax(-1)]
        self.vectors = vectors - self.origin.unsqueeze(1)
        self.inverse = probs.new_zeros(n_rows, n_slots, n_slots)
        self.target, self.mean = self.probs.clone(), problem.linear.clone()
        self.is_done = torch.zeros_like(ids, dtype=torch.bool)
        self.slot = torch.zeros_like(ids)
        self.n_steps, self.n_used, self.n_done = 0, n_slots, 0
        self.restart(self.every)
        self.settle()

    def step(self) -> None:
        """Add an atom to every row that is not done, and drop those whose probability hits 0 on the way to the target."""
        self.n_steps += 1
        if self.n_steps % CORRECT_EVERY == 0:
            is_lost = self.correct(~self.is_done)
            if bool(is_lost.any()):
                self.restart(is_lost.nonzero().squeeze(-1))
                self.settle()
        residual = self.problem.residual(self.mean)
        difference = self._ask(residual)
        self.n_done = int(self.is_done.sum())
        if self.n_done < len(self.ids):
            self._add(residual, difference)
            self.settle()

    def _ask(
        self,
        residual: Tensor,  # shape: (n_rows, n_parts)
    ) -> Tensor:
        """Call the oracle for the most violated constraint of each row, and put its atom into a free slot.

        Rows without a violated constraint, or without steps left, are done.

        Returns:
            The atom's vector minus the mean, (n_rows, n_parts), and 0 for rows that were done before.
        """
        self._grow()
        asked, problem = self.every, self.problem
        if self.n_done:
            asked = (~self.is_done).nonzero().squeeze(-1)
            problem, residual = self.problem.select(asked), residual[asked]
        atoms, vectors, is_solved = self.best(problem, residual, asked if self.n_done else slice(None))
        self.is_done[asked] |= is_solved | (self.steps[asked] >= self.max_steps)
        slot = self.is_active[asked].to(torch.uint8).argmin(-1)
        self.slot[asked] = slot
        self.atoms[asked, slot] = atoms.to(self.atoms.dtype)
        self.vectors[asked, slot] = vectors - self.origin[asked]
        if not self.n_done:
            return vectors - self.mean
        return torch.zeros_like(self.mean).index_copy_(0, asked, vectors - self.mean[asked])

    def best(
        self,
        problem: Quadratic,
        residual: Tensor,  # shape: (n, n_parts)
        index: Tensor | slice,  # the n rows of the problem and the residual
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The best atoms of some rows under the residual, their vectors, and which do not improve the objective."""
        mean, origin, asked = self.mean[index], self.origin[index], residual
        if problem.is_wide and problem.scale is None:
            asked = without_swamps(residual, mean, n_used(problem.structure, origin))
        if self.is_snapped or problem.scale is None:
            asked = snapped(asked)
        atoms = problem.best(asked)
        vectors = problem.vectors(atoms)
        gap, resolution = violation(vectors, mean, residual)
        if problem.scale is None and not self.is_snapped:
            gap = kkt.gap(self.vectors[index], self.target[index], vectors - origin, asked)
            resolution = GRID * (vectors - mean).abs().sum(-1)
        return atoms, vectors, gap <= resolution.clamp_min(self.tolerance) / 2

    def _add(
        self,
        residual: Tensor,  # shape: (n_rows, n_parts)
        difference: Tensor,  # shape: (n_rows, n_parts), the atom's vector minus the mean
    ) -> None:
        """Add the atoms in `slot`."""
        is_adding, along = ~self.is_done, self.direction(residual, difference)
        is_dependent = is_adding & along.is_dependent
        self.steps += is_adding
        if bool(is_dependent.any()):
            is_adding &= ~self._exchange(is_dependent, along)
        self.move(along, None if not self.n_done and bool(is_adding.all()) else is_adding)

    def direction(
        self,
        residual: Tensor,  # shape: (n_rows, n_parts)
        difference: Tensor,  # shape: (n_rows, n_parts), the atom's vector minus the mean
    ) -> Direction:
        """The direction of the targets when the atoms in `slot` are added."""
        weight, weighted = self.problem.weight, difference * self.problem.weight
        gradient = kkt.multiply(self.vectors, weighted)
        gradient -= (weighted * (self.mean - self.origin)).sum(-1, keepdim=True)
        direction = (self.target + kkt.multiply(self.inverse, gradient)).scatter_(1, self.slot.unsqueeze(-1), -1.0)
        moved = kkt.multiply_transposed(self.vectors, direction)
        distance = torch.mv(moved.square(), weight)
        is_dependent = distance <= _DEPENDENT * (difference * weighted).sum(-1) + _NO_DISTANCE
        return Direction(direction, moved, distance, -(residual * moved).sum(-1), is_dependent)

    def move(
        self,
        along: Direction,
        is_adding: Tensor | None,  # shape: (n_rows,), or None for all
    ) -> None:
        """Move the targets of some rows to the optimum along a direction, which adds the atoms in `slot`."""
        direction, moved, distance, ascent, _ = along
        slot = self.slot.unsqueeze(-1)
        if is_adding is None:
            self.is_active.scatter_(1, slot, True)
        else:
            direction = direction * is_adding.unsqueeze(-1)
            distance = distance.masked_fill(~is_adding, torch.inf)
            self.is_active.scatter_(1, slot, self.is_active.gather(1, slot) | is_adding.unsqueeze(-1))
        length = (ascent / distance).unsqueeze(-1)
        self.target.addcmul_(length, direction, value=-1)
        self.mean.addcmul_(length, moved, value=-1)
        self.inverse.addcmul_(direction.unsqueeze(-1), (direction / distance.unsqueeze(-1)).unsqueeze(-2))

    def settle(self) -> None:
        """Move to the target; if a coordinate hits 0 on the way, drop its atom and continue to the target of the others."""
        if not bool((self.target < -ZERO).any()):
            self.probs = self.target.clamp_min(0)
            return
        index, slot = self._cut(self.every)
        cut = index
        while len(index):
            self._drop(index, slot)
            index, slot = self._cut(index)
        if len(cut):
            self.mean[cut] = self.origin[cut] + kkt.multiply_transposed_rows(self.vectors, self.target, cut)

    def _cut(
        self,
        index: Tensor,  # shape: (n,), rows
    ) -> tuple[Tensor, Tensor]:
        """Move towards the target until a coordinate hits 0; return the rows where one does, and its slot."""
        probs, target = self.probs[index], self.target[index]
        length, slot = first_hit(torch.where(target < -ZERO, probs / (probs - target), torch.inf))
        is_cut = length < 1
        self.probs[index] = (probs + length.clamp_max(1).unsqueeze(-1) * (target - probs)).clamp_min_(0)
        return index[is_cut], slot[is_cut]

    def _drop(
        self,
        index: Tensor,  # shape: (n,), rows
        slot: Tensor,  # shape: (n,), the slot of the atom to drop from each
    ) -> None:
        """Drop one atom from each of some rows; the mean is not updated."""
        inverse, every = self.inverse[index], self.every[: len(index)]
        direction = inverse[every, slot]
        pivot = direction[every, slot]  # 1 / the squared distance of the atom to the hull of the others
        self.target[index] -= (self.target[index, slot] / pivot).unsqueeze(-1) * direction
        inverse.addcmul_(direction.unsqueeze(-1), (direction / pivot.unsqueeze(-1)).unsqueeze(-2), value=-1)
        inverse[every, slot] = 0
        inverse[every, :, slot] = 0
        self.inverse[index] = inverse
        for values in (self.is_active, self.probs, self.target):
            values[index, slot] = 0
        self.steps[index] += 1
        # The inverse of a nearly dependent set is large: after the drop, rounding errors dominate the rest.
        is_lost = pivot * torch.mv(self.vectors[index, slot].square(), self.problem.weight) > 1 / NEARLY_DEPENDENT
        if bool(is_lost.any()):
            self.restart(index[is_lost])

    def correct(
        self,
        is_meant: Tensor,  # shape: (n_rows,)
    ) -> Tensor:
        """Move the targets of some rows by K A'r, which is 0 up to rounding, so that errors do not accumulate.

        Returns:
            Which rows have an inaccurate inverse: (n_rows,).
        """
        residual, shift = self.problem.residual(self.mean), self.mean - self.origin
        gradient = kkt.multiply(self.vectors, residual) - (residual * shift).sum(-1, keepdim=True)
        correction = kkt.multiply(self.inverse, gradient) * is_meant.unsqueeze(-1)
        self.target += correction
        self.target /= self.target.sum(-1, keepdim=True)
        self.mean = self.origin + kkt.multiply_transposed(self.vectors, self.target)
        return ~(correction.abs().amax(-1) <= _LOST)

    def _exchange(
        self,
        is_dependent: Tensor,  # shape: (n_rows,)
        along: Direction,
    ) -> Tensor:
        """Let atoms in the affine hull of the others (where w > 0) replace one of them.

        Along the direction the quadratic term is constant and the linear one increases: the row moves until a coordinate
        hits 0. A row that would not move is done: it is solved up to its accuracy.

        Returns:
            Which rows were handled. Rows whose optimum is reached before a coordinate hits 0 are not.
        """
        direction, probs, length = along.direction, self.target.clamp_min(0), along.ascent / along.distance
        hit, leaving = first_hit(torch.where(direction > ZERO, probs / direction, torch.inf))
        is_still = is_dependent & (along.moved.abs().amax(-1) <= 1e-11 * self.vectors.abs().amax((-2, -1)))
        self.is_done |= is_still
        is_swapped = is_dependent & ~is_still & ~(length < hit)
        index = is_swapped.nonzero().squeeze(-1)
        probs = (probs - hit.unsqueeze(-1) * direction)[index].clamp_min(0)
        probs.scatter_(1, leaving[index].unsqueeze(-1), 0.0)
        self.is_active[index, self.slot[index]] = True
        self.is_active[index, leaving[index]] = False
        self.probs[index] = probs / probs.sum(-1, keepdim=True)
        self.restart(index)
        return is_still | is_swapped

    def restart(self, index: Tensor) -> None:
        """Recompute the inverse, the target and the mean of some rows from their active atoms."""
        is_active, vectors, problem = self.is_active[index], self.vectors[index], self.problem
        tangent = kkt.Tangent.factor(kkt.lifted_gram(vectors, problem.weight, is_active), is_active)
        self.inverse[index] = tangent.inverse()
        target, origin = self.probs[index], self.origin[index]
        for _ in range(2):  # the second iteration refines the first
            residual = problem.linear[index] - problem.weight * (origin + kkt.multiply_transposed(vectors, target))
            target = target + tangent.solve(kkt.multiply(vectors, residual))
            target = target / target.sum(-1, keepdim=True)
        self.target[index] = target
        self.mean[index] = origin + kkt.multiply_transposed(vectors, target)

    def _grow(self) -> None:
        """Add slots if a row may not have a free one."""
        self.n_used += 1  # each step adds at most one atom
        if self.n_used > self.probs.shape[1]:
            self.n_used = int(self.is_active.sum(-1).max()) + 1
            self.reserve(self.n_used)

    def reserve(self, n: int) -> None:
        """Ensure at least ``n`` slots."""
        n_rows, n_slots = self.probs.shape
        if n <= n_slots:
            return
        n_more = max(12, n_slots // 4, n - n_slots)
        pad = torch.nn.functional.pad
        self.probs, self.target = pad(self.probs, (0, n_more)), pad(self.target, (0, n_more))
        self.is_active = pad(self.is_active, (0, n_more))
        self.vectors = pad(self.vectors, (0, 0, 0, n_more))
        self.inverse = pad(self.inverse, (0, n_more, 0, n_more))
        self.atoms = torch.cat([self.atoms, self.atoms.new_zeros(n_rows, n_more, *self.atoms.shape[2:])], 1)

    def take_done(self) -> Finished:
        """Remove the rows that are done, and return their atoms."""
        kept = (self.is_done.unsqueeze(-1) & self.is_kept).reshape(-1).nonzero().squeeze(-1)
        return self.take(self.is_done.nonzero().squeeze(-1), (~self.is_done).nonzero().squeeze(-1), kept)

    @property
    def is_kept(self) -> Tensor:
        """Which slots hold atoms with non-negligible probability: (n_rows, n_slots)."""
        return self.is_active & (self.probs > NEGLIGIBLE)

    def take(
        self,
        done: Tensor,  # shape: (n_done,), rows
        rest: Tensor,  # shape: (n_rest,), the other rows
        kept: Tensor,  # shape: (n_atoms,), the atoms to keep of the done rows, as flat indices of slots
    ) -> Finished:
        """Remove some rows, and return their atoms."""
        row = kept // self.probs.shape[1]
        atoms, probs = self.atoms.flatten(0, 1)[kept], self.probs.reshape(-1)[kept]
        packed = Finished(atoms, probs, self.ids[row], self.ids[done], self.steps[done])
        self.problem = self.problem.select(rest)
        for name in _PER_ROW:
            setattr(self, name, getattr(self, name)[rest])
        self.every, self.n_done = self.every[: len(rest)], 0
        return packed
