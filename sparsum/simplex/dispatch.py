"""Dispatch of the mappings to kernels: supported inputs and layout of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sparsum.kernels import is_unobserved, launch

# alpha -> exponent of the mappings that have a dedicated exact solver
EXPONENTS = {2.0: 1, 1.5: 2}
# alpha -> exponent of the mappings whose kernels need no powers
_WHOLE_EXPONENTS = {**EXPONENTS, 4 / 3: 3, 1.25: 4, 1.2: 5}
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def has_kernel(x: Tensor, alpha: float | Tensor, _mask: Tensor | None = None) -> bool:
    """Alpha is a number above 1 or a tensor."""
    return x.dtype in _DTYPES and (isinstance(alpha, Tensor) or alpha > 1)


def again(alpha: float | Tensor, x: Tensor, *others: Tensor) -> Tensor | None:
    """As `solve_by_kernel` or `jacobian` for known shapes on a GPU, else None: half the time of a small batch is saved.

    No tensor is a lazy negative, and all are on the same device.
    """
    if type(alpha) is not float or not is_unobserved(x, *others) or x.get_device() != torch.cuda.current_device():
        return None
    return launch.again(alpha, x, *others)


def solve_by_kernel(x: Tensor, alpha: float | Tensor, mask: Tensor | None) -> Tensor:
    """Probabilities of the rows of ``x`` (*batch, n), n > 0, in its dtype, without gradient; ``mask`` is broadcast."""
    from sparsum.kernels import entmax, simplex

    if not is_unobserved(x):
        return traced(x, alpha, mask)
    rows, allowed = as_rows(x), None if mask is None else as_rows(mask, x.shape)
    if isinstance(alpha, Tensor):
        return entmax.forward(rows, allowed, _alphas(alpha, x)).view(x.shape)
    exponent = _WHOLE_EXPONENTS.get(alpha)
    if exponent is None:
        probs, plan = entmax.planned_forward(rows, allowed, alpha)
    else:
        probs, plan = simplex.planned_forward(rows, allowed, exponent)
    launch.keep_plan(alpha, plan, x)
    return probs.view(x.shape)


def jacobian(probs: Tensor, alpha: float | Tensor, vector: Tensor) -> Tensor:
    """The Jacobian at ``probs`` (*batch, n) times ``vector``, without gradient."""
    from sparsum.kernels import entmax, simplex

    if isinstance(alpha, Tensor) or not is_unobserved(probs):
        return _multiply(probs, alpha, vector, with_alpha=False)[0]
    rows, vectors = as_rows(probs), as_rows(vector)
    exponent = _WHOLE_EXPONENTS.get(alpha)
    if exponent is None:
        product, _, plan = entmax.planned_backward(rows, vectors, alpha, with_alpha=False)
    else:
        product, plan = simplex.planned_backward(rows, vectors, exponent)
    launch.keep_plan(alpha, plan, probs, vector)
    return product.view(probs.shape)


def gradients(probs: Tensor, alpha: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients with respect to the scores and to ``alpha`` (*batch, 1), without further derivatives."""
    grad_x, grad_alpha = _multiply(probs, alpha, grad, with_alpha=True)
    return grad_x, grad_alpha.view(alpha.shape).to(alpha.dtype)


def _multiply(probs: Tensor, alpha: float | Tensor, vector: Tensor, *, with_alpha: bool) -> tuple[Tensor, Tensor]:
    from sparsum.kernels import entmax, simplex

    rows, vectors = as_rows(probs), as_rows(vector)
    exponent = None if isinstance(alpha, Tensor) else _WHOLE_EXPONENTS.get(alpha)
    if exponent is not None:
        product, grad_alphas = simplex.simplex_backward(rows, vectors, exponent), probs.new_empty(0)
    elif is_unobserved(probs):
        product, grad_alphas = entmax.backward(rows, vectors, _alphas(alpha, probs), with_alpha=with_alpha)
    else:
        product, grad_alphas = entmax.entmax_backward(rows, vectors, _alphas(alpha, probs), with_alpha)
    return product.view(probs.shape), grad_alphas


def traced(x: Tensor, alpha: float | Tensor, mask: Tensor | None) -> Tensor:
    """`solve_by_kernel` for graphs: an operator with a first derivative."""
    from sparsum.kernels import entmax, simplex

    rows, allowed = as_rows(x), None if mask is None else as_rows(mask, x.shape)
    exponent = None if isinstance(alpha, Tensor) else _WHOLE_EXPONENTS.get(alpha)
    probs: Tensor
    if exponent is None:
        probs = entmax.entmax_forward(rows, allowed, _alphas(alpha, x))
    else:
        probs = simplex.simplex_forward(rows, allowed, exponent)
    return probs.view(x.shape)


def _alphas(alpha: float | Tensor, x: Tensor) -> Tensor:
    """One alpha for each row of ``x``, or one for all, as the kernels read them."""
    if isinstance(alpha, Tensor):
        return alpha.reshape(-1) if alpha.numel() else alpha.new_ones(1)
    return torch.full((1,), alpha, dtype=torch.float64, device=x.device)


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
