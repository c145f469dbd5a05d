"""The operations that have a kernel: one list of them, and one place that decides which version runs.

A layer writes an operation in plain torch and registers it with `operation`, together with a function of the same signature
that launches the kernel, and a condition. Calling the operation runs one of the two.
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

R = TypeVar("R")
Rest = TypeVarTuple("Rest")


def _is_usable() -> bool:
    """Whether Triton is installed and can build launchers, and ``SPARSUM_KERNELS`` does not switch kernels off."""
    has_compiler = "CC" in os.environ or any(map(shutil.which, ("gcc", "clang")))
    is_wanted = os.environ.get("SPARSUM_KERNELS", "1").lower() not in {"0", "false", "off", "no"}
    return is_wanted and has_compiler and torch.version.cuda is not None and importlib.util.find_spec("triton") is not None


#: Whether there are kernels for tensors on a GPU. Determined once: graph tracers cannot follow the search.
IS_USABLE = _is_usable()


def serve(x: Tensor) -> bool:
    """Whether there are kernels for this tensor: it is on a GPU, they are usable, and its memory is not that of -x."""
    return x.is_cuda and IS_USABLE and (torch.compiler.is_compiling() or not x.is_neg())


def can_read(x: Tensor) -> bool:
    """Whether the memory of a tensor holds its values: not for a batch of gradients, nor for some views and zeros."""
    return not (torch._C._functorch.is_legacy_batchedtensor(x) or x.is_neg() or x._is_zerotensor())


def is_transformed() -> bool:
    """Whether a function transform or forward-mode differentiation is active."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_undifferentiated(*_: object) -> bool:
    """Nothing is differentiated further."""
    return not (torch.is_grad_enabled() or is_transformed())


def is_unobserved(x: Tensor) -> bool:
    """Whether no tensor subclass or dispatch mode expects to see operators: kernels may bypass torch's dispatcher."""
    return type(x) in (Tensor, torch.nn.Parameter) and not torch._C._len_torch_dispatch_stack()


def is_eager(x: Tensor) -> bool:
    """Whether a kernel can read the memory of ``x`` right now: nothing traces, transforms or observes it."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or not is_unobserved(x)
        or not can_read(x)
    )


@dataclass(frozen=True)
class Operation(Generic[R, *Rest]):
    """A function of a tensor, and of more, in two versions.

    Args:
        name: unique in the registry.
        twin: the version in plain torch.
        kernel: the version for a GPU, which imports Triton inside. It runs with the tensor's device as the current one.
        takes: whether the kernel takes these arguments, asked only where `serve` holds for the tensor. The first line of its
            docstring is the condition in `table`.
        is_traceable: whether the kernel is, or chooses by itself, an operator of torch while a graph is traced, within
            function transforms, under dispatch modes and for tensor subclasses. Otherwise the twin runs there.
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
        # As in `serves`: one more call would cost a small batch a percent of its time.
        if not (serve(x) and (self.is_traceable or is_eager(x)) and self.takes(x, *rest)):
            return self.twin(x, *rest)
        if not x.is_cuda or x.get_device() == torch.cuda.current_device():  # tests interpret kernels on the CPU
            return self.kernel(x, *rest)
        with torch.cuda.device_of(x):
            return self.kernel(x, *rest)


_operations: dict[str, Operation[Any, *tuple[Any, ...]]] = {}
#: All operations by name. Those of a module are in it once the module is imported.
OPERATIONS = MappingProxyType(_operations)


def operation(
    name: str, *, kernel: Callable[[Tensor, *Rest], R], takes: Callable[[Tensor, *Rest], bool], is_traceable: bool = False
) -> Callable[[Callable[[Tensor, *Rest], R]], Operation[R, *Rest]]:
    """Register a function in plain torch as the twin of a kernel. The arguments are those of `Operation`.

    Raises:
        ValueError: if the name is taken.
    """

    def register(twin: Callable[[Tensor, *Rest], R]) -> Operation[R, *Rest]:
        known = _operations.get(name)
        if known is not None and _address(known.twin) != _address(twin):  # a module may be reloaded
            raise ValueError(f"the operation {name!r} is registered already, for {_address(known.twin)}")
        made = Operation(name, twin, kernel, takes, is_traceable)
        _operations[name] = made
        return made

    return register


def table() -> str:
    """The registered operations, a line each: name, twin, kernel, and the condition for the kernel.

    `print(sparsum.kernels.table())` shows those of the library.
    """
    lines = [("operation", "twin", "kernel", "condition")]
    for each in OPERATIONS.values():
        condition = (each.takes.__doc__ or "").partition("\n")[0]
        lines.append((each.name, _address(each.twin), _address(each.kernel), condition))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _address(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
