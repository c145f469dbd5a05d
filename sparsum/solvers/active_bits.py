"""The active set method over bits on a GPU: one kernel launch runs all steps, the usual loop handles remaining rows."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.segments import read_sizes
from sparsum.solvers.loop import run_again
from sparsum.solvers.quadratic import NEGLIGIBLE, Padded, Quadratic
from sparsum.structures import BoundScores

# The largest number of bits that one program of the kernel handles efficiently.
_MOST_BITS = 1024


def are_few_bits(
    flat: Tensor,  # shape: (n_rows, n), the scores
    _rows: BoundScores,
    problem: Quadratic,
    *_: object,
) -> bool:
    """`Bits`, `Budget`, `Subset` and custom structures with `bit_counts`, up to `_MOST_BITS` bits."""
    return problem.structure.bit_counts() is not None and len(flat) > 0 and flat.shape[-1] <= _MOST_BITS


def run_bits(
    flat: Tensor,  # shape: (n_rows, n), the scores
    rows: BoundScores,
    problem: Quadratic,
    tolerance: float,
    max_steps: int,
) -> tuple[Quadratic, Padded]:
    """The atoms of all rows, by the kernel; one host-device synchronization.

    Raises:
        ValueError: if a row contains NaN or +inf, or is fully masked.
    """
    from sparsum.kernels.active_set import active_set_of_bits  # needs Triton

    best, is_forbidden, counts = problem.best(flat), problem.is_forbidden, problem.structure.bit_counts()
    assert is_forbidden is not None
    assert counts is not None
    is_bad = rows.is_unusable | ((best != 0) & is_forbidden).any(-1)
    weight = 2.0 if counts.is_symmetric else 1.0
    linear = problem.linear.masked_fill(is_forbidden, -torch.inf).masked_fill(is_bad.unsqueeze(-1), 0.0)
    start = best.to(torch.int8)
    atoms, probs, steps, is_stopped = active_set_of_bits(
        linear, start, counts.most, counts.is_exact, weight, tolerance, max_steps
    )
    n_kept = (probs > NEGLIGIBLE).sum(-1).amax()
    n_slots, n_stopped, n_bad = read_sizes(n_kept, is_stopped.sum(), is_bad.sum(), most=probs.shape[-1])
    if n_bad:
        rows.raise_bad(is_bad)
    done = Padded.from_slots(atoms, probs, steps, n_slots, dtype=best.dtype)
    if n_stopped:
        again = is_stopped.nonzero().squeeze(-1)
        done = run_again(problem, done, again, tolerance=tolerance, max_steps=max_steps, is_snapped=True)
    return problem, done
