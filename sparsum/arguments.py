"""Argument checks whose errors name the argument, the value given and the value expected."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_int(name: str, value: int, *, least: int | None = None, most: int | None = None, why: str = "") -> int:
    """Return the value if it is an int in the given range, raise otherwise; a bool is not accepted.

    Args:
        name: the name of the argument.
        value: the value given.
        least: the smallest value allowed.
        most: the largest value allowed.
        why: the reason for the range, appended to the message.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if (least is not None and value < least) or (most is not None and value > most):
        wanted = f"at least {least}" if most is None else f"at most {most}" if least is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be {wanted}, got {value}{why}")
    return value


def check_number(name: str, value: float, *, least: float | None = None, above: float | None = None) -> float:
    """Return the value if it is a finite number in the given range, raise otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    is_finite = abs(value) <= sys.float_info.max
    if above is not None and not (value > above and is_finite):
        raise ValueError(f"{name} must be finite and larger than {above}, got {value}")
    if not is_finite:
        raise ValueError(f"{name} must be finite, got {value}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return value


def check_bool(name: str, value: bool) -> bool:
    """Return the value if it is a bool, raise a TypeError otherwise."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
    return value


def check_sizes(name: str, value: object) -> tuple[int, ...]:
    """Return a sequence of positive ints as a tuple, raise otherwise."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a sequence of ints, got {type(value).__name__}")
    return tuple(check_int(f"{name}[{i}]", size, least=1) for i, size in enumerate(value))


def check_sample_shape(value: object) -> torch.Size:
    """Return a sample shape, given as an int or a sequence of ints, none of which may be negative."""
    if isinstance(value, int):
        return torch.Size([check_int("sample_shape", value, least=0)])
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"sample_shape must be an int or a sequence of ints, got {type(value).__name__}")
    return torch.Size([check_int(f"sample_shape[{i}]", size, least=0) for i, size in enumerate(value)])


def check_floating(name: str, value: Tensor) -> None:
    """Raise a TypeError unless ``value`` is a dense tensor of floating-point numbers of 16 bits or more."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {kind_of(value)}")
    check_dense(name, value)
    if value.dtype in _DTYPES:
        return
    if value.is_complex():
        raise TypeError(f"{name} must be real, got {value.dtype}; pass e.g. {name}.real or {name}.abs()")
    if value.is_floating_point():
        raise TypeError(f"{name} must have at least 16 bits per number, got {value.dtype}; call {name}.bfloat16() first")
    raise TypeError(f"{name} must have a floating-point dtype, got {value.dtype}; convert it, e.g. to torch.float32")


def check_dense(name: str, value: Tensor) -> None:
    """Raise a TypeError if ``value`` is nested, sparse or quantized."""
    if value.is_nested:
        raise TypeError(
            f"{name} must be a dense tensor, got a nested tensor (layout {value.layout}); pad it first, e.g. scores by "
            "torch.nested.to_padded_tensor(scores, -torch.inf)"
        )
    if value.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {value.layout}; call {name}.to_dense() first")
    if value.is_quantized:
        raise TypeError(f"{name} must not be quantized, got {value.dtype}; call {name}.dequantize() first")


def check_generator(generator: torch.Generator | None) -> None:
    """Raise a TypeError unless ``generator`` is a generator or None; a seed is not accepted."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator or None, got {type(generator).__name__}; "
            "create one from a seed with torch.Generator(device).manual_seed(seed)"
        )


def kind_of(value: object) -> str:
    """Describe a value of the wrong type in a message; passing a class instead of an instance is a common mistake."""
    return f"the class {value.__name__}; make an instance of it" if isinstance(value, type) else type(value).__name__
