"""Where the mappings meet their kernels: which tensors these serve, and their rows."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparsum import kernels
from sparsum.kernels import launch

# alpha -> exponent of the mappings that have an exact solver of their own
EXPONENTS = {2.0: 1, 1.5: 2}
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_HERE = contextlib.nullcontext()


def serve(x: Tensor, alpha: float | Tensor) -> bool:
    """Whether kernels map the rows of ``x``."""
    return kernels.serve(x) and isinstance(alpha, float) and alpha in EXPONENTS and x.dtype in _DTYPES


def again(x: Tensor, alpha: float) -> Tensor | None:
    """As `solve`, for scores on a GPU whose shape it has seen before, else None: half the time of a small batch is saved."""
    if _is_plain(x) and x.get_device() == torch.cuda.current_device():
        return launch.again(x, EXPONENTS[alpha])
    return None


def solve(x: Tensor, alpha: float, mask: Tensor | None = None) -> Tensor:
    """Probabilities of the rows of ``x`` (*batch, n), n > 0, in its dtype, without gradient; ``mask`` broadcasts."""
    known = again(x, alpha) if mask is None and x.is_cuda else None
    return _solve_anew(x, alpha, mask) if known is None else known


def _solve_anew(x: Tensor, alpha: float, mask: Tensor | None) -> Tensor:
    from sparsum.kernels import simplex

    rows = as_rows(x)
    allowed = None if mask is None else as_rows(mask, x.shape)
    if not _is_plain(x):
        probs: Tensor = simplex.simplex_forward(rows, allowed, EXPONENTS[alpha])
        return probs.view(x.shape)
    with on_device_of(x):
        probs, plan = simplex.planned_forward(rows, allowed, EXPONENTS[alpha])
    launch.keep_plan(x, EXPONENTS[alpha], plan)
    return probs.view(x.shape)


def jacobian(probs: Tensor, alpha: float, vector: Tensor) -> Tensor:
    """The Jacobian at ``probs`` (*batch, n) times ``vector``, without gradient."""
    from sparsum.kernels import simplex

    rows, vectors = as_rows(probs), as_rows(vector)
    if not _is_plain(probs):
        product: Tensor = simplex.simplex_backward(rows, vectors, EXPONENTS[alpha])
        return product.view(probs.shape)
    with on_device_of(probs):
        return simplex.backward(rows, vectors, EXPONENTS[alpha]).view(probs.shape)


def traced(x: Tensor, alpha: float, mask: Tensor | None) -> Tensor:
    """As `solve`, for a graph: an operator with its first derivative."""
    from sparsum.kernels import simplex

    probs: Tensor = simplex.simplex_forward(as_rows(x), None if mask is None else as_rows(mask, x.shape), EXPONENTS[alpha])
    return probs.view(x.shape)


def as_rows(x: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """The rows (*batch, n) as (outer, inner, n), without a copy up to three dimensions; a mask broadcasts to ``shape``."""
    if x.ndim < 3:
        return x.reshape(1, 1, -1) if x.ndim == 1 else x.unsqueeze(1)
    if x.ndim == 3:
        return x
    lead = _one_or_all(x.shape[:-2], x.shape[:-2] if shape is None else shape[:-2])
    return x.expand(*lead, *x.shape[-2:]).reshape(math.prod(lead), *x.shape[-2:])


def rows_along(x: Tensor, dim: int, shape: Sequence[int]) -> Tensor:
    """The rows along any dimension, as (outer, inner, n); a mask, of as many dimensions, broadcasts to ``shape``."""
    before, after = _one_or_all(x.shape[:dim], shape[:dim]), _one_or_all(x.shape[dim + 1 :], shape[dim + 1 :])
    whole = x.expand(*before, x.shape[dim], *after)
    return whole.reshape(math.prod(before), x.shape[dim], math.prod(after)).transpose(1, 2)


def _one_or_all(sizes: Sequence[int], wanted: Sequence[int]) -> Sequence[int]:
    """Dimensions that are merged are broadcast together or not at all."""
    return sizes if all(size == 1 for size in sizes) else wanted


def on_device_of(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Kernels are launched on the current device: change it if it is another."""
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():
        return _HERE
    return torch.cuda.device_of(x)


def _is_plain(x: Tensor) -> bool:
    """Whether nothing but the values is asked for: then the kernels are launched without torch's dispatcher."""
    return type(x) in (Tensor, torch.nn.Parameter) and not torch._C._len_torch_dispatch_stack()
