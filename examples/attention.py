"""Adaptively sparse attention: each head learns how sparse it is, by an alpha of its own between bounds.

A sequence holds 12 pairs of a key and a value. Asked for one of the keys, the model has to recall its value, for which one
place matters, and to say how often each value occurs, for which all places matter alike. One layer of attention has to do
both. Its heads map scores to weights by entmax, from almost softmax (alpha 1.05) to sparser than sparsemax (alpha 2.5).

In the end some heads are dense and count, others are sparse and point at the key: their weights are exactly 0 elsewhere.

Run it with ``python -m examples.attention``.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor

import sparsum as sp

N_KEYS, N_VALUES, LENGTH = 16, 8, 12
N_HEADS, WIDTH = 4, 64


class SparseAttention(torch.nn.Module):
    """Multi-head attention whose weights are entmax, with one learnable alpha per head."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (torch.nn.Linear(width, width) for _ in range(4))
        self.weigh = sp.Entmax(1.5, bounds=(1.05, 2.5), n_heads=n_heads)

    def forward(
        self,
        x: Tensor,  # shape: (batch, queries, width)
        context: Tensor,  # shape: (batch, keys, width)
    ) -> tuple[Tensor, Tensor]:
        """What each query reads, (batch, queries, width), and the weights, (batch, heads, queries, keys)."""
        query, key, value = (
            layer(source).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for layer, source in ((self.query, x), (self.key, context), (self.value, context))
        )
        weights = self.weigh(query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]))
        return self.out((weights @ value).transpose(1, 2).flatten(-2)), weights

    def alpha(self) -> list[float]:
        """The alpha of each head."""
        alpha = self.weigh.current_alpha()
        assert isinstance(alpha, Tensor)
        return alpha.flatten().tolist()


class Reader(torch.nn.Module):
    """Reads a sequence of pairs with one layer of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = torch.nn.Embedding(N_KEYS, WIDTH), torch.nn.Embedding(N_VALUES, WIDTH)
        self.attention = SparseAttention(WIDTH, N_HEADS)
        self.answer = torch.nn.Linear(WIDTH, 2 * N_VALUES)

    def forward(self, keys: Tensor, values: Tensor, asked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of the value of the key asked for, of how often each value occurs, and weights (batch, heads, length)."""
        found, weights = self.attention(self.keys(asked).unsqueeze(1), self.keys(keys) + self.values(values))
        recalled, counted = self.answer(found.squeeze(1)).chunk(2, -1)
        return recalled, counted, weights.squeeze(2)


def draw(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Different keys and any values of shape (n, length), a key of each sequence, (n,), and its place, (n,)."""
    keys = torch.rand(n, N_KEYS, generator=generator).argsort(-1)[:, :LENGTH]
    values = torch.randint(N_VALUES, (n, LENGTH), generator=generator)
    place = torch.randint(LENGTH, (n,), generator=generator)
    return keys, values, keys.gather(1, place.unsqueeze(1)).squeeze(1), place


@torch.no_grad()
def recall(model: Reader, generator: torch.Generator) -> float:
    """The share of values that the model recalls, of new sequences."""
    keys, values, asked, place = draw(2000, generator)
    wanted = values.gather(1, place.unsqueeze(1)).squeeze(1)
    recalled: Tensor = model(keys, values, asked)[0].argmax(-1)
    return (recalled == wanted).float().mean().item()


def train(model: Reader, steps: int, generator: torch.Generator) -> None:
    """Train on new sequences at every step; counts are learned as a distribution over values.

    The alphas have few gradients to learn from, and take larger steps than the weights.
    """
    sparsity = list(model.attention.weigh.parameters())
    others = [parameter for parameter in model.parameters() if all(parameter is not other for other in sparsity)]
    optimiser = torch.optim.Adam([{"params": others, "lr": 3e-3}, {"params": sparsity, "lr": 3e-2}])
    for _ in range(steps):
        keys, values, asked, place = draw(64, generator)
        recalled, counted, _ = model(keys, values, asked)
        shares = torch.nn.functional.one_hot(values, N_VALUES).float().mean(1)
        loss = torch.nn.functional.cross_entropy(recalled, values.gather(1, place.unsqueeze(1)).squeeze(1))
        loss = loss + torch.nn.functional.cross_entropy(counted, shares)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


@torch.no_grad()
def report(model: Reader, generator: torch.Generator) -> None:
    """Print the alpha of each head, the share of its weights that are 0, and its weight at the place asked for."""
    keys, values, asked, place = draw(2000, generator)
    weights = model(keys, values, asked)[2]
    hit = weights.gather(-1, place[:, None, None].expand(-1, N_HEADS, 1)).mean((0, 2))
    zeros = (weights == 0).float().mean((0, 2))
    print("head  alpha  weights that are 0  weight at the place asked for")
    for head, alpha in enumerate(model.attention.alpha()):
        print(f"{head:4}  {alpha:5.2f}  {zeros[head]:18.0%}  {hit[head]:29.0%}")


def main(steps: int = 400, seed: int = 0) -> tuple[float, float]:
    """Train; returns the share of values recalled before and after."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Reader()
    before = recall(model, generator)
    train(model, steps, generator)
    after = recall(model, generator)
    print(f"values recalled: {before:.0%} before, {after:.0%} after training")
    report(model, generator)
    return before, after


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="steps of training (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and sequences (%(default)s)")
    main(**vars(parser.parse_args()))
