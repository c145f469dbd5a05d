"""Entmax with any alpha on a GPU, forward and backward, as torch operators.

Rows are the last dimension of tensors (outer, inner, n) with any strides. Alphas are one number for all rows, or a tensor of
at least float32, with shape (n_rows,), or (1,) if all rows share their alpha. As in `sparsum.kernels.simplex`, the kernel
depends only on n and the dtype.
"""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor
from torch.library import triton_op

from sparsum.kernels.any_alpha import any_tile_backward, any_tile_forward
from sparsum.kernels.any_alpha_groups import any_groups_backward, any_groups_forward
from sparsum.kernels.any_alpha_math import ANY, BETWEEN, NEAR_1, NEAR_1_BELOW, NEAR_2, NEAR_2_ABOVE, STEEP
from sparsum.kernels.launch import Plan, next_power_of_2, unwrapped, wrap_triton
from sparsum.kernels.simplex import HALF_MOST, SPLIT_MOST, Groups, groups_for, lanes_for, rooms_for, spread, tile_shape

# Bytes per entry -> the longest rows that are kept in registers.
TILE_MOST = {2: 2048, 4: 4096, 8: 2048}
# Whether alphas are a tensor -> entries per thread; more would spill, since powers of any kind need many registers.
THREAD_ENTRIES = {False: 32, True: 16}
# The excess of the sum up to which rows with alpha > 2 are bisected, and the rounding error.
_TOLERANCE = {True: 2e-15, False: 2e-6}
_EPS = {True: 2.3e-16, False: 1.2e-7}
# Replaces alpha - 1 = 0.
_LEAST = 1e-30
# A lower bound of the threshold is less by this times alpha - 1, more than its error.
_SLACK = {True: 1e-12, False: 1e-5}


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


def forward(x: Tensor, mask: Tensor | None, alphas: Tensor | float, *, wrap: Any = unwrapped, path: str = "") -> Tensor:
    """`entmax_forward` without torch's dispatcher; ``path`` forces one of "tile" and "groups"."""
    return planned_forward(x, mask, alphas, wrap=wrap, path=path)[0]


def planned_forward(
    x: Tensor, mask: Tensor | None, alphas: Tensor | float, *, wrap: Any = unwrapped, path: str = ""
) -> tuple[Tensor, Plan | None]:
    """`forward`, which also returns a plan to repeat it if it is for a number, without a mask."""
    outer, inner, n = x.shape
    path = path or path_for(n, x.dtype.itemsize)
    if path != "tile" and x.stride(-1) != 1:
        x = x.contiguous()
    y = torch.empty_like(x)
    has_mask, is_double = mask is not None, x.dtype == torch.float64
    mask = x if mask is None else mask
    tensor, rate, stride = _rates(alphas, x)
    strides = (*x.stride(), *spread(mask), *y.stride(), stride)
    options = {
        "KIND": kind_of(alphas), "HAS_MASK": has_mask, "IS_HALF": x.dtype in (torch.float16, torch.bfloat16),
        "IS_DOUBLE": is_double, "TOLERANCE": _TOLERANCE[is_double], "EPS": _EPS[is_double],
    }  # fmt: skip
    rooms: tuple[tuple[tuple[int, int], torch.dtype], ...] = ()
    if path == "tile":
        rows, block, warps = tile_shape(n, x.stride(-1))
        warps = warps_for(rows * block, warps, isinstance(alphas, Tensor))
        lanes, width = lanes_for(rows, block, warps, x.dtype.itemsize)
        numbers, n_programs = (rate, outer * inner, n, inner, *strides), -(-outer * inner // rows)
        start = wrap(any_tile_forward)[(n_programs,)](
            x, mask, tensor, y, *numbers, LANES=lanes, WIDTH=width, ROWS=rows, BLOCK=block, **options, num_warps=warps
        )
    else:
        cut = groups_of(n, x.dtype.itemsize)
        n_groups, n_programs = -(-n // cut.size), outer * inner
        rooms = rooms_for(x, n_groups)
        scratch = (torch.empty(shape, dtype=dtype, device=x.device) for shape, dtype in rooms)
        numbers = (rate, n, n_groups, inner, *strides)
        start = wrap(any_groups_forward)[(n_programs,)](
            x, mask, tensor, y, *scratch, *numbers, SLACK=_SLACK[is_double], GROUP=cut.size, CHUNK=cut.chunk,
            BATCH=cut.batch, GROUPS=next_power_of_2(n_groups), **options, num_warps=cut.warps,
        )  # fmt: skip
    is_repeatable = start is not None and not isinstance(alphas, Tensor) and not has_mask
    order = (0, 0, 0, *range(1, 2 + len(rooms)))
    return y, Plan(start, n_programs, order, rooms, numbers) if is_repeatable else None


def backward(
    probs: Tensor, grad: Tensor, alphas: Tensor | float, *, with_alpha: bool, wrap: Any = unwrapped, path: str = ""
) -> tuple[Tensor, Tensor]:
    """`entmax_backward` without torch's dispatcher; ``path`` forces one of "tile" and "groups"."""
    return planned_backward(probs, grad, alphas, with_alpha=with_alpha, wrap=wrap, path=path)[:2]


def planned_backward(
    probs: Tensor, grad: Tensor, alphas: Tensor | float, *, with_alpha: bool, wrap: Any = unwrapped, path: str = ""
) -> tuple[Tensor, Tensor, Plan | None]:
    """`backward`, which also returns a plan to repeat it if it is for a number."""
    outer, inner, n = probs.shape
    out = torch.empty_like(probs)
    is_double = probs.dtype == torch.float64
    tensor, rate, stride = _rates(alphas, probs)
    n_rows, dtype = outer * inner, torch.float64 if is_double else torch.float32
    grad_alphas = torch.empty(n_rows if with_alpha else 0, dtype=dtype, device=probs.device)
    tensors = (probs, grad, tensor, out, grad_alphas if with_alpha else out)
    strides = (*probs.stride(), *grad.stride(), *out.stride(), stride)
    rooms: tuple[tuple[tuple[int, int], torch.dtype], ...] = ()
    options = {"HAS_ALPHAS": isinstance(alphas, Tensor), "WITH_ALPHA": with_alpha, "IS_DOUBLE": is_double}
    if (path or path_for(n, probs.dtype.itemsize)) == "tile":
        rows, block, warps = tile_shape(n, probs.stride(-1))
        n_programs, numbers = -(-n_rows // rows), (rate, n_rows, n, inner, *strides)
        start = wrap(any_tile_backward)[(n_programs,)](
            *tensors, *numbers, ROWS=rows, BLOCK=block, **options,
            num_warps=warps_for(rows * block, warps, isinstance(alphas, Tensor)),
        )  # fmt: skip
    else:
        cut = groups_of(n, probs.dtype.itemsize)
        n_programs, n_groups = n_rows, -(-n // cut.size)
        rooms, numbers = (((n_rows, n_groups), torch.int32),), (rate, n, n_groups, inner, *strides)
        ids = torch.empty((n_rows, n_groups), dtype=torch.int32, device=probs.device)
        start = wrap(any_groups_backward)[(n_rows,)](
            *tensors, ids, *numbers, GROUP=cut.size, CHUNK=cut.chunk, BATCH=cut.batch, **options, num_warps=cut.warps
        )
    is_repeatable = start is not None and not options["HAS_ALPHAS"]
    order = (0, 1, 0, 2, 2, *range(3, 3 + len(rooms)))
    return out, grad_alphas, Plan(start, n_programs, order, rooms, numbers) if is_repeatable else None


def kind_of(alphas: Tensor | float) -> int:
    """What the kernels know of alpha when they are compiled."""
    if isinstance(alphas, Tensor):
        kind = ANY
    elif alphas - 1 < NEAR_1_BELOW.value:
        kind = NEAR_1
    elif alphas - 1 <= NEAR_2_ABOVE.value:
        kind = BETWEEN
    else:
        kind = NEAR_2 if alphas <= 2 else STEEP
    return int(kind.value)


def groups_of(n: int, itemsize: int) -> Groups:
    """Choose the groups of a row: smaller ones than for whole exponents, since its support is larger."""
    if itemsize == 2 and n <= HALF_MOST:
        return Groups(size=8, chunk=128, batch=32, warps=1)
    return Groups(size=32, chunk=128, batch=64, warps=8) if n <= SPLIT_MOST else groups_for(n)


def warps_for(n_entries: int, least: int, has_alphas: bool) -> int:
    """The number of warps of a program that holds so many entries in registers."""
    return max(least, min(n_entries // (32 * THREAD_ENTRIES[has_alphas]), 32))


def _rates(alphas: Tensor | float, stand_in: Tensor) -> tuple[Tensor, int, int]:
    """The kernels' arguments: a tensor with its stride, or the bits of alpha - 1, beside a tensor that is not read."""
    if isinstance(alphas, Tensor):
        return alphas, 0, spread(alphas)[0]
    return stand_in, _bits(max(alphas - 1, _LEAST)), 0


def _bits(number: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def path_for(n: int, itemsize: int) -> str:
    """The kernel that handles rows of ``n`` entries."""
    return "tile" if n <= TILE_MOST[itemsize] else "groups"
