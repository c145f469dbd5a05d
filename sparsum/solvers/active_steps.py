"""The active set method on a GPU with a kernel for each step: two or three launches beside those of the oracle."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.segments import positions_of, read_sizes
from sparsum.solvers.loop import run_again
from sparsum.solvers.quadratic import NEGLIGIBLE, Padded, Quadratic
from sparsum.solvers.rounding import snapped
from sparsum.structures.scores import flatten, unflatten

#: The smallest number of steps between host-device synchronizations.
_PACE = 4
#: Up to this number of rows, a launch takes as long for all of them as for those that are running.
FEW_ROWS = 128


def are_binary(
    linear: Tensor,  # shape: (n_rows, n_parts)
    problem: Quadratic,
    best: Tensor,  # shape: (n_rows, *event_shape)
    *_: object,
) -> bool:
    """0/1 vectors of moderate scores, up to `MOST_PARTS` parts."""
    from sparsum.kernels.active_steps import MOST_PARTS

    structure = problem.structure
    is_binary = structure.is_fixed_size or structure.bit_counts() is not None
    is_small = linear.numel() > 0 and linear.shape[-1] <= MOST_PARTS and best.dtype != torch.bool
    return is_binary and is_small and problem.scale is None and not problem.is_wide


def run_steps(
    linear: Tensor,  # shape: (n_rows, n_parts), that of the problem
    problem: Quadratic,
    best: Tensor,  # shape: (n_rows, *event_shape)
    tolerance: float,
    max_steps: int,
) -> Padded:
    """The atoms of all rows, from the best ones on."""
    from sparsum.kernels.active_steps import RUNNING, STOPPED, ActiveSteps  # needs Triton

    structure, weight, event_shape = problem.structure, problem.weight.contiguous(), best.shape[1:]
    if problem.is_forbidden is not None:
        linear = linear.masked_fill(problem.is_forbidden, -torch.inf)
    limit, vectors = linear.new_full((1,), tolerance), problem.vectors(best)  # Triton would pass a Python float as float32
    asked = snapped(torch.addcmul(linear, weight, vectors, value=-1))
    rows = ActiveSteps.start(linear, asked, best.reshape(len(best), -1), vectors)
    ids: Tensor | None = None
    every, n_left, n_steps = rows, len(linear), 0
    while n_left:
        pace = max(_PACE, n_steps // 4)
        for _ in range(pace):
            atoms = structure.argmax(unflatten(rows.asked, like=problem.form))
            rows.take(atoms.reshape(len(atoms), -1), flatten(structure.vectors(atoms)), weight, limit, max_steps)
        n_steps += pace
        n_left = int((rows.state == RUNNING).sum())
        if len(rows.state) > FEW_ROWS and 0 < 2 * n_left <= len(rows.state):
            if ids is not None:
                every.put(ids, rows)
            rest = positions_of(rows.state == RUNNING, n_left)
            ids = rest if ids is None else ids[rest]
            rows, structure = rows.select(rest), structure.select(rest)
    if ids is not None:
        every.put(ids, rows)
    is_stopped = every.state == STOPPED
    n_kept = (every.probs > NEGLIGIBLE).sum(-1).amax()
    n_slots, n_stopped = read_sizes(n_kept, is_stopped.sum(), most=every.probs.shape[-1])
    atoms = every.atoms.unflatten(-1, event_shape) if event_shape else every.atoms.squeeze(-1)
    done = Padded.from_slots(atoms, every.probs, every.steps.long(), n_slots, dtype=best.dtype)
    if n_stopped:
        again = positions_of(is_stopped, n_stopped)
        done = run_again(problem, done, again, tolerance=tolerance, max_steps=max_steps, is_snapped=True)
    return done
