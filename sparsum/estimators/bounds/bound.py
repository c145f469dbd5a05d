"""The result type of bounds on a log-likelihood, and their argument checks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.arguments import check_generator, check_int
from sparsum.distribution.loss import Loss, check_loss
from sparsum.estimators.revalued import Revalued
from sparsum.inference import require_structure
from sparsum.structures import AbstractStructure, BoundScores, Scores


@dataclass(frozen=True)
class Bound:
    """A lower bound on a log-likelihood.

    Args:
        surrogate: the quantity to maximise: its value is ``value``, its gradient the estimated gradient.
        value: the bound, without a gradient.
        calls: the number of evaluations of ``log_joint`` for each element of the batch, int64.
    """

    surrogate: Tensor  # shape: (*batch,)
    value: Tensor  # shape: (*batch,)
    calls: Tensor  # shape: (*batch,)

    @classmethod
    def of(cls, value: Tensor, surrogate: Tensor, calls: Tensor) -> Bound:
        """The bound with the given value and the gradient of the surrogate."""
        value = value.detach()
        return cls(Revalued.apply(surrogate, value), value, calls)


def shaped(found: Bound, bound: BoundScores) -> Bound:
    """Reshape a bound per row to the shape of the batch."""
    return Bound(*(bound.shaped(tensor) for tensor in (found.surrogate, found.value, found.calls)))


def bind(
    scores: Scores,  # shape: (*batch, *score_shape)
    structure: AbstractStructure,
    log_joint: Loss,
    k: int,
    *,
    least: int,
    mask: Scores | None,
    temperature: float | Tensor | None,
    generator: torch.Generator | None,
) -> BoundScores:
    """Check the arguments of a bound, and bind its scores; k must be at least ``least``."""
    require_structure(structure)
    check_int("k", k, least=least)
    check_loss("log_joint", log_joint)
    check_generator(generator)
    return structure.bind(scores, mask=mask, temperature=temperature)
