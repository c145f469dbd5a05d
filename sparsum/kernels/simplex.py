"""Entmax with a whole exponent 1 / (alpha - 1) on a GPU, forward and backward, as torch operators.

Sparsemax has exponent 1, 1.5-entmax exponent 2; the others need more arithmetic, but no powers either.

Rows are the last dimension of tensors (outer, inner, n) with any strides. The choice of the kernel depends only on n and the
dtype. There is no run-time tuning, so results are bitwise reproducible, and there is no host-device synchronization.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import triton_op

from sparsum.kernels.launch import Plan, next_power_of_2, unwrapped, wrap_triton
from sparsum.kernels.simplex_backward import groups_backward
from sparsum.kernels.simplex_groups import groups_forward, split_peaks, split_solve
from sparsum.kernels.simplex_tile import tile_backward, tile_forward

_HALF = (torch.float16, torch.bfloat16)

# Bytes per entry -> the longest rows that are kept in registers. The limit is lower in half precision, where a copy takes
# half as long but the arithmetic of the Newton steps over all entries stays the same.
TILE_MOST = {2: 2048, 4: 4096, 8: 2048}
# Rows longer than this are read by several programs each.
SPLIT_MOST = 65536
# The number of entries that each of those programs reads.
SPLIT_SIZE = 16384
# Largest block -> warps of a program that holds a row. A single warp does not exchange data through shared memory.
TILE_WARPS = {512: 1, 1024: 2, 2048: 4, 4096: 4, 8192: 8}
# From this block size on, rows are first solved for the maxima of the entries that each thread holds.
LANES_LEAST = 1024
# Short rows share a program, up to this number of entries.
TILE_ENTRIES = 128
# The shortest rows share a program with one entry per thread: two warps, so that few rows wait for each other's steps.
TINY_MOST = 32
TINY_ENTRIES = 64
# Rows whose entries are not contiguous in memory share a program, so that whole memory sectors are read.
STRIDED_ROWS = 16
STRIDED_ENTRIES = 8192


class Groups(NamedTuple):
    """How long rows are split: entries per group, groups per step of reading and of solving, and warps.

    Fewer ``registers`` per thread than the compiler would use let more rows run concurrently; 0 means no limit.
    """

    size: int
    chunk: int
    batch: int
    warps: int
    registers: int = 0


# Short rows in half precision: a group is what a thread loads at once, and a row belongs to one warp, which needs no
# synchronization between warps. Twice the 1.5-entmax support of normally distributed scores fits into a batch.
HALF_MOST = 4096
HALF_GROUPS = Groups(size=8, chunk=512, batch=32, warps=1)


def groups_for(n: int, itemsize: int = 4) -> Groups:
    """Choose the groups of a row: small groups exclude more entries, but too many have too many maxima to process."""
    if itemsize == 2 and n <= HALF_MOST and n % HALF_GROUPS.size == 0:
        return HALF_GROUPS
    if n <= 16384:
        return Groups(size=32, chunk=128, batch=32, warps=4)
    if n <= 262144:
        return Groups(size=64, chunk=64, batch=32, warps=8)
    return Groups(size=128, chunk=32, batch=16, warps=8)


@triton_op("sparsum::simplex_forward", mutates_args={})
def simplex_forward(x: Tensor, mask: Tensor | None, exponent: int) -> Tensor:
    """Probabilities of the rows of ``x`` (outer, inner, n), in its dtype; ``mask`` has 3 dimensions and is broadcast."""
    return forward(x, mask, exponent, wrap=wrap_triton)


@triton_op("sparsum::simplex_backward", mutates_args={})
def simplex_backward(probs: Tensor, grad: Tensor, exponent: int) -> Tensor:
    """The Jacobian at ``probs`` (outer, inner, n) times ``grad``."""
    return backward(probs, grad, exponent, wrap=wrap_triton)


def _keep_probs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.exponent = inputs[2]
    ctx.save_for_backward(output)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.sparsum.simplex_backward(ctx.saved_tensors[0], grad, ctx.exponent), None, None


# First derivatives, for graphs; `sparsum.simplex` implements derivatives of any order.
simplex_forward.register_autograd(_differentiate, setup_context=_keep_probs)


def forward(x: Tensor, mask: Tensor | None, exponent: int, *, wrap: Any = unwrapped, path: str = "") -> Tensor:
    """`simplex_forward` without torch's dispatcher; ``path`` forces one of "tile", "groups" and "split"."""
    return planned_forward(x, mask, exponent, wrap=wrap, path=path)[0]


def planned_forward(
    x: Tensor, mask: Tensor | None, exponent: int, *, wrap: Any = unwrapped, path: str = ""
) -> tuple[Tensor, Plan | None]:
    """`forward`, which also returns a plan to repeat it if it is a single launch without a mask."""
    path = path or path_for(x.shape[-1], x.dtype.itemsize)
    if path != "tile" and x.stride(-1) != 1:
        x = x.contiguous()
    y = torch.empty_like(x)
    launch = {"tile": _tile, "groups": _groups, "split": _split}[path]
    plan = launch(wrap, x, x if mask is None else mask, y, options_for(x, exponent, has_mask=mask is not None))
    return y, plan if mask is None else None


def backward(probs: Tensor, grad: Tensor, exponent: int, *, wrap: Any = unwrapped, path: str = "") -> Tensor:
    """`simplex_backward` without torch's dispatcher; ``path`` forces "tile" or "groups"."""
    return planned_backward(probs, grad, exponent, wrap=wrap, path=path)[0]


def planned_backward(
    probs: Tensor, grad: Tensor, exponent: int, *, wrap: Any = unwrapped, path: str = ""
) -> tuple[Tensor, Plan | None]:
    """`backward`, which also returns a plan to repeat it."""
    outer, inner, n = probs.shape
    out = torch.empty_like(probs)
    strides = (*probs.stride(), *grad.stride(), *out.stride())
    rooms: tuple[tuple[tuple[int, int], torch.dtype], ...] = ()
    is_double = probs.dtype == torch.float64
    if (path or path_for(n, probs.dtype.itemsize)) == "tile":
        rows, block, warps = tile_shape(n, probs.stride(-1))
        n_programs, numbers = -(-outer * inner // rows), (outer * inner, n, inner, *strides)
        start = wrap(tile_backward)[(n_programs,)](
            probs, grad, out, *numbers,
            EXPONENT=exponent, ROWS=rows, BLOCK=block, IS_DOUBLE=is_double, num_warps=warps if block < 2048 else 2 * warps,
        )  # fmt: skip
    else:
        cut = groups_for(n)
        wide = 2 if n > SPLIT_MOST else 1  # one program reads a whole row: more warps keep more loads in flight
        n_programs, n_groups = outer * inner, -(-n // cut.size)
        rooms, numbers = (((n_programs, n_groups), torch.int32),), (n, n_groups, inner, *strides)
        ids = torch.empty((n_programs, n_groups), dtype=torch.int32, device=probs.device)
        start = wrap(groups_backward)[(n_programs,)](
            probs, grad, out, ids, *numbers,
            EXPONENT=exponent, GROUP=cut.size, CHUNK=wide * cut.chunk, BATCH=wide * cut.batch, IS_DOUBLE=is_double,
            num_warps=wide * cut.warps,
        )  # fmt: skip
    order = tuple(range(3 + len(rooms)))
    return out, None if start is None else Plan(start, n_programs, order, rooms, numbers)


def path_for(n: int, itemsize: int) -> str:
    """The kernels that handle rows of ``n`` entries."""
    if n <= TILE_MOST[itemsize]:
        return "tile"
    return "groups" if n <= SPLIT_MOST else "split"


def tile_shape(n: int, stride: int) -> tuple[int, int, int]:
    """Rows per program, entries per row rounded up to a power of two, and warps."""
    block = max(next_power_of_2(n), 2)
    rows = max(TILE_ENTRIES // block, 1)
    warps = next((warps for most, warps in TILE_WARPS.items() if block <= most), 16)
    if block <= TINY_MOST:
        rows, warps = TINY_ENTRIES // block, TINY_ENTRIES // 32
    if stride != 1:
        rows = max(rows, min(STRIDED_ROWS, STRIDED_ENTRIES // block), 1)
        warps = min(max(rows * block // 512, 1), 16)
    return rows, block, warps


def lanes_for(rows: int, block: int, warps: int, itemsize: int) -> tuple[int, int]:
    """Threads that hold a row, and the number of adjacent entries each of them loads at once; 1 if not worthwhile.

    In half precision, the entries that a thread loads are not those that it holds after the conversion.
    """
    lanes, width = 32 * warps, 16 // itemsize
    return (lanes, width) if rows == 1 and itemsize >= 4 and block >= max(LANES_LEAST, lanes * width) else (1, 1)


def options_for(x: Tensor, exponent: int, *, has_mask: bool = False) -> dict[str, Any]:
    """Compile-time options of the kernels, except for block shapes."""
    is_double = x.dtype == torch.float64
    eps = 2.3e-16 if is_double else 1.2e-7
    return {
        "EXPONENT": exponent,
        "HAS_MASK": has_mask,
        "IS_HALF": x.dtype in _HALF,
        "IS_DOUBLE": is_double,
        "TOLERANCE": 4 * eps,
        "SLACK": 16 * eps,
    }


def _without(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def spread(tensor: Tensor) -> tuple[int, ...]:
    """Strides that broadcast a tensor: 0 in dimensions of size 1."""
    return tuple(0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _tile(wrap: Any, x: Tensor, mask: Tensor, y: Tensor, options: dict[str, Any]) -> Plan | None:
    outer, inner, n = x.shape
    rows, block, warps = tile_shape(n, x.stride(-1))
    lanes, width = lanes_for(rows, block, warps, x.dtype.itemsize)
    n_programs = -(-outer * inner // rows)
    numbers = (outer * inner, n, inner, *x.stride(), *spread(mask), *y.stride())
    start = wrap(tile_forward)[(n_programs,)](
        x, mask, y, *numbers,
        LANES=lanes, WIDTH=width, ROWS=rows, BLOCK=block, **_without(options, "SLACK"), num_warps=warps,
    )  # fmt: skip
    return None if start is None else Plan(start, n_programs, (0, 0, 1), (), numbers)


def scratch(x: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
    """Scratch buffers for the maxima of all groups, and for the list of groups that can hold support."""
    peaks, ids = (torch.empty(shape, dtype=dtype, device=x.device) for shape, dtype in rooms_for(x, n_groups))
    return peaks, ids


def rooms_for(x: Tensor, n_groups: int) -> tuple[tuple[tuple[int, int], torch.dtype], ...]:
    """Shapes and dtypes of `scratch`."""
    shape = (x.shape[0] * x.shape[1], n_groups)
    return (shape, torch.float64 if x.dtype == torch.float64 else torch.float32), (shape, torch.int32)


def _groups(wrap: Any, x: Tensor, mask: Tensor, y: Tensor, options: dict[str, Any]) -> Plan | None:
    outer, inner, n = x.shape
    cut = groups_for(n, x.dtype.itemsize)
    n_groups = -(-n // cut.size)
    # torch.compile considers a tensor mutated if its values determine store addresses, unless they pass through memory.
    in_registers = wrap is unwrapped and n_groups <= cut.chunk
    rooms = rooms_for(x, n_groups)[1:] if in_registers else rooms_for(x, n_groups)
    kept = [torch.empty(shape, dtype=dtype, device=x.device) for shape, dtype in rooms]
    numbers = (n, n_groups, inner, *x.stride(), *spread(mask), *y.stride())
    limit = {"maxnreg": cut.registers} if cut.registers and wrap is unwrapped else {}
    start = wrap(groups_forward)[(outer * inner,)](
        x, mask, y, kept[0], kept[-1], *numbers,
        GROUP=cut.size, CHUNK=cut.chunk, BATCH=cut.batch, GROUPS=next_power_of_2(n_groups),
        IN_REGISTERS=in_registers, **options, num_warps=cut.warps, **limit,
    )  # fmt: skip
    return None if start is None else Plan(start, outer * inner, (0, 0, 1, 2, len(rooms) + 1), rooms, numbers)


def _split(wrap: Any, x: Tensor, mask: Tensor, y: Tensor, options: dict[str, Any]) -> None:
    outer, inner, n = x.shape
    cut = groups_for(n)
    n_groups, n_each = -(-n // cut.size), SPLIT_SIZE // cut.size
    peaks, ids = scratch(x, n_groups)
    strides = (*x.stride(), *spread(mask), *y.stride())
    wrap(split_peaks)[(outer * inner, -(-n_groups // n_each))](
        x, mask, y, peaks, n, n_groups, n_each, inner, *strides, ZERO=True, GROUP=cut.size, CHUNK=cut.chunk,
        **_without(options, "EXPONENT", "IS_HALF", "TOLERANCE", "SLACK"), num_warps=cut.warps,
    )  # fmt: skip
    wrap(split_solve)[(outer * inner,)](
        x, mask, y, peaks, ids, n, n_groups, inner, *strides,
        GROUP=cut.size, BATCH=cut.batch, GROUPS=next_power_of_2(n_groups), **options, num_warps=cut.warps,
    )  # fmt: skip
