"""Packing the kept entries of padded rows."""

from __future__ import annotations

from torch import Tensor

from sparsum.segments import Segments, positions_of, read_sizes
from sparsum.structures.bad_rows import raise_bad_rows


def pack_kept(
    kept: Tensor,  # shape: (n_rows, width), bool
    flat: Tensor,  # shape: (n_rows, n_parts), the scores
    is_bad: Tensor,  # shape: (n_rows,), bool
) -> tuple[Tensor, Segments]:
    """The column of each kept entry, (n,), and the segments; their number and that of bad rows come in one transfer."""
    lengths = kept.sum(-1)
    n, n_bad = read_sizes(lengths.sum(), is_bad.sum(), most=kept.numel())
    if n_bad:
        raise_bad_rows(is_bad, flat)
    return positions_of(kept.reshape(-1), n) % kept.shape[-1], Segments.from_lengths(lengths, n)
