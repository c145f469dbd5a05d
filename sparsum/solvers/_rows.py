"""Packing the kept entries of padded rows, and naming the rows that have no distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.segments import Segments, positions_of

_SHOWN_ROWS = 5


def pack_kept(
    kept: Tensor,  # shape: (n_rows, width), bool
    flat: Tensor,  # shape: (n_rows, n_parts), the scores
    is_bad: Tensor,  # shape: (n_rows,), bool
) -> tuple[Tensor, Segments]:
    """The column of each kept entry, (n,), and the segments; their number and that of bad rows come in one transfer."""
    lengths = kept.sum(-1)
    n, n_bad = torch.stack([lengths.sum(), is_bad.sum()]).tolist()
    if n_bad:
        raise_bad_rows(is_bad, flat)
    return positions_of(kept.reshape(-1), n) % kept.shape[-1], Segments.from_lengths(lengths, n)


def is_unusable(
    flat: Tensor,  # shape: (n_rows, n_parts)
) -> Tensor:
    """Which rows hold a NaN or +inf: (n_rows,)."""
    return ~(flat < torch.inf).all(-1)


def _what_is_wrong(row: Tensor) -> str:
    if bool(row.isnan().any()):
        return "has a NaN"
    return "has +inf" if bool((row == torch.inf).any()) else "allows nothing"


def raise_bad_rows(is_bad: Tensor, flat: Tensor) -> None:
    """Raise a ValueError that names rows and what is wrong with them."""
    bad = is_bad.nonzero().squeeze(-1).tolist()
    kinds = [f"row {row} {_what_is_wrong(flat[row])}" for row in bad[:_SHOWN_ROWS]]
    more = f" and {len(bad) - _SHOWN_ROWS} more" if len(bad) > _SHOWN_ROWS else ""
    raise ValueError(f"scores must give every row a distribution; {', '.join(kinds)}{more} (of {len(is_bad)})")
