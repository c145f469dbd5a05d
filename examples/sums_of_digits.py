"""Learn to read digits from sums: of two images, only the sum of their digits is known.

A rule says that the sum is that of the digits: 39 bits, for the digit of each image and the sum, of which one each is 1. The
likelihood of an observed sum is a sum over all bit vectors that satisfy the rule and have this sum, which `sparsum.Gibbs`
over a `sparsum.DecisionDiagram` computes exactly; the other sums are forbidden by a mask.

Run it with ``python -m examples.sums_of_digits``; it needs scikit-learn, for its digits, and takes about 5 seconds.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits

import sparsum as sp


def rule() -> sp.DecisionDiagram:
    """10 bits for the first digit, 10 for the second, 19 for the sum."""
    bits = sp.Formula.variables(39)
    first, second, total = bits[:10], bits[10:20], bits[20:]
    one_each = [sp.Formula.exactly(1, group) for group in (first, second, total)]
    sums = [(first[a] & second[b]) >> total[a + b] for a in range(10) for b in range(10)]
    return sp.DecisionDiagram(39, sp.Formula.all_of([*one_each, *sums]))


def main(n_steps: int = 250, seed: int = 0) -> tuple[float, float]:
    """Train, and return the share of unseen images whose digit is read rightly, before and after."""
    torch.manual_seed(seed)
    generator, structure = torch.Generator().manual_seed(seed), rule()
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits)
    reader = torch.nn.Sequential(
        torch.nn.Linear(64, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10), torch.nn.LogSoftmax(-1)
    )
    optimizer = torch.optim.Adam(reader.parameters(), lr=3e-3)

    def accuracy() -> float:
        return float((reader(images[1500:]).argmax(-1) == labels[1500:]).double().mean())

    before = accuracy()
    for step in range(n_steps):
        pairs = torch.randint(1500, (64, 2), generator=generator)
        total = labels[pairs].sum(-1, keepdim=True)
        scores = torch.cat([reader(images[pairs]).flatten(1), torch.zeros(64, 19)], -1)
        is_allowed = torch.cat([torch.ones(64, 20, dtype=torch.bool), torch.arange(19) == total], -1)
        loss = -sp.Gibbs(scores, structure, mask=is_allowed).log_partition.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {float(loss.detach()):.3f}")
    after = accuracy()
    print(f"digits read rightly: {before:.0%} before, {after:.0%} after")
    return before, after


if __name__ == "__main__":
    main()
