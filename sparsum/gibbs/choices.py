"""Structures that are a row of choices, with at most neighbouring choices depending on each other."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.structures import AbstractStructure, Bits, Enumerated, Groups, OneOf, Sequence
from sparsum.structures.parts import Scores, tensors_of

#: One choice; one of two per bit; one per group; one per position, with transitions; one of the vectors.
CHAINS = (OneOf, Bits, Groups, Sequence, Enumerated)

# What says which assignments a structure has, and what they score.
_MEANING = ("argmax", "topk", "kbest", "vectors", "score", "log_count")


def keeps_to(structure: AbstractStructure, kinds: tuple[type[AbstractStructure], ...]) -> bool:
    """Whether a structure is of one of these kinds and, if of a class derived from it, changes none of its assignments."""
    return any(
        isinstance(structure, kind) and all(getattr(type(structure), name) is getattr(kind, name) for name in _MEANING)
        for kind in kinds
    )


def potentials(
    structure: AbstractStructure,
    rows: Scores,  # shape: (n_rows, *score_shape)
) -> tuple[Tensor, Tensor | None]:
    """The scores of choices, (n_rows, length, n_choices), and of pairs, (n_rows, length - 1, n_choices, n_choices)."""
    if isinstance(structure, OneOf):
        return rows.unsqueeze(1), None
    if isinstance(structure, Bits):
        return torch.stack([torch.zeros_like(rows), rows], -1), None
    if isinstance(structure, Enumerated):
        rows = rows.float() if torch.finfo(rows.dtype).bits == 16 else rows
        vectors = structure.vectors(torch.arange(len(structure), device=rows.device)).flatten(1).to(rows.dtype)
        is_forbidden = rows.flatten(1) == -torch.inf
        scores = torch.where(is_forbidden, 0.0, rows.flatten(1)) @ vectors.T
        uses_forbidden = is_forbidden.to(rows.dtype) @ (vectors != 0).to(rows.dtype).T > 0
        return scores.masked_fill(uses_forbidden, -torch.inf).unsqueeze(1), None
    unary, *others = tensors_of(rows)
    return unary, others[0] if others else None


def atoms_of(
    structure: AbstractStructure,
    choices: Tensor,  # shape: (*lead, length), int64
    dtype: torch.dtype,
) -> Tensor:
    """The atoms that make these choices: (*lead, *event_shape); the dtype is that of bits."""
    if isinstance(structure, OneOf | Enumerated):
        return choices.squeeze(-1)
    return choices.to(dtype) if isinstance(structure, Bits) else choices


def choices_of(
    structure: AbstractStructure,
    atoms: Tensor,  # shape: (*lead, *event_shape)
) -> Tensor:
    """The inverse of `atoms_of`: (*lead, length), int64."""
    return (atoms.unsqueeze(-1) if isinstance(structure, OneOf | Enumerated) else atoms).long()


def marginals_of(
    structure: AbstractStructure,
    choices: Tensor,  # shape: (n_rows, length, n_choices)
    pairs: Tensor | None,  # shape: (n_rows, length - 1, n_choices, n_choices)
) -> Scores:
    """The mean vectors of a structure whose choices, and pairs of them, have these probabilities."""
    if isinstance(structure, OneOf):
        return choices.squeeze(1)
    if isinstance(structure, Bits):
        return choices[..., 1]
    if isinstance(structure, Enumerated):
        vectors = structure.vectors(torch.arange(len(structure), device=choices.device))
        return torch.tensordot(choices.squeeze(1), vectors.to(choices.dtype), 1)
    if isinstance(structure, Sequence) and structure.has_transitions and pairs is None:
        pairs = choices[:, 1:].unsqueeze(-1)  # of a single tag
    if isinstance(structure, Sequence) and structure.lengths is not None:
        is_padding = structure._is_padding(len(choices))
        choices = choices.masked_fill(is_padding.unsqueeze(-1), 0.0)
        pairs = None if pairs is None else pairs.masked_fill(is_padding[:, 1:, None, None], 0.0)
    return choices if pairs is None else (choices, pairs)
