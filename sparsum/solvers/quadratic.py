"""The objective of the active set method, and the certificate of its optimum."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.segments import Segments
from sparsum.solvers.rounding import GRID
from sparsum.structures import AbstractStructure
from sparsum.structures.scores import Scores, flatten, unflatten

#: Smaller probabilities are dropped from the result.
NEGLIGIBLE = 1e-12
#: Vectors whose size is within these powers of two of 1 are not scaled.
_ORDINARY = 3
#: A coordinate of the mean this close to the atom's coordinate counts as equal.
_SAME = 1e-13


@dataclass(frozen=True)
class Quadratic:
    """SparseMAP on some rows: maximise b'mu - 1/2 sum_i w_i mu_i^2 over the mean vectors mu.

    If the vectors are not 0/1, they and b are divided by the ``scale`` of the row, a power of two, so that tolerances do not
    depend on the unit of the vectors. This divides the objective by the square of the scale, and changes nothing else.
    """

    structure: AbstractStructure
    form: Scores  # any scores of this structure, for the shapes of their parts
    linear: Tensor  # shape: (n_rows, n_parts), b, with 0 for forbidden parts
    weight: Tensor  # shape: (n_parts,), w
    is_forbidden: Tensor | None  # shape: (n_rows, n_parts), or None if no part is forbidden
    scale: Tensor | None = None  # shape: (n_rows, 1), or None if the vectors are 0/1
    is_wide: bool = False  # whether scores may be so large that their sums are not exact
    given: Tensor | None = None  # shape: (n_rows, n_parts), the scores from which b was made, if those were shifted

    def select(self, index: Tensor) -> Quadratic:
        """The problem for some of its rows."""
        return dataclasses.replace(
            self,
            structure=self.structure.select(index),
            linear=self.linear[index],
            is_forbidden=None if self.is_forbidden is None else self.is_forbidden[index],
            scale=None if self.scale is None else self.scale[index],
            given=None if self.given is None else self.given[index],
        )

    def scaled(
        self,
        scale: Tensor,  # shape: (n_rows, 1), powers of two
    ) -> Quadratic:
        """The same problem for vectors that are divided by their scale."""
        return dataclasses.replace(self, linear=self.linear / scale, scale=scale)

    def best(
        self,
        flat: Tensor,  # shape: (n_rows, n_parts)
    ) -> Tensor:
        """The atom with the best score of each row: (n_rows, *event_shape)."""
        return self.structure.argmax(self._allowed(flat))

    def second(
        self,
        flat: Tensor,  # shape: (n_rows, n_parts)
    ) -> Tensor | None:
        """The atom with the second best score, or None if there is none, or if the structure has no search of its own."""
        if type(self.structure).topk is AbstractStructure.topk:
            return None
        found = self.structure.topk(self._allowed(flat), 2)
        return found[:, 1] if found.shape[1] == 2 else None

    def _allowed(self, flat: Tensor) -> Scores:
        """Flat rows in the form of scores, with -inf for forbidden parts."""
        if self.is_forbidden is not None:
            flat = flat.masked_fill(self.is_forbidden, -torch.inf)
        return unflatten(flat, like=self.form)

    def vectors(
        self,
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
        row: Tensor | None = None,  # shape: (n_atoms,), the row of each; by default one atom per row
    ) -> Tensor:
        """The vectors of atoms as flat rows of parts in float64: (n_atoms, n_parts)."""
        structure = self.structure if row is None else self.structure.select(row)
        vectors = flatten(structure.vectors(atoms)).to(self.linear.dtype)
        if self.scale is None:
            return vectors
        return vectors / (self.scale if row is None else self.scale[row])

    def residual(
        self,
        mean: Tensor,  # shape: (n_rows, n_parts)
    ) -> Tensor:
        """The gradient of the objective, r = b - W mu."""
        return torch.addcmul(self.linear, self.weight, mean, value=-1)


def scale_of(
    problem: Quadratic,
    best: Tensor,  # shape: (n_rows, *event_shape), an atom of each row
) -> Tensor | None:
    """The power of two near the largest distance of two vectors in a part, (n_rows, 1), or None if the vectors are 0/1.

    A structure that does not declare 0/1 vectors is asked for the best and the worst atom in a fixed direction.
    """
    structure, n_parts = problem.structure, problem.linear.shape[-1]
    if structure.is_fixed_size or structure.bit_counts() is not None or not len(best):
        return None
    direction = torch.arange(1, n_parts + 1, dtype=torch.float64, device=best.device).cos().expand_as(problem.linear)
    atoms = (best, problem.best(direction), problem.best(-direction))
    seen = torch.stack([problem.vectors(each) for each in atoms])
    if bool(((seen == 0) | (seen == 1)).all()):
        return None
    spread = (seen.amax(0) - seen.amin(0)).amax(-1, keepdim=True)
    spread = torch.where(spread > 0, spread, seen.abs().amax((0, -1)).unsqueeze(-1))
    exponent = torch.frexp(spread).exponent - 1
    exponent = torch.where(exponent.abs() <= _ORDINARY, 0, exponent)
    return torch.ldexp(torch.ones_like(spread), exponent)


def violation(
    vectors: Tensor,  # shape: (n_rows, n_parts), of the best atom under the residual
    mean: Tensor,  # shape: (n_rows, n_parts)
    residual: Tensor,  # shape: (n_rows, n_parts)
) -> tuple[Tensor, Tensor]:
    """The Frank-Wolfe gap <a - mu, r>, an upper bound on the suboptimality of the objective, and its resolution.

    A gap below the resolution may be due to rounding errors of the mean, or to the rounding of residuals to the grid.
    """
    difference = vectors - mean
    distance = difference.abs()
    known = residual.masked_fill(distance < _SAME, 0)
    return (difference * known).sum(-1), 4e-15 * known.abs().sum(-1) + GRID * distance.sum(-1)


@dataclass(frozen=True)
class Finished:
    """Packed atoms and probabilities of finished rows, in any order."""

    atoms: Tensor  # shape: (n_atoms, *event_shape)
    probs: Tensor  # shape: (n_atoms,)
    row: Tensor  # shape: (n_atoms,)
    ids: Tensor  # shape: (n_rows,)
    steps: Tensor  # shape: (n_rows,)

    @classmethod
    def concatenate(cls, pieces: list[Finished]) -> Finished:
        """Concatenate several into one."""
        return cls(*(torch.cat(tensors) for tensors in zip(*(piece.tensors() for piece in pieces), strict=True)))

    def tensors(self) -> tuple[Tensor, ...]:
        """All fields, in the order of the constructor."""
        return self.atoms, self.probs, self.row, self.ids, self.steps


@dataclass(frozen=True)
class Padded:
    """Atoms and probabilities of all rows, padded to the same number of slots; empty slots repeat the row's first atom."""

    atoms: Tensor  # shape: (n_rows, n_slots, *event_shape)
    probs: Tensor  # shape: (n_rows, n_slots), 0 in empty slots
    steps: Tensor  # shape: (n_rows,)

    @classmethod
    def from_packed(cls, packed: Finished) -> Padded:
        """From packed atoms of all rows, in any order."""
        n_rows = len(packed.ids)
        atoms, index, is_filled = unpack(packed.atoms, packed.row, n_rows)
        probs = torch.where(is_filled, packed.probs[index], 0.0)
        return cls(atoms, probs, torch.empty_like(packed.steps).scatter_(0, packed.ids, packed.steps))

    @classmethod
    def from_slots(
        cls,
        atoms: Tensor,  # shape: (n_rows, width, *event_shape)
        probs: Tensor,  # shape: (n_rows, width)
        steps: Tensor,  # shape: (n_rows,)
        n_slots: int,  # the largest number of probabilities in a row that are not negligible
        dtype: torch.dtype,  # of the atoms
    ) -> Padded:
        """From rows with gaps: non-negligible slots come first; does not synchronize with the device."""
        kept = probs > NEGLIGIBLE
        nth = torch.arange(1, n_slots + 1, device=probs.device).repeat(len(probs), 1)
        index = torch.searchsorted(kept.cumsum(-1), nth)
        is_filled = nth <= kept.sum(-1, keepdim=True)
        index = torch.where(is_filled, index, index[:, :1])
        every = torch.arange(len(probs), device=probs.device).unsqueeze(-1)
        return cls(atoms[every, index].to(dtype), torch.where(is_filled, probs[every, index], 0.0), steps)

    def replaced(self, redone: Finished) -> Padded:
        """All rows, with some of them replaced."""
        every = torch.arange(len(self.steps), device=self.steps.device)
        is_kept = ~torch.isin(every, redone.ids)
        row, slot = (is_kept.unsqueeze(-1) & (self.probs > 0)).nonzero(as_tuple=True)
        kept = Finished(self.atoms[row, slot], self.probs[row, slot], row, every[is_kept], self.steps[is_kept])
        return Padded.from_packed(Finished.concatenate([kept, redone]))


def unpack(atoms: Tensor, row: Tensor, n_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pad packed atoms, (n_atoms, *event_shape), in any order, at least one per row, to the same number of slots.

    Returns:
        The atoms, (n_rows, n_slots, *event_shape), padded with the first atom of each row, their packed positions,
        (n_rows, n_slots), and which slots are not padding, (n_rows, n_slots).
    """
    order = row.argsort(stable=True)
    segments = Segments.from_row(row[order], n_rows)
    place = torch.arange(int(segments.lengths.max()) if n_rows else 1, device=row.device)
    is_filled = place < segments.lengths.unsqueeze(-1)
    index = order[segments.starts.unsqueeze(-1) + torch.where(is_filled, place, 0)]
    return atoms[index], index, is_filled
