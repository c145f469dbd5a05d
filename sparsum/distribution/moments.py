"""Mean and variance of the vectors of packed atoms."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.segments import Segments
from sparsum.structures import AbstractStructure
from sparsum.structures.scores import Scores, as_tuple, flatten, unflatten


def mean_of(
    structure: AbstractStructure | None,
    atoms: Tensor,  # shape: (n_atoms, *event_shape)
    probs: Tensor,  # shape: (n_atoms,)
    segments: Segments,
) -> Scores:
    """The mean vector of each row: (n_rows, *score_shape), or a tuple of tensors."""
    if structure is not None:
        return structure.marginals(atoms, probs, segments)
    return segments.sum(atoms.to(probs.dtype) * probs.reshape(-1, *[1] * (atoms.ndim - 1)))


def variance_of(
    structure: AbstractStructure | None,
    atoms: Tensor,  # shape: (n_atoms, *event_shape)
    probs: Tensor,  # shape: (n_atoms,)
    segments: Segments,
) -> Scores:
    r"""The variance of each part of the vectors, :math:`\sum_z p(z) (a_z - \mu)^2`, in the form of `mean_of`."""
    if structure is not None and structure.is_fixed_size:
        return _of_binary_vectors(structure, atoms, probs, segments)
    wide = probs.float() if torch.finfo(probs.dtype).bits == 16 else probs
    vectors = atoms if structure is None else structure.select(segments.row).vectors(atoms)
    flat = flatten(vectors if atoms.ndim > 1 or structure is not None else atoms.unsqueeze(-1)).to(wide.dtype)
    mean = segments.sum(flat * wide.unsqueeze(-1))
    squares = segments.sum((flat - segments.spread(mean)).square() * wide.unsqueeze(-1)).to(probs.dtype)
    return unflatten(squares, like=vectors)


def _of_binary_vectors(structure: AbstractStructure, atoms: Tensor, probs: Tensor, segments: Segments) -> Scores:
    """Variance of 0/1 vectors without these vectors: a part is 1 with its marginal, 0 with the rest of the row's mass."""
    # In float64, so that the rest keeps the digits of small probabilities.
    total = segments.sum(probs.double())
    ones = structure.marginals(atoms, probs.double(), segments)

    def variance(one: Tensor) -> Tensor:
        zero = total.reshape(-1, *[1] * (one.ndim - 1)) - one
        zero = zero - zero.detach().clamp_max(0.0)  # raise rounding errors below 0 to 0, keep the gradient
        return (one * (1 - one).square() + zero * one.square()).to(probs.dtype)

    variances = tuple(map(variance, as_tuple(ones)))
    return variances if isinstance(ones, tuple) else variances[0]
