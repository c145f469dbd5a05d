"""Log-likelihood of images with categorical pixels against the limits of arithmetic and memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from sparsum_experiments.models.likelihood import evaluate, pixel_log_likelihood
from torch import Tensor

from benchmarks.gpu.table import Line, graph_milliseconds, milliseconds

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def"

_N_PIXELS, _N_LEVELS, _RANK = 784, 256, 5
# Single-precision operations per pixel and level, besides one exponential: the multiply-adds of the logit, a difference and
# a sum; then the multiply-adds of the probability with the map and with the features, and its sum. Work per pixel and
# recomputation are not counted.
_FORWARD, _BACKWARD = _RANK + 2, 2 * _RANK + 1
# Bytes per pixel: the features and the observed level are read; the derivative by the features is written if needed. The
# log-likelihood is one number per image.
_BYTES_IN, _BYTES_OUT = 4 * _RANK + 1, 4 * _RANK
_PROGRAMS, _BLOCK, _ROUNDS = 132 * 64, 1024, 2048


@triton.jit
def _arithmetic(out, n_rounds, IS_EXPONENTIAL: tl.constexpr, BLOCK: tl.constexpr):
    """Exponentials or multiply-adds in registers, and nothing else."""
    y = tl.arange(0, BLOCK) * 1e-3
    for _ in range(n_rounds // 16):
        for _ in tl.static_range(16):
            y = tl.exp2(-y) if IS_EXPONENTIAL else y * 0.999 + 1e-3
    tl.store(out + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), y)


def rate(*, is_exponential: bool) -> float:
    """Operations per millisecond."""
    out = torch.empty(_PROGRAMS * _BLOCK, device="cuda")

    def run() -> None:
        _arithmetic[(_PROGRAMS,)](out, _ROUNDS, IS_EXPONENTIAL=is_exponential, BLOCK=_BLOCK, num_warps=4)

    return _PROGRAMS * _BLOCK * _ROUNDS / graph_milliseconds(run, calls=2, turns=5)


def bandwidth() -> float:
    """Bytes read and written by a copy per millisecond."""
    source = torch.empty(2**28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / graph_milliseconds(lambda: target.copy_(source), calls=4, turns=5)


def lines() -> Iterator[Line]:
    """Forward, and forward with backward, for several numbers of images."""
    exps, multiplications, speed = rate(is_exponential=True), rate(is_exponential=False), bandwidth()
    yield Line("exponentials, multiply-adds, bytes per second", f"{exps:.2e}, {multiplications:.2e}, {speed:.2e} thousand")
    for n in (64, 640, 6400):
        tensors, x = _inputs(n)
        leaves = [tensor.requires_grad_() for tensor in tensors]

        def forward(leaves: list[Tensor] = leaves, x: Tensor = x) -> Tensor:
            with torch.no_grad():
                return pixel_log_likelihood(leaves[0], leaves[1], leaves[2], x)

        def both(leaves: list[Tensor] = leaves, x: Tensor = x) -> tuple[Tensor, ...]:
            return torch.autograd.grad(pixel_log_likelihood(leaves[0], leaves[1], leaves[2], x).sum(), leaves)

        n_pairs = n * _N_PIXELS * _N_LEVELS
        for name, function, n_operations, n_bytes in (
            ("forward", forward, _FORWARD, _BYTES_IN),
            ("forward and backward", both, _FORWARD + _BACKWARD, _BYTES_IN + _BYTES_OUT),
        ):
            times = {"memory": n * (_N_PIXELS * n_bytes + 4) / speed, "exponentials": n_pairs / exps}
            times[f"{n_operations} operations each"] = n_pairs * n_operations / multiplications
            floor = max(times.values())
            time, wall = graph_milliseconds(function, calls=5), milliseconds(function)
            yield Line(
                f"likelihood of {n} images, {name}",
                f"{time:.3f} ms ({time / floor:.2f} x floor; {wall:.3f} as a program sees it)",
                f"{3 * floor:.3f} ms",
                time <= 3 * floor,
                ", ".join(f"{what} {value:.4f}" for what, value in times.items()) + " ms",
                "the sum over pixels" if function is forward else "logits twice, partial sums, scaling by the gradient",
            )
    yield _twin()


def _twin() -> Line:
    (features, weight, bias), x = _inputs(640)

    def twin() -> object:
        return evaluate.twin(features, weight, bias, x, True, True)

    return Line("the same in plain torch, 640 images, forward with derivatives", f"{milliseconds(twin, turns=5):.3f} ms")


def _inputs(n: int) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = [(n, _N_PIXELS, _RANK), (_N_LEVELS, _RANK), (_N_LEVELS,)]
    tensors = [torch.randn(shape, device="cuda", generator=generator) for shape in shapes]
    x = torch.randint(0, _N_LEVELS, (n, _N_PIXELS), device="cuda", generator=generator, dtype=torch.uint8)
    return tensors, x
