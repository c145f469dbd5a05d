"""Argument handling of the public functions: checks, masks, dimensions and dtypes."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from sparsum.arguments import check_dense, check_floating
from sparsum.tensors import is_intercepted

_HALF = (torch.float16, torch.bfloat16)


def check_scores(x: Tensor, name: str = "x") -> None:
    """Raise unless ``x`` is a dense floating-point tensor with at least one dimension."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    check_floating(name, x)
    if x.ndim == 0:
        raise ValueError(f"{name} must have at least one dimension, got a scalar")


def check_dim(x: Tensor, dim: int) -> int:
    """Return the dimension as a non-negative number, raise if it is out of range."""
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"dim must be an int, got {type(dim).__name__}")
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(f"dim must be between {-x.ndim} and {x.ndim - 1} for x of shape {tuple(x.shape)}, got {dim}")
    return dim % x.ndim


def check_mask(x: Tensor, mask: Tensor) -> None:
    """Raise unless ``mask`` is a boolean tensor that broadcasts to the shape of ``x``."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        seen = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        hint = "; add a mask of 0 and -inf to the scores" if isinstance(mask, Tensor) and mask.is_floating_point() else ""
        raise TypeError(f"mask must be a tensor of dtype torch.bool, True where an entry is allowed, got {seen}{hint}")
    check_dense("mask", mask)
    if not _broadcasts_to(mask.shape, x.shape):
        raise ValueError(f"mask must broadcast to the shape of x, {tuple(x.shape)}, got {tuple(mask.shape)}")


def apply_mask(x: Tensor, mask: Tensor) -> Tensor:
    """Set scores to -inf where the mask is False."""
    check_mask(x, mask)
    return x.masked_fill(~mask, -torch.inf)


def rows_of_alpha(alpha: float | Tensor, x: Tensor, dim: int) -> float | Tensor:
    """Alpha as a float, or as a tensor of shape (*batch, 1) for the rows of ``x`` with ``dim`` moved last."""
    if not isinstance(alpha, Tensor):
        if isinstance(alpha, bool) or not isinstance(alpha, (int, float)):
            raise TypeError(f"alpha must be a number or a tensor, got {type(alpha).__name__}")
        if not 1 <= alpha < math.inf:
            raise ValueError(f"alpha must be a finite number of at least 1, got {alpha}")
        return float(alpha)
    rows = _one_per_row("alpha", alpha, x, dim)
    # Where values cannot be checked, rows with an invalid alpha become NaN.
    if can_look_at(alpha) and bool((alpha == math.inf).any()):
        raise ValueError("alpha must be finite everywhere, got inf")
    if can_look_at(alpha) and bool((alpha < 1).any()):
        raise ValueError(f"alpha must be at least 1 everywhere, got a smallest value of {alpha.min().item():g}")
    return rows.unsqueeze(-1)


def divide_by_temperature(x: Tensor, temperature: float | Tensor, dim: int) -> Tensor:
    """Divide scores by a temperature, in at least float32; infinite scores are unchanged and give it no gradient."""
    check_scores(x)
    dim = check_dim(x, dim)
    scores = x.to(compute_dtype(x))
    if not isinstance(temperature, Tensor):
        if isinstance(temperature, bool) or not isinstance(temperature, (int, float)):
            raise TypeError(f"temperature must be a number or a tensor, got {type(temperature).__name__}")
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be a positive finite number, got {temperature}")
        return scores / temperature
    rows = _one_per_row("temperature", temperature, x, dim)
    if can_look_at(temperature) and not bool(((temperature > 0) & temperature.isfinite()).all()):
        wrong = temperature[~((temperature > 0) & temperature.isfinite())][:5].tolist()
        raise ValueError(f"temperature must be positive and finite everywhere, got {wrong}")
    is_finite = scores.isfinite()
    divided = torch.where(is_finite, scores, 0.0) / rows.unsqueeze(dim).to(scores.dtype)
    return torch.where(is_finite, divided, scores)


def _one_per_row(name: str, value: Tensor, x: Tensor, dim: int) -> Tensor:
    """Broadcast a floating-point tensor to the rows of ``x``: (*batch,), the shape of ``x`` without ``dim``."""
    check_floating(name, value)
    batch = x.shape[:dim] + x.shape[dim + 1 :]
    rows = value.squeeze(dim) if value.ndim == x.ndim and value.shape[dim] == 1 else value
    if not _broadcasts_to(rows.shape, batch):
        # As (heads,) or (heads, 1, 1) for x of shape (batch, heads, queries, keys).
        places = [i for i, size in enumerate(batch) if size == value.numel() == max(value.shape)]
        shape = (value.numel(), *[1] * (len(batch) - 1 - places[0])) if len(places) == 1 else None
        hint = f"; for one per entry of dimension {places[0]} of the rows, use shape {shape}" if shape else ""
        raise ValueError(
            f"{name} must broadcast to the rows of x, {tuple(batch)} (or have the number of dimensions of x and size 1 "
            f"in dim), got {tuple(value.shape)} for x of shape {tuple(x.shape)} and dim {dim}{hint}"
        )
    return rows.expand(batch)


def can_look_at(values: Tensor) -> bool:
    """Whether values can be read without synchronization: on the CPU, and outside of graphs, transforms and modes."""
    return not (
        torch.compiler.is_compiling()
        or values.device.type != "cpu"
        or torch._C._are_functorch_transforms_active()
        or is_intercepted()  # a mode such as FakeTensorMode, whose tensors have no values
        or isinstance(values, FakeTensor)
    )


def has_values(x: Tensor) -> bool:
    """Whether control flow can depend on the values of ``x``: not on the meta device, and not under a dispatch mode.

    The tensors of FakeTensorMode have no values, and a tracer such as `make_fx` would record the path of one input.
    """
    return not (x.is_meta or isinstance(x, FakeTensor) or is_intercepted())


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype for computations: at least float32."""
    return torch.float32 if x.dtype in _HALF else x.dtype


def round_to(probs: Tensor, dtype: torch.dtype) -> Tensor:
    """Round probabilities over the last dimension to ``dtype``; in half precision, rows still sum to 1.

    Rounding each entry to 8 or 11 bits can change the sum by several units in the last place, enough for
    `torch.distributions` to reject the row. The first entries of the support are therefore moved by one unit each until the
    remaining error is less than half a unit of one of them. The gradient is that of the unrounded probabilities.
    """
    rounded = probs.to(dtype)
    if dtype not in _HALF:
        return rounded
    fixed = rounded.detach()
    missing = 1 - fixed.float().sum(-1, keepdim=True)
    towards = torch.where(missing < 0, -1, 1).to(torch.int16)
    moved = (fixed.view(torch.int16) + towards).view(dtype)  # the adjacent number: positive floats sort as ints
    unit = torch.where(fixed > 0, (moved.float() - fixed.float()).abs(), 0.0)
    is_moved = (fixed > 0) & (unit.cumsum(-1) - unit / 2 <= missing.abs()) & (missing.abs() < 0.5)
    return rounded + torch.where(is_moved, moved - fixed, 0.0)


def _broadcasts_to(shape: torch.Size, target: torch.Size) -> bool:
    if len(shape) > len(target):
        return False
    return all(size in (1, wanted) for size, wanted in zip(shape, target[len(target) - len(shape) :], strict=True))
