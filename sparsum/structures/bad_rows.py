"""Naming the rows whose scores give no distribution."""

from __future__ import annotations

import torch
from torch import Tensor

_SHOWN_ROWS = 5


class NoDistribution(ValueError):
    """Rows of scores that have no distribution."""


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
    raise NoDistribution(f"scores must give every row a distribution; {', '.join(kinds)}{more} (of {len(is_bad)})")
