"""Sparsemax and 1.5-entmax against the `entmax` package and `torch.softmax`, forward and backward.

Run it with ``make bench``, or ``OMP_NUM_THREADS=1 python -m benchmarks.simplex`` where `entmax` is installed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

import sparsum as sp
from benchmarks.timing import describe, median_seconds

try:
    import entmax
except ImportError:
    raise SystemExit("the peer is missing: pip install -r benchmarks/requirements.txt, or make bench") from None

SHAPES = [(64, 10), (64, 256), (64, 1024), (1024, 32768)]


def forward_and_backward(mapping: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> Callable[[], object]:
    """A call of the mapping and its gradient."""
    return lambda: torch.autograd.grad(mapping(x), x, weight)


def compare(shape: tuple[int, int]) -> None:
    """Print one row of the table."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).requires_grad_()
    weight = torch.randn(shape, generator=generator)
    mappings: dict[str, Callable[[Tensor], Tensor]] = {
        "sparsemax": sp.sparsemax,
        "entmax.sparsemax": entmax.sparsemax,
        "softmax": lambda x: torch.softmax(x, -1),
        "entmax15": sp.entmax15,
        "entmax.entmax15": lambda x: entmax.entmax15(x, -1),
    }
    seconds = median_seconds({name: forward_and_backward(f, x, weight) for name, f in mappings.items()})
    print(
        f"{shape!s:>14} {1e3 * seconds['sparsemax']:12.3f} {seconds['entmax.sparsemax'] / seconds['sparsemax']:10.1f}x"
        f" {seconds['sparsemax'] / seconds['softmax']:12.2f}x {1e3 * seconds['entmax15']:12.3f}"
        f" {seconds['entmax.entmax15'] / seconds['entmax15']:10.1f}x"
    )


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"forward and backward, float32; {describe()}")
    print(f"{'':14} {'sparsemax ms':>12} {'vs entmax':>11} {'of softmax':>13} {'entmax15 ms':>12} {'vs entmax':>11}")
    for shape in SHAPES:
        compare(shape)


if __name__ == "__main__":
    main()
