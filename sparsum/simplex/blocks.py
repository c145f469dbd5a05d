"""Long rows: use block maxima to find the few entries that can be in the support.

The maximum of a block bounds all its entries, so a block whose maximum is below a lower bound of the threshold contains no
support. The maxima are themselves entries of the row, and the threshold of a subset of the entries is a lower bound of the
threshold of the row. The scores are read once; the remaining cost is proportional to the number of remaining entries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.segments import OnBad, Packed, Segments, is_any
from sparsum.simplex.thresholds import solve_packed, threshold_of

# On the CPU, rows of at least this size are read in blocks. Shorter rows fit into the cache and are read repeatedly.
_LONG_ROW = 8192
_BLOCK = 64
# If more than this fraction of the entries remains, packing costs more than it saves.
_MAX_SURVIVING = 0.125


def reads_in_blocks(x: Tensor) -> bool:
    """Whether the rows of ``x`` (n_rows, n) are long enough to benefit from the functions of this file."""
    return x.shape[-1] >= _LONG_ROW and not x.is_cuda


def block_peaks(x: Tensor) -> Tensor:
    """Maximum of each block of each row, (n_rows, n_blocks); the last block of a row may be shorter."""
    n_whole = x.shape[-1] // _BLOCK * _BLOCK
    peaks = x[:, :n_whole].reshape(len(x), -1, _BLOCK).amax(-1)
    if n_whole == x.shape[-1]:
        return peaks
    return torch.cat([peaks, x[:, n_whole:].amax(-1, keepdim=True)], -1)


def support(
    probs: Tensor,  # shape: (n_rows, n)
    *,
    is_bad: Tensor | None = None,  # shape: (n_rows,), bool
    on_bad: OnBad | None = None,
) -> Packed:
    """Pack the positive entries. Rows without any are bad as well; ``on_bad`` is called with all bad rows, if any."""
    if reads_in_blocks(probs) and probs.numel() > 0:
        zero = probs.new_zeros(len(probs), 1)
        packed = entries_above(probs.contiguous(), block_peaks(probs), zero, zero)
        if packed is not None:
            is_empty = packed.segments.lengths == 0
            is_bad = is_empty if is_bad is None else is_empty | is_bad
            if on_bad is not None and is_any(is_bad):
                on_bad(is_bad)
            return packed
    return Packed.of(probs > 0, is_bad=is_bad, is_empty_bad=True, on_bad=on_bad)


def solve_long(x: Tensor, peaks: Tensor, exponent: int) -> tuple[Packed, Tensor] | None:
    """Candidates and their probabilities for contiguous long rows with finite maxima; None if too many to pack."""
    peak = peaks.amax(-1, keepdim=True)
    # Slack for rounding: an entry exactly at the threshold must not be lost because of summation order.
    guess = threshold_of(peaks - peak, exponent) - 16 * torch.finfo(x.dtype).eps
    packed = entries_above(x, peaks, peak, exponent * guess)
    if packed is None:
        return None
    shifted = x.view(-1)[packed.flat] - peak.squeeze(-1)[packed.segments.row]
    # Few entries remain and they are summed sequentially, so double precision is cheap and avoids rounding errors.
    probs = solve_packed(shifted.double(), packed.segments, guess.squeeze(-1).double(), exponent)
    return packed, probs.to(x.dtype)


def entries_above(x: Tensor, peaks: Tensor, origin: Tensor, floor: Tensor) -> Packed | None:
    """Pack entries with ``x - origin > floor``, both (n_rows, 1); None if there are too many to be worth packing.

    Subtracting before the comparison matters: for scores like 1e30, ``origin + floor`` would round to ``origin``.
    """
    n_rows, n = x.shape
    row, block = (peaks - origin > floor).nonzero(as_tuple=True)
    if len(row) * _BLOCK > _MAX_SURVIVING * n_rows * n:
        return None
    # The last block of a row may be short: positions past the end are clamped to the last entry and dropped.
    within = block.unsqueeze(-1) * _BLOCK + torch.arange(_BLOCK, device=x.device)
    flat = row.unsqueeze(-1) * n + within.clamp_max(n - 1)
    is_above = (x.view(-1)[flat] - origin[row] > floor[row]) & (within < n)
    kept_row = row.unsqueeze(-1).expand_as(flat)[is_above]
    return Packed(flat[is_above], Segments.from_row(kept_row, n_rows))
