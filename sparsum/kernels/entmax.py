"""Entmax with any alpha on a GPU, forward and backward, as torch operators.

Rows are the last dimension of tensors (outer, inner, n) with any strides. ``alphas``, in at least float32, has shape
(n_rows,), or (1,) if all rows share their alpha. As in `sparsum.kernels.simplex`, the kernel depends only on n and the
dtype.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import triton_op

from sparsum.kernels.any_alpha import any_backward, any_loop_forward, any_tile_forward
from sparsum.kernels.launch import unwrapped, wrap_triton
from sparsum.kernels.simplex import lanes_for, spread, tile_shape

# Bytes per entry -> the longest rows that are kept in registers.
TILE_MOST = {2: 8192, 4: 8192, 8: 2048}
# Entries per thread: powers need so many registers that more entries would spill.
THREAD_ENTRIES = 8
# Entries of a longer row that are read at once, and warps.
LOOP_BLOCK = 4096
LOOP_WARPS = 16
# Entries that the backward pass reads at once.
BACKWARD_MOST = 4096
# The excess of the sum up to which a step is applied to the probabilities in first order, and the rounding error.
_TOLERANCE = {True: 2e-15, False: 2e-6}
_EPS = {True: 2.3e-16, False: 1.2e-7}


@triton_op("sparsum::entmax_forward", mutates_args={})
def entmax_forward(x: Tensor, mask: Tensor | None, alphas: Tensor) -> Tensor:
    """Probabilities of the rows of ``x`` (outer, inner, n), in its dtype; ``mask`` has 3 dimensions and is broadcast."""
    return forward(x, mask, alphas, wrap=wrap_triton)


@triton_op("sparsum::entmax_backward", mutates_args={})
def entmax_backward(probs: Tensor, grad: Tensor, alphas: Tensor, with_alpha: bool) -> tuple[Tensor, Tensor]:
    """The Jacobian at ``probs`` (outer, inner, n) times ``grad``, and the gradient of the alphas (n_rows,), if wanted."""
    return backward(probs, grad, alphas, with_alpha=with_alpha, wrap=wrap_triton)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, inputs[2])


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor | None]:
    probs, alphas = ctx.saved_tensors
    wants_alpha = bool(ctx.needs_input_grad[2])
    grad_x, grad_alphas = torch.ops.sparsum.entmax_backward(probs, grad, alphas, wants_alpha)
    if not wants_alpha:
        return grad_x, None, None
    grad_alphas = grad_alphas.to(alphas.dtype)
    return grad_x, None, grad_alphas.sum().reshape(1) if alphas.numel() == 1 else grad_alphas


# First derivatives, for graphs; `sparsum.simplex` implements derivatives of any order.
entmax_forward.register_autograd(_differentiate, setup_context=_keep)


def forward(x: Tensor, mask: Tensor | None, alphas: Tensor, *, wrap: Any = unwrapped, path: str = "") -> Tensor:
    """`entmax_forward` without torch's dispatcher; ``path`` forces one of "tile" and "loop"."""
    outer, inner, n = x.shape
    y = torch.empty_like(x)
    is_double = x.dtype == torch.float64
    numbers = (*x.stride(), *spread(x if mask is None else mask), *y.stride(), spread(alphas)[0])
    options = {
        "HAS_MASK": mask is not None, "IS_HALF": x.dtype in (torch.float16, torch.bfloat16), "IS_DOUBLE": is_double,
        "TOLERANCE": _TOLERANCE[is_double], "EPS": _EPS[is_double],
    }  # fmt: skip
    tensors = (x, x if mask is None else mask, alphas, y)
    if (path or path_for(n, x.dtype.itemsize)) == "tile":
        rows, block, warps = tile_shape(n, x.stride(-1))
        warps = max(warps, min(rows * block // (32 * THREAD_ENTRIES), 32))
        lanes, width = lanes_for(rows, block, warps, x.dtype.itemsize)
        wrap(any_tile_forward)[(-(-outer * inner // rows),)](
            *tensors, outer * inner, n, inner, *numbers,
            LANES=lanes, WIDTH=width, ROWS=rows, BLOCK=block, **options, num_warps=warps,
        )  # fmt: skip
    else:
        wrap(any_loop_forward)[(outer * inner,)](
            *tensors, n, inner, *numbers, BLOCK=LOOP_BLOCK, **options, num_warps=LOOP_WARPS
        )
    return y


def backward(
    probs: Tensor, grad: Tensor, alphas: Tensor, *, with_alpha: bool, wrap: Any = unwrapped
) -> tuple[Tensor, Tensor]:
    """`entmax_backward` without torch's dispatcher."""
    outer, inner, n = probs.shape
    out = torch.empty_like(probs)
    is_double = probs.dtype == torch.float64
    dtype = torch.float64 if is_double else torch.float32
    grad_alphas = torch.empty(outer * inner if with_alpha else 0, dtype=dtype, device=probs.device)
    _, block, _ = tile_shape(n, 1)
    block = min(block, BACKWARD_MOST)
    wrap(any_backward)[(outer * inner,)](
        probs, grad, alphas, out, grad_alphas if with_alpha else out, n, inner,
        *probs.stride(), *grad.stride(), *out.stride(), spread(alphas)[0],
        WITH_ALPHA=with_alpha, BLOCK=block, IS_DOUBLE=is_double, num_warps=max(min(block // 256, 16), 1),
    )  # fmt: skip
    return out, grad_alphas


def path_for(n: int, itemsize: int) -> str:
    """The kernel that handles rows of ``n`` entries."""
    return "tile" if n <= TILE_MOST[itemsize] else "loop"
