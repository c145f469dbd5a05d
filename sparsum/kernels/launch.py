"""Kernel launches with a cache of compiled kernels, whose lookup would dominate the time of a small mapping."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Arguments of a launch -> function that launches it; cleared when it is full.
_remembered: dict[tuple[Any, ...], Callable[..., None]] = {}
# Shape, dtypes and device of contiguous tensors, and alpha -> plan of the mapping or of its derivative.
plans: dict[tuple[Any, ...], Plan] = {}
_MOST = 4096
_ALIGNMENT = 16
#: Whether products are fused with sums, for kernels whose loops depend on sums of products. Of two threads that exchange
#: terms, each would fuse its own product with the rounded product of the other: their sums differ in the last digit. Threads
#: that disagree on whether a loop ends wait for each other forever.
FUSION = False
# Versions of Triton whose launchers can be called directly.
_KNOWN_LAUNCHERS = ("3.6",)


def wrap_triton(kernel: Any) -> Any:
    """`torch.library.wrap_triton` that passes through interpreted kernels, which torch 2.8 rejects.

    It has the same name because torch searches the source of operators for it.
    """
    from triton import JITFunction

    return torch.library.wrap_triton(kernel) if isinstance(kernel, JITFunction) else kernel


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least ``n``, a positive number; that of Triton takes several microseconds."""
    return 1 << (int(n) - 1).bit_length()


class unwrapped:  # noqa: N801 (used interchangeably with `wrap_triton`)
    """A kernel launched outside of torch's dispatcher, as ``unwrapped(kernel)[grid](*args, **constants)``."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        return partial(_launch, self.kernel, grid)


class Plan(NamedTuple):
    """A function of contiguous tensors of one shape in one launch, whose result has the same shape.

    Args:
        start: launches the kernel, given the three sizes of its grid and its arguments without constants.
        n_programs: the size of the grid.
        order: the kernel's pointers, by their positions among the inputs, the result and the scratch buffers.
        rooms: shapes and dtypes of the scratch buffers.
        numbers: the kernel's arguments after the pointers.
    """

    start: Callable[..., None]
    n_programs: int
    order: tuple[int, ...]
    rooms: tuple[tuple[tuple[int, int], torch.dtype], ...]
    numbers: tuple[int, ...]


def is_known(alpha: float, x: Tensor) -> bool:
    """Whether there is a plan for tensors like this one."""
    return (x.shape, x.dtype, x.get_device(), alpha) in plans


def again(alpha: float, x: Tensor, *others: Tensor) -> Tensor | None:
    """Run the plan for tensors like these, plain ones on the current device; return None if there is no plan."""
    plan = plans.get((x.shape, x.dtype, x.get_device(), alpha, *[other.dtype for other in others]))
    if plan is None:
        return None
    start, n_programs, order, rooms, numbers = plan
    # Passing pointers as numbers skips the driver's lookup; all tensors are known to be on the device.
    pointers = [x.data_ptr()]
    for other in others:
        if other.shape != x.shape or not other.is_contiguous():
            return None
        pointers.append(other.data_ptr())
    if not x.is_contiguous() or any(pointer % _ALIGNMENT for pointer in pointers):
        return None
    result = torch.empty_like(x)  # aligned, as are scratch buffers
    scratch = [torch.empty(shape, dtype=dtype, device=x.device) for shape, dtype in rooms]
    pointers += [tensor.data_ptr() for tensor in (result, *scratch)]
    start(n_programs, 1, 1, *[pointers[place] for place in order], *numbers)
    return result


def keep_plan(alpha: float, plan: Plan | None, x: Tensor, *others: Tensor) -> None:
    """Store a plan for `again`, if it was compiled for aligned and contiguous tensors."""
    tensors = (x, *others)
    if plan is None or not all(each.is_contiguous() and each.data_ptr() % _ALIGNMENT == 0 for each in tensors):
        return
    if len(plans) >= _MOST:
        plans.clear()
    plans[(x.shape, x.dtype, x.get_device(), alpha, *[other.dtype for other in others])] = plan


def _launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> Callable[..., None] | None:
    """``kernel[grid](*args, **constants)``, where the first of ``args`` is a tensor on the current device.

    Returns:
        A function that launches the kernel with other tensors and numbers of the same kinds, None if it is interpreted.
    """
    device = args[0].get_device()
    key, values = [id(kernel), device, *constants.values()], []
    for arg in args:
        if isinstance(arg, Tensor):
            pointer = arg.data_ptr()
            key += (arg.dtype, pointer % _ALIGNMENT)
            # A number skips the driver's lookup, which is an error for memory that the device cannot read.
            values.append(pointer if arg.get_device() == device else arg)
        else:
            key.append(_kind_of(arg))
            values.append(arg)
    known = tuple(key)
    start = _remembered.get(known)
    if start is not None:
        start(*(*grid, 1, 1)[:3], *values)
        return start
    compiled = kernel[grid](*args, **constants)
    if compiled is None:  # interpreted
        return None
    if len(_remembered) >= _MOST:
        _remembered.clear()
    start = _starter(compiled, tuple(constants[name] for name in kernel.arg_names[len(args) :]), device)
    _remembered[known] = start
    return start


def _kind_of(number: Any) -> Any:
    """What Triton specializes on: whether an int is 1, whether it is divisible by 16, and whether it needs 64 bits."""
    if not isinstance(number, int) or -1 <= number <= 1:
        return number
    return number % _ALIGNMENT == 0, -(2**31) <= number < 2**31, number < 2**63


def _starter(compiled: Any, constants: tuple[Any, ...], device: int) -> Callable[..., None]:
    """Return a function that launches a kernel, given the sizes of the grid and the kernel's arguments."""
    normal = partial(_start, compiled, constants)
    return direct_starter(compiled, constants, device, normal) if _is_known(compiled) else normal


def _start(compiled: Any, constants: tuple[Any, ...], x: int, y: int, z: int, *args: Any) -> None:
    """Launch through Triton's public interface."""
    compiled[(x, y, z)](*args, *constants)


def _is_known(compiled: Any) -> bool:
    """Whether the kernel's launcher has the signature that `direct_starter` expects."""
    import triton

    run = compiled.run
    is_version = ".".join(triton.__version__.split(".")[:2]) in _KNOWN_LAUNCHERS
    is_cuda = type(run).__module__ == "triton.backends.nvidia.driver" and type(run).__name__ == "CudaLauncher"
    return is_version and is_cuda and run.global_scratch_size == 0 and run.profile_scratch_size == 0


def direct_starter(
    compiled: Any, constants: tuple[Any, ...], device: int, normal: Callable[..., None]
) -> Callable[..., None]:
    """Launch without Triton's per-launch lookups; falls back to ``normal`` while a profiler has hooks installed."""
    from triton import knobs
    from triton.runtime import driver

    run, runtime, stream_of = compiled.run, knobs.runtime, driver.active.get_current_stream
    launch, function, metadata = run.launch, compiled.function, compiled.packed_metadata
    is_cooperative, is_dependent = run.launch_cooperative_grid, run.launch_pdl

    def start(x: int, y: int, z: int, *args: Any) -> None:
        if getattr(runtime.launch_enter_hook, "calls", True) or getattr(runtime.launch_exit_hook, "calls", True):
            normal(x, y, z, *args)
            return
        launch(
            x, y, z, stream_of(device), function, is_cooperative, is_dependent, None, None, metadata, None, None, None,
            *args, *constants,
        )  # fmt: skip

    return start
