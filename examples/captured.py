"""A VAE with 32 bits on scikit-learn's digits, whose steps are CUDA graphs on a GPU: ``python -m examples.captured``.

On a CPU, the same code runs the steps as they are.
"""

from __future__ import annotations

import time

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import sparsum as sp


def main(epochs: int = 20, device: str = "cuda" if torch.cuda.is_available() else "cpu") -> list[float]:
    """Train, and print the loss of each epoch; returns these."""
    torch.manual_seed(0)
    images = torch.tensor(load_digits().data, dtype=torch.float32, device=device) / 16
    encoder = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32)).to(device)
    decoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64)).to(device)
    parameters = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-3, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)

    @sp.capture
    def step(x: Tensor) -> Tensor:
        """Everything that happens to a batch; the size of the support is different each time."""
        optimizer.zero_grad()
        q = sp.sparsemap(encoder(x), sp.Bits(32))

        def distortion(z: Tensor, row: Tensor) -> Tensor:
            return nn.functional.binary_cross_entropy_with_logits(decoder(z), x[row], reduction="none").sum(-1)

        objective: Tensor = (q.expect(distortion) - q.entropy()).mean()
        objective.backward()
        nn.utils.clip_grad_norm_(parameters, 10.0)
        optimizer.step()
        return objective

    losses = []
    for epoch in range(epochs):
        begin, total = time.perf_counter(), torch.zeros((), device=device)
        batches = images[torch.randperm(len(images), device=device)].split(64)[:-1]  # the last one has another shape
        for x in batches:
            total += step(x)
        scheduler.step()  # a rate that changes has an effect on captured steps
        losses.append(total.item() / len(batches))
        milliseconds = 1e3 * (time.perf_counter() - begin) / len(batches)
        print(f"epoch {epoch + 1:2}: loss {losses[-1]:6.2f}, {milliseconds:5.2f} ms per step, {step.n_captures} captures")
    return losses


if __name__ == "__main__":
    main()
