"""SparseMAP and top-k over bits: wall-clock times, including launches and synchronisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import sparsum as sp
from benchmarks.gpu.table import Line, graph_milliseconds, milliseconds
from sparsum.solvers import AbstractSolver, Nested, Systematic

_N_ROWS, _N_BITS = 64, 128
_CASES: list[tuple[str, sp.Bits | sp.Budget | sp.Subset, AbstractSolver, float | None]] = [
    ("Bits(128), nested", sp.Bits(_N_BITS), Nested(), 0.6),
    ("Bits(128), systematic", sp.Bits(_N_BITS), Systematic(), 0.6),
    ("Budget(128, 64), systematic", sp.Budget(_N_BITS, 64), Systematic(), None),
    ("Subset(128, 64), systematic", sp.Subset(_N_BITS, 64), Systematic(), None),
]


def lines() -> Iterator[Line]:
    """Forward and backward of the splits, and top-k."""
    scores = torch.randn(_N_ROWS, _N_BITS, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    leaf = scores.requires_grad_()
    for name, structure, solver, wanted in _CASES:
        q = sp.sparsemap(leaf, structure, solver=solver)
        weight = torch.randn_like(q.probs)

        def step(structure: sp.AbstractStructure = structure, solver: AbstractSolver = solver, w: Tensor = weight) -> Tensor:
            q = sp.sparsemap(leaf, structure, solver=solver)
            return torch.autograd.grad((q.probs * w).sum(), leaf)[0]

        def forward(structure: sp.AbstractStructure = structure, solver: AbstractSolver = solver) -> object:
            with torch.no_grad():
                return sp.sparsemap(leaf, structure, solver=solver)

        here, elsewhere = _here_and_elsewhere(step)
        alone = milliseconds(forward)
        n_bytes = q.atoms.nbytes + 3 * scores.nbytes
        yield Line(
            f"SparseMAP {name}, batch {_N_ROWS}, forward and backward",
            f"{here:.3f} ms ({alone:.3f} forward without gradient); by torch's thread {elsewhere:.3f}",
            "" if wanted is None else f"< {wanted} ms",
            None if wanted is None else here < wanted,
            f"{n_bytes / 1e6:.1f} MB, {len(q.probs)} atoms, one wait",
            f"{n_launches(step)} launches, of which the GPU is busy {busy(step):.3f} ms",
        )
    here, elsewhere = _here_and_elsewhere(lambda: torch.autograd.grad(leaf.square().sum(), leaf)[0])
    yield Line(
        "for comparison, the sum of squares, forward and backward", f"{here:.3f} ms; by torch's thread {elsewhere:.3f}"
    )
    yield _best()


def _here_and_elsewhere(step: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of a step whose backward pass is launched by the calling thread, and by torch's own thread.

    The second is torch's default. For a backward pass of a few kernels, waking that thread can dominate the time.
    """
    with torch.autograd.set_multithreading_enabled(False):
        here = milliseconds(step)
    return here, milliseconds(step)


def _best() -> Line:
    scores = torch.randn(4096, _N_BITS, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    structure = sp.Bits(_N_BITS)

    def best() -> Tensor:
        return structure.topk(scores, 10)

    time, alone = milliseconds(best), graph_milliseconds(best)
    n_bytes = scores.nbytes + best().nbytes
    source = torch.empty(n_bytes // 8, device="cuda")
    target = torch.empty_like(source)
    floor = graph_milliseconds(lambda: target.copy_(source))
    return Line(
        "the 10 best of Bits(128), batch 4096",
        f"{time:.3f} ms ({alone:.4f} on the GPU)",
        "0.3 ms",
        time <= 0.3,
        f"{n_bytes / 1e6:.1f} MB, {floor:.4f} ms",
        f"{n_launches(best)} launches",
    )


def n_launches(function: Callable[[], object]) -> int:
    """The number of kernels and copies on the GPU."""
    return len(_on_gpu(function))


def busy(function: Callable[[], object]) -> float:
    """The total milliseconds of kernels and copies on the GPU."""
    return sum(_on_gpu(function)) / 1e3


def _on_gpu(function: Callable[[], object]) -> list[float]:
    """The microseconds of each kernel and copy on the GPU."""
    function()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as result:
        function()
        torch.cuda.synchronize()
    return [event.time_range.elapsed_us() for event in result.events() or () if event.device_type == DeviceType.CUDA]
