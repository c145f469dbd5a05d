"""Noise for perturbed scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def exponential(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Independent exponential noise, never 0, in the dtype and on the device of another tensor."""
    noise = torch.empty(tuple(shape), dtype=like.dtype, device=like.device).exponential_(generator=generator)
    return noise.clamp_min(torch.finfo(like.dtype).tiny)


def gumbel(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Independent standard Gumbel noise: the argmax of scores plus this noise is a sample from their softmax."""
    return -exponential(shape, like, generator).log()


def logistic(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Independent standard logistic noise: a score plus this noise is positive with probability sigmoid(score)."""
    return gumbel(shape, like, generator) - gumbel(shape, like, generator)
