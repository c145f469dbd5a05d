"""The active set method over bits on a GPU: one launch takes all steps, the usual loop what that leaves."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.segments import read_sizes
from sparsum.solvers.loop import run_again
from sparsum.solvers.problem import NEGLIGIBLE, Padded, Problem
from sparsum.structures import Bits, Budget, Subset
from sparsum.structures.bad_rows import is_unusable, raise_bad_rows

# The largest number of bits that one program of the kernel holds well.
_MOST_BITS = 1024


def takes(
    flat: Tensor,  # shape: (n_rows, n), the scores
    problem: Problem,
    *_: object,
) -> bool:
    """`Bits`, `Budget` or `Subset` of up to `_MOST_BITS` bits."""
    # Not a subclass, which may have another argmax.
    return type(problem.structure) in (Bits, Budget, Subset) and len(flat) > 0 and flat.shape[-1] <= _MOST_BITS


def run_bits(
    flat: Tensor,  # shape: (n_rows, n), the scores
    problem: Problem,
    tolerance: float,
    max_steps: int,
) -> tuple[Problem, Padded]:
    """The atoms of all rows, by the kernel; waits for the device once.

    Raises:
        ValueError: if a row holds a NaN or +inf, or allows nothing.
    """
    from sparsum.kernels.active_set import active_set_of_bits  # needs Triton

    best, is_forbidden = problem.best(flat), problem.is_forbidden
    assert is_forbidden is not None
    is_bad = is_unusable(flat) | ((best != 0) & is_forbidden).any(-1)
    most, is_exact, weight = _kind(problem)
    linear = problem.linear.masked_fill(is_forbidden, -torch.inf).masked_fill(is_bad.unsqueeze(-1), 0.0)
    start = best.to(torch.int8)
    atoms, probs, steps, is_stopped = active_set_of_bits(linear, start, most, is_exact, weight, tolerance, max_steps)
    n_kept = (probs > NEGLIGIBLE).sum(-1).amax()
    n_slots, n_stopped, n_bad = read_sizes(n_kept, is_stopped.sum(), is_bad.sum(), most=probs.shape[-1])
    if n_bad:
        raise_bad_rows(is_bad, flat)
    done = Padded.from_slots(atoms, probs, steps, n_slots, dtype=best.dtype)
    if n_stopped:
        rows = is_stopped.nonzero().squeeze(-1)
        done = run_again(problem, done, rows, tolerance=tolerance, max_steps=max_steps, is_snapped=True)
    return problem, done


def _kind(problem: Problem) -> tuple[int, bool, float]:
    """How many bits may be 1, whether exactly so many are, and the weight of all."""
    structure = problem.structure
    assert isinstance(structure, Bits | Budget | Subset)
    most = structure.k if isinstance(structure, Subset) else structure.most if isinstance(structure, Budget) else structure.n
    return most, isinstance(structure, Subset), 2.0 if structure.symmetric else 1.0
