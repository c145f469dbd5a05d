"""Entmax of any alpha against `torch.softmax` and both solvers of the package ``adasplash``, with errors."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

import sparsum as sp
from benchmarks.gpu.simplex import inputs_of, name_of, time_both, time_forward
from benchmarks.gpu.table import Line, milliseconds

Mapping = Callable[[Tensor], Tensor]

_ALPHAS = (1.3, 4 / 3)
#: Alphas that need more steps, or read more of a row.
_HARDER = (1.1, 1.6)
_SHAPES = ((64, 256), (4096, 1024), (4096, 4096), (4096, 32768))
#: alpha -> whether the largest error has a limit
_ERRORS = {
    1.01: False,
    1.1: False,
    1.2: True,
    1.3: True,
    4 / 3: True,
    1.5: True,
    1.8: True,
    2.0: True,
    2.5: False,
    4.0: False,
}
_LIMIT = 5e-7


def lines() -> Iterator[Line]:
    """All measurements of this file."""
    for shape in _SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            yield from _against_softmax(shape, dtype)
        yield from _against_adasplash(shape)
    yield from _learnable()
    yield from _as_seen_by_a_program()
    yield from _errors()


def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def _entmax(alpha: float) -> Mapping:
    return partial(sp.entmax, alpha=alpha)


def _against_softmax(shape: tuple[int, int], dtype: torch.dtype) -> Iterator[Line]:
    inputs = inputs_of(shape, dtype)
    softmax = time_forward(_softmax, inputs)
    for alpha in (*_ALPHAS, *_HARDER):
        ours = time_forward(_entmax(alpha), inputs)
        limit = 2.0 if shape[1] >= 1024 else None
        yield _ratio(f"entmax {alpha:.4g} {name_of(shape, dtype)} / softmax", ours, softmax, limit)
    if shape == (4096, 32768):
        ours, softmax = time_both(_entmax(1.3), inputs), time_both(_softmax, inputs)
        yield _ratio(f"entmax 1.3 forward and backward {name_of(shape, dtype)} / softmax", ours, softmax, 1.0)


def _ratio(what: str, ours: float, other: float, most: float | None) -> Line:
    measured = f"{ours / other:.2f}x ({ours:.4f} / {other:.4f} ms)"
    return Line(what, measured) if most is None else Line(what, measured, f"<= {most:g}x", ours <= most * other)


def _peers(alpha: float) -> dict[str, Mapping]:
    """Both solvers, each with its default number of iterations, and the second with more of them."""
    try:
        import adasplash
    except ImportError:
        return {}
    return {
        "v1": partial(adasplash.triton_entmax_v1, alpha=alpha),
        "v2": partial(adasplash.triton_entmax_v2, alpha=alpha),
        "v2, 10 iterations": partial(adasplash.triton_entmax_v2, alpha=alpha, n_iter=10),
    }


def _against_adasplash(shape: tuple[int, int]) -> Iterator[Line]:
    inputs, found = inputs_of(shape, torch.float32), _in_a_fresh_process(shape)
    for alpha, peers in zip(_ALPHAS, found, strict=True):
        least = 3.0 if alpha == 4 / 3 else 1.0
        what = f"entmax {alpha:.4g} {shape} against adasplash"
        if not peers:
            yield Line(what, "not installed", f">= {least:g}x")
            continue
        ours = time_forward(_entmax(alpha), inputs)
        shown = ", ".join(f"{name} {time / ours:.1f}x (error {error:.0e})" for name, (time, error) in peers.items())
        error = _error(_entmax(alpha), alpha, inputs[0][:64])
        is_met = min(time for time, _ in peers.values()) >= least * ours
        yield Line(what, f"{ours:.4f} ms (error {error:.0e}); {shown}", f">= {least:g}x", is_met)


def _in_a_fresh_process(shape: tuple[int, int]) -> list[dict[str, tuple[float, float]]]:
    """Time and error of the peers for each alpha. They tune themselves once per process, for the first length of rows."""
    command = [sys.executable, "-m", "benchmarks.gpu.any_alpha", *map(str, shape)]
    found: list[dict[str, tuple[float, float]]] = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    )
    return found


def _measure_peers(rows: int, n: int) -> list[dict[str, tuple[float, float]]]:
    inputs = inputs_of((rows, n), torch.float32)
    return [
        {name: (time_forward(peer, inputs), _error(peer, alpha, inputs[0][:64])) for name, peer in _peers(alpha).items()}
        for alpha in _ALPHAS
    ]


def _learnable() -> Iterator[Line]:
    """One alpha per row, and its gradient, which ``adasplash`` does not have."""
    for shape, dtype in itertools.product(_SHAPES[1:], (torch.float32, torch.bfloat16)):
        inputs, alpha = inputs_of(shape, dtype), torch.linspace(1.1, 1.9, shape[0], device="cuda")
        ours, softmax = time_forward(partial(sp.entmax, alpha=alpha), inputs), time_forward(_softmax, inputs)
        yield _ratio(f"entmax, one alpha per row, {name_of(shape, dtype)} / softmax", ours, softmax, 2.0)
        learned = alpha.clone().requires_grad_()
        ours, softmax = time_both(partial(sp.entmax, alpha=learned), inputs), time_both(_softmax, inputs)
        limit = 1.0 if shape[1] == 32768 else None
        what = f"entmax, learnable alpha, forward and backward {name_of(shape, dtype)} / softmax"
        yield _ratio(what, ours, softmax, limit)


def _as_seen_by_a_program() -> Iterator[Line]:
    """Wall-clock time of forward and backward in eager mode, with Python and launches."""
    for shape in ((64, 256), (4096, 1024)):
        x = torch.randn(shape, device="cuda", requires_grad=True)
        grad = torch.randn(shape, device="cuda")

        def step(mapping: Mapping, x: Tensor = x, grad: Tensor = grad) -> object:
            return torch.autograd.grad(mapping(x), x, grad)

        peers = _peers(1.3)
        mappings = {"sparsemax": sp.sparsemax, "entmax15": sp.entmax15, "entmax 1.3": _entmax(1.3)}
        softmax = milliseconds(partial(step, _softmax), calls=50)
        peer = milliseconds(partial(step, peers["v2"]), calls=50) if peers else float("nan")
        for name, mapping in mappings.items():
            ours = milliseconds(partial(step, mapping), calls=50)
            measured = f"{ours:.3f} ms, {ours / softmax:.2f}x softmax, {ours / peer:.2f}x adasplash v2"
            is_met = ours <= 1.8 * softmax and not ours > peer
            yield Line(f"{name} {shape}, forward and backward in eager mode", measured, "<= 1.8x, <= 1x", is_met)


def _errors() -> Iterator[Line]:
    """The largest error against float64 over rows of different spread."""
    spread = torch.logspace(-2, 1.5, 512, device="cuda").unsqueeze(-1)
    x = spread * torch.randn(512, 4096, device="cuda")
    for alpha, has_limit in _ERRORS.items():
        ours = _error(_entmax(alpha), alpha, x)
        shown = ", ".join(f"adasplash {name} {_error(peer, alpha, x):.1e}" for name, peer in _peers(alpha).items())
        wanted = f"<= {_LIMIT:g}" if has_limit else ""
        measured = f"{ours:.1e}" + (f"; {shown}" if shown else "")
        yield Line(f"largest error of entmax {alpha:.4g}, float32", measured, wanted, ours <= _LIMIT if has_limit else None)


def _error(mapping: Mapping, alpha: float, x: Tensor) -> float:
    exact = sp.entmax(x.double().cpu(), alpha)
    return (mapping(x).double().cpu() - exact).abs().max().item()


if __name__ == "__main__":
    print(json.dumps(_measure_peers(int(sys.argv[1]), int(sys.argv[2]))))
