"""The last stage of the active set method: an accurate, differentiable solve on the final atoms, and its certificate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sparsum import kernels
from sparsum.segments import Packed, Segments, read_sizes
from sparsum.solvers import kkt
from sparsum.solvers.quadratic import NEGLIGIBLE, Padded, Quadratic
from sparsum.solvers.rounding import GRID, doubted, hidden_by_unused, n_used
from sparsum.structures.scores import unflatten

#: Rounding errors of the gap above this, in the unit of squared distances of vectors, may hide a better atom.
_MOST_NOISE = 1e-9
#: The same for the error of one part of 0/1 vectors.
_MOST_NOISE_OF_PARTS = 8 * GRID
#: The same for what the search for the best assignment does not see beside large scores that no assignment can use.
_MOST_HIDDEN = 1e-7
#: The distance from 1 to the next float64.
_EPS = 2.0**-52


@dataclass(frozen=True)
class _Face:
    """The problem on given atoms of each row."""

    origin: Tensor  # shape: (n_rows, n_parts), the vector of each row's first atom
    vectors: Tensor  # shape: (n_rows, n_slots, n_parts), less the origin; 0 in empty slots
    tangent: kkt.Tangent
    is_singular: Tensor  # shape: (n_rows,)

    @classmethod
    def of(cls, problem: Quadratic, vectors: Tensor, is_active: Tensor, *, is_careful: bool) -> _Face:
        """Factor the problem; if careful, check for singular matrices, which synchronizes with the device."""
        every = torch.arange(len(vectors), device=vectors.device)
        origin = vectors[every, is_active.to(torch.uint8).argmax(-1)]
        vectors = (vectors - origin.unsqueeze(1)) * is_active.unsqueeze(-1)
        gram = kkt.lifted_gram(vectors, problem.weight, is_active)
        if is_careful:
            return cls(origin, vectors, kkt.Tangent.factor(gram, is_active), torch.zeros_like(every, dtype=torch.bool))
        return cls(origin, vectors, *kkt.Tangent.attempt(gram, is_active))

    def mean(self, probs: Tensor) -> Tensor:
        """The mean vectors: (n_rows, n_parts)."""
        return self.origin + kkt.multiply_transposed(self.vectors, probs)

    def solve(self, problem: Quadratic, probs: Tensor) -> Tensor:
        """The optimal probabilities, of any sign, or the given ones where they are not finite: (n_rows, n_slots)."""
        probs = probs / probs.sum(-1, keepdim=True)
        solved = probs + self.tangent.solve(kkt.multiply(self.vectors, problem.residual(self.mean(probs))))
        solved = solved / solved.sum(-1, keepdim=True)
        return torch.where(solved.isfinite().all(-1, keepdim=True), solved, probs)


@dataclass(frozen=True)
class Found:
    """The atoms of all rows, with their certificates."""

    padded: Padded
    face: _Face
    problem: Quadratic
    n_atoms: int  # of all rows; may be larger, the rest is padding
    gap: Tensor  # shape: (n_rows,)
    is_solved: Tensor  # shape: (n_rows,)
    is_left: Tensor  # shape: (n_rows,), not solved, with steps left
    n_left: int
    n_unsolved: int  # if not strict, only rows with steps left

    @classmethod
    def polish(cls, problem: Quadratic, done: Padded, tolerance: float, max_steps: int, *, strict: bool) -> Found:
        """Solve the problem on the final atoms once more, accurately, and compute the gap of the result.

        ``n_unsolved`` counts all unsolved rows if strict, otherwise only those with steps left.
        """
        n_rows, n_slots = done.probs.shape
        row = torch.arange(n_rows, device=done.steps.device).repeat_interleave(n_slots, output_size=n_rows * n_slots)
        vectors = problem.vectors(done.atoms.flatten(0, 1), row).reshape(n_rows, n_slots, problem.linear.shape[-1])
        given, is_careful = done.probs, False
        while True:
            is_active = given > 0
            face = _Face.of(problem, vectors, is_active, is_careful=is_careful)
            probs = face.solve(problem, given)
            kept = probs > NEGLIGIBLE
            gap, is_solved = _Certificate.of(problem, face, probs, tolerance)
            is_left = ~is_solved & (done.steps < max_steps)
            is_counted = ~is_solved if strict else is_left
            # Everything is queued on the device before this synchronizes with it.
            counts = [is_active.sum() - kept.sum(), face.is_singular.sum(), is_left.sum(), is_counted.sum()]
            n, n_lost, n_singular, n_left, n_unsolved = read_sizes(kept.sum(), *counts, most=kept.numel())
            if n_singular:
                is_careful = True
            elif n_lost:
                given = torch.where(kept, probs, 0.0)
            else:
                break
        done = Padded(done.atoms, probs, done.steps)
        return cls(done, face, problem, n, gap, is_solved, is_left, n_left, n_unsolved)

    def packed(
        self,
        linear: Tensor,  # shape: (n_rows, n_parts)
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Segments]:
        """Atoms, probabilities as a differentiable function of b for constant atoms, and segments."""
        kept, probs = self.padded.probs > 0, self.padded.probs
        packed = Packed.with_size(kept, kept.sum(-1), self.n_atoms)
        atoms, segments = packed.take(self.padded.atoms), packed.segments
        if linear.requires_grad or kernels.is_transformed():  # a forward-mode tangent does not require a gradient
            scores = self._scores(linear, atoms, packed)
            probs = probs + self.face.tangent.solve(scores - scores.detach())
        probs = packed.take(probs).to(dtype)
        # float16 would round the smallest probabilities to 0, and so drop their atoms.
        probs = probs.clamp_min(torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps)
        return atoms.to(dtype) if atoms.is_floating_point() else atoms, segments.clear(probs), segments

    def _scores(
        self,
        linear: Tensor,  # shape: (n_rows, n_parts)
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
        packed: Packed,
    ) -> Tensor:
        """The scores of all atoms, differentiable, up to a number per row: (n_rows, n_slots)."""
        if self.problem.structure.group_sizes is None:
            linear = linear if self.problem.scale is None else linear / self.problem.scale
            return kkt.multiply(self.face.vectors, linear)
        # The vectors are much larger than the few parts that an atom uses, and would be kept for the backward pass.
        scores = self.problem.structure.score(unflatten(linear, self.problem.form), atoms, packed.row)
        return packed.put(scores, self.padded.probs.shape[1])


class _Certificate(NamedTuple):
    """How far each row may be from its optimum."""

    gap: Tensor  # shape: (n_rows,), an upper bound on the suboptimality of the objective, in the unit of the scores
    is_solved: Tensor  # shape: (n_rows,)

    @classmethod
    def of(cls, problem: Quadratic, face: _Face, probs: Tensor, tolerance: float) -> _Certificate:
        """Ask the oracle for a better atom, with a bound on what rounding may hide from it."""
        mean = face.mean(probs)
        if not len(mean):
            return cls(mean.new_zeros(0), torch.zeros(0, dtype=torch.bool, device=mean.device))
        if problem.scale is None:
            return cls._of_binary(problem, face, probs, mean, tolerance)
        residual = problem.residual(mean)
        best = problem.vectors(problem.best(residual))
        gap = kkt.gap(face.vectors, probs, best - face.origin, residual).clamp_min(0)
        # Of the oracle's sums over all parts, for the best atom and for one that it would hide.
        size = (residual * best).abs().sum(-1) + (residual * face.origin).abs().sum(-1)
        noise = _EPS * mean.shape[-1] * size
        limit = (GRID * (best - mean).abs().sum(-1) + noise).clamp_min(tolerance)
        is_sharp = noise <= max(tolerance, _MOST_NOISE)
        if problem.is_wide:
            is_sharp = is_sharp | _is_alone(problem, best, mean, residual, noise)
        is_solved = (gap <= limit) & is_sharp
        return cls((gap + noise) * problem.scale.squeeze(-1).square(), is_solved)

    @classmethod
    def _of_binary(cls, problem: Quadratic, face: _Face, probs: Tensor, mean: Tensor, tolerance: float) -> _Certificate:
        """For 0/1 vectors, sums are exact up to parts with large residuals, and these are raised by their error."""
        given, n = problem.residual(mean), n_used(problem.structure, face.origin)
        residual, noise = doubted(given, mean, n)
        best = problem.vectors(problem.best(residual))
        gap = kkt.gap(face.vectors, probs, best - face.origin, residual).clamp_min(0)
        distance = (best - mean).abs().sum(-1)
        is_solved = (gap <= (GRID * distance).clamp_min(tolerance)) & (noise <= _MOST_NOISE_OF_PARTS)
        gap = gap + noise * distance
        if problem.is_wide and problem.structure.adds_unused_scores:
            hidden = hidden_by_unused(given, mean, n)
            gap, is_solved = gap + hidden, is_solved & (hidden <= _MOST_HIDDEN)
        return cls(gap, is_solved)


def _is_alone(
    problem: Quadratic,
    best: Tensor,  # shape: (n_rows, n_parts)
    mean: Tensor,  # shape: (n_rows, n_parts)
    residual: Tensor,  # shape: (n_rows, n_parts)
    noise: Tensor,  # shape: (n_rows,)
) -> Tensor:
    """Whether the mean is the best vector, and all others are worse by more than rounding errors: (n_rows,)."""
    is_alone = (best == mean).all(-1)
    second = problem.second(residual)
    if second is None:
        return torch.zeros_like(is_alone)
    difference = (best - problem.vectors(second)) * residual
    return is_alone & (difference.sum(-1) > 4 * noise)
