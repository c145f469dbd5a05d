"""Launches of kernels whose compiled form is remembered: half the time of a small mapping would go into finding it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

# What a launch was called with -> the compiled kernel and its constants; forgotten when many shapes have been seen.
_remembered: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}
_MOST = 4096


class unwrapped:  # noqa: N801 (it stands where `torch.library.wrap_triton` does)
    """The kernel itself, to be called outside of torch's dispatcher, as ``unwrapped(kernel)[grid](*args, **constants)``."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(_launch, self.kernel, grid)


def _launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """As ``kernel[grid](*args, **constants)``, where the first of ``args`` is a tensor on the current device."""
    # All that Triton compiles for: alignment, and of the numbers some properties, so that all of them are enough.
    seen = [(arg.dtype, arg.data_ptr() % 16) if isinstance(arg, Tensor) else arg for arg in args]
    key = (id(kernel), args[0].get_device(), *seen, *constants.values())
    known = _remembered.get(key)
    if known is not None:
        compiled, rest = known
        compiled[(*grid, 1, 1)[:3]](*args, *rest)
        return
    compiled = kernel[grid](*args, **constants)
    if compiled is None:  # interpreted
        return
    if len(_remembered) >= _MOST:
        _remembered.clear()
    _remembered[key] = compiled, tuple(constants[name] for name in kernel.arg_names[len(args) :])
