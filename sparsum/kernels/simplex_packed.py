"""The packed support of sparsemax and 1.5-entmax, in two steps; the host reads its size in between."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsum.kernels.launch import next_power_of_2, unwrapped
from sparsum.kernels.simplex import SPLIT_SIZE, groups_for, lanes_for, options_for, path_for, scratch, tile_shape
from sparsum.kernels.simplex_groups import split_peaks
from sparsum.kernels.simplex_support import (
    groups_pack,
    groups_support,
    packed_backward,
    tile_pack,
    tile_support,
)

# The number of lengths that a program sums at a time to find where its rows start, and of padding entries it writes at once.
_AT_ONCE = 256


def support(x: Tensor, exponent: int, *, wrap: Any = unwrapped, path: str = "") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Solve the rows of ``x`` (n_rows, 1, n) and find the size of their support, as input for `pack`.

    ``path`` forces one of "tile", "groups" and "split".

    Returns:
        The solution (n_rows, 3), the size of the support (n_rows,), which is 0 for a fully masked row or a row with a NaN,
        and for long rows the groups that can hold support (n_rows, n_groups) and their number (n_rows,).
    """
    n_rows, _, n = x.shape
    path = path or path_for(n, x.dtype.itemsize)
    options = options_for(x, exponent)
    acc = torch.float64 if x.dtype == torch.float64 else torch.float32
    solution = torch.empty((n_rows, 3), dtype=acc, device=x.device)
    lengths = torch.empty((n_rows,), dtype=torch.int64, device=x.device)
    n_ids = torch.empty((n_rows,), dtype=torch.int32, device=x.device)
    if path == "tile":
        rows, block, warps = tile_shape(n, 1)
        lanes, width = lanes_for(rows, block, warps, x.dtype.itemsize)
        wrap(tile_support)[((n_rows + rows - 1) // rows,)](
            x, solution, lengths, n_rows, n, 1, *x.stride(), EXPONENT=exponent, TOLERANCE=options["TOLERANCE"],
            LANES=lanes, WIDTH=width, ROWS=rows, BLOCK=block, IS_DOUBLE=options["IS_DOUBLE"], num_warps=warps,
        )  # fmt: skip
        return solution, lengths, torch.empty((n_rows, 0), dtype=torch.int32, device=x.device), n_ids
    cut = groups_for(n)
    n_groups = -(-n // cut.size)
    peaks, ids = scratch(x, n_groups)
    if path == "split":
        _read_split(wrap, x, peaks, n_groups, options)
    wrap(groups_support)[(n_rows,)](
        x, peaks, ids, solution, lengths, n_ids, n, n_groups, 1, *x.stride(),
        EXPONENT=exponent, TOLERANCE=options["TOLERANCE"], SLACK=options["SLACK"], READ=path != "split", GROUP=cut.size,
        CHUNK=cut.chunk, BATCH=cut.batch, GROUPS=next_power_of_2(n_groups), IS_DOUBLE=options["IS_DOUBLE"],
        num_warps=cut.warps,
    )  # fmt: skip
    return solution, lengths, ids, n_ids


def _read_split(wrap: Any, x: Tensor, peaks: Tensor, n_groups: int, options: dict[str, Any]) -> None:
    """Compute the group maxima of long rows, with several programs per row."""
    n_rows, _, n = x.shape
    cut = groups_for(n)
    n_each = SPLIT_SIZE // cut.size
    wrap(split_peaks)[(n_rows, -(-n_groups // n_each))](
        x, x, x, peaks, n, n_groups, n_each, 1, *x.stride(), *x.stride(), *x.stride(),
        HAS_MASK=False, ZERO=False, GROUP=cut.size, CHUNK=cut.chunk, IS_DOUBLE=options["IS_DOUBLE"], num_warps=cut.warps,
    )  # fmt: skip


def pack(
    x: Tensor, found: tuple[Tensor, Tensor, Tensor, Tensor], n_entries: int, exponent: int, *, wrap: Any = unwrapped
) -> tuple[Tensor, Tensor, Tensor]:
    """Sorted positions in the flattened ``x`` (n_rows, 1, n), probabilities and rows of the support found by `support`.

    If ``n_entries`` exceeds the size of the support, padding has the last position of ``x`` and probability 0.
    """
    solution, lengths, ids, n_ids = found
    n_rows, _, n = x.shape
    flat, of_row = torch.empty((2, n_entries), dtype=torch.int64, device=x.device).unbind()
    packed = torch.empty((n_entries,), dtype=solution.dtype, device=x.device)
    if not n_rows:
        return flat, packed, of_row
    is_double = x.dtype == torch.float64
    if ids.shape[1] == 0:
        rows, block, warps = tile_shape(n, 1)
        wrap(tile_pack)[((n_rows + rows - 1) // rows,)](
            x, solution, lengths, flat, packed, of_row, n_rows, n, n_entries, 1, *x.stride(),
            EXPONENT=exponent, ROWS=rows, BLOCK=block, AT_ONCE=_AT_ONCE, IS_DOUBLE=is_double, num_warps=warps,
        )  # fmt: skip
        return flat, packed, of_row
    cut = groups_for(n)
    wrap(groups_pack)[(n_rows,)](
        x, ids, solution, lengths, n_ids, flat, packed, of_row, n, ids.shape[1], n_entries, 1, *x.stride(),
        EXPONENT=exponent, GROUP=cut.size, BATCH=cut.batch, AT_ONCE=_AT_ONCE, IS_DOUBLE=is_double, num_warps=cut.warps,
    )  # fmt: skip
    return flat, packed, of_row


def pull(
    grad: Tensor,  # shape: (n_entries,)
    flat: Tensor,  # shape: (n_entries,)
    probs: Tensor,  # shape: (n_entries,)
    lengths: Tensor,  # shape: (n_rows,)
    n: int,
    exponent: int,
) -> Tensor:
    """The gradient with respect to the scores, (n_rows, n), given that of the packed probabilities; 0 off the support."""
    result = grad.new_zeros(len(lengths), n)
    unwrapped(packed_backward)[(len(lengths),)](
        grad, flat, probs, lengths, result, EXPONENT=exponent, ENTRIES=128, AT_ONCE=_AT_ONCE, num_warps=4
    )
    return result
