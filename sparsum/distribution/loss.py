"""Call a user's loss on packed assignments: select its arguments, check its result, and explain size mismatches."""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparsum.tensors import at_least_float32

#: A function of assignments and, if it takes two arguments, of the row of each assignment.
Loss = Callable[[Tensor, Tensor], Any] | Callable[[Tensor], Any]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
# Numbers in torch's messages that are not sizes: the index of a dimension or of an argument.
_NOT_SIZES = re.compile(r"(dimension|dim|number|index|position|argument)[ =#]*\d+")
_INDEX_BY_ROW = "index per-example tensors by row, as in x[row]"


def check_loss(name: str, loss: object) -> None:
    """Raise a TypeError unless a loss is callable."""
    if not callable(loss):
        raise TypeError(f"{name} must be a function of assignments and their rows, got {type(loss).__name__}")


def takes_row(loss: Callable[..., Any]) -> bool:
    """Whether to call a loss as ``loss(z, row)`` instead of ``loss(z)``.

    It gets ``row`` if it requires a second positional argument, names it ``row``, or takes ``*args``. For a module, the
    signature of its ``forward`` counts. A builtin such as `torch.exp`, without a signature, gets ``z`` alone.

    >>> takes_row(lambda z, row: z), takes_row(lambda z, scale=2.0: z), takes_row(torch.nn.Linear(3, 1))
    (True, False, False)
    """
    if type(loss) is types.FunctionType and not hasattr(loss, "__wrapped__"):
        # As below, in a tenth of the time: a loss is often a new function at every step.
        code, n_defaults = loss.__code__, len(loss.__defaults__ or ())
        has_second = code.co_argcount > 1 and (code.co_argcount - n_defaults > 1 or code.co_varnames[1] == "row")
        return has_second or bool(code.co_flags & inspect.CO_VARARGS)
    try:
        signature = inspect.signature(_function_of(loss))
    except (TypeError, ValueError):
        return not isinstance(loss, types.BuiltinFunctionType | types.MethodDescriptorType)
    parameters = signature.parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return True
    positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    return len(positional) > 1 and (positional[1].default is inspect.Parameter.empty or positional[1].name == "row")


def _function_of(loss: Callable[..., Any]) -> Callable[..., Any]:
    """The function whose signature counts: a module's forward, also inside a compiled, parallel or partial one."""
    if isinstance(loss, functools.partial):
        return functools.partial(_function_of(loss.func), *loss.args, **loss.keywords)
    loss = getattr(loss, "_orig_mod", loss)
    while isinstance(loss, torch.nn.DataParallel | torch.nn.parallel.DistributedDataParallel):
        loss = loss.module
    return loss.forward if isinstance(loss, torch.nn.Module) else loss


def call_loss(
    name: str,
    loss: Loss,
    z: Tensor,  # shape: (n_atoms, *event_shape)
    row: Tensor,  # shape: (n_atoms,)
    n_rows: int,
    *,
    copy: bool = True,
) -> Any:
    """Call a loss on packed assignments; it returns a tensor, or a nested dict, list or tuple of tensors.

    >>> call_loss("loss", lambda z: {"square": z**2}, torch.tensor([1.0, 3.0]), torch.tensor([0, 0]), n_rows=1)
    {'square': tensor([1., 9.])}

    Args:
        name: the name of the loss in error messages.
        loss: called with one or two arguments; see `takes_row`.
        z: the assignments.
        row: the row of each assignment.
        n_rows: the number of rows.
        copy: whether to pass copies, so that a loss that modifies its arguments in place does not modify the caller's.

    Raises:
        TypeError: if the loss returns anything other than tensors.
        ValueError: if a returned tensor does not have one entry per assignment, or if the loss fails because of a mismatch
            between ``n_rows`` and ``n_atoms``, that is, a per-example tensor was not indexed by row.
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
            f"{name} failed because of a size mismatch between {n_rows} rows and {n_atoms} atoms: {error}; {_INDEX_BY_ROW}"
        ) from error

    def check(value: Any) -> Any:
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name} must return a tensor, or a dict, list or tuple of tensors, with one entry per atom; "
                f"got {type(value).__name__}"
            )
        if value.is_complex():
            raise TypeError(f"{name} must return real numbers, got {value.dtype}; return e.g. torch.view_as_real(value)")
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
    """Like `call_loss`, for a loss that returns one number per assignment, in at least float32: (n_atoms,).

    >>> call_for_numbers("loss", lambda z: z.half(), torch.tensor([1, 3]), torch.tensor([0, 0]), n_rows=1)
    tensor([1., 3.])

    Raises:
        TypeError: if the loss does not return a floating-point tensor.
        ValueError: as for `call_loss`, and if the returned tensor is not one-dimensional.
    """
    values = call_loss(name, loss, z, row, n_rows, copy=copy)
    if not isinstance(values, Tensor) or not values.is_floating_point():
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(f"{name} must return a floating-point torch.Tensor, got {kind}")
    if values.ndim != 1:
        raise ValueError(
            f"{name} must return one number per atom, shape ({len(row)},), got {tuple(values.shape)}; sum or average over "
            "all other dimensions"
        )
    return at_least_float32(values)


def _sizes_meet(message: str, n_rows: int, n_atoms: int) -> bool:
    """Whether an error is a mismatch of rows and atoms; torch has many wordings for it, all with both numbers."""
    # A batch of one broadcasts. With as many atoms as rows, each row has one atom.
    if n_rows in (1, n_atoms) or not re.search("size|shape|match|dimension", message):
        return False
    # For matrices that cannot be multiplied, the mismatch is between features. A nested loss may already have added the
    # explanation.
    if "multiplied" in message or _INDEX_BY_ROW in message:
        return False
    numbers = re.findall(r"\d+", _NOT_SIZES.sub("", message))
    return str(n_rows) in numbers and str(n_atoms) in numbers


def map_tensors(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply a function to the leaves of nested dicts, lists and (named) tuples of the same structure."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: map_tensors(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, list | tuple):
        mapped = [map_tensors(function, *parts) for parts in zip(*trees, strict=True)]
        return type(first)(*mapped) if hasattr(first, "_fields") else type(first)(mapped)
    return function(*trees)
