"""The loop of the active set method, from initial atoms to those of the optimum."""

from __future__ import annotations

from torch import Tensor

from sparsum.solvers.active_rows import ActiveRows
from sparsum.solvers.lazy_rows import LazyRows
from sparsum.solvers.quadratic import Finished, Padded, Quadratic


def run(
    problem: Quadratic,
    ids: Tensor,  # shape: (n_rows,)
    atoms: Tensor,  # shape: (n_rows, n_slots, *event_shape)
    probs: Tensor,  # shape: (n_rows, n_slots)
    steps: Tensor,  # shape: (n_rows,)
    *,
    tolerance: float,
    max_steps: int,
    is_snapped: bool,
) -> Finished:
    """Step until all rows are done; finished rows are removed from the batch from time to time."""
    rows = ActiveRows(problem, ids, atoms, probs, steps, tolerance=tolerance, max_steps=max_steps, is_snapped=is_snapped)
    if len(ids) and is_lazy(atoms):
        return Finished.concatenate(LazyRows(rows).run())
    pieces: list[Finished] = []
    while len(rows.ids):
        rows.step()
        if 4 * rows.n_done >= len(rows.ids):
            pieces.append(rows.take_done())
    return Finished.concatenate(pieces) if pieces else rows.take_done()


def run_again(
    problem: Quadratic,
    done: Padded,
    rows: Tensor,  # shape: (n,)
    *,
    tolerance: float,
    max_steps: int,
    is_snapped: bool,
) -> Padded:
    """Continue the loop for some rows; the others do not change."""
    start = (rows, done.atoms[rows], done.probs[rows], done.steps[rows])
    redone = run(problem.select(rows), *start, tolerance=tolerance, max_steps=max_steps, is_snapped=is_snapped)
    return done.replaced(redone)


def is_lazy(atoms: Tensor) -> bool:
    """Whether to inspect the rows only every few steps: on a GPU, a synchronization costs as much as a step."""
    return atoms.is_cuda
