"""Select rows or atoms of a packed batch, and move structures to another device."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from sparsum.segments import Segments, positions_of, read_sizes
from sparsum.structures import AbstractStructure


def take_rows(
    atoms: Tensor,  # shape: (n_atoms, *event_shape)
    probs: Tensor,  # shape: (n_atoms,)
    segments: Segments,
    source: Tensor,  # shape: (n_taken,), int64
    n_atoms: int | None = None,
) -> tuple[Tensor, Tensor, Segments]:
    """Select the rows ``source``, in any order and with repetition: atoms, probabilities and segments.

    If ``n_atoms``, the total number of atoms in these rows, is None, it is read from the device.
    """
    lengths = segments.lengths[source]
    if n_atoms is None:
        (n_atoms,) = read_sizes(lengths.sum(), most=len(source) * len(atoms))
    taken = Segments.from_lengths(lengths, n_atoms, like=segments)
    offset = torch.arange(n_atoms, device=probs.device) - taken.starts[taken.row]
    place = (segments.starts[source][taken.row] + offset).clamp_max(max(len(atoms) - 1, 0))
    return atoms[place], _at(probs, place), taken


def keep_best(
    atoms: Tensor,  # shape: (n_atoms, *event_shape)
    probs: Tensor,  # shape: (n_atoms,)
    segments: Segments,
    k: int,
) -> tuple[Tensor, Tensor, Segments]:
    """Keep the k most probable atoms of each row, the first ones on ties, in their order, and renormalize."""
    if isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f"k must be an int, got {type(k).__name__}")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    order = segments.order(probs.detach())
    rank = torch.arange(len(probs), device=probs.device) - segments.starts[segments.row]
    lengths = segments.lengths.clamp(max=k)
    is_kept = torch.empty_like(rank, dtype=torch.bool).scatter_(0, order, rank < lengths[segments.row])
    (n_kept,) = read_sizes(lengths.sum(), most=min(len(probs), k * segments.n_rows))
    place = positions_of(is_kept, n_kept)
    kept = Segments.from_lengths(lengths, n_kept, like=segments)
    found = _at(probs, place)
    # A row that loses no atoms keeps its exact probabilities.
    is_cut = (segments.lengths > k)[kept.row]
    return atoms[place], torch.where(is_cut, found / kept.spread(kept.sum(found)), found), kept


def pad(
    atoms: Tensor,  # shape: (n_atoms, *event_shape)
    probs: Tensor,  # shape: (n_atoms,)
    segments: Segments,
) -> tuple[Tensor, Tensor]:
    """Tables of atoms, (n_rows, width, *event_shape), and probabilities, (n_rows, width), as wide as the longest row.

    A shorter row is filled with its last atom, with probability 0.
    """
    width = read_sizes(segments.lengths.amax(), most=len(atoms))[0] if segments.n_rows else 0
    offset, lengths = torch.arange(width, device=probs.device), segments.lengths.unsqueeze(1)
    place = segments.starts.unsqueeze(1) + torch.minimum(offset, lengths - 1)
    return atoms[place], torch.where(offset < lengths, probs[place], 0.0)


def to_device(structure: AbstractStructure | None, device: torch.device) -> AbstractStructure | None:
    """Move the lengths of a structure, if it has any, to a device."""
    lengths = getattr(structure, "lengths", None)
    if not isinstance(lengths, Tensor) or lengths.device == device:
        return structure
    moved = copy.copy(structure)  # skips the checks of `dataclasses.replace`, which would synchronize
    object.__setattr__(moved, "lengths", lengths.to(device))
    return moved


def _at(probs: Tensor, place: Tensor) -> Tensor:
    """Gather entries of a vector: indexing has a deterministic gradient on a GPU, `index_select` is fast on a CPU."""
    return probs[place] if probs.is_cuda else probs.index_select(0, place)
