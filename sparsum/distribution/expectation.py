"""Exact expectations over packed atoms, in one go or in chunks that bound the memory."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sparsum.segments import Segments

Loss = Callable[[Tensor, Tensor], Any]


def expect(
    loss: Loss,
    atoms: Tensor,  # shape: (n_atoms, *event_shape)
    probs: Tensor,  # shape: (n_atoms,)
    segments: Segments,
    batch_shape: torch.Size,
    chunk_size: int | None,
    generators: Sequence[torch.Generator],
) -> Any:
    """The expected loss of each row, in the nested shape that the loss returns: leaves of shape (*batch_shape, ...)."""
    if chunk_size is None:
        values = _checked(loss(atoms, segments.row), len(atoms))
    else:
        values = _in_chunks(loss, atoms, segments.row, chunk_size, generators)

    def average(value: Tensor) -> Tensor:
        weights = probs.reshape(-1, *[1] * (value.ndim - 1))
        return segments.sum(weights * value).reshape(batch_shape + value.shape[1:])

    return map_tensors(average, values)


def _in_chunks(loss: Loss, atoms: Tensor, row: Tensor, chunk_size: int, generators: Sequence[torch.Generator]) -> Any:
    """The loss of all atoms. Of each chunk only the values are kept; backward computes the rest again, chunk by chunk."""
    chunks = []
    # One chunk at least, so that an empty batch has a result of the right shape.
    for start in range(0, max(len(atoms), 1), chunk_size):
        states = [generator.get_state() for generator in generators]

        chunk_atoms, chunk_row = atoms[start : start + chunk_size], row[start : start + chunk_size]
        contexts = functools.partial(_forward_and_replay, generators, states)
        values = checkpoint(loss, chunk_atoms, chunk_row, use_reentrant=False, context_fn=contexts)
        chunks.append(_checked(values, len(chunk_atoms)))
    return map_tensors(lambda *parts: torch.cat(parts), *chunks)


def _forward_and_replay(
    generators: Sequence[torch.Generator], states: Sequence[Tensor]
) -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
    """The contexts in which a chunk is computed for the first time and again."""
    return contextlib.nullcontext(), _Replay(generators, states)


class _Replay(contextlib.AbstractContextManager[None]):
    """Let a chunk that is computed again see its first noise; `checkpoint` itself knows the global generators only.

    A class, since a graph that is kept is computed again at every backward, and generator functions can be entered once.
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


def _checked(values: Any, n_atoms: int) -> Any:
    """What the loss returned, if each of its tensors has one entry per atom."""

    def check(value: Any) -> Any:
        if not isinstance(value, Tensor):
            raise TypeError(
                "loss must return a tensor, or a dict, list or tuple of tensors, with one entry per atom; "
                f"got {type(value).__name__}"
            )
        if value.ndim == 0 or len(value) != n_atoms:
            raise ValueError(
                f"loss must return one entry per atom, a leading dimension of {n_atoms}, got shape {tuple(value.shape)}; "
                "index what belongs to an example by row, as in x[row], and do not average over the atoms"
            )
        return value

    return map_tensors(check, values)


def map_tensors(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply a function to the leaves of nested dicts, lists and (named) tuples of the same form."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: map_tensors(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, list | tuple):
        mapped = [map_tensors(function, *parts) for parts in zip(*trees, strict=True)]
        return type(first)(*mapped) if hasattr(first, "_fields") else type(first)(mapped)
    return function(*trees)
