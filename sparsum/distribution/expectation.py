"""Exact expectations over packed atoms, in one call or in chunks that bound the memory."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sparsum.distribution.loss import Loss, call_loss, map_tensors
from sparsum.segments import Segments


def expect(
    loss: Loss,
    atoms: Tensor,  # shape: (n_atoms, *event_shape)
    probs: Tensor,  # shape: (n_atoms,)
    segments: Segments,
    batch_shape: torch.Size,
    chunk_size: int | None,
    generators: Sequence[torch.Generator],
) -> Any:
    """Expected loss of each row, nested like the return value of the loss, with leaves of shape (*batch_shape, ...)."""
    if chunk_size is not None and (isinstance(chunk_size, bool) or not isinstance(chunk_size, int)):
        raise TypeError(f"chunk_size must be an int or None, got {type(chunk_size).__name__}")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
    if chunk_size is None:
        values = call_loss("loss", loss, atoms, segments.row, segments.n_rows)
    else:
        values = _in_chunks(loss, atoms, segments, chunk_size, generators)

    def average(value: Tensor) -> Tensor:
        weights = probs.reshape(-1, *[1] * (value.ndim - 1))
        return segments.sum(weights * value).reshape(batch_shape + value.shape[1:])

    return map_tensors(average, values)


def _in_chunks(loss: Loss, atoms: Tensor, segments: Segments, chunk_size: int, generators: Sequence[torch.Generator]) -> Any:
    """Evaluate the loss in chunks, keeping only its values; backward recomputes everything else chunk by chunk."""
    row, chunks = segments.row, []

    # `call_loss` copies the arguments, so backward sees the same atoms even if the loss modifies them in place.
    def call(z: Tensor, row: Tensor) -> Any:
        return call_loss("loss", loss, z, row, segments.n_rows)

    # At least one chunk, so that an empty batch returns a result of the right shape.
    for start in range(0, max(len(atoms), 1), chunk_size):
        states = [generator.get_state() for generator in generators]

        chunk_atoms, chunk_row = atoms[start : start + chunk_size], row[start : start + chunk_size]
        contexts = functools.partial(_forward_and_replay, generators, states)
        chunks.append(checkpoint(call, chunk_atoms, chunk_row, use_reentrant=False, context_fn=contexts))
    return map_tensors(lambda *parts: torch.cat(parts), *chunks)


def _forward_and_replay(
    generators: Sequence[torch.Generator], states: Sequence[Tensor]
) -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
    """The contexts for the forward pass of a chunk and for its recomputation."""
    return contextlib.nullcontext(), _Replay(generators, states)


class _Replay(contextlib.AbstractContextManager[None]):
    """Restore the generators while a chunk is recomputed; `checkpoint` only restores the global ones.

    This is a class because a retained graph is recomputed at every backward, and a `contextlib.contextmanager` can only be
    entered once.
    """

    def __init__(self, generators: Sequence[torch.Generator], states: Sequence[Tensor]) -> None:
        self.generators, self.states = generators, states

    def __enter__(self) -> None:
        self.present = [generator.get_state() for generator in self.generators]
        _set_states(self.generators, self.states)

    def __exit__(self, *_: object) -> None:
        _set_states(self.generators, self.present)


def _set_states(generators: Sequence[torch.Generator], states: Sequence[Tensor]) -> None:
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
