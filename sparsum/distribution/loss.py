"""Calls of a user's loss on packed assignments: which arguments it takes, and what is said when it fails."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparsum.tensors import at_least_float32

#: A function of assignments, and of the row of each if it takes two arguments.
Loss = Callable[[Tensor, Tensor], Any] | Callable[[Tensor], Any]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
# Numbers in torch's messages that are not sizes: of a dimension, of an argument.
_NOT_SIZES = re.compile(r"(dimension|dim|number|index|position|argument)[ =#]*\d+")
_INDEX_BY_ROW = "index what belongs to an example by row, as in x[row]"


def check_loss(name: str, loss: object) -> None:
    """Raise a TypeError unless a loss can be called."""
    if not callable(loss):
        raise TypeError(f"{name} must be a function of assignments and their rows, got {type(loss).__name__}")


def takes_row(loss: Callable[..., Any]) -> bool:
    """Whether a loss is to be called as ``loss(z, row)`` and not as ``loss(z)``: all but those with one argument are.

    A module is asked for the arguments of its forward. What does not tell its arguments takes both.

    >>> takes_row(lambda z, row: z), takes_row(lambda z: z), takes_row(torch.nn.Linear(3, 1))
    (True, False, False)
    """
    loss = getattr(loss, "_orig_mod", loss)  # what `torch.compile` wraps a module around
    try:
        signature = inspect.signature(loss.forward if isinstance(loss, torch.nn.Module) else loss)
    except (TypeError, ValueError):
        return True
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    return inspect.Parameter.VAR_POSITIONAL in kinds or sum(kind in _POSITIONAL for kind in kinds) != 1


def call_loss(
    name: str,
    loss: Loss,
    z: Tensor,  # shape: (n_atoms, *event_shape)
    row: Tensor,  # shape: (n_atoms,)
    n_rows: int,
    *,
    copy: bool = True,
) -> Any:
    """What a loss returns for packed assignments: a tensor, or a nested dict, list or tuple of tensors.

    >>> call_loss("loss", lambda z: {"square": z**2}, torch.tensor([1.0, 3.0]), torch.tensor([0, 0]), n_rows=1)
    {'square': tensor([1., 9.])}

    Args:
        name: what to call it in messages.
        loss: called as `takes_row` says.
        z: the assignments.
        row: the row of each.
        n_rows: the size of the batch.
        copy: hand out copies, so that a loss that changes its arguments in place does not change the caller's.

    Raises:
        TypeError: if the loss returns something else than tensors.
        ValueError: if a returned tensor does not have one entry per assignment, or if the loss fails because sizes of
            ``n_rows`` and ``n_atoms`` meet: a tensor of the batch was not indexed by row.
    """
    check_loss(name, loss)
    function: Callable[..., Any] = loss
    n_atoms = len(z)
    try:
        arguments = (z, row) if takes_row(function) else (z,)
        values = function(*(argument.clone() for argument in arguments)) if copy else function(*arguments)
    except (RuntimeError, ValueError, IndexError) as error:
        if isinstance(error, torch.OutOfMemoryError) or not _sizes_meet(str(error), n_rows, n_atoms):
            raise
        raise ValueError(
            f"{name} failed where a size of {n_rows}, as of the batch, met one of {n_atoms}, the number of atoms: {error}; "
            f"{_INDEX_BY_ROW}"
        ) from error

    def check(value: Any) -> Any:
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name} must return a tensor, or a dict, list or tuple of tensors, with one entry per atom; "
                f"got {type(value).__name__}"
            )
        if value.ndim == 0 or len(value) != n_atoms:
            seen = f"got shape {tuple(value.shape)}"
            if value.ndim and len(value) == n_rows:
                seen += f", one entry for each of {n_rows} rows"
            raise ValueError(
                f"{name} must return one entry per atom, a leading dimension of {n_atoms}, {seen}; {_INDEX_BY_ROW}, and do "
                "not average over the atoms"
            )
        return value

    return map_tensors(check, values)


def call_for_numbers(
    name: str,
    loss: Loss,
    z: Tensor,  # shape: (n_atoms, *event_shape)
    row: Tensor,  # shape: (n_atoms,)
    n_rows: int,
    *,
    copy: bool = True,
) -> Tensor:
    """As `call_loss`, for a loss that returns one number per assignment, in float32 at least: (n_atoms,).

    >>> call_for_numbers("loss", lambda z: z.half(), torch.tensor([1, 3]), torch.tensor([0, 0]), n_rows=1)
    tensor([1., 3.])

    Raises:
        TypeError: if the loss returns something else than a floating-point tensor.
        ValueError: as `call_loss`, and if the returned tensor has other dimensions.
    """
    values = call_loss(name, loss, z, row, n_rows, copy=copy)
    if not isinstance(values, Tensor) or not values.is_floating_point():
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(f"{name} must return a floating-point torch.Tensor, got {kind}")
    if values.ndim != 1:
        raise ValueError(
            f"{name} must return one number per atom, shape ({len(row)},), got {tuple(values.shape)}; sum or average over "
            "the other dimensions, and keep none of them"
        )
    return at_least_float32(values)


def _sizes_meet(message: str, n_rows: int, n_atoms: int) -> bool:
    """Whether an error is about a size of the batch and one of the atoms; torch says so in many ways, with both numbers."""
    # A batch of one broadcasts, and as many atoms as rows belong to one row each.
    if n_rows in (1, n_atoms) or not re.search("size|shape|match|dimension", message):
        return False
    # Of matrices that cannot be multiplied, the sizes that do not fit are those of features. What a loss within this loss
    # has said already is not said again.
    if "multiplied" in message or _INDEX_BY_ROW in message:
        return False
    numbers = re.findall(r"\d+", _NOT_SIZES.sub("", message))
    return str(n_rows) in numbers and str(n_atoms) in numbers


def map_tensors(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply a function to the leaves of nested dicts, lists and (named) tuples of the same form."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: map_tensors(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, list | tuple):
        mapped = [map_tensors(function, *parts) for parts in zip(*trees, strict=True)]
        return type(first)(*mapped) if hasattr(first, "_fields") else type(first)(mapped)
    return function(*trees)
