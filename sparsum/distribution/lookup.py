"""Look up the probabilities of assignments among packed atoms, and sample from packed atoms."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.segments import Segments


def log_probs_at(
    atoms: Tensor,  # shape: (n_atoms, *event_shape)
    probs: Tensor,  # shape: (n_atoms,)
    segments: Segments,
    queries: Tensor,  # shape: (n_queries, *event_shape)
    row: Tensor,  # shape: (n_queries,)
    n_pairs: int | None,
) -> Tensor:
    """Log-probability of queries, each under its own row: (n_queries,); see `SparseDistribution.log_prob_of`."""
    lengths = segments.lengths[row]
    pairs = Segments.from_lengths(lengths, int(lengths.sum()) if n_pairs is None else n_pairs, like=segments)
    offset = torch.arange(len(pairs.row), device=row.device) - pairs.starts[pairs.row]
    atom = (segments.starts[row][pairs.row] + offset).clamp_max(max(len(atoms) - 1, 0))
    is_equal = atoms[atom] == queries[pairs.row]
    for _ in atoms.shape[1:]:
        is_equal = is_equal.all(-1)
    total = pairs.sum(torch.where(is_equal, probs.index_select(0, atom), 0.0))
    return torch.where(total > 0, log_of(total), -torch.inf).to(probs.dtype)


def draw_places(
    probs: Tensor,  # shape: (n_atoms,)
    segments: Segments,
    n: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Draw n independent samples from each row, as indices of packed atoms: (n, n_rows)."""
    with torch.no_grad():
        wide = probs.double()
        uniform = torch.rand((n, segments.n_rows), generator=generator, dtype=torch.float64, device=probs.device)
        # One cumulative sum over all rows: row r owns the interval from the start of its first atom to the end of its last.
        ends = wide.cumsum(0)
        last = segments.starts + segments.lengths - 1
        begin = (ends - wide)[segments.starts]
        chosen = torch.searchsorted(ends, begin + uniform * (ends[last] - begin), right=True)
        return torch.minimum(torch.maximum(chosen, segments.starts), last)


def log_of(probs: Tensor) -> Tensor:
    """Logarithm with a finite value and gradient at 0, in at least float32: half precision has values below its tiny."""
    probs = probs.float() if torch.finfo(probs.dtype).bits == 16 else probs
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
