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
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or is_intercepted()


class AbstractWatch(TorchDispatchMode):
    """A dispatch mode that looks at operations and runs them as they are, so that nothing needs to be avoided under it."""


def is_intercepted() -> bool:
    """Whether a dispatch mode such as ``FakeTensorMode`` intercepts operations, other than an `AbstractWatch`."""
    n = torch._C._len_torch_dispatch_stack()
    return n > 0 and not all(isinstance(torch._C._get_dispatch_stack_at(i), AbstractWatch) for i in range(n))
