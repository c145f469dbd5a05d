"""SparseMAP on a GPU, by the active set and by default solvers: a batch of 64, forward and backward, and where time goes."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

import sparsum as sp
from benchmarks.gpu.table import Line, graph_milliseconds, milliseconds
from sparsum.solvers import ActiveSet, Solution
from sparsum.structures.scores import Scores

_BATCH, _SEEDS = 64, 3
# L2 bandwidth of one multiprocessor: 64 bytes per clock at 1.7 GHz.
_BYTES_PER_MS = 64 * 1.7e6

_BITS: list[tuple[sp.Bits | sp.Budget | sp.Subset, float | None]] = [
    (sp.Bits(32), None),
    (sp.Bits(128), 25.0),
    (sp.Budget(128, 64), None),
    (sp.Subset(128, 64), None),
]


def lines() -> Iterator[Line]:
    """Wall-clock times of solves, synchronisations, and the kernel alone."""
    for structure, most in _BITS:
        yield _wall(repr(structure), structure, [_normal(_BATCH, structure.n, seed=seed) for seed in range(_SEEDS)], most)
        yield _kernel(structure)
    yield from _algebra(53)
    yield from _algebra(96)
    sequence = sp.Sequence(20, 10)
    batches: list[Scores] = [
        (_normal(_BATCH, 20, 10, seed=seed), _normal(_BATCH, 19, 10, 10, seed=seed)) for seed in range(_SEEDS)
    ]
    yield _wall("Sequence 20 x 10 with transitions", sequence, batches, None)
    yield _default("Sequence 20 x 10 with transitions", sequence, batches, 25.0)
    batches = [_normal(_BATCH, 10, 10, seed=seed) for seed in range(_SEEDS)]
    yield _default("Tree(10)", sp.Tree(10), batches, 50.0)
    yield _default("Matching(10)", sp.Matching(10), batches, 20.0)
    yield _closed_form()


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).cuda()


def _wall(name: str, structure: sp.AbstractStructure, batches: list[Scores], most: float | None) -> Line:
    """Wall-clock time of forward and backward: the median over the batches."""
    times = [milliseconds(_forward_and_backward(structure, scores), turns=9) for scores in batches]
    forward = [milliseconds(_forward(structure, scores), turns=5) for scores in batches]
    n_waits = _n_waits(_forward_and_backward(structure, batches[0]))
    ms = statistics.median(times)
    return Line(
        f"ActiveSet, {name}, batch {_BATCH}, forward and backward",
        f"{ms:.2f} ms, worst batch {max(times):.2f}, forward {statistics.median(forward):.2f}, {n_waits} waits",
        f"< {most:g} ms" if most else "",
        ms < most if most else None,
        gap="launches of about 140 small operations, and Cholesky factors, beside the kernel" if most else "",
    )


def _default(name: str, structure: sp.AbstractStructure, batches: list[Scores], most: float) -> Line:
    """Wall-clock time of `sp.sparsemap` with its default solver, forward and backward."""

    def step(leaves: tuple[Tensor, ...]) -> object:
        q = sp.sparsemap(leaves if len(leaves) > 1 else leaves[0], structure)
        return torch.autograd.grad(q.probs.square().sum(), leaves)

    steps = [
        partial(step, tuple(t.clone().requires_grad_() for t in (one if isinstance(one, tuple) else (one,))))
        for one in batches
    ]
    times = [milliseconds(one, turns=9) for one in steps]
    ms = statistics.median(times)
    measured = f"{ms:.2f} ms, worst batch {max(times):.2f}, {_n_waits(steps[0])} waits"
    return Line(f"sparsemap, {name}, batch {_BATCH}, forward and backward", measured, f"< {most:g} ms", ms < most)


def _closed_form() -> Line:
    """SparseMAP over 128 bits beside a bare sum of squares, both with backward, in eager mode."""
    x = _normal(_BATCH, 128).requires_grad_()
    times = [
        milliseconds(lambda: torch.autograd.grad(sp.sparsemap(x, sp.Bits(128)).probs.square().sum(), x), calls=20),
        milliseconds(lambda: torch.autograd.grad(x.square().sum(), x), calls=20),
    ]
    measured = f"{times[0] / times[1]:.1f}x ({times[0]:.3f} / {times[1]:.3f} ms)"
    return Line("sparsemap, Bits(128), forward and backward / sum of squares", measured, "<= 3x", times[0] <= 3 * times[1])


def _solve(structure: sp.AbstractStructure, scores: Scores) -> Solution:
    return ActiveSet().solve(structure.bind(scores))


def _forward(structure: sp.AbstractStructure, scores: Scores) -> Callable[[], object]:
    return lambda: _solve(structure, scores)


def _forward_and_backward(structure: sp.AbstractStructure, scores: Scores) -> Callable[[], object]:
    leaves = tuple(tensor.clone().requires_grad_() for tensor in (scores if isinstance(scores, tuple) else (scores,)))

    def call() -> object:
        solution = _solve(structure, leaves if len(leaves) > 1 else leaves[0])
        return torch.autograd.grad(solution.probs.square().sum(), leaves)

    return call


def _n_waits(function: Callable[[], object]) -> int:
    """How often a call synchronises with the device."""
    function()
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            function()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in caught)


def _kernel(structure: sp.Bits | sp.Budget | sp.Subset) -> Line:
    """The kernel that runs all steps, without its launch, for the first batch."""
    from sparsum.kernels.active_set import active_set_of_bits

    scores = _normal(_BATCH, structure.n).double()
    if isinstance(structure, sp.Subset):
        scores = scores - scores.amax(-1, keepdim=True)
    linear, best = structure.quadratic(scores)[0], structure.argmax(scores).to(torch.int8)
    most = (
        structure.n
        if isinstance(structure, sp.Bits)
        else structure.most
        if isinstance(structure, sp.Budget)
        else structure.k
    )
    options = (most, isinstance(structure, sp.Subset), 2.0, 1e-9, 10 * structure.n + 100)
    _, probs, steps, is_stopped = active_set_of_bits(linear, best, *options)
    ms = graph_milliseconds(lambda: active_set_of_bits(linear, best, *options), calls=3, turns=7)
    slowest = int(steps.argmax())
    n_atoms, n_steps = int((probs[slowest] > 0).sum()), int(steps[slowest])
    # Each step reads the inverse twice and writes it once, and reads the atoms twice; on average there are half as many.
    n_bytes = n_steps * (3 * 8 * n_atoms**2 / 3 + 2 * structure.n * n_atoms / 2)
    return Line(
        f"its kernel alone, {structure!r}, batch {_BATCH}",
        f"{ms:.3f} ms, {1e3 * ms / max(n_steps, 1):.2f} us per step of the slowest row, {int(is_stopped.sum())} stopped",
        floor=f"{n_steps} steps and {n_atoms} atoms of that row: {n_bytes / 1e6:.2f} MB through one multiprocessor, "
        f"{n_bytes / _BYTES_PER_MS:.3f} ms",
        gap="steps follow each other, each a dozen barriers and reductions of one block: latency",
    )


def _algebra(n: int) -> Iterator[Line]:
    """The linear algebra of the final solve on n atoms."""
    a = torch.randn(_BATCH, n, 2 * n, dtype=torch.float64, device="cuda")
    gram, x = a @ a.mT, a[:, :, :1].contiguous()
    lower, eye = torch.linalg.cholesky(gram), torch.eye(n, dtype=torch.float64, device="cuda")
    pieces: dict[str, Callable[[], object]] = {
        "Cholesky factor": lambda: torch.linalg.cholesky_ex(gram),
        "cholesky_solve": lambda: torch.cholesky_solve(x, lower),
        "one triangular solve": lambda: torch.linalg.solve_triangular(lower, x, upper=False),
        "inverse of the factor": lambda: torch.linalg.solve_triangular(lower, eye, upper=False),
        "product": lambda: gram @ x,
    }
    times = ", ".join(f"{name} {milliseconds(piece, calls=5, turns=9):.3f}" for name, piece in pieces.items())
    yield Line(f"linear algebra in float64, {_BATCH} x {n} x {n}, ms", times)
