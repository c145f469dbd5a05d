"""Tensor utilities that every layer uses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

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


def tensor_cache(function: Callable[P, T]) -> Callable[P, T]:
    """Cache the tensors that a function returns, keyed by its arguments, which include the device.

    Under `torch.compile`, `torch.export`, a function transform or a dispatch mode such as ``FakeTensorMode``, tensors may
    have no data or may belong to the trace. The cache is then neither read nor written.
    """

    def made(*args: P.args, **kwargs: P.kwargs) -> T:
        with torch.inference_mode(False):  # tensors created in inference mode cannot be used in autograd
            return function(*args, **kwargs)

    cached: Any = functools.lru_cache(maxsize=64)(made)

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        result: T = (function if is_traced() else cached)(*args, **kwargs)
        return result

    return wrapper


def is_traced() -> bool:
    """Whether a compiler, a function transform or a dispatch mode intercepts operations."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
    )
