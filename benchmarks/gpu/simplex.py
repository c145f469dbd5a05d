"""Kernel times of sparsemax and 1.5-entmax against `torch.softmax`, a copy and the package ``entmax``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import sparsum as sp
from benchmarks.gpu.table import Line, graph_milliseconds, milliseconds
from sparsum.simplex.packed import packed_entmax

Mapping = Callable[[Tensor], Tensor]

_LARGE = ((4096, 4096), (4096, 32768))
_SMALL = ((64, 10), (64, 256))
_LONG = (256, 262144)
# Inputs alternate and together exceed the L2 cache, which is 50 MB on an H200.
_CACHE = 120e6


def lines() -> Iterator[Line]:
    """All measurements of this file."""
    bandwidth = _copy_bandwidth()
    yield Line("copy of (4096, 32768) float32", f"{bandwidth / 1e9:.2f} TB/s", floor="what the floors below divide by")
    for shape, dtype in itertools.product(_LARGE, (torch.float32, torch.bfloat16)):
        yield from _forward(shape, dtype, bandwidth, softmax_limit=1.0, copy_limit=1.35)
        yield from _both_ways(shape, dtype, bandwidth)
    for shape in _SMALL:
        yield from _forward(shape, torch.float32, bandwidth, softmax_limit=1.5)
    yield from _forward(_LONG, torch.float32, bandwidth, softmax_limit=1.3)
    yield from _paths()
    yield from _packed()
    yield from _against_entmax()


def _copy_bandwidth() -> float:
    """Bytes per millisecond, read and written."""
    x = torch.zeros(4096, 32768, device="cuda")
    return 2 * _size(x) / _time_copy([x])


def _time_copy(inputs: list[Tensor]) -> float:
    """The faster of `torch.clone`, which a CUDA graph may run on a slow copy engine, and a kernel that copies."""
    return min(time_forward(mapping, inputs) for mapping in (Tensor.clone, _copy))


def _size(x: Tensor) -> int:
    return x.numel() * x.element_size()


def inputs_of(shape: tuple[int, int], dtype: torch.dtype) -> list[Tensor]:
    """Scores that together exceed the L2 cache."""
    size = shape[0] * shape[1] * dtype.itemsize
    count = 1 if size > _CACHE else min(int(_CACHE / size) + 1, 20)
    return [torch.randn(shape, device="cuda").to(dtype) for _ in range(count)]


def time_forward(mapping: Mapping, inputs: list[Tensor]) -> float:
    """Kernel time of a call."""
    turn = itertools.cycle(inputs)
    with torch.no_grad():
        return graph_milliseconds(lambda: mapping(next(turn)), calls=max(len(inputs), 4))


def time_both(mapping: Mapping, inputs: list[Tensor]) -> float:
    """Kernel time of a call and its gradient."""
    turn = itertools.cycle([x.detach().requires_grad_() for x in inputs])
    grad = torch.randn_like(inputs[0])

    def step() -> Any:
        x = next(turn)
        return torch.autograd.grad(mapping(x), x, grad)

    return graph_milliseconds(step, calls=max(len(inputs), 4))


def _copy(x: Tensor) -> Tensor:
    return x.mul(1)


def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def name_of(shape: tuple[int, int], dtype: torch.dtype) -> str:
    """The shape and dtype, for the table."""
    return f"{shape} {str(dtype).removeprefix('torch.')}"


def _floor(n_bytes: float, bandwidth: float) -> str:
    megabytes = n_bytes / 1e6
    shown = f"{megabytes:,.0f}" if megabytes >= 100 else f"{megabytes:.3g}"
    return f"{shown} MB, {n_bytes / bandwidth:.4f} ms"


def _forward(
    shape: tuple[int, int], dtype: torch.dtype, bandwidth: float, *, softmax_limit: float, copy_limit: float | None = None
) -> Iterator[Line]:
    inputs, name = inputs_of(shape, dtype), name_of(shape, dtype)
    ours, softmax, copy = time_forward(sp.sparsemax, inputs), time_forward(_softmax, inputs), _time_copy(inputs)
    floor = _floor(2 * _size(inputs[0]), bandwidth)
    yield _ratio(f"sparsemax {name} / softmax", ours, softmax, softmax_limit, floor)
    if copy_limit is not None:
        yield _ratio(f"sparsemax {name} / copy", ours, copy, copy_limit, floor)
    entmax15 = time_forward(sp.entmax15, inputs)
    yield Line(f"entmax15 {name} / softmax", f"{entmax15 / softmax:.2f}x ({entmax15:.4f} ms)", floor=floor)


def _both_ways(shape: tuple[int, int], dtype: torch.dtype, bandwidth: float) -> Iterator[Line]:
    inputs = inputs_of(shape, dtype)
    ours, softmax = time_both(sp.sparsemax, inputs), time_both(_softmax, inputs)
    # Forward reads scores and writes probabilities; backward reads these and writes a gradient; that of the output is read
    # on the support only.
    floor = _floor(4 * _size(inputs[0]), bandwidth)
    yield _ratio(f"sparsemax forward and backward {name_of(shape, dtype)} / softmax", ours, softmax, 1.0, floor)


def _ratio(what: str, ours: float, other: float, most: float, floor: str) -> Line:
    gap = "Newton's steps, and reading again where there is support"
    measured = f"{ours / other:.2f}x ({ours:.4f} / {other:.4f} ms)"
    return Line(what, measured, f"<= {most:g}x", ours <= most * other, floor, gap)


def _paths() -> Iterator[Line]:
    """The kernels between which the table in `sparsum.kernels.simplex` chooses."""
    from sparsum.kernels import simplex

    for shape, dtype in itertools.product(_LARGE, (torch.float32, torch.bfloat16)):
        inputs = [x.unsqueeze(1) for x in inputs_of(shape, dtype)]
        paths = ("tile", "groups") if shape[1] <= 4096 else ("groups", "split")
        times = {path: time_forward(partial(simplex.forward, mask=None, exponent=1, path=path), inputs) for path in paths}
        measured = ", ".join(f"{path} {time:.4f} ms" for path, time in times.items())
        chosen = simplex.path_for(shape[1], dtype.itemsize)
        yield Line(f"kernels for {name_of(shape, dtype)}, {chosen} in use", measured)


def _packed() -> Iterator[Line]:
    """Wall-clock time of the packed support, which synchronises with the device once."""
    for shape in ((64, 256), (4096, 4096), _LONG):
        x = torch.randn(shape, device="cuda")
        on_bad = sp.OneOf(shape[1]).bind(x).raise_bad
        times = [milliseconds(partial(packed_entmax, x, alpha, on_bad=on_bad)) for alpha in (2.0, 1.5)]
        dense = milliseconds(partial(_dense_support, x))
        measured = f"sparsemax {times[0]:.3f}, entmax15 {times[1]:.3f}; dense and nonzero {dense:.3f} ms"
        yield Line(f"packed support of {shape}", measured)


def _dense_support(x: Tensor) -> Tensor:
    return sp.sparsemax(x).nonzero()


def _against_entmax() -> Iterator[Line]:
    try:
        import entmax
    except ImportError:
        yield Line("against the package entmax", "not installed", ">= 8x, from 4096 entries on >= 15x")
        return
    pairs = ((sp.sparsemax, entmax.sparsemax), (sp.entmax15, entmax.entmax15))
    for shape in (*_SMALL, (1024, 1024), *_LARGE):
        inputs = inputs_of(shape, torch.float32)
        for ours, theirs in pairs:
            yield _compare(f"{ours.__name__} {shape} against entmax", ours, theirs, inputs, 15 if shape[1] >= 4096 else 8)


def _compare(what: str, ours: Mapping, theirs: Mapping, inputs: list[Tensor], least: float) -> Line:
    """Kernel times, by which the target is judged if entmax can be captured, and wall-clock times."""
    calls = 50 if inputs[0].numel() < 2e6 else 5  # enough for launches to run ahead of the device
    wall = [milliseconds(partial(mapping, inputs[0]), calls=calls, turns=10) for mapping in (ours, theirs)]
    seen = f"as a program sees it {wall[1] / wall[0]:.1f}x ({wall[0]:.4f} / {wall[1]:.4f} ms)"
    fast, slow = time_forward(ours, inputs), _time_if_captured(theirs, inputs)
    if slow is None:
        measured = f"{fast:.4f} ms; entmax cannot be captured in a CUDA graph; {seen}"
        return Line(what, measured, f">= {least:g}x", wall[1] >= least * wall[0])
    measured = f"{slow / fast:.1f}x ({fast:.4f} / {slow:.4f} ms); {seen}"
    return Line(what, measured, f">= {least:g}x", slow >= least * fast)


def _time_if_captured(mapping: Mapping, inputs: list[Tensor]) -> float | None:
    """Kernel time; None if the mapping synchronises with the device, so that it cannot be captured."""
    try:
        return time_forward(mapping, inputs)
    except RuntimeError:
        torch.cuda.synchronize()
        return None
