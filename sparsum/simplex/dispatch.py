"""Dispatch of the mappings to kernels: supported inputs and layout of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sparsum.kernels import is_unobserved, launch

# alpha -> exponent of the mappings that have a dedicated exact solver
EXPONENTS = {2.0: 1, 1.5: 2}
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def has_kernel(x: Tensor, alpha: float | Tensor, _mask: Tensor | None = None) -> bool:
    """Alpha is the number 1.5 or 2."""
    return isinstance(alpha, float) and alpha in EXPONENTS and x.dtype in _DTYPES


def again(x: Tensor, alpha: float) -> Tensor | None:
    """As `solve_by_kernel` for a known shape on a GPU, else None: half the time of a small batch is saved."""
    if is_unobserved(x) and x.get_device() == torch.cuda.current_device():
        return launch.again(x, EXPONENTS[alpha])
    return None


def solve_by_kernel(x: Tensor, alpha: float | Tensor, mask: Tensor | None) -> Tensor:
    """Probabilities of the rows of ``x`` (*batch, n), n > 0, in its dtype, without gradient; ``mask`` is broadcast."""
    from sparsum.kernels import simplex

    assert isinstance(alpha, float)
    if not is_unobserved(x):
        return traced(x, alpha, mask)
    allowed = None if mask is None else as_rows(mask, x.shape)
    probs, plan = simplex.planned_forward(as_rows(x), allowed, EXPONENTS[alpha])
    launch.keep_plan(x, EXPONENTS[alpha], plan)
    return probs.view(x.shape)


def jacobian(probs: Tensor, alpha: float | Tensor, vector: Tensor) -> Tensor:
    """The Jacobian at ``probs`` (*batch, n) times ``vector``, without gradient."""
    from sparsum.kernels import simplex

    assert isinstance(alpha, float)
    multiply = simplex.backward if is_unobserved(probs) else simplex.simplex_backward
    product: Tensor = multiply(as_rows(probs), as_rows(vector), EXPONENTS[alpha])
    return product.view(probs.shape)


def traced(x: Tensor, alpha: float, mask: Tensor | None) -> Tensor:
    """`solve_by_kernel` for graphs: an operator with a first derivative."""
    from sparsum.kernels import simplex

    probs: Tensor = simplex.simplex_forward(as_rows(x), None if mask is None else as_rows(mask, x.shape), EXPONENTS[alpha])
    return probs.view(x.shape)


def as_rows(x: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """Reshape rows (*batch, n) to (outer, inner, n), without a copy up to 3 dimensions; broadcast a mask to ``shape``."""
    if x.ndim < 3:
        return x.reshape(1, 1, -1) if x.ndim == 1 else x.unsqueeze(1)
    if x.ndim == 3:
        return x
    lead = _one_or_all(x.shape[:-2], x.shape[:-2] if shape is None else shape[:-2])
    return x.expand(*lead, *x.shape[-2:]).reshape(math.prod(lead), *x.shape[-2:])


def rows_along(x: Tensor, dim: int, shape: Sequence[int]) -> Tensor:
    """Reshape rows along any dimension to (outer, inner, n); a mask with all dimensions is broadcast to ``shape``."""
    before, after = _one_or_all(x.shape[:dim], shape[:dim]), _one_or_all(x.shape[dim + 1 :], shape[dim + 1 :])
    whole = x.expand(*before, x.shape[dim], *after)
    return whole.reshape(math.prod(before), x.shape[dim], math.prod(after)).transpose(1, 2)


def _one_or_all(sizes: Sequence[int], wanted: Sequence[int]) -> Sequence[int]:
    """Sizes for merging dimensions: either all of them are broadcast or none."""
    return sizes if all(size == 1 for size in sizes) else wanted
