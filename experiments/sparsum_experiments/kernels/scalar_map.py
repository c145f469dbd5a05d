r"""A scalar network, applied elementwise.

.. math:: h_i = \sigma\Bigl( \sum_k v_k \, \sigma(w_k x_i) \Bigr)

The hidden units stay in registers: the forward kernel reads x and writes h. The backward kernel recomputes the hidden units;
each program sums the gradients of the weights over its own elements, and the partial sums are added in a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op

from sparsum.kernels.launch import wrap_triton

# Elements per block, and blocks per program in the backward pass.
_BLOCK, _BLOCKS_PER_PROGRAM, _WARPS = 16, 8, 8


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _forward_kernel(x_ptr, inner_ptr, outer_ptr, h_ptr, n, n_hidden, block: tl.constexpr, hidden: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    k = tl.arange(0, hidden)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    inner = tl.load(inner_ptr + k, mask=k < n_hidden, other=0.0)
    outer = tl.load(outer_ptr + k, mask=k < n_hidden, other=0.0)
    units = _sigmoid(x[:, None] * inner[None, :])
    tl.store(h_ptr + i, _sigmoid(tl.sum(units * outer[None, :], 1)), mask=i < n)


@triton.jit
def _backward_kernel(
    x_ptr, inner_ptr, outer_ptr, h_ptr, grad_ptr, x_grad_ptr, partial_ptr, n, n_hidden,
    n_blocks: tl.constexpr, block: tl.constexpr, hidden: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    k = tl.arange(0, hidden)
    inner = tl.load(inner_ptr + k, mask=k < n_hidden, other=0.0)
    outer = tl.load(outer_ptr + k, mask=k < n_hidden, other=0.0)
    inner_grad = tl.zeros([hidden], tl.float32)
    outer_grad = tl.zeros([hidden], tl.float32)
    for b in range(n_blocks):
        i = (program * n_blocks + b) * block + tl.arange(0, block)
        x = tl.load(x_ptr + i, mask=i < n, other=0.0)
        grad = tl.load(grad_ptr + i, mask=i < n, other=0.0)  # 0 for masked elements
        h = tl.load(h_ptr + i, mask=i < n, other=0.0)
        grad = grad * h * (1 - h)
        units = _sigmoid(x[:, None] * inner[None, :])
        slopes = units * (1 - units) * outer[None, :] * grad[:, None]  # derivative of the sum by w_k x_i
        tl.store(x_grad_ptr + i, tl.sum(slopes * inner[None, :], 1), mask=i < n)
        inner_grad += tl.sum(slopes * x[:, None], 0)
        outer_grad += tl.sum(units * grad[:, None], 0)
    row = partial_ptr + program * 2 * n_hidden
    tl.store(row + k, inner_grad, mask=k < n_hidden)
    tl.store(row + n_hidden + k, outer_grad, mask=k < n_hidden)


@triton_op("sparsum::scalar_map", mutates_args={})
def forward(x: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
    """Apply the network to a contiguous float32 tensor of any shape, with weights w and v of shape (n_hidden,)."""
    h, n = torch.empty_like(x), x.numel()
    if n:
        hidden = triton.next_power_of_2(len(inner))
        grid = (triton.cdiv(n, _BLOCK),)
        wrap_triton(_forward_kernel)[grid](x, inner, outer, h, n, len(inner), block=_BLOCK, hidden=hidden, num_warps=_WARPS)
    return h


@triton_op("sparsum::scalar_map_backward", mutates_args={})
def backward(x: Tensor, inner: Tensor, outer: Tensor, h: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, w and v, given the output ``h`` of `forward`."""
    x_grad, n = torch.empty_like(x), x.numel()
    n_programs = triton.cdiv(n, _BLOCK * _BLOCKS_PER_PROGRAM)
    partial = x.new_empty(n_programs, 2, len(inner))
    if n:
        wrap_triton(_backward_kernel)[(n_programs,)](
            x, inner, outer, h, grad, x_grad, partial, n, len(inner),
            n_blocks=_BLOCKS_PER_PROGRAM, block=_BLOCK, hidden=triton.next_power_of_2(len(inner)), num_warps=_WARPS,
        )  # fmt: skip
    of_inner, of_outer = partial.sum(0).unbind()
    return x_grad, of_inner.clone(), of_outer.clone()
