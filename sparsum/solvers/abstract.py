"""The base class of solvers, and their result type."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.distribution.selection import keep_best
from sparsum.segments import Segments
from sparsum.structures import BoundScores


@dataclass(frozen=True)
class Solution:
    """A sparse distribution per row that solves SparseMAP, with its convergence status."""

    atoms: Tensor  # shape: (n_atoms, *event_shape)
    probs: Tensor  # shape: (n_atoms,), differentiable in the scores
    segments: Segments
    is_solved: Tensor  # shape: (n_rows,), bool
    steps: Tensor  # shape: (n_rows,), int64; 0 for a closed form
    gap: Tensor  # shape: (n_rows,), the duality gap, an upper bound on the suboptimality of the objective
    max_steps: int | None = None  # the largest number of steps of a row; None for a closed form
    is_cut: Tensor | None = None  # shape: (n_rows,), bool, which rows lost atoms; None if no row did

    @classmethod
    def closed_form(cls, atoms: Tensor, probs: Tensor, segments: Segments, is_cut: Tensor | None = None) -> Solution:
        """A solution in closed form, without steps."""
        steps = torch.zeros(segments.n_rows, dtype=torch.int64, device=probs.device)
        is_solved = torch.ones_like(steps, dtype=torch.bool)
        return cls(atoms, probs, segments, is_solved, steps, steps.double(), is_cut=is_cut)

    def truncate(self, k: int) -> Solution:
        """Keep the k most probable atoms of each row, and renormalize."""
        atoms, probs, segments = keep_best(self.atoms, self.probs, self.segments, k)
        return dataclasses.replace(self, atoms=atoms, probs=probs, segments=segments, is_cut=self.segments.lengths > k)

    @property
    def is_exact(self) -> Tensor:
        """Which rows are solved, with all their atoms: (n_rows,)."""
        return self.is_solved if self.is_cut is None else self.is_solved & ~self.is_cut

    @classmethod
    def concatenate(cls, solutions: list[Solution]) -> Solution:
        """The rows of several solutions, one after the other."""
        lengths = torch.cat([solution.segments.lengths for solution in solutions])
        atoms, probs = (torch.cat([getattr(solution, name) for solution in solutions]) for name in ("atoms", "probs"))
        is_solved, steps, gap = (
            torch.cat([getattr(solution, name) for solution in solutions]) for name in ("is_solved", "steps", "gap")
        )
        segments = Segments.from_lengths(lengths, len(probs))
        return cls(atoms, probs, segments, is_solved, steps, gap, solutions[0].max_steps)

    @property
    def outcome(self) -> tuple[str, ...]:
        """How each row ended, in words; synchronizes with the device."""
        if self.max_steps is None:
            return ("optimal: a closed form",) * len(self.steps)
        rows = zip(self.is_solved.tolist(), self.steps.tolist(), self.gap.tolist(), strict=True)
        return tuple(_in_words(is_solved, steps, gap, self.max_steps) for is_solved, steps, gap in rows)


def _in_words(is_solved: bool, steps: int, gap: float, max_steps: int) -> str:
    why = "stalled, atoms nearly dependent or scores too large"
    how = "optimal" if is_solved else "out of steps" if steps >= max_steps else why
    return f"{how}: gap {gap:.2g} after {steps} steps"


class AbstractSolver(ABC):
    """Base class for solvers of SparseMAP."""

    @abstractmethod
    def solve(self, bound: BoundScores) -> Solution:
        """Solve all rows of scores, bound to their structure; raises a TypeError if the solver does not support it."""

    def solve_truncated(self, bound: BoundScores, max_atoms: int) -> Solution:
        """Like `solve`, with the ``max_atoms`` most probable atoms of each row.

        Closed forms override it: they do not create the other atoms, and within `torch.compile` return a table.
        """
        return self.solve(bound).truncate(max_atoms)


class NotConverged(RuntimeError):
    """Raised if a solver does not converge on some rows.

    Args:
        rows: the indices of these rows.
        steps: the number of steps of each row.
        gap: the duality gap of each row.
    """

    def __init__(self, rows: list[int], steps: list[int], gap: list[float]) -> None:
        self.rows, self.steps, self.gap = rows, steps, gap
        shown = ", ".join(f"row {r} (gap {g:.3g} after {s} steps)" for r, s, g in zip(rows[:5], steps, gap, strict=False))
        more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
        super().__init__(
            f"{len(rows)} row(s) did not converge: {shown}{more}; allow more steps with ActiveSet(max_steps=...), "
            "scale down scores that differ by more than 1e5, or keep the last iterate with ActiveSet(strict=False)"
        )

    def __reduce__(self) -> tuple[type[NotConverged], tuple[list[int], list[int], list[float]]]:
        return NotConverged, (self.rows, self.steps, self.gap)
