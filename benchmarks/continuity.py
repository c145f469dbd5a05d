"""How far expected losses jump under noise of 1e-9 on the scores: the active set's atoms, and pulled ones.

Run it with ``OMP_NUM_THREADS=1 python -m benchmarks.continuity --rows 10000``.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor

import sparsum as sp
from sparsum.solvers import AbstractSolver, ActiveSet, Pulled
from sparsum.structures.scores import Scores, as_tuple, flatten

NOISE, JUMP, BATCH = 1e-9, 1e-3, 1000


def lengths(n: int) -> Tensor:
    """Different lengths up to n for a batch."""
    return torch.arange(BATCH) % n + 1


CASES: dict[str, sp.AbstractStructure] = {
    "Sequence(6, 4)": sp.Sequence(6, 4),
    "Sequence(6, 3), lengths": sp.Sequence(6, 3, lengths=lengths(6)),
    "Tree(6)": sp.Tree(6),
    "Tree(6), single root": sp.Tree(6, single_root=True),
    "Tree(6), lengths": sp.Tree(6, lengths=lengths(6)),
    "Matching(6)": sp.Matching(6),
    "Matching(4, 6)": sp.Matching(4, 6),
}


def scores_of(structure: sp.AbstractStructure, generator: torch.Generator) -> Scores:
    """Normal scores of a batch, with transitions for sequences."""
    shapes = [(BATCH, *structure.score_shape)]
    if isinstance(structure, sp.Sequence):
        length, n = structure.score_shape
        shapes.append((BATCH, length - 1, n, n))
    tensors = tuple(torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes)
    return tensors if len(tensors) > 1 else tensors[0]


def expected(scores: Scores, structure: sp.AbstractStructure, solver: AbstractSolver, direction: Tensor) -> Tensor:
    """The expectation of sin(<z, w>) for the vectors z: (n_rows,)."""
    bound = structure.bind(scores)
    solution = solver.solve(bound)
    vectors = flatten(bound.structure.select(solution.segments.row).vectors(solution.atoms)).double()
    return solution.segments.sum(torch.sin(vectors @ direction) * solution.probs)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=BATCH, help="per structure, in batches of 1000")
    n_batches = -(-parser.parse_args().rows // BATCH)
    print(f"{BATCH * n_batches} rows each, noise of {NOISE}: changes above {JUMP}, and the largest one")
    print(f"{'':26} {'active set':>12} {'largest':>9} {'pulled':>8} {'largest':>9} {'seconds':>9}")
    for name, structure in CASES.items():
        generator = torch.Generator().manual_seed(0)
        changes: dict[type[AbstractSolver], list[Tensor]] = {ActiveSet: [], Pulled: []}
        begin = time.perf_counter()
        for _ in range(n_batches):
            scores = scores_of(structure, generator)
            noisy = tuple(t + NOISE * torch.randn(t.shape, dtype=t.dtype, generator=generator) for t in as_tuple(scores))
            near = noisy if isinstance(scores, tuple) else noisy[0]
            w = 3 * torch.randn(structure.bind(scores).flat.shape[-1], dtype=torch.float64, generator=generator)
            for kind, found in changes.items():
                found.append((expected(scores, structure, kind(), w) - expected(near, structure, kind(), w)).abs())
        active_set, pulled = (torch.cat(found) for found in changes.values())
        print(
            f"{name:26} {(active_set > JUMP).double().mean():12.1%} {active_set.max():9.1e}"
            f" {int((pulled > JUMP).sum()):8} {pulled.max():9.1e} {time.perf_counter() - begin:9.0f}"
        )


if __name__ == "__main__":
    main()
