"""The mappings against the `entmax` package and `torch.softmax`, with errors.

Run it with ``make bench``, or ``OMP_NUM_THREADS=1 python -m benchmarks.simplex`` where `entmax` is installed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import sparsum as sp
from benchmarks.timing import describe, median_seconds

try:
    import entmax
except ImportError:
    raise SystemExit("the peer is missing: pip install -r benchmarks/requirements.txt, or make bench") from None

Mapping = Callable[[Tensor], Tensor]

SHAPES = [(64, 10), (64, 256), (64, 1024), (1024, 32768)]
ANY_ALPHA_SHAPES = [(2048, 64), (64, 1000), (2048, 512)]
ALPHAS = [1.05, 1.2, 1.3, 1.6, 1.9, 2.5, 4.0]


def forward_and_backward(mapping: Mapping, *inputs: Tensor) -> Callable[[], object]:
    """A call of the mapping and its gradient; the last input is the gradient of its output."""
    *leaves, weight = inputs
    return lambda: torch.autograd.grad(mapping(leaves[0]), leaves, weight)


def random_rows(shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Normally distributed scores that need a gradient, and a gradient of the output."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator).requires_grad_(), torch.randn(shape, generator=generator)


def compare(shape: tuple[int, int]) -> None:
    """Print one row of the table of sparsemax and 1.5-entmax."""
    x, weight = random_rows(shape)
    mappings: dict[str, Mapping] = {
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


def compare_any_alpha(shape: tuple[int, int], alpha: float) -> None:
    """Print one row of the table of other alphas: ours and bisection, and the largest error of both."""
    x, weight = random_rows(shape)
    learned = torch.tensor(alpha, requires_grad=True)
    ours, peer = partial(sp.entmax, alpha=alpha), partial(entmax.entmax_bisect, alpha=alpha)
    seconds = median_seconds(
        {
            "forward": partial(ours, x.detach()),
            "peer forward": partial(peer, x.detach()),
            "both": forward_and_backward(ours, x, weight),
            "peer both": forward_and_backward(peer, x, weight),
            "learned": forward_and_backward(partial(sp.entmax, alpha=learned), x, learned, weight),
            "peer learned": forward_and_backward(partial(entmax.entmax_bisect, alpha=learned), x, learned, weight),
        },
        seconds=0.5,
    )
    exact = sp.entmax(x.detach().double(), alpha)
    errors = [(mapping(x.detach()).double() - exact).abs().max().item() for mapping in (ours, peer)]
    ratios = "".join(f" {seconds[f'peer {what}'] / seconds[what]:10.1f}x" for what in ("forward", "both", "learned"))
    print(f"{shape!s:>14} {alpha:6.2f} {1e3 * seconds['forward']:11.3f}{ratios} {errors[0]:9.0e} {errors[1]:9.0e}")


def main() -> None:
    """Print the tables."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"forward and backward, float32; {describe()}")
    print(f"{'':14} {'sparsemax ms':>12} {'vs entmax':>11} {'of softmax':>13} {'entmax15 ms':>12} {'vs entmax':>11}")
    for shape in SHAPES:
        compare(shape)
    print("\nany alpha, float32, against entmax_bisect: forward, with backward, with a learnable alpha; largest errors")
    print(
        f"{'':14} {'alpha':>6} {'forward ms':>11} {'forward':>11} {'both':>11} {'learnable':>11} {'error':>9} {'of peer':>9}"
    )
    for shape in ANY_ALPHA_SHAPES:
        for alpha in ALPHAS:
            compare_any_alpha(shape, alpha)


if __name__ == "__main__":
    main()
