"""Captured steps in a loop of accelerate, on one GPU: ``python -m examples.with_accelerate``. It needs accelerate.

Several processes would add up gradients by a collective operation, which is not captured here.
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import Tensor, nn

import sparsum as sp

N_BITS = 32


def main(epochs: int = 20, **options: Any) -> list[float]:
    """Train, and print the loss of each epoch; returns these."""
    torch.manual_seed(0)
    accelerator = Accelerator(**options)
    images = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    model = nn.ModuleDict(
        {
            "encoder": nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, N_BITS), sp.nn.ScoreNorm(N_BITS)),
            "decoder": nn.Sequential(nn.Linear(N_BITS, 64), nn.ReLU(), nn.Linear(64, 64)),
        }
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    data = torch.utils.data.TensorDataset(images)
    batches = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True, drop_last=True)  # the last has another shape
    model, optimizer, batches, scheduler = accelerator.prepare(model, optimizer, batches, scheduler)

    @sp.capture
    def step(x: Tensor) -> Tensor:
        """Everything that happens to a batch; the size of the support is different each time."""
        optimizer.zero_grad()
        with accelerator.autocast():
            q = sp.sparsemap(model["encoder"](x), sp.Bits(N_BITS))

            def distortion(z: Tensor, row: Tensor) -> Tensor:
                logits = model["decoder"](z)
                return nn.functional.binary_cross_entropy_with_logits(logits, x[row], reduction="none").sum(-1)

            objective: Tensor = (q.expect(distortion) - q.entropy()).mean()
        accelerator.backward(objective)
        accelerator.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        return objective

    losses = []
    for epoch in range(epochs):
        total = torch.zeros((), device=accelerator.device)
        for (x,) in batches:
            total += step(x)
        scheduler.step()
        losses.append(total.item() / len(batches))
        accelerator.print(f"epoch {epoch + 1:2}: loss {losses[-1]:6.2f}, {step.n_captures} captures")
    return losses


if __name__ == "__main__":
    main()
