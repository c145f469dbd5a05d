"""The last stage of the active set method: an accurate, differentiable solve on the final atoms, and its certificate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum import kernels
from sparsum.segments import Packed, Segments, read_sizes
from sparsum.solvers import kkt
from sparsum.solvers.quadratic import NEGLIGIBLE, Padded, Quadratic, violation


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
            gap, is_solved = _certificate(problem, face.mean(probs), tolerance)
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
        return cls(Padded(done.atoms, probs, done.steps), face, n, gap, is_solved, is_left, n_left, n_unsolved)

    def packed(
        self,
        linear: Tensor,  # shape: (n_rows, n_parts)
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Segments]:
        """Atoms, probabilities as a differentiable function of b for constant atoms, and segments."""
        kept, probs, atoms = self.padded.probs > 0, self.padded.probs, self.padded.atoms
        packed = Packed.with_size(kept, kept.sum(-1), self.n_atoms)
        if linear.requires_grad or kernels.is_transformed():  # a forward-mode tangent does not require a gradient
            scores = kkt.multiply(self.face.vectors, linear)
            probs = probs + self.face.tangent.solve(scores - scores.detach())
        probs = packed.take(probs).to(dtype)
        # float16 would round the smallest probabilities to 0, and so drop their atoms.
        probs = probs.clamp_min(torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps)
        atoms, segments = packed.take(atoms), packed.segments
        return atoms.to(dtype) if atoms.is_floating_point() else atoms, segments.clear_padding(probs), segments


def _certificate(problem: Quadratic, mean: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """The gap of each row, and whether it is small enough: (n_rows,) each."""
    if not len(mean):
        return mean.new_zeros(0), torch.zeros(0, dtype=torch.bool, device=mean.device)
    residual = problem.residual(mean)
    gap, resolution = violation(problem.vectors(problem.best(residual)), mean, residual)
    return gap.clamp_min(0), gap <= resolution.clamp_min(tolerance)
