"""Tensor utilities that every layer uses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

P = ParamSpec("P")
T = TypeVar("T")


def at_least_float32(x: Tensor) -> Tensor:
    """Convert a half-precision tensor to float32; return any other tensor unchanged."""
    return x.float() if x.dtype.itemsize < 4 else x


def first_k(
    values: Tensor,
    k: int,
    dim: int,
) -> tuple[Tensor, Tensor]:
    """The k largest entries along a dimension, or all if there are fewer, largest first, and their indices."""
    if k == 1:
        return values.max(dim, keepdim=True)
    if not values.is_cuda:
        return values.topk(min(k, values.shape[dim]), dim)
    # On a GPU, the order of ties in topk may depend on the batch size; a stable sort does not.
    value, index = values.sort(dim=dim, descending=True, stable=True)
    return value.narrow(dim, 0, min(k, values.shape[dim])), index.narrow(dim, 0, min(k, values.shape[dim]))


def apply_function(function: type[torch.autograd.Function], *inputs: Any) -> Any:
    """``function.apply`` without its signature inspection, which takes longer than mapping a small batch."""
    is_transformed = torch._C._are_functorch_transforms_active()
    caller: Any = function if is_transformed else super(torch.autograd.Function, function)
    return caller.apply(*inputs)


class _Unkept(Exception):
    """Carries the result of a call that is not cached."""


def tensor_cache(function: Callable[P, T]) -> Callable[P, T]:
    """Cache the tensors that a function returns, keyed by its arguments, which include the device.

    Under `torch.compile`, `torch.export`, a function transform or a dispatch mode such as ``FakeTensorMode``, tensors may
    have no data or may belong to the trace. The cache is then neither read nor written. While a CUDA graph is captured, it
    is only read: a tensor that is made then has its values once the graph is replayed, in memory that goes with the graph.
    """

    def made(*args: P.args, **kwargs: P.kwargs) -> T:
        with torch.inference_mode(False):  # tensors created in inference mode cannot be used in autograd
            result = function(*args, **kwargs)
        if is_capturing():
            raise _Unkept(result)  # `lru_cache` keeps nothing of a call that raises
        return result

    cached: Any = functools.lru_cache(maxsize=64)(made)

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            result: T = (function if is_traced() else cached)(*args, **kwargs)
        except _Unkept as unkept:
            (result,) = unkept.args
        return result

    return wrapper


_numbers: dict[tuple[float, torch.dtype, torch.device], Tensor] = {}


def number(value: float, like: Tensor) -> Any:
    """A number to pass to `torch.where`, which writes a float to a new tensor in every call: one more launch on a GPU.

    Returns:
        A tensor of shape (), made once for each dtype and device of ``like``, or the float where none may be kept.
    """
    if not like.is_cuda or is_traced() or not like.is_floating_point():
        return value
    key = (value, like.dtype, like.device)
    if key not in _numbers:
        if is_capturing():  # it would be written by the graph
            return value
        with torch.inference_mode(False):
            _numbers[key] = torch.full((), value, dtype=like.dtype, device=like.device)
    return _numbers[key]


def is_traced() -> bool:
    """Whether a compiler, a function transform or a dispatch mode intercepts operations."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or is_intercepted()


def is_capturing() -> bool:
    """Whether the current stream of a GPU records a CUDA graph; a build of torch without CUDA cannot be asked."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


class AbstractWatch(TorchDispatchMode):
    """A dispatch mode that looks at operations and runs them as they are, so that nothing needs to be avoided under it."""


def is_intercepted() -> bool:
    """Whether a dispatch mode such as ``FakeTensorMode`` intercepts operations, other than an `AbstractWatch`."""
    n = torch._C._len_torch_dispatch_stack()
    return n > 0 and not all(isinstance(torch._C._get_dispatch_stack_at(i), AbstractWatch) for i in range(n))
