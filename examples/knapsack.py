"""A structure of one's own: learn what each item is worth from the total value of the best packed knapsack.

A knapsack holds any set of items whose weights fit. All that the library needs to know is how to pack the best one, here
by dynamic programming over the capacity; SparseMAP then gives a differentiable layer over all packings. The values of the
items are hidden; what is seen are features of the items and what an expert packed.

Run it with ``python -m examples.knapsack``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

import sparsum as sp


@dataclass(frozen=True)
class Knapsack(sp.AbstractStructure):
    """Sets of items with whole-numbered weights that fit into a capacity; atoms are 0/1 vectors."""

    weights: tuple[int, ...]
    capacity: int

    @property
    def score_shape(self) -> tuple[int, ...]:
        """One score per item."""
        return (len(self.weights),)

    def argmax(self, scores: Tensor) -> Tensor:
        """The best set, by dynamic programming: best[c] is the value of the best set of weight at most c."""
        best = scores.new_zeros(*scores.shape[:-1], self.capacity + 1)
        takes = []
        for item, weight in enumerate(self.weights):
            taken = torch.full_like(best, -torch.inf)
            if weight <= self.capacity:
                taken[..., weight:] = best[..., : self.capacity + 1 - weight] + scores[..., item, None]
            takes.append(taken > best)
            best = torch.maximum(best, taken)
        atoms, left = torch.zeros_like(scores), torch.full(scores.shape[:-1], self.capacity, device=scores.device)
        for item in range(len(self.weights) - 1, -1, -1):
            is_taken = takes[item].gather(-1, left.unsqueeze(-1)).squeeze(-1)
            atoms[..., item] = is_taken.to(scores.dtype)
            left = left - is_taken * self.weights[item]
        return atoms


def wrong_items(expert: Tensor, z: Tensor, row: Tensor) -> Tensor:
    """How many items of the packed sets z differ from the expert's."""
    return (z - expert[row]).square().sum(-1)


def main(steps: int = 150) -> tuple[float, float]:
    """Train a network to pack as the expert does; returns how often it packs the very same set, before and after."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    structure = Knapsack(weights=(3, 4, 2, 5, 1, 3), capacity=8)
    hidden = torch.randn(4, generator=generator)
    features = torch.randn(256, 6, 4, generator=generator)  # of 6 items in 256 knapsacks
    packed = structure.argmax(features @ hidden)
    network = torch.nn.Linear(4, 1)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.05)

    def agreement() -> float:
        with torch.no_grad():
            return (structure.argmax(network(features).squeeze(-1)) == packed).all(-1).float().mean().item()

    before = agreement()
    for step in range(steps):
        batch = torch.randint(256, (32,), generator=generator)
        q = sp.sparsemap(network(features[batch]).squeeze(-1), structure)
        expert = packed[batch]
        loss = q.expect(functools.partial(wrong_items, expert)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 50 == 0:
            atoms = q.n_atoms_per_row.float().mean().item()
            print(f"step {step:3}: {loss.item():.3f} wrong items, {atoms:.1f} sets per knapsack")
    print(f"packs the expert's set: {before:.0%} before, {agreement():.0%} after training")
    return before, agreement()


if __name__ == "__main__":
    main()
