r"""Log-likelihood of images with categorical pixels, without storing the logits of all pixels.

A decoder gives each pixel a few features f; one linear map, shared by all pixels, turns them into the logits of the grey
levels. An image x has many logits, but only one number is needed:

.. math:: \log p(x) = \sum_i \ell_{i, x_i}, \qquad \ell_i = \log \mathrm{softmax}(W f_i + b) .

Its derivatives, with :math:`e` the unit vector of the observed level and :math:`\pi_i = \exp \ell_i`, are

.. math:: \frac{\partial}{\partial f_i} = W^\top (e_{x_i} - \pi_i), \quad
    \frac{\partial}{\partial W} = \sum_i (e_{x_i} - \pi_i) f_i^\top, \quad
    \frac{\partial}{\partial b} = \sum_i (e_{x_i} - \pi_i) .

All of them need the same exponentials. The forward pass computes these once, for a few images at a time, and saves the
derivatives, which are small, instead of the logits; the backward pass only scales them. On a GPU, two kernels do this.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from sparsum import kernels

#: Bytes of logits per chunk. On a CPU, chunks fit into the cache, so that passes over them are cheap; on a GPU, small chunks
#: are bound by kernel launches (an H200 takes three times as long with 2**25).
CPU_BYTES, OTHER_BYTES = 2**22, 2**27


def pixel_log_likelihood(
    features: Tensor,  # shape: (n, n_pixels, rank)
    weight: Tensor,  # shape: (n_levels, rank)
    bias: Tensor,  # shape: (n_levels,)
    x: Tensor,  # shape: (n, n_pixels), uint8, the observed grey levels, each less than n_levels
) -> Tensor:
    r"""The log-likelihood of each image: (n,).

    .. math:: \sum_i \log \mathrm{softmax}(W f_i + b)_{x_i}

    Differentiable once. Inputs in half precision are computed in float32, also under autocast.

    >>> x = torch.tensor([[0, 1, 1]], dtype=torch.uint8)
    >>> pixel_log_likelihood(torch.zeros(1, 3, 5), torch.ones(2, 5), torch.zeros(2), x)  # 3 log(1/2)
    tensor([-2.0794])
    """
    dtype = torch.float32 if torch.finfo(features.dtype).bits == 16 else features.dtype
    features, weight, bias = features.to(dtype), weight.to(dtype), bias.to(dtype)
    with torch.autocast(features.device.type, enabled=False):
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (features, weight, bias)):
            values: Tensor = _LogLikelihood.apply(features, weight, bias, x)
            return values
        return evaluate(features.detach(), weight.detach(), bias.detach(), x, False, False).value


class _Evaluated(NamedTuple):
    """The log-likelihood of each image and, where they are needed, its derivatives."""

    value: Tensor  # shape: (n,)
    by_features: Tensor | None  # shape: (n, n_pixels, rank)
    by_map: Tensor | None  # shape: (n * n_parts, rank + 1, n_levels), by weight and, last, by bias


class _LogLikelihood(torch.autograd.Function):
    """The log-likelihood; its derivatives are computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
        needs_features, *needs_map = ctx.needs_input_grad[:3]
        found = evaluate(features, weight, bias, x, needs_features, any(needs_map))
        ctx.save_for_backward(found.by_features, found.by_map)
        return found.value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        by_features, by_map = ctx.saved_tensors
        of_features = None if by_features is None else by_features * grad[:, None, None]
        if by_map is None:
            return of_features, None, None, None
        # Sum over images before parts: the product then has many columns, which a GPU computes in parallel.
        n_parts = len(by_map) // max(len(grad), 1)
        per_part = grad @ by_map.view(len(grad), n_parts * math.prod(by_map.shape[1:]))
        of_map = per_part.view(n_parts, *by_map.shape[1:]).sum(0)
        return of_features, of_map[:-1].t(), of_map[-1], None


def _is_small_map(features: Tensor, weight: Tensor, *_: object) -> bool:
    """In single precision, with up to `MOST_LEVELS` levels and `MOST_RANK` features."""
    from sparsum_experiments.kernels import likelihood

    return likelihood.takes(features, weight)


def _evaluate_in_registers(
    features: Tensor, weight: Tensor, bias: Tensor, x: Tensor, needs_features: bool, needs_map: bool
) -> _Evaluated:
    """Launch two kernels, or add an operator to a graph; the derivative by the map comes in several parts per image."""
    from sparsum_experiments.kernels import likelihood

    is_launched = not torch.compiler.is_compiling() and kernels.is_unobserved(features)
    run = likelihood.evaluate if is_launched else likelihood.traced
    values, by_features, by_map = run(features, weight, bias, x, needs_features, needs_map)
    return _Evaluated(values.sum(1), by_features if needs_features else None, by_map if needs_map else None)


@kernels.operation("pixel_log_likelihood", kernel=_evaluate_in_registers, takes=_is_small_map, is_traceable=True)
def evaluate(features: Tensor, weight: Tensor, bias: Tensor, x: Tensor, needs_features: bool, needs_map: bool) -> _Evaluated:
    """Compute the log-likelihood and its derivatives in one pass, a few images at a time."""
    (n, n_pixels, rank), n_levels = features.shape, len(bias)
    value = features.new_empty(n)
    by_features = features.new_empty(features.shape) if needs_features else None
    by_map = features.new_empty(n, rank + 1, n_levels) if needs_map else None
    n_bytes = CPU_BYTES if features.device.type == "cpu" else OTHER_BYTES
    n_each = max(1, n_bytes // (n_pixels * n_levels * features.element_size()))
    space = features.new_empty(min(n, n_each) * n_pixels, n_levels)
    minus = -weight.t()
    for begin in range(0, n, n_each):
        part = slice(begin, begin + n_each)
        some, observed = features[part], x[part].reshape(-1, 1).long()
        log_probs, probs = _softmax(some.flatten(0, 1), weight, bias, observed, space[: len(observed)])
        value[part] = log_probs.view(-1, n_pixels).sum(1)
        if by_features is None and by_map is None:
            continue
        surplus = probs.scatter_add_(1, observed, torch.full_like(log_probs, -1.0))  # minus (e - pi) of the formulas
        # Both products have the long dimension last: MKL is several times slower on their transposes.
        if by_features is not None:
            by_features[part] = torch.mm(minus, surplus.t()).t().view(some.shape)
        if by_map is not None:
            extended = functional.pad(-some, (0, 1), value=-1.0)  # the bias is the weight of a constant feature
            torch.bmm(extended.transpose(1, 2), surplus.view(len(some), n_pixels, n_levels), out=by_map[part])
    return _Evaluated(value, by_features, by_map)


def _softmax(
    features: Tensor,  # shape: (m, rank)
    weight: Tensor,  # shape: (n_levels, rank)
    bias: Tensor,  # shape: (n_levels,)
    observed: Tensor,  # shape: (m, 1), int64
    space: Tensor,  # shape: (m, n_levels)
) -> tuple[Tensor, Tensor]:
    """The log-probability of the observed levels, (m, 1), and all probabilities, (m, n_levels), in ``space``."""
    logits = torch.addmm(bias, features, weight.t(), out=space)
    log_probs = logits.gather(1, observed) - logits.amax(1, keepdim=True)
    probs = torch.softmax(logits, 1, out=space)  # the fastest exponential of torch on a CPU
    # The largest probability is exp(0) divided by the sum of exponentials, so it gives the sum even if others underflow.
    return log_probs + probs.amax(1, keepdim=True).log(), probs
