"""Small things that every layer does with tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")


def at_least_float32(x: Tensor) -> Tensor:
    """The tensor, in float32 if it is in half precision."""
    return x.float() if x.dtype.itemsize < 4 else x


def tensor_cache(function: Callable[P, T]) -> Callable[P, T]:
    """Cache a function that returns tables of tensors, by its arguments, which include the device.

    Under `torch.compile`, `torch.export`, a function transform or a dispatch mode such as ``FakeTensorMode``, tensors may
    have no data or belong to the trace: then nothing is cached, and nothing is taken from the cache.
    """

    def made(*args: P.args, **kwargs: P.kwargs) -> T:
        with torch.inference_mode(False):  # tables made in inference mode could not be used outside of it
            return function(*args, **kwargs)

    cached: Any = functools.lru_cache(maxsize=64)(made)

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        result: T = (function if is_traced() else cached)(*args, **kwargs)
        return result

    return wrapper


def is_traced() -> bool:
    """Whether a compiler, a function transform or a dispatch mode sees the operations."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
    )
