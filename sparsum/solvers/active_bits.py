"""The active set method over bits on a GPU: one launch takes all steps, the usual loop what that leaves."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum import kernels
from sparsum.segments import read_sizes
from sparsum.solvers.loop import run_again
from sparsum.solvers.problem import NEGLIGIBLE, Padded, Problem
from sparsum.structures import Bits, Budget, Subset
from sparsum.structures.bad_rows import is_unusable, raise_bad_rows

# The largest number of bits that one program of the kernel holds well.
_MOST_BITS = 1024


def is_served(problem: Problem) -> bool:
    """Whether the kernel takes this problem."""
    n_rows, n = problem.linear.shape
    # Not a subclass, which may have another argmax.
    is_known = type(problem.structure) in (Bits, Budget, Subset)
    return is_known and n_rows > 0 and n <= _MOST_BITS and kernels.serve(problem.linear)


def run_bits(
    problem: Problem,
    flat: Tensor,  # shape: (n_rows, n), the scores
    *,
    tolerance: float,
    max_steps: int,
) -> Padded:
    """The atoms of all rows; waits for the device once.

    Raises:
        ValueError: if a row holds a NaN or +inf, or allows nothing.
    """
    from sparsum.kernels.active_set import active_set_of_bits  # needs Triton

    best, is_forbidden = problem.best(flat), problem.is_forbidden
    assert is_forbidden is not None
    is_bad = is_unusable(flat) | ((best != 0) & is_forbidden).any(-1)
    most, is_exact, weight = _kind(problem)
    linear = problem.linear.masked_fill(is_forbidden, -torch.inf).masked_fill(is_bad.unsqueeze(-1), 0.0)
    with torch.cuda.device_of(linear):
        atoms, probs, steps, is_stopped = active_set_of_bits(
            linear, best.to(torch.int8), most, is_exact, weight, tolerance, max_steps
        )
    n_kept = (probs > NEGLIGIBLE).sum(-1).amax()
    n_slots, n_stopped, n_bad = read_sizes(n_kept, is_stopped.sum(), is_bad.sum(), most=probs.shape[-1])
    if n_bad:
        raise_bad_rows(is_bad, flat)
    done = Padded.from_slots(atoms, probs, steps, n_slots, dtype=best.dtype)
    if n_stopped:
        rows = is_stopped.nonzero().squeeze(-1)
        return run_again(problem, done, rows, tolerance=tolerance, max_steps=max_steps, is_snapped=True)
    return done


def _kind(problem: Problem) -> tuple[int, bool, float]:
    """How many bits may be 1, whether exactly so many are, and the weight of all."""
    structure = problem.structure
    assert isinstance(structure, Bits | Budget | Subset)
    most = structure.k if isinstance(structure, Subset) else structure.most if isinstance(structure, Budget) else structure.n
    return most, isinstance(structure, Subset), 2.0 if structure.symmetric else 1.0
