"""Paths on a GPU: alignments, sequences and segmentations of a batch of 64, beside torch-struct and a compiled search.

torch-struct is measured where it has the structure and runs; where it is missing or fails, the line says so. Its alignments
have other moves than ours, but as many cells. Times of both are wall-clock times, with launches, in float32 scores.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import sparsum as sp
from benchmarks.gpu.table import Line, milliseconds

_BATCH, _K = 64, 10
_N_TOKENS, _N_FRAMES = 200, 800

Task = Callable[[], object]


def lines() -> Iterator[Line]:
    """Three tasks of three structures, the compiled search, and sums over subsets."""
    alignment, scores = sp.Alignment(_N_TOKENS, _N_FRAMES), _normal(_BATCH, _N_TOKENS, _N_FRAMES)
    yield from _compared(alignment, scores, "AlignmentCRF", lambda: _normal(_BATCH, _N_TOKENS, _N_FRAMES, 3))
    yield _beside_compiled_search(alignment, scores)
    sequence, pair = sp.Sequence(100, 50), (_normal(_BATCH, 100, 50), _normal(_BATCH, 99, 50, 50))
    yield from _compared(sequence, pair, "LinearChainCRF", lambda: _normal(_BATCH, 99, 50, 50))
    segmentation, segments = sp.Segmentation(100, 10, 20), _normal(_BATCH, 100, 10, 20)
    # Its widths are from 0 to the largest but one, and it has a score for each pair of labels.
    yield from _compared(segmentation, segments, "SemiMarkovCRF", lambda: _normal(_BATCH, 100, 11, 20, 20))
    yield _subsets()


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).cuda()


def _compared(
    structure: sp.AbstractStructure, scores: sp.Scores, peer: str, potentials: Callable[[], Tensor]
) -> Iterator[Line]:
    """Best, log-partition with gradient, and k best."""
    leaves = tuple(part.clone().requires_grad_() for part in (scores if isinstance(scores, tuple) else (scores,)))

    def gradient() -> object:
        p = sp.Gibbs(leaves if len(leaves) > 1 else leaves[0], structure, validate_args=False)
        return torch.autograd.grad(p.log_partition.sum(), leaves)

    ours: dict[str, Task] = {
        "best": lambda: structure.argmax(scores),
        "log-partition and gradient": gradient,
        f"{_K} best": lambda: structure.topk(scores, _K),
    }
    theirs: dict[str, Callable[[Any], object]] = {
        "best": lambda p: p.argmax,
        "log-partition and gradient": lambda p: (p.partition, p.marginals),
        f"{_K} best": lambda p: p.topk(_K),
    }
    for task, run in ours.items():
        ms = milliseconds(run, turns=7)
        other, seen = _torch_struct(peer, potentials, theirs[task])
        yield Line(
            f"{structure!r}, batch {_BATCH}, {task}",
            f"{ms:.2f} ms; torch-struct {seen}",
            "" if other is None else f"< {other:.2f} ms",
            None if other is None else ms < other,
            gap="launches: a few for each level, or one for all",
        )
        torch.cuda.empty_cache()


def _torch_struct(name: str, potentials: Callable[[], Tensor], task: Callable[[Any], object]) -> tuple[float | None, str]:
    """The time of torch-struct, or why there is none; its distributions keep what they computed, so each call makes one."""
    if importlib.util.find_spec("torch_struct") is None:
        return None, "not installed"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it predates the torch that is used
        import torch_struct

        kind = getattr(torch_struct, name)
        values = potentials()
        try:
            ms = milliseconds(lambda: task(kind(values.detach())), turns=5)
        except Exception as error:
            return None, f"fails: {type(error).__name__}: {str(error).splitlines()[0][:60] if str(error) else ''}"
    return ms, f"{ms:.2f} ms"


def _beside_compiled_search(structure: sp.Alignment, scores: Tensor) -> Line:
    """The best alignments, and those of `monotonic_alignment_search`, compiled, on one core without conversions."""
    ms = milliseconds(lambda: structure.argmax(scores), turns=15)
    what = f"{structure!r}, batch {_BATCH}, best, and monotonic_alignment_search on one core"
    if importlib.util.find_spec("monotonic_alignment_search") is None:
        return Line(what, f"{ms:.2f} ms; monotonic_alignment_search not installed")
    import numpy as np
    from monotonic_alignment_search.core import maximum_path_c

    sizes = [np.full(_BATCH, size, np.int32) for size in structure.score_shape]
    times = []
    for _ in range(5):
        values, path = scores.cpu().numpy().copy(), np.zeros(scores.shape, np.int32)  # it overwrites the values
        begin = time.perf_counter()
        maximum_path_c(path, values, *sizes)
        times.append(1e3 * (time.perf_counter() - begin))
    compiled = statistics.median(times)
    found = structure.vectors(structure.argmax(scores)).cpu().numpy()
    n_different = int((found != path).any((1, 2)).sum())
    return Line(
        what,
        f"{ms:.2f} ms; compiled {compiled:.1f} ms, {compiled / ms:.1f}x; {n_different} rows differ",
        "10x, and no row",
        compiled / ms >= 10 and n_different == 0,
        gap="frames follow each other: two passes of one program for each row",
    )


def _subsets() -> Line:
    """The log-partition function over subsets and its gradient, which is the exact marginals; and both as properties."""
    structure, scores = sp.Subset(784, 50), _normal(128, 784)
    leaf = scores.clone().requires_grad_()

    def by_gradient() -> object:
        log_partition = sp.Gibbs(leaf, structure, validate_args=False).log_partition
        return log_partition, torch.autograd.grad(log_partition.sum(), leaf)

    def by_properties() -> object:
        p = sp.Gibbs(scores, structure, validate_args=False)
        return p.log_partition, p.mean

    ms, other = milliseconds(by_gradient, turns=15), milliseconds(by_properties, turns=15)
    what = f"{structure!r}, batch 128, log-partition and exact marginals, its gradient"
    gap = "launches around one kernel, which visits the bits one by one, twice; the property `mean` computes the sums again"
    return Line(what, f"{ms:.2f} ms; as the property mean {other:.2f} ms", "< 3 ms", ms < 3, gap=gap)
