"""Convert to the packed form, with checks that cost at most one host-device synchronization."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from sparsum.arguments import kind_of
from sparsum.segments import Segments
from sparsum.simplex.blocks import support
from sparsum.structures import AbstractStructure, OneOf
from sparsum.structures.scores import as_tuple

_SHOWN_ROWS = 5


def validates(validate_args: bool | None) -> bool:
    """Resolve the flag; the default is True, or False under ``python -O``.

    The default of `torch.distributions` is not used because `torch.compile` disables it for the whole process.
    """
    return __debug__ if validate_args is None else validate_args


def broadcast_value(value: Tensor, batch_shape: torch.Size, event_shape: torch.Size) -> Tensor:
    """Broadcast a value to shape (*sample_shape, *batch_shape, *event_shape)."""
    if not isinstance(value, Tensor):
        raise TypeError(f"value must be a torch.Tensor, got {type(value).__name__}")
    n_lead = value.ndim - len(event_shape)
    if n_lead >= 0 and value.shape[n_lead:] == event_shape:
        with contextlib.suppress(RuntimeError):
            return value.expand(torch.broadcast_shapes(value.shape[:n_lead], batch_shape) + event_shape)
    wanted = ", ".join(["*sample_shape", *map(str, batch_shape + event_shape)])
    raise ValueError(f"value must have shape ({wanted}), or one that broadcasts to it, got {tuple(value.shape)}")


def check_structure_or_none(structure: AbstractStructure | None) -> None:
    """Raise a TypeError unless ``structure`` is a structure or None."""
    if structure is not None and not isinstance(structure, AbstractStructure):
        raise TypeError(f"structure must be an AbstractStructure or None, got {kind_of(structure)}")


def n_rows_of(atoms: Tensor, probs: Tensor, row: Tensor, batch_shape: Sequence[int] | None) -> int:
    """Check shapes and dtypes, and return the number of rows."""
    for name, value in (("atoms", atoms), ("probs", probs), ("row", row)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if not probs.is_floating_point():
        raise TypeError(f"probs must have a floating-point dtype, got {probs.dtype}")
    if row.dtype != torch.int64:
        raise TypeError(f"row must have dtype torch.int64, got {row.dtype}")
    if probs.ndim != 1 or row.shape != probs.shape or atoms.shape[:1] != probs.shape:
        raise ValueError(
            "atoms, probs and row must have shapes (n_atoms, *event_shape), (n_atoms,) and (n_atoms,), "
            f"got {tuple(atoms.shape)}, {tuple(probs.shape)} and {tuple(row.shape)}"
        )
    if batch_shape is not None:
        return math.prod(batch_shape)
    return int(row[-1]) + 1 if len(row) else 0


def check_packed(atoms: Tensor, probs: Tensor, row: Tensor, n_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Drop atoms of probability 0; raise a ValueError if a row is not a distribution."""
    # The row indices are not validated yet: clamp them before indexing.
    is_unsorted = (row.diff() < 0).any() | (row < 0).any() | (row >= n_rows).any()
    segments = Segments.from_row(row.clamp(0, max(n_rows - 1, 0)), max(n_rows, 1))
    total = segments.sum(probs.detach().double())
    is_bad = ~((total - 1).abs() <= _tolerance(probs)) | (segments.sum((probs < 0).double()) > 0)
    n_unsorted, n_bad, n_zeros = torch.stack([is_unsorted.long(), is_bad[:n_rows].sum(), (probs == 0).sum()]).tolist()
    if n_unsorted:
        raise ValueError(f"row must be sorted, with values from 0 to {n_rows - 1}, got {row}")
    if n_bad:
        _raise_bad_rows(total, is_bad)
    if n_zeros:
        kept = probs.detach() > 0
        atoms, probs, row = atoms[kept], probs[kept], row[kept]
    return atoms, probs, row


def check_members(structure: AbstractStructure, atoms: Tensor, row: Tensor) -> None:
    """Raise a TypeError or ValueError unless atoms are assignments of the structure, as far as it can tell."""
    if isinstance(structure, OneOf) and (atoms.ndim != 1 or atoms.is_floating_point()):
        raise TypeError(
            f"atoms of {structure!r} must be integers of shape (n_atoms,), got {atoms.dtype} {tuple(atoms.shape)}"
        )
    is_other = ~structure.select(row).contains(atoms)
    if bool(is_other.any()):
        first = int(is_other.nonzero()[0])
        raise ValueError(f"atoms must be assignments of {structure!r}, got {atoms[first].tolist()} in row {int(row[first])}")
    with contextlib.suppress(TypeError):  # score_shape is optional
        wanted, vectors = tuple(structure.score_shape), as_tuple(structure.select(row[:1]).vectors(atoms[:1]))[0]
        if len(atoms) and tuple(vectors.shape[1:]) != wanted:
            raise ValueError(
                f"atoms must be assignments of {structure!r}, whose vectors have shape {wanted}, got atoms of shape "
                f"{tuple(atoms.shape[1:])} with vectors of shape {tuple(vectors.shape[1:])}"
            )


def check_distinct(atoms: Tensor, row: Tensor) -> None:
    """Raise a ValueError if an atom occurs twice in a row."""
    # Rows become floats if atoms are: in half precision, others would be equal.
    entries = atoms.double() if atoms.is_floating_point() else atoms
    named = torch.cat([row.unsqueeze(1), entries.unsqueeze(1).flatten(1)], 1)
    _, place, count = named.unique(dim=0, return_inverse=True, return_counts=True)
    if len(count) < len(atoms):
        first = int((count[place] > 1).nonzero()[0])
        raise ValueError(
            f"atoms must be distinct within each row, got {atoms[first].tolist()} twice in row {int(row[first])}"
        )


def pack_dense(
    probs: Tensor,  # shape: (*batch, n)
    *,
    checks: bool,
) -> tuple[Tensor, Tensor, Segments]:
    """Pack the positive entries: their indices, probabilities and segments."""
    if not isinstance(probs, Tensor):
        raise TypeError(f"probs must be a torch.Tensor, got {type(probs).__name__}")
    if not probs.is_floating_point():
        raise TypeError(f"probs must have a floating-point dtype, got {probs.dtype}")
    if probs.ndim == 0 or probs.shape[-1] == 0:
        raise ValueError(f"probs must have shape (*batch, n) with n at least 1, got {tuple(probs.shape)}")
    rows = probs.reshape(-1, probs.shape[-1])
    fixed = rows.detach()
    total = fixed.sum(-1, dtype=torch.float64)
    is_bad = ~((total - 1).abs() <= _tolerance(probs)) | (fixed.amin(-1) < 0)
    packed = support(fixed, is_bad=is_bad, on_bad=functools.partial(_raise_bad_rows, total) if checks else None)
    return packed.flat % probs.shape[-1], packed.take(rows), packed.segments


def _tolerance(probs: Tensor) -> float:
    """The largest allowed difference between the sum of rounded probabilities and 1."""
    return max(1e-6, 10 * torch.finfo(probs.dtype).eps)


def _raise_bad_rows(total: Tensor, is_bad: Tensor) -> NoReturn:
    rows = is_bad.nonzero().squeeze(-1).tolist()
    shown = ", ".join(f"row {row} sums to {total[row].item():.6g}" for row in rows[:_SHOWN_ROWS])
    more = f" and {len(rows) - _SHOWN_ROWS} more" if len(rows) > _SHOWN_ROWS else ""
    raise ValueError(f"probs must be non-negative, without NaN, and sum to 1 in every row; {shown}{more} (of {len(is_bad)})")
