"""What objectives return that bound a log-likelihood."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.estimators.arguments import check_number
from sparsum.estimators.problem import Loss
from sparsum.estimators.revalued import Revalued
from sparsum.inference import check_structure
from sparsum.segments import Segments, positions_of, read_sizes
from sparsum.structures import AbstractStructure
from sparsum.structures.bad_rows import raise_bad_rows


@dataclass(frozen=True)
class Bound:
    """A lower bound on a log-likelihood.

    Args:
        surrogate: what to call backward on, to be maximised: its value is ``value``, its gradient the one to follow.
        value: the bound, without a gradient.
        calls: how often the joint was evaluated for each element of the batch, int64.
    """

    surrogate: Tensor  # shape: (*batch,)
    value: Tensor  # shape: (*batch,)
    calls: Tensor  # shape: (*batch,)

    @classmethod
    def of(cls, value: Tensor, surrogate: Tensor, calls: Tensor) -> Bound:
        """The bound with this value, and with the gradient of the surrogate."""
        value = value.detach()
        return cls(Revalued.apply(surrogate, value), value, calls)


def check_sum(structure: AbstractStructure, log_joint: Loss, k: int, *, least: int) -> None:
    """Raise a TypeError or ValueError for what is no structure, no function, or no number of assignments to sum."""
    check_structure(structure)
    check_number("k", k, least=least, is_whole=True)
    if not callable(log_joint):
        raise TypeError(f"log_joint must be a function of atoms and rows, got {type(log_joint).__name__}")


def pack(
    candidates: Tensor,  # shape: (n_rows, n_each, *event_shape)
    is_kept: Tensor,  # shape: (n_rows, n_each)
    flat: Tensor,  # shape: (n_rows, n_scores)
    is_bad: Tensor,  # shape: (n_rows,)
    *,
    most: int,
) -> tuple[Tensor, Segments]:
    """The assignments that are kept, at most so many in each row, and the row of each; the one wait for the device.

    Raises:
        ValueError: if rows are bad; it says what is wrong with their scores.
    """
    n, n_bad = read_sizes(is_kept.sum(), is_bad.sum(), most=len(is_kept) * most)
    if n_bad:
        raise_bad_rows(is_bad, flat)
    segments = Segments.from_lengths(is_kept.sum(-1), n)
    return candidates.flatten(0, 1)[positions_of(is_kept.reshape(-1), n)], segments


def calls_of_samples(
    log_weights: Tensor,  # shape: (n_samples, *batch)
    log_probs: Tensor,  # shape: (n_samples, *batch)
) -> Tensor:
    """The number of samples for each element of the batch: (*batch,).

    Raise a TypeError or ValueError unless there are several, and for both.
    """
    for name, value in (("log_weights", log_weights), ("log_probs", log_probs)):
        if not isinstance(value, Tensor) or not value.is_floating_point():
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"{name} must be a floating-point torch.Tensor, got {kind}")
    if log_weights.shape != log_probs.shape or log_weights.ndim == 0 or len(log_weights) < 2:
        raise ValueError(
            "log_weights and log_probs must have the same shape (n_samples, *batch) with at least 2 samples, "
            f"got {tuple(log_weights.shape)} and {tuple(log_probs.shape)}"
        )
    return torch.full(log_weights.shape[1:], len(log_weights), device=log_weights.device)
