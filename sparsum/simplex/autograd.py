r"""Derivatives of all mappings, of any order.

With :math:`s_i = p_i^{2-\alpha}` on the support and 0 elsewhere, and :math:`\bar v = \sum_i s_i v_i / \sum_i s_i`, the
Jacobian of :math:`\alpha`-entmax is symmetric:

.. math:: J v = s (v - \bar v), \qquad \frac{\partial p}{\partial \alpha} = c - s \frac{\sum_i c_i}{\sum_i s_i} ,

where :math:`c_i` is the derivative of :math:`p_i` with respect to :math:`\alpha` for a fixed shift of the row. All of these
depend only on the probabilities, so the scores are not saved for backward. Reverse and forward mode may be nested.

References:
    - Adaptively sparse transformers (Correia, Niculae & Martins, 2019), Proposition 1, https://arxiv.org/abs/1909.00015
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsum import kernels
from sparsum.kernels import is_transformed, launch
from sparsum.simplex import dispatch
from sparsum.simplex.arguments import can_look_at, has_values
from sparsum.simplex.blocks import reads_in_blocks, support
from sparsum.simplex.entropy import log_on_support
from sparsum.simplex.forward_mode import nestable
from sparsum.simplex.solve import solve, solve_plainly
from sparsum.tensors import apply_function

Alpha = float | Tensor

# For alpha > 2 the weight of an entry at the boundary is unbounded; this value is effectively infinite.
_LARGEST_WEIGHT = {torch.float16: 6e4, torch.bfloat16: 1e12, torch.float32: 1e12, torch.float64: 1e100}
# From this distance of alpha to 1 on, float64 is accurate enough for the derivative with respect to alpha without a series.
_NEAR_ONE = {torch.float32: 1e-3, torch.float64: 0.5}
# Smaller than any sum of weights, and a normal number in float32 as well.
_TINY = 1.2e-38


def apply(x: Tensor, alpha: Alpha, mask: Tensor | None = None) -> Tensor:
    """Differentiable probabilities of the rows of ``x`` (*batch, n), n > 0; ``alpha`` is a number or (*batch, 1).

    Only kernels accept a mask. It has as many dimensions as ``x`` and broadcasts to its shape.
    """
    if torch.compiler.is_compiling():
        if solve.serves(x, alpha, mask):
            return dispatch.traced(x, alpha, mask)
        return _traced(x, alpha)
    if is_plain(x, alpha):
        return _solve(x, alpha, mask)
    probs: Tensor = apply_function(_Entmax, x, alpha, mask)
    return probs


def apply_again(x: Tensor, alpha: float) -> Tensor | None:
    """`apply` for dense scores on a GPU, without the checks that their shape has passed before; None for other shapes."""
    if is_transformed() or x.is_neg():
        return None
    if not (x.requires_grad and torch.is_grad_enabled()):
        return dispatch.again(alpha, x)
    known: Tensor | None = apply_function(_Entmax, x, alpha, None) if launch.is_known(alpha, x) else None
    return known


def is_plain(x: Tensor, alpha: Alpha) -> bool:
    """Whether no derivatives are needed."""
    if is_transformed():
        return False
    needs_gradient = x.requires_grad or (isinstance(alpha, Tensor) and alpha.requires_grad)
    return not (needs_gradient and torch.is_grad_enabled())


def _solve(x: Tensor, alpha: Alpha, mask: Tensor | None) -> Tensor:
    """The mapping without gradient; reuses a cached launch if there is one, which is faster than dispatching."""
    if mask is None and x.is_cuda and not x.is_neg():
        known = dispatch.again(alpha, x)
        if known is not None:
            return known
    return solve(x, alpha, mask)


def _jacobian(probs: Tensor, alpha: Alpha, vector: Tensor) -> Tensor:
    """The Jacobian at ``probs`` times ``vector``, differentiable."""
    if torch.is_grad_enabled() or is_transformed():
        product: Tensor = apply_function(_Jacobian, probs, alpha, vector)
        return product
    if probs.is_cuda and not probs.is_neg() and kernels.can_read(vector) and not torch.compiler.is_compiling():
        known = dispatch.again(alpha, probs, vector)
        if known is not None:
            return known
    return _product(probs, alpha, vector)


def _can_multiply(probs: Tensor, alpha: Alpha, vector: Tensor) -> bool:
    """Alpha is a number above 1 or a tensor, and the memory of the vector is readable."""
    return dispatch.has_kernel(probs, alpha) and kernels.can_read(vector)


@kernels.operation("entmax_jacobian", kernel=dispatch.jacobian, takes=_can_multiply, is_traceable=True)
def _product(probs: Tensor, alpha: Alpha, vector: Tensor) -> Tensor:
    """The Jacobian at ``probs`` times ``vector``, without gradient."""
    rows = probs.reshape(-1, probs.shape[-1])
    if isinstance(alpha, float) and alpha > 1 and reads_in_blocks(rows) and has_values(probs):
        return _jacobian_packed(rows, alpha, vector.reshape(rows.shape)).view(probs.shape)
    return _jacobian_dense(probs, alpha, vector)


def _traced(x: Tensor, alpha: Alpha) -> Tensor:
    """Version for graphs: the value without gradient, plus a term of value 0 with the derivative of the mapping.

    It only has first derivatives, which is all that a compiled graph needs.
    """
    fixed_alpha = alpha.detach() if isinstance(alpha, Tensor) else alpha
    probs = solve_plainly(x.detach(), fixed_alpha, traceable=True)
    x = torch.where(probs > 0, x, 0.0)  # the derivative is 0 off the support, and -inf - -inf is NaN
    change, weights = torch.where(x.isfinite(), x - x.detach(), 0.0), _weights(probs, fixed_alpha)
    result = probs + weights * _centre(change, weights)
    if isinstance(alpha, Tensor):
        result = result + _alpha_direction(probs, alpha.detach()) * (alpha - alpha.detach())
    return result


class _Entmax(torch.autograd.Function):
    """The mapping."""

    @staticmethod
    def forward(x: Tensor, alpha: Alpha, mask: Tensor | None) -> Tensor:
        return _solve(x, alpha, mask)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Alpha, Tensor | None], output: Tensor) -> None:
        alpha = inputs[1]
        saved = (output, alpha) if isinstance(alpha, Tensor) else (output,)
        ctx.alpha = None if isinstance(alpha, Tensor) else alpha
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        probs, alpha = _saved(ctx)
        if isinstance(alpha, Tensor) and ctx.needs_input_grad[1]:
            return *_gradients(probs, alpha, grad), None
        return _jacobian(probs, alpha, grad) if ctx.needs_input_grad[0] else None, None, None

    @staticmethod
    @nestable
    def jvp(ctx: Any, x_tangent: Tensor | None, alpha_tangent: Tensor | None, _: None) -> Tensor:
        probs, alpha = _saved(ctx)
        result = torch.zeros_like(probs) if x_tangent is None else _jacobian(probs, alpha, x_tangent)
        if isinstance(alpha, Tensor) and alpha_tangent is not None:
            result = result + _alpha_direction(probs, alpha) * alpha_tangent
        return result

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        return _Entmax.apply(*_batch_first(info.batch_size, in_dims, inputs)), 0


class _Jacobian(torch.autograd.Function):
    """The product of the Jacobian at ``probs`` with a vector; for long rows the cost scales with the support."""

    @staticmethod
    def forward(probs: Tensor, alpha: Alpha, vector: Tensor) -> Tensor:
        return _product(probs, alpha, vector)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Alpha, Tensor], output: Tensor) -> None:
        probs, alpha, vector = inputs
        saved = (probs, alpha, vector) if isinstance(alpha, Tensor) else (probs, vector)
        ctx.alpha = None if isinstance(alpha, Tensor) else alpha
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        probs, alpha, vector = _saved(ctx)
        grad_vector = _jacobian(probs, alpha, grad) if ctx.needs_input_grad[2] else None
        if _is_number(alpha, 2.0):
            return None, None, grad_vector  # sparsemax: the Jacobian is piecewise constant
        weights = _weights(probs, alpha)
        grad_weights = _centre(grad, weights) * _centre(vector, weights)
        grad_probs = grad_weights * _weights_slope(probs, alpha)
        grad_alpha = None
        if isinstance(alpha, Tensor):
            grad_alpha = -(grad_weights * weights * log_on_support(probs)).sum(-1, keepdim=True)
        return grad_probs, grad_alpha, grad_vector

    @staticmethod
    @nestable
    def jvp(ctx: Any, probs_tangent: Tensor | None, alpha_tangent: Tensor | None, vector_tangent: Tensor | None) -> Tensor:
        probs, alpha, vector = _saved(ctx)
        result = torch.zeros_like(probs) if vector_tangent is None else _jacobian(probs, alpha, vector_tangent)
        weights = _weights(probs, alpha)
        weights_tangent = torch.zeros_like(probs)
        if probs_tangent is not None:
            weights_tangent = weights_tangent + _weights_slope(probs, alpha) * probs_tangent
        if isinstance(alpha, Tensor) and alpha_tangent is not None:
            weights_tangent = weights_tangent - weights * log_on_support(probs) * alpha_tangent
        change = weights_tangent * _centre(vector, weights)
        return result + change - weights * _ratio(change.sum(-1, keepdim=True), weights.sum(-1, keepdim=True))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        return _Jacobian.apply(*_batch_first(info.batch_size, in_dims, inputs)), 0


def _saved(ctx: Any) -> Any:
    """The saved tensors, with alpha second, whether it is a tensor or a number."""
    first, *rest = ctx.saved_tensors
    return (first, *rest) if ctx.alpha is None else (first, ctx.alpha, *rest)


def _batch_first(batch_size: int, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...]) -> list[Any]:
    """Move the batch to the first dimension of every tensor: all formulas apply to the last dimension."""
    return [
        value
        if not isinstance(value, Tensor)
        else value.expand(batch_size, *value.shape)
        if dim is None
        else value.movedim(dim, 0)
        for dim, value in zip(in_dims, inputs, strict=True)
    ]


def _jacobian_dense(probs: Tensor, alpha: Alpha, vector: Tensor) -> Tensor:
    weights = _weights_quickly(probs, alpha)
    weighted = weights * vector
    mean = _ratio(weighted.sum(-1, keepdim=True), weights.sum(-1, keepdim=True))
    return torch.addcmul(weighted, weights, mean, value=-1)  # not in place: in forward mode it may be a zero tensor


def _jacobian_packed(probs: Tensor, alpha: float, vector: Tensor) -> Tensor:
    packed = support(probs)
    weights = _weights(probs.reshape(-1)[packed.flat], alpha)
    weighted = weights * vector.reshape(-1)[packed.flat]
    mean = _ratio(packed.segments.sum(weighted), packed.segments.sum(weights))
    result = (0 * probs[:, :1]).expand_as(probs).contiguous()  # NaN for a row of NaN, whose support is empty
    result.view(-1).index_copy_(0, packed.flat, weighted - weights * packed.segments.spread(mean))
    return result


def _centre(vector: Tensor, weights: Tensor) -> Tensor:
    """The vector minus its weighted mean."""
    return vector - _ratio((weights * vector).sum(-1, keepdim=True), weights.sum(-1, keepdim=True))


def _ratio(numerator: Tensor, total: Tensor) -> Tensor:
    """Divide by a sum of weights, with 0 / 0 = 0 for a fully masked row."""
    return numerator / total.clamp_min(_TINY)


def _weights(probs: Tensor, alpha: Alpha) -> Tensor:
    if _is_number(alpha, 2.0):
        return probs.ceil()  # 1 on the support, and NaN for NaN, which a comparison would drop
    if _is_number(alpha, 1.0):
        return probs
    is_zero = probs == 0
    base = torch.where(is_zero, 1.0, probs)  # the derivative of the power is infinite at 0
    power = base.sqrt() if _is_number(alpha, 1.5) else _raised(base, 2 - alpha).clamp_max(_LARGEST_WEIGHT[base.dtype])
    return torch.where(is_zero, 0.0, power)


def _raised(base: Tensor, exponent: Alpha) -> Tensor:
    """``base ** exponent``; for a tensor, torch.pow drops the mixed second derivative at an exponent of 0."""
    return (exponent * base.log()).exp() if isinstance(exponent, Tensor) else base.pow(exponent)


def _weights_quickly(probs: Tensor, alpha: Alpha) -> Tensor:
    """`_weights` without derivatives, and without boolean masks, which are slow on the CPU."""
    if isinstance(alpha, float) and alpha in (1.0, 1.5, 2.0):
        return probs if alpha == 1 else probs.sqrt() if alpha == 1.5 else probs.ceil()
    return probs.pow(2 - alpha).clamp_max_(_LARGEST_WEIGHT[probs.dtype]).mul_(probs.ceil())


def _is_number(alpha: Alpha, value: float) -> bool:
    return isinstance(alpha, float) and alpha == value


def _weights_slope(probs: Tensor, alpha: Alpha) -> Tensor:
    is_support = probs > 0
    return torch.where(is_support, (2 - alpha) * _raised(torch.where(is_support, probs, 1.0), 1 - alpha), 0.0)


def _alpha_direction(probs: Tensor, alpha: Tensor) -> Tensor:
    """Derivative of the probabilities with respect to alpha."""
    change, weights = _alpha_change(probs, alpha), _weights(probs, alpha)
    return change - weights * _ratio(change.sum(-1, keepdim=True), weights.sum(-1, keepdim=True))


def _alpha_change(probs: Tensor, alpha: Tensor) -> Tensor:
    r"""Derivative of the probabilities with respect to alpha, for a fixed shift of the row.

    With :math:`u = -(\alpha - 1) \log p`, it is :math:`-p (\log p)^2 (e^u - 1 - u) / u^2`, which tends to
    :math:`-p (\log p)^2 / 2` at alpha = 1.
    """
    log_probs, a = log_on_support(probs), alpha - 1
    u = -a * log_probs
    is_small = u < 0.5
    small = torch.where(is_small, u, 0.0)
    series = torch.ones_like(small)
    for k in range(16, 2, -1):  # 2 sum_k u^k / (k + 2)! by Horner's rule
        series = 1 + series * small / k
    by_series = -probs * log_probs.square() * series / 2
    directly = (probs * (1 + u) - _weights(probs, alpha)) / torch.where(is_small, 1.0, a).square()
    return torch.where(is_small, by_series, directly)


def _can_differentiate(probs: Tensor, alpha: Tensor, grad: Tensor) -> bool:
    """No further differentiation, and the memory of the gradient is readable."""
    return kernels.is_undifferentiated() and _can_multiply(probs, alpha, grad)


@kernels.operation("entmax_gradients", kernel=dispatch.gradients, takes=_can_differentiate, is_traceable=True)
def _gradients(probs: Tensor, alpha: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients with respect to the scores and to ``alpha`` (*batch, 1), differentiable."""
    return _jacobian(probs, alpha, grad), _alpha_gradient(probs, alpha, grad)


def _alpha_gradient(probs: Tensor, alpha: Tensor, grad: Tensor) -> Tensor:
    """The product of `_alpha_direction` with a gradient, summed over each row, (*batch, 1)."""
    if (
        kernels.is_undifferentiated()
        and can_look_at(alpha)
        and alpha.numel()
        and alpha.min().item() > 1 + _NEAR_ONE[probs.dtype]
    ):
        return _alpha_gradient_in_double(probs, alpha, grad)
    return (grad * _alpha_direction(probs, alpha)).sum(-1, keepdim=True)


def _alpha_gradient_in_double(probs: Tensor, alpha: Tensor, grad: Tensor) -> Tensor:
    """`_alpha_gradient` without derivatives: where alpha is not close to 1, float64 replaces the series."""
    a, p, g = alpha.double() - 1, probs.double(), grad.double()
    log_probs = p.clamp_min(torch.finfo(torch.float64).tiny).log_()
    weights = (log_probs * (1 - a)).exp_().clamp_max_(_LARGEST_WEIGHT[torch.float64]).mul_(p.ceil())
    mean = _ratio((weights * g).sum(-1, keepdim=True), weights.sum(-1, keepdim=True))
    change = log_probs.mul_(-a).add_(1.0).mul_(p).sub_(weights).div_(a * a)
    return (change * (g - mean)).sum(-1, keepdim=True).to(probs.dtype)
