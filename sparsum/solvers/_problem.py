"""What the active set method maximises, and the certificate that it has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.structures import AbstractStructure
from sparsum.structures._parts import Scores, flatten_parts, unflatten_parts

#: Residuals are rounded to multiples of this before the oracle sees them. Sums of such numbers are exact, so that ties are
#: ties, and rounding errors do not choose between atoms.
GRID = 2.0**-36
#: A mean this close to the atom's coordinate is the coordinate.
_SAME = 1e-13


@dataclass(frozen=True)
class Problem:
    """SparseMAP on some rows: maximise b'mu - 1/2 sum_i w_i mu_i^2 over the mean vectors mu."""

    structure: AbstractStructure
    form: Scores  # any scores of this structure, for the shapes of their parts
    linear: Tensor  # shape: (n_rows, n_parts), b, with 0 for forbidden parts
    weight: Tensor  # shape: (n_parts,), w
    is_forbidden: Tensor | None  # shape: (n_rows, n_parts), or None where nothing is

    def select(self, index: Tensor) -> Problem:
        """The problem on some of its rows."""
        is_forbidden = None if self.is_forbidden is None else self.is_forbidden[index]
        return Problem(self.structure.select(index), self.form, self.linear[index], self.weight, is_forbidden)

    def best(
        self,
        flat: Tensor,  # shape: (n_rows, n_parts)
    ) -> Tensor:
        """The atom with the best score of each row: (n_rows, *event_shape)."""
        if self.is_forbidden is not None:
            flat = flat.masked_fill(self.is_forbidden, -torch.inf)
        return self.structure.argmax(unflatten_parts(flat, like=self.form))

    def vectors(
        self,
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
        row: Tensor | None = None,  # shape: (n_atoms,), the row of each; by default there is one atom per row
    ) -> Tensor:
        """The vectors of atoms as flat rows of parts in float64: (n_atoms, n_parts)."""
        structure = self.structure if row is None else self.structure.select(row)
        return flatten_parts(structure.vectors(atoms)).to(self.linear.dtype)

    def residual(
        self,
        mean: Tensor,  # shape: (n_rows, n_parts)
    ) -> Tensor:
        """The gradient of the objective, r = b - W mu."""
        return torch.addcmul(self.linear, self.weight, mean, value=-1)


def violation(
    vectors: Tensor,  # shape: (n_rows, n_parts), of the best atom under the residual
    mean: Tensor,  # shape: (n_rows, n_parts)
    residual: Tensor,  # shape: (n_rows, n_parts)
) -> tuple[Tensor, Tensor]:
    """The Frank-Wolfe gap <a - mu, r>, an upper bound of what the objective may still gain, and its resolution.

    A gap below the resolution may be due to rounding, of the mean or of the residuals to the grid.
    """
    difference = vectors - mean
    distance = difference.abs()
    known = residual.masked_fill(distance < _SAME, 0)
    return (difference * known).sum(-1), 4e-15 * known.abs().sum(-1) + GRID * distance.sum(-1)


@dataclass(frozen=True)
class Packed:
    """Atoms and probabilities of rows that are done."""

    atoms: Tensor  # shape: (n_atoms, *event_shape)
    probs: Tensor  # shape: (n_atoms,)
    row: Tensor  # shape: (n_atoms,)
    ids: Tensor  # shape: (n_rows,)
    steps: Tensor  # shape: (n_rows,)

    @classmethod
    def concatenate(cls, pieces: list[Packed]) -> Packed:
        """Several of them, one after the other."""
        return cls(*(torch.cat(tensors) for tensors in zip(*(piece.tensors() for piece in pieces), strict=True)))

    def tensors(self) -> tuple[Tensor, ...]:
        """What it consists of."""
        return self.atoms, self.probs, self.row, self.ids, self.steps
