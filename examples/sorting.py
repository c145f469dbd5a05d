"""Learn to sort: a network scores items one by one, and sees for each list only which order is right.

The items are images of digits, the target is the order of their labels. The loss of SparseMAP over `Permutation` is 0 once
the scores of neighbours differ by 1 in the right direction, so that no number is ever shown to the network.
Run it with ``python -m examples.sorting``; it needs scikit-learn, for its digits, and takes about 15 seconds.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor

import sparsum as sp

N_ITEMS, BATCH = 5, 64


def lists_of(images: Tensor, labels: Tensor, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random lists of items with different labels, (n, N_ITEMS, 64), and the rank of each item, (n, N_ITEMS)."""
    values = torch.rand(n, 10, generator=generator).argsort(-1)[:, :N_ITEMS]
    same = labels == values.unsqueeze(-1)  # shape: (n, N_ITEMS, n_images)
    chosen = torch.where(same, torch.rand(same.shape, generator=generator), -1.0).argmax(-1)
    return images[chosen], values.argsort(-1).argsort(-1)


def main(n_steps: int = 1000, seed: int = 0) -> tuple[float, float]:
    """Train, and return the share of unseen lists that are sorted without a mistake, before and after."""
    torch.manual_seed(seed)
    structure, generator = sp.Permutation(N_ITEMS), torch.Generator().manual_seed(seed)
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits)
    scorer = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
    optimizer = torch.optim.Adam(scorer.parameters(), lr=3e-3)
    tests, answers = lists_of(images[1500:], labels[1500:], 500, generator)

    def share_of_sorted() -> float:
        return float((structure.argmax(scorer(tests).squeeze(-1)) == answers).all(-1).double().mean())

    before = share_of_sorted()
    for step in range(n_steps):
        items, ranks = lists_of(images[:1500], labels[:1500], BATCH, generator)
        loss = sp.sparsemap_loss(scorer(items).squeeze(-1), structure, ranks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 200 == 0:
            print(f"step {step}: loss {float(loss.detach()):.3f}")
    after = share_of_sorted()
    print(f"unseen lists without a mistake: {before:.0%} before, {after:.0%} after")
    return before, after


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Learn to sort images of digits.")
    parser.add_argument("--steps", type=int, default=1000)
    main(parser.parse_args().steps)
