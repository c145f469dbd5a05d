"""A sparse matching layer: learn to unscramble noisy copies of points without being told which is which.

Each example is a set of 6 points and a noisy, turned and shuffled copy. A network scores all pairs; SparseMAP over matchings
turns the scores into a few matchings, and the loss asks how well the matched copies explain the points. Run it with
``python -m examples.matching``.
"""

from __future__ import annotations

import torch
from torch import Tensor

import sparsum as sp

N_POINTS = 6


def draw(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Points (n, 6, 2), their turned and shuffled copies, and the true places (n, 6) of the points' copies."""
    points = torch.randn(n, N_POINTS, 2, generator=generator)
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    order = torch.rand(n, N_POINTS, generator=generator).argsort(-1)
    copies = (points @ turn + 0.05 * torch.randn(n, N_POINTS, 2, generator=generator)).gather(
        1, order.unsqueeze(-1).expand(-1, -1, 2)
    )
    return points, copies, order.argsort(-1)


def main(steps: int = 120) -> tuple[float, float]:
    """Train; returns the part of points that are matched to their own copy, before and after."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    structure = sp.Matching(N_POINTS)
    # The network has to find the turn: it maps points to where it expects their copies.
    network = torch.nn.Linear(2, 2, bias=False)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.03)

    def scores(points: Tensor, copies: Tensor) -> Tensor:
        return -2 * torch.cdist(network(points), copies).square()

    def accuracy() -> float:
        points, copies, truth = draw(200, torch.Generator().manual_seed(1))
        with torch.no_grad():
            return (structure.argmax(scores(points, copies)) == truth).float().mean().item()

    before = accuracy()
    for step in range(steps):
        points, copies, _ = draw(32, generator)
        q = sp.sparsemap(scores(points, copies), structure)
        expected = network(points)

        def loss(z: Tensor, row: Tensor, copies: Tensor = copies, expected: Tensor = expected) -> Tensor:
            matched = copies[row].gather(1, z.unsqueeze(-1).expand(-1, -1, 2))
            return (matched - expected[row]).square().sum((-2, -1))

        objective = q.expect(loss).mean()
        optimiser.zero_grad()
        objective.backward()
        optimiser.step()
        if step % 40 == 0:
            atoms = q.n_atoms_per_row.float().mean().item()
            print(f"step {step:3}: distance {objective.item():6.3f}, {atoms:.1f} matchings per example")
    print(f"points matched to their own copy: {before:.0%} before, {accuracy():.0%} after training")
    return before, accuracy()


if __name__ == "__main__":
    main()
