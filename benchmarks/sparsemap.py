"""SparseMAP and top-k over structures: closed forms, the active set, and k-best search, forward and backward.

The authors' C++ engine no longer installs, so its times cannot be measured in the same run. They are constants here,
measured once on one core of a similar machine (CPU ms for a batch of 64, forward and backward). On a machine with CUDA, the
same tables are printed for the GPU. Run it with ``OMP_NUM_THREADS=1 python -m benchmarks.sparsemap``.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import sparsum as sp
from benchmarks.timing import describe, median_seconds
from sparsum.solvers import AbstractSolver, ActiveSet, Nested, Pulled, Systematic
from sparsum.solvers.projections import bit_marginals
from sparsum.solvers.splits import kinds, nested_gaps, systematic_gaps
from sparsum.structures.scores import Scores, as_tuple

BATCH = 64
N_BATCHES = 8
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ORIGINAL_TOPK_MS = 0.8


@dataclass(frozen=True)
class Row:
    """One line of the first table."""

    name: str
    structure: sp.Bits | sp.Budget
    solver: AbstractSolver
    original_ms: float


ROWS = [
    Row("Bits 32, nested", sp.Bits(32), Nested(), 42),
    Row("Bits 32, systematic", sp.Bits(32), Systematic(), 42),
    Row("Bits 128, nested", sp.Bits(128), Nested(), 282),
    Row("Bits 128, systematic", sp.Bits(128), Systematic(), 282),
    Row("Budget 128/64, systematic", sp.Budget(128, 64), Systematic(), 438),
    Row("Bits 32, active set", sp.Bits(32), ActiveSet(), 42),
    Row("Bits 128, active set", sp.Bits(128), ActiveSet(), 146),
    Row("Budget 128/64, active set", sp.Budget(128, 64), ActiveSet(), 438),
]


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Random scores, the same for the same seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def milliseconds(function: Callable[[], object], *, seconds: float = 0.5, turns: int = 5) -> float:
    """Median time of a call, including the work on the device."""

    def complete() -> None:
        function()
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    return 1e3 * median_seconds({"": complete}, seconds=seconds, turns=turns)[""]


def forward_and_backward(scores: Scores, structure: sp.AbstractStructure, solver: AbstractSolver) -> Callable[[], object]:
    """A solve and the gradient of a weighted sum of its probabilities."""
    leaves = tuple(tensor.clone().requires_grad_() for tensor in as_tuple(scores))

    def call() -> object:
        q = sp.sparsemap(leaves if isinstance(scores, tuple) else leaves[0], structure, solver=solver)
        return torch.autograd.grad((q.probs * torch.arange(len(q.probs), device=DEVICE)).sum(), leaves)

    return call


def solvers() -> None:
    """All solvers on bits, over several batches, against the original's times and the exact marginals."""
    print(f"{N_BATCHES} batches of {BATCH}, t ~ N(0, 1); the error is that of the marginals")
    print(f"{'':28} {'median ms':>10} {'worst':>8} {'original':>9} {'faster':>8} {'atoms/row':>10} {'error':>9}")
    for row in ROWS:
        times, errors, atoms = [], [], []
        for seed in range(N_BATCHES):
            scores = normal(BATCH, row.structure.n, seed=seed)
            times.append(milliseconds(forward_and_backward(scores, row.structure, row.solver), seconds=0.1, turns=2))
            q = sp.sparsemap(scores.double(), row.structure, solver=row.solver)
            errors.append((q.mean - bit_marginals(scores.double(), row.structure.bit_counts())).abs().max().item())
            atoms.append(q.n_atoms_per_row.double().mean().item())
        ms = statistics.median(times)
        print(
            f"{row.name:28} {ms:10.2f} {max(times):8.2f} {row.original_ms:9.0f} {row.original_ms / ms:7.1f}x"
            f" {statistics.mean(atoms):10.1f} {max(errors):9.1e}"
        )
    uniform = torch.rand(BATCH, 128, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE)
    solution = ActiveSet(strict=False).solve(sp.Budget(128, 40).bind(uniform))
    n_solved = int(solution.is_solved.sum())
    print(
        f"uniform scores, Budget(128, 40): {n_solved} of {BATCH} rows converged, {int(solution.steps.max())} steps at most\n"
    )


def topk() -> None:
    """The k best of many bits, with their atoms."""
    print(
        f"k best bit vectors, batch {BATCH}, ms (the original's C++ enumeration took {ORIGINAL_TOPK_MS} for k = 10, n = 128)"
    )
    print(f"{'n':>8}" + "".join(f"{f'k={k}':>10}" for k in (10, 100, 500)))
    for n in (32, 128, 512, 2048):
        scores = normal(BATCH, n)
        structure = sp.Bits(n)
        times = [milliseconds(functools.partial(structure.topk, scores, k)) for k in (10, 100, 500)]
        print(f"{n:8}" + "".join(f"{ms:10.2f}" for ms in times))
    print()


def searches() -> None:
    """Structures that need a search, forward and backward, with the active set's atoms and with pulled ones."""
    cases: list[tuple[str, sp.AbstractStructure, Scores]] = [
        ("Sequence 20 x 10", sp.Sequence(20, 10), (normal(BATCH, 20, 10), normal(19, 10, 10))),
        ("Matching 10 x 10", sp.Matching(10), normal(BATCH, 10, 10)),
        ("Matching 8 x 12", sp.Matching(8, 12), normal(BATCH, 8, 12)),
        ("Tree 10", sp.Tree(10), normal(BATCH, 10, 10)),
        ("Tree 20", sp.Tree(20), normal(BATCH, 20, 20)),
    ]
    print(f"{'batch 64, ms':24} {'active set':>11} {'atoms/row':>10} {'steps/row':>10} {'pulled':>10} {'atoms/row':>10}")
    for name, structure, scores in cases:
        bound = structure.bind(scores)
        found = [solver.solve(bound) for solver in (ActiveSet(), Pulled())]
        ms = [milliseconds(forward_and_backward(scores, structure, solver), turns=2) for solver in (ActiveSet(), Pulled())]
        atoms, steps = [each.segments.lengths.double().mean() for each in found], found[0].steps.double().mean()
        print(f"{name:24} {ms[0]:11.1f} {atoms[0]:10.1f} {steps:10.1f} {ms[1]:10.1f} {atoms[1]:10.1f}")
    print()


def cost_of_dimension() -> None:
    """How the closed forms scale: marginals and probabilities, which take n log n, and with the atoms, n_atoms x n."""
    print("closed forms over bits, forward, ms: marginals and probabilities alone, and with the atoms")
    print(f"{'n':>8} {'batch':>6} {'nested':>10} {'with atoms':>11} {'systematic':>11} {'with atoms':>11} {'atoms':>8}")
    for n, batch in ((32, 64), (128, 64), (512, 64), (1024, 1), (4096, 1)):
        scores, structure = normal(batch, n), sp.Bits(n)

        def probabilities(
            gaps: Callable[[Tensor, Tensor], object], scores: Tensor = scores, structure: sp.Bits = structure
        ) -> None:
            marginals = bit_marginals(scores, structure.bit_counts())
            gaps(marginals, kinds(marginals)[1])

        times = []
        for gaps, solver in ((nested_gaps, Nested()), (systematic_gaps, Systematic())):
            times.append(milliseconds(functools.partial(probabilities, gaps)))
            times.append(milliseconds(functools.partial(sp.sparsemap, scores, structure, solver=solver)))
        atoms = len(sp.sparsemap(scores, structure).atoms)
        print(f"{n:8} {batch:6} {times[0]:10.3f} {times[1]:11.2f} {times[2]:11.3f} {times[3]:11.2f} {atoms:8}")


def main() -> None:
    """Print all tables."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"{describe()}, on {DEVICE}\n")
    solvers()
    topk()
    searches()
    cost_of_dimension()


if __name__ == "__main__":
    main()
