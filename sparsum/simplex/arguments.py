"""What the public functions do with their arguments before and after the mathematics: checks, dimensions, dtypes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_HALF = (torch.float16, torch.bfloat16)


def check_scores(x: Tensor, name: str = "x") -> None:
    """Raise unless ``x`` is a floating-point tensor with at least one dimension."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"{name} must have a floating-point dtype, got {x.dtype}; use a real one, such as torch.float32")
    if x.ndim == 0:
        raise ValueError(f"{name} must have at least one dimension, got a scalar")


def check_dim(x: Tensor, dim: int) -> int:
    """The dimension as a non-negative number."""
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"dim must be an int, got {type(dim).__name__}")
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(f"dim must be between {-x.ndim} and {x.ndim - 1} for x of shape {tuple(x.shape)}, got {dim}")
    return dim % x.ndim


def check_count(k: int, n: int, of: str) -> None:
    """Raise unless ``k`` is an int from 1 to ``n``."""
    if isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f"k must be an int, got {type(k).__name__}")
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and {n}, {of}, got {k}")


def check_mask(x: Tensor, mask: Tensor) -> None:
    """Raise unless ``mask`` is a boolean tensor that broadcasts to the shape of ``x``."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        seen = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a tensor of dtype torch.bool, True where an entry is allowed, got {seen}")
    if not _broadcasts_to(mask.shape, x.shape):
        raise ValueError(f"mask must broadcast to the shape of x, {tuple(x.shape)}, got {tuple(mask.shape)}")


def apply_mask(x: Tensor, mask: Tensor) -> Tensor:
    """Scores of -inf where the mask is False."""
    check_mask(x, mask)
    return x.masked_fill(~mask, -torch.inf)


def rows_of_alpha(alpha: float | Tensor, x: Tensor, dim: int) -> float | Tensor:
    """Alpha as a float, or as a tensor of shape (*batch, 1) for the rows of ``x`` with ``dim`` moved last."""
    if not isinstance(alpha, Tensor):
        if isinstance(alpha, bool) or not isinstance(alpha, int | float):
            raise TypeError(f"alpha must be a number or a tensor, got {type(alpha).__name__}")
        if not 1 <= alpha < math.inf:
            raise ValueError(f"alpha must be a finite number of at least 1, got {alpha}")
        return float(alpha)
    if not alpha.is_floating_point():
        raise TypeError(f"alpha must have a floating-point dtype, got {alpha.dtype}")
    _check_values_of_alpha(alpha)
    batch = x.shape[:dim] + x.shape[dim + 1 :]
    rows = alpha
    if alpha.ndim == x.ndim and alpha.shape[dim] == 1:
        rows = alpha.squeeze(dim)
    if not _broadcasts_to(rows.shape, batch):
        raise ValueError(
            f"alpha must broadcast to the rows of x, {tuple(batch)} (or have the number of dimensions of x and size 1 "
            f"in dim), got {tuple(alpha.shape)} for x of shape {tuple(x.shape)} and dim {dim}"
        )
    return rows.expand(batch).unsqueeze(-1)


def _check_values_of_alpha(alpha: Tensor) -> None:
    """Raise if a value is below 1, where one may look; elsewhere the rows become NaN."""
    if can_look_at(alpha) and bool((alpha < 1).any()):
        raise ValueError(f"alpha must be at least 1 everywhere, got a smallest value of {alpha.min().item():g}")


def can_look_at(values: Tensor) -> bool:
    """Whether the values can be checked: not on a GPU, which would wait for the device, nor in a graph or a transform."""
    return not (torch.compiler.is_compiling() or values.is_cuda or torch._C._are_functorch_transforms_active())


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype to compute in: at least float32."""
    return torch.float32 if x.dtype in _HALF else x.dtype


def round_to(probs: Tensor, dtype: torch.dtype) -> Tensor:
    """Probabilities over the last dimension in ``dtype``, for half precision so that they still sum to 1.

    Rounding each entry to 8 or 11 bits can move the sum by several units in the last place, enough for
    `torch.distributions` to reject the row. So the first entries of the support are moved by one unit each, until what is
    missing is less than half a unit of one of them. The gradient is that of the unrounded probabilities.
    """
    rounded = probs.to(dtype)
    if dtype not in _HALF:
        return rounded
    fixed = rounded.detach()
    missing = 1 - fixed.float().sum(-1, keepdim=True)
    towards = torch.where(missing < 0, -1, 1).to(torch.int16)
    moved = (fixed.view(torch.int16) + towards).view(dtype)  # the neighbouring number: positive floats sort as ints
    unit = torch.where(fixed > 0, (moved.float() - fixed.float()).abs(), 0.0)
    is_moved = (fixed > 0) & (unit.cumsum(-1) - unit / 2 <= missing.abs()) & (missing.abs() < 0.5)
    return rounded + torch.where(is_moved, moved - fixed, 0.0)


def _broadcasts_to(shape: torch.Size, target: torch.Size) -> bool:
    if len(shape) > len(target):
        return False
    return all(size in (1, wanted) for size, wanted in zip(reversed(shape), reversed(target), strict=False))
