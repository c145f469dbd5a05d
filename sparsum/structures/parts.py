"""Scores and vectors as flat rows of parts, whatever tensors they come in."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

#: A tensor, or a tuple of tensors for a structure with parts of several kinds: a sequence's tags and transitions, say.
#: Any, so that the structures that take tensors alone may say so.
Scores: TypeAlias = Any


def tensors_of(scores: Scores) -> tuple[Tensor, ...]:
    """The tensors that scores consist of."""
    return scores if isinstance(scores, tuple) else (scores,)


def flatten_parts(
    scores: Scores,  # shape: (n, *score_shape) each
) -> Tensor:
    """All parts of each row next to each other: (n, n_parts)."""
    tensors = [tensor.flatten(1) for tensor in tensors_of(scores)]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, -1)


def unflatten_parts(
    flat: Tensor,  # shape: (n, n_parts)
    like: Scores,
) -> Scores:
    """The inverse of `flatten_parts`: rows of parts in the form of other scores, with any number of rows."""
    if not isinstance(like, tuple):
        return flat.reshape(len(flat), *like.shape[1:])
    sizes = [tensor.shape[1:].numel() for tensor in like]
    pieces = flat.split(sizes, -1)
    return tuple(piece.reshape(len(flat), *tensor.shape[1:]) for piece, tensor in zip(pieces, like, strict=True))


def select_rows(scores: Scores, index: Tensor) -> Scores:
    """The scores of some rows."""
    return tuple(tensor[index] for tensor in scores) if isinstance(scores, tuple) else scores[index]
