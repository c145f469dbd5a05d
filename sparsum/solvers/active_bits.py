"""The active set method over bits on a GPU: one launch takes all steps, the usual loop what that leaves."""

from __future__ import annotations

import torch

from sparsum import kernels
from sparsum.segments import read_sizes
from sparsum.solvers.loop import run_again
from sparsum.solvers.quadratic import NEGLIGIBLE, Padded, Quadratic
from sparsum.structures import BoundScores

# The largest number of bits that one program of the kernel holds well.
_MOST_BITS = 1024


def is_served(problem: Quadratic) -> bool:
    """Whether the kernel takes this problem."""
    n_rows, n = problem.linear.shape
    return problem.structure.bit_counts() is not None and n_rows > 0 and n <= _MOST_BITS and kernels.serve(problem.linear)


def run_bits(
    problem: Quadratic,
    rows: BoundScores,
    *,
    tolerance: float,
    max_steps: int,
) -> Padded:
    """The atoms of all rows; waits for the device once.

    Raises:
        ValueError: if a row holds a NaN or +inf, or allows nothing.
    """
    from sparsum.kernels.active_set import active_set_of_bits  # needs Triton

    best, is_forbidden, counts = problem.best(rows.flat), problem.is_forbidden, problem.structure.bit_counts()
    assert is_forbidden is not None
    assert counts is not None
    is_bad = rows.is_unusable | ((best != 0) & is_forbidden).any(-1)
    weight = 2.0 if counts.is_symmetric else 1.0
    linear = problem.linear.masked_fill(is_forbidden, -torch.inf).masked_fill(is_bad.unsqueeze(-1), 0.0)
    with torch.cuda.device_of(linear):
        atoms, probs, steps, is_stopped = active_set_of_bits(
            linear, best.to(torch.int8), counts.most, counts.is_exact, weight, tolerance, max_steps
        )
    n_kept = (probs > NEGLIGIBLE).sum(-1).amax()
    n_slots, n_stopped, n_bad = read_sizes(n_kept, is_stopped.sum(), is_bad.sum(), most=probs.shape[-1])
    if n_bad:
        rows.raise_bad(is_bad)
    done = Padded.from_slots(atoms, probs, steps, n_slots, dtype=best.dtype)
    if n_stopped:
        again = is_stopped.nonzero().squeeze(-1)
        return run_again(problem, done, again, tolerance=tolerance, max_steps=max_steps, is_snapped=True)
    return done
