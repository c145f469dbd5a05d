"""The registry of operations that have a kernel. It decides which implementation runs.

A layer implements an operation in plain torch and registers it with `operation`, together with a function of the same
signature that launches the kernel, and a condition. Calling the operation runs one of the two.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar, TypeVarTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from sparsum.tensors import is_intercepted

R = TypeVar("R")
Rest = TypeVarTuple("Rest")


def _is_usable() -> bool:
    """Whether Triton is installed and can build launchers, and ``SPARSUM_KERNELS`` does not disable kernels."""
    has_compiler = "CC" in os.environ or any(map(shutil.which, ("gcc", "clang")))
    is_wanted = os.environ.get("SPARSUM_KERNELS", "1").lower() not in {"0", "false", "off", "no"}
    return is_wanted and has_compiler and torch.version.cuda is not None and importlib.util.find_spec("triton") is not None


#: Whether kernels are available for tensors on a GPU. Determined once, because graph tracers cannot trace the check.
IS_USABLE = _is_usable()


def serve(x: Tensor) -> bool:
    """Whether kernels can handle this tensor: they are usable, it is on a GPU, and its negative bit is not set."""
    return x.is_cuda and IS_USABLE and (torch.compiler.is_compiling() or not x.is_neg())


def can_read(x: Tensor) -> bool:
    """Whether the memory of a tensor holds its values; False for batched gradients, negative views and zero tensors."""
    return not (torch._C._functorch.is_legacy_batchedtensor(x) or x.is_neg() or x._is_zerotensor())


def is_transformed() -> bool:
    """Whether a function transform or forward-mode differentiation is active."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_undifferentiated(*_: object) -> bool:
    """No further differentiation."""
    return not (torch.is_grad_enabled() or is_transformed())


def is_unobserved(*tensors: Tensor) -> bool:
    """Whether kernels may bypass torch's dispatcher: no tensor subclass or dispatch mode intercepts operators."""
    for x in tensors:
        if type(x) is not Tensor and type(x) is not torch.nn.Parameter:
            return False
    return not is_intercepted()


def is_eager(x: Tensor) -> bool:
    """Whether a kernel can read the memory of ``x`` now: it is not traced, transformed or intercepted."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or not is_unobserved(x)
        or not can_read(x)
    )


@dataclass(frozen=True)
class Operation(Generic[R, *Rest]):
    """A function of a tensor and other arguments, with two implementations.

    Args:
        name: a unique name in the registry.
        twin: the reference implementation in plain torch.
        kernel: the implementation for a GPU, which imports Triton when called. It runs with the tensor's device as the
            current device.
        takes: whether the kernel supports these arguments; only called if `serve` is True for the tensor. The first line of
            its docstring is the condition shown in `table`.
        is_traceable: whether the kernel is, or dispatches to, a torch operator during graph tracing, within function
            transforms, under dispatch modes and for tensor subclasses. If False, the twin runs in these cases.
    """

    name: str
    twin: Callable[[Tensor, *Rest], R]
    kernel: Callable[[Tensor, *Rest], R]
    takes: Callable[[Tensor, *Rest], bool]
    is_traceable: bool = False

    def serves(self, x: Tensor, *rest: *Rest) -> bool:
        """Whether a call with these arguments runs the kernel."""
        return serve(x) and (self.is_traceable or is_eager(x)) and self.takes(x, *rest)

    def __call__(self, x: Tensor, *rest: *Rest) -> R:
        """Run the kernel or the twin."""
        # Repeats `serves`, because another function call would add one percent to the time of a small batch.
        if not (serve(x) and (self.is_traceable or is_eager(x)) and self.takes(x, *rest)):
            return self.twin(x, *rest)
        if not x.is_cuda or x.get_device() == torch.cuda.current_device():  # tests run interpreted kernels on the CPU
            return self.kernel(x, *rest)
        with torch.cuda.device_of(x):
            return self.kernel(x, *rest)


_operations: dict[str, Operation[Any, *tuple[Any, ...]]] = {}
#: All operations by name. Importing a module adds its operations.
OPERATIONS = MappingProxyType(_operations)


def operation(
    name: str, *, kernel: Callable[[Tensor, *Rest], R], takes: Callable[[Tensor, *Rest], bool], is_traceable: bool = False
) -> Callable[[Callable[[Tensor, *Rest], R]], Operation[R, *Rest]]:
    """Register a function in plain torch as the twin of a kernel; arguments as for `Operation`.

    Raises:
        ValueError: if another function is registered under this name.
    """

    def register(twin: Callable[[Tensor, *Rest], R]) -> Operation[R, *Rest]:
        known = _operations.get(name)
        if known is not None and _address(known.twin) != _address(twin):  # a module may be reloaded
            raise ValueError(f"name {name!r} is already registered for {_address(known.twin)}; choose another name")
        made = Operation(name, twin, kernel, takes, is_traceable)
        _operations[name] = made
        return made

    return register


def table() -> str:
    """Format the registered operations as a table: name, twin, kernel, and the condition under which the kernel runs.

    ``print(sparsum.kernels.table())`` shows the operations of the library.
    """
    lines = [("operation", "twin", "kernel", "condition")]
    for each in OPERATIONS.values():
        condition = (each.takes.__doc__ or "").partition("\n")[0]
        lines.append((each.name, _address(each.twin), _address(each.kernel), condition))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _address(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
