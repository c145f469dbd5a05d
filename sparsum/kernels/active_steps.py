"""Steps of the active set method, one per launch, for structures whose best assignments are found elsewhere.

A launch does what `sparsum.kernels.active_set` does between two calls of the oracle, for any 0/1 vectors: see there.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsum.kernels.active_set import CORRECT_EVERY, TILE, advance, correct, improves, snap
from sparsum.kernels.launch import FUSION, next_power_of_2, unwrapped

#: The maximum number of parts: a program keeps a few numbers per part in registers.
MOST_PARTS = 4096
#: The state of a row: it takes steps; its last atom did not improve the objective; it needs the loop in plain torch.
RUNNING, DONE, STOPPED = 0, 1, 2


@triton.jit
def step(
    found, found_vectors, linear, weight, limit, origin, mean, target, probs, is_active, counts, asked,
    atoms, vectors, inverse, lines, n, n_places, max_steps,
    PARTS: tl.constexpr, SLOTS: tl.constexpr, PLACES: tl.constexpr, TALL_PARTS: tl.constexpr, TALL_SLOTS: tl.constexpr,
):  # fmt: skip
    """Add the atoms that were found, unless they do not improve the objective, and compute the scores for the next.

    ``counts`` are the state of a row, its steps, and how often it asked for an atom.
    """
    row = tl.program_id(0).to(tl.int64)
    part, slot, place = tl.arange(0, PARTS), tl.arange(0, SLOTS), tl.arange(0, PLACES)
    is_part, of_part, of_slot = part < n, row * n + part, row * SLOTS + slot
    counts += row * 3
    state = tl.load(counts)
    if state == 0:
        vectors, inverse, lines = vectors + row * SLOTS * n, inverse + row * SLOTS * SLOTS, lines + row * 2 * SLOTS
        steps, n_asked = tl.load(counts + 1), tl.load(counts + 2)
        terms = tl.load(linear + of_part, mask=is_part, other=-float("inf"))
        is_allowed = terms != -float("inf")
        terms, weights = tl.where(is_allowed, terms, 0.0), tl.load(weight + part, mask=is_part, other=0.0)
        start, mu = tl.load(origin + of_part, mask=is_part, other=0.0), tl.load(mean + of_part, mask=is_part, other=0.0)
        aim, mass, is_used = tl.load(target + of_slot), tl.load(probs + of_slot), tl.load(is_active + of_slot)
        vector = tl.load(found_vectors + of_part, mask=is_part, other=0.0).to(tl.float64)
        is_better = improves(vector, terms, mu, tl.load(limit), weights) & (steps < max_steps)
        free = tl.min(tl.where(is_used > 0, SLOTS, slot), 0)
        state = tl.where(is_better, tl.where(free < SLOTS, 0, 2), 1)
        if state == 0:
            choices = tl.load(found + row * n_places + place, mask=place < n_places, other=0)
            tl.store(atoms + (row * SLOTS + free) * n_places + place, choices, mask=place < n_places)
            aim, mu, mass, is_used, n_steps, is_stopped = advance(
                vectors, inverse, lines, terms, start, aim, mu, mass, vector, free, is_used, n,
                weights, PARTS, SLOTS, TALL_PARTS, TALL_SLOTS,
            )  # fmt: skip
            n_asked += 1
            if (n_asked % CORRECT_EVERY == 0) & (is_stopped == 0):
                aim, mu, is_stopped = correct(
                    vectors, inverse, lines, terms, start, aim, mu, is_used, n,
                    weights, PARTS, SLOTS, TALL_PARTS, TALL_SLOTS,
                )  # fmt: skip
            state = tl.where(is_stopped > 0, 2, 0)
            residual = tl.where(is_allowed, snap(terms - weights * mu), -float("inf"))
            tl.store(mean + of_part, mu, mask=is_part)
            tl.store(asked + of_part, residual, mask=is_part)
            tl.store(target + of_slot, aim)
            tl.store(probs + of_slot, mass)
            tl.store(is_active + of_slot, is_used)
            tl.store(counts + 1, steps + n_steps)
            tl.store(counts + 2, n_asked)
        tl.store(counts, state)


def n_slots(n_parts: int) -> int:
    """The maximum number of atoms of a row: more than observed in practice, but not always n_parts + 1."""
    return min(next_power_of_2(n_parts + 2), 64 if n_parts <= 128 else 128 if n_parts <= 1024 else 256)


@dataclass(frozen=True)
class ActiveSteps:
    """The active sets of some rows, each of which starts with one atom. All tensors have one entry per row."""

    linear: Tensor  # shape: (n_rows, n_parts), float64, -inf for forbidden parts
    origin: Tensor  # shape: (n_rows, n_parts), float64, the vector of the first atom
    mean: Tensor  # shape: (n_rows, n_parts)
    target: Tensor  # shape: (n_rows, n_slots)
    probs: Tensor  # shape: (n_rows, n_slots)
    is_active: Tensor  # shape: (n_rows, n_slots), int32
    counts: Tensor  # shape: (n_rows, 3), int32, the state, the number of steps, and that of questions
    asked: Tensor  # shape: (n_rows, n_parts), the scores whose best atoms come next
    atoms: Tensor  # shape: (n_rows, n_slots, n_places)
    vectors: Tensor  # shape: (n_rows, n_slots, n_parts), int8
    inverse: Tensor  # shape: (n_rows, n_slots, n_slots)
    lines: Tensor  # shape: (n_rows, 2, n_slots)

    @classmethod
    def start(
        cls,
        linear: Tensor,  # shape: (n_rows, n_parts), float64, -inf for forbidden parts
        asked: Tensor,  # shape: (n_rows, n_parts)
        atoms: Tensor,  # shape: (n_rows, n_places)
        vectors: Tensor,  # shape: (n_rows, n_parts), float64
    ) -> ActiveSteps:
        """Start with one atom for each row."""
        (n_rows, n_parts), n_places = linear.shape, atoms.shape[1]
        width = n_slots(n_parts)
        probs = linear.new_zeros(n_rows, width)
        probs[:, 0] = 1
        counts = torch.zeros(n_rows, 3, dtype=torch.int32, device=linear.device)
        counts[:, 2] = 1
        all_atoms = atoms.new_zeros(n_rows, width, n_places)
        all_atoms[:, 0] = atoms
        all_vectors = torch.zeros(n_rows, width, n_parts, dtype=torch.int8, device=linear.device)
        all_vectors[:, 0] = vectors
        inverse, lines = linear.new_zeros(n_rows, width, width), linear.new_empty(n_rows, 2, width)
        is_active = (probs > 0).int()
        each = (probs, probs.clone(), is_active, counts, asked, all_atoms, all_vectors, inverse, lines)
        return cls(linear.contiguous(), vectors, vectors.clone(), *each)

    @property
    def state(self) -> Tensor:
        """`RUNNING`, `DONE` or `STOPPED`: (n_rows,)."""
        return self.counts[:, 0]

    @property
    def steps(self) -> Tensor:
        """The number of atoms added and dropped: (n_rows,)."""
        return self.counts[:, 1]

    def select(self, rows: Tensor) -> ActiveSteps:
        """Some of the rows."""
        names = [field.name for field in dataclasses.fields(self)]
        return ActiveSteps(*(getattr(self, name).index_select(0, rows) for name in names))

    def put(
        self,
        rows: Tensor,  # shape: (n,)
        others: ActiveSteps,
    ) -> None:
        """Write the atoms of some rows, and what became of them."""
        for name in ("probs", "counts", "atoms"):
            getattr(self, name).index_copy_(0, rows, getattr(others, name))

    def take(
        self,
        atoms: Tensor,  # shape: (n_rows, n_places), the best under `asked`
        vectors: Tensor,  # shape: (n_rows, n_parts)
        weight: Tensor,  # shape: (n_parts,)
        limit: Tensor,  # shape: (1,), the tolerance
        max_steps: int,
    ) -> None:
        """Take a step in each row that is running."""
        n_rows, width, n_parts = self.vectors.shape
        parts, n_places = max(16, next_power_of_2(n_parts)), atoms.shape[1]
        unwrapped(step)[(n_rows,)](
            *(atoms.contiguous(), vectors.contiguous(), self.linear, weight, limit, self.origin, self.mean, self.target),
            *(self.probs, self.is_active, self.counts, self.asked, self.atoms, self.vectors, self.inverse, self.lines),
            *(n_parts, n_places, max_steps),
            PARTS=parts,
            SLOTS=width,
            PLACES=next_power_of_2(n_places),
            TALL_PARTS=max(1, min(TILE // parts, width)),
            TALL_SLOTS=max(1, min(TILE // width, width)),
            num_warps=4 if max(parts, width) < 64 else 8,
            num_stages=1,
            enable_fp_fusion=FUSION,
        )
