"""Cost of a packed sum: against the dense sum, the bare decoder, and in memory, for up to a million categories.

Run it with ``make bench`` or ``OMP_NUM_THREADS=1 python -m benchmarks.expect``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

import sparsum as sp
from benchmarks.timing import describe, median_seconds, peak_bytes

N_CATEGORIES, BATCH, ATOMS_PER_ROW = 256, 64, 3


def three_of_many(generator: torch.Generator) -> Tensor:
    """Scores whose sparsemax has exactly three atoms per row."""
    scores = torch.full((BATCH, N_CATEGORIES), -10.0)
    best = torch.rand(BATCH, N_CATEGORIES, generator=generator).topk(ATOMS_PER_ROW, -1).indices
    return scores.scatter(-1, best, torch.rand(BATCH, ATOMS_PER_ROW, generator=generator) / 4)


def expensive_decoder() -> None:
    """An MLP of the assignment and the example: packed, dense, and without a distribution."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    decoder = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 784)
    )
    embedding = torch.nn.Parameter(torch.randn(N_CATEGORIES, 256))
    context, x = torch.randn(BATCH, 256, generator=generator), torch.rand(BATCH, 784, generator=generator)
    scores = three_of_many(generator).requires_grad_()

    def loss(z: Tensor, row: Tensor) -> Tensor:
        error: Tensor = decoder(sp.embed(z, embedding) + context[row]) - x[row]
        return error.square().mean(-1)

    def packed() -> None:
        sp.sparsemap(scores, sp.OneOf(N_CATEGORIES)).expect(loss).sum().backward()

    def dense() -> None:
        z, row = torch.arange(N_CATEGORIES).repeat(BATCH), torch.arange(BATCH).repeat_interleave(N_CATEGORIES)
        (torch.softmax(scores, -1) * loss(z, row).reshape(BATCH, -1)).sum().backward()

    q = sp.sparsemap(scores, sp.OneOf(N_CATEGORIES))
    z, row = q.atoms, q.row

    def bare() -> None:
        loss(z, row).sum().backward()

    functions: dict[str, Callable[[], object]] = {"packed": packed, "dense": dense, "bare": bare}
    seconds = median_seconds(functions, turns=5)
    memory = {name: peak_bytes(function) for name, function in functions.items()}
    print(f"decoder 256-1024-1024-784, batch {BATCH}, {N_CATEGORIES} categories, {len(z)} atoms, forward and backward")
    print(f"{'':28} {'ms':>10} {'peak MiB':>10}")
    for name, text in (("packed", "packed sum"), ("dense", "dense sum"), ("bare", f"decoder on {len(z)} rows")):
        print(f"{text:28} {1e3 * seconds[name]:10.1f} {memory[name] / 2**20:10.1f}")
    print(
        f"packed: {seconds['dense'] / seconds['packed']:.0f}x faster than dense, {memory['dense'] / memory['packed']:.0f}x"
    )
    print(f"        less memory, {seconds['packed'] / seconds['bare']:.2f}x the time of the bare decoder\n")


def bounded_memory() -> None:
    """The peak memory of a large support, whole and in chunks."""
    torch.manual_seed(0)
    decoder = torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 784))
    embedding = torch.nn.Parameter(torch.randn(N_CATEGORIES, 64))
    q = sp.SparseDistribution.from_dense(torch.full((BATCH, N_CATEGORIES), 1 / N_CATEGORIES))

    def run(chunk_size: int | None) -> int:
        return peak_bytes(
            lambda: (
                q.expect(lambda z, _: decoder(sp.embed(z, embedding)).square().mean(-1), chunk_size=chunk_size)
                .sum()
                .backward()
            )
        )

    print(f"peak memory of {len(q.atoms)} atoms, forward and backward")
    for chunk_size in (None, 4096, 1024, 256):
        print(f"  chunk_size={chunk_size!s:>5} {run(chunk_size) / 2**20:10.1f} MiB")
    print()


def many_categories() -> None:
    """Time, and memory relative to that of the scores, which any mapping has to read."""
    print("scores -> distribution -> expectation and gradient, batch 32")
    print(f"{'categories':>12} {'atoms':>8} {'ms':>10} {'of softmax':>12} {'peak / scores':>14}")
    for n in (1_000, 10_000, 100_000, 1_000_000):
        scores = torch.randn(32, n, generator=torch.Generator().manual_seed(0)).requires_grad_()
        table = torch.randn(n, generator=torch.Generator().manual_seed(1))

        def packed(scores: Tensor = scores, n: int = n, table: Tensor = table) -> sp.SparseDistribution:
            q = sp.sparsemap(scores, sp.OneOf(n))
            torch.autograd.grad(q.expect(lambda z, _: table[z]).sum(), scores)
            return q

        def dense(scores: Tensor = scores, table: Tensor = table) -> None:
            torch.autograd.grad((torch.softmax(scores, -1) * table).sum(), scores)

        seconds = median_seconds({"packed": packed, "dense": dense}, seconds=0.5, turns=3)
        size = scores.numel() * scores.element_size()
        print(
            f"{n:12,} {len(packed().atoms):8} {1e3 * seconds['packed']:10.2f} {seconds['packed'] / seconds['dense']:11.2f}x"
            f" {peak_bytes(packed) / size:14.2f}"
        )


def main() -> None:
    """Print all tables."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(describe() + "\n")
    expensive_decoder()
    bounded_memory()
    many_categories()


if __name__ == "__main__":
    main()
