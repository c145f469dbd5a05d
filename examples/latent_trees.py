"""Latent dependency trees: evaluate arithmetic whose tree is nowhere given.

An example is a sequence of 5 symbols. Each modifies one other or the root, and its value is its own number times the number
of its head; the hidden grammar attaches every symbol to the nearest symbol of the next higher kind. The network scores all
attachments, SparseMAP keeps a few trees, and only the total value is compared with the truth. Run it with
``python -m examples.latent_trees``.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

import sparsum as sp

LENGTH, N_KINDS = 5, 3


def true_heads(kinds: Tensor) -> Tensor:
    """Heads (n, 5): the nearest symbol of the next higher kind, the left of two as near, or the root if there is none."""
    place = torch.arange(LENGTH)
    distance = (place[:, None] - place).abs() + 0.1 * (place > place[:, None])
    is_higher = kinds[:, None, :] == kinds[:, :, None] + 1
    nearest = torch.where(is_higher, distance, torch.inf)
    return torch.where(is_higher.any(-1), nearest.argmin(-1), place)


def total(heads: Tensor, numbers: Tensor) -> Tensor:
    """Sum over the symbols of their number times their head's; the root counts 1."""
    is_root = heads == torch.arange(LENGTH)
    return (numbers * torch.where(is_root, 1.0, numbers.gather(-1, heads))).sum(-1)


def squared_error(numbers: Tensor, target: Tensor, z: Tensor, row: Tensor) -> Tensor:
    """How far the totals of trees z are from the target."""
    return (total(z, numbers[row]) - target[row]).square()


def main(steps: int = 200) -> tuple[float, float]:
    """Train; returns the part of attachments that are right, before and after."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    structure = sp.Tree(LENGTH)
    # The score of attaching a modifier to a head depends on both kinds and on the signed distance.
    weights = torch.nn.Parameter(0.01 * torch.randn(N_KINDS, N_KINDS, 2 * LENGTH - 1))
    root_weights = torch.nn.Parameter(torch.zeros(N_KINDS))
    offset = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH) + LENGTH - 1
    optimiser = torch.optim.Adam([weights, root_weights], lr=0.05)

    def scores(kinds: Tensor) -> Tensor:
        attach = weights[kinds[:, :, None], kinds[:, None, :], offset]
        is_root = torch.eye(LENGTH, dtype=torch.bool)
        return torch.where(is_root, root_weights[kinds].unsqueeze(-1), attach)

    def accuracy() -> float:
        kinds = torch.randint(N_KINDS, (100, LENGTH), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            return (structure.argmax(scores(kinds)) == true_heads(kinds)).float().mean().item()

    before = accuracy()
    for step in range(steps):
        kinds = torch.randint(N_KINDS, (32, LENGTH), generator=generator)
        numbers = torch.randn(32, LENGTH, generator=generator)
        q = sp.sparsemap(scores(kinds), structure)
        loss = q.expect(functools.partial(squared_error, numbers, total(true_heads(kinds), numbers))).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 50 == 0:
            atoms = q.n_atoms_per_row.float().mean().item()
            print(f"step {step:3}: squared error {loss.item():6.3f}, {atoms:.1f} trees per example")
    print(f"right attachments: {before:.0%} before, {accuracy():.0%} after training")
    return before, accuracy()


if __name__ == "__main__":
    main()
