"""Captured steps in a loop of Lightning: ``python -m examples.with_lightning``. It needs pytorch-lightning.

The captured step holds everything from ``zero_grad`` to the step of the optimizer. Lightning still moves batches to the
device, counts steps, logs, changes rates, and writes checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import sparsum as sp

N_BITS = 32


class Autoencoder(pl.LightningModule):
    """A VAE of images whose latent variables are bits."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, N_BITS), sp.nn.ScoreNorm(N_BITS))
        self.decoder = nn.Sequential(nn.Linear(N_BITS, 64), nn.ReLU(), nn.Linear(64, 64))
        self.take = sp.capture(self.step)
        self.losses: list[float] = []

    def configure_optimizers(self) -> dict[str, Any]:
        """Adam, whose rate decreases."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3, fused=True)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)}

    def step(self, x: Tensor) -> Tensor:
        """Everything that happens to a batch on the device. Not logs: they would be those of the first steps."""
        optimizer = self.optimizers(use_pl_optimizer=False)
        optimizer.zero_grad()
        q = sp.sparsemap(self.encoder(x), sp.Bits(N_BITS))

        def distortion(z: Tensor, row: Tensor) -> Tensor:
            return nn.functional.binary_cross_entropy_with_logits(self.decoder(z), x[row], reduction="none").sum(-1)

        objective: Tensor = (q.expect(distortion) - q.entropy()).mean()
        objective.backward()
        nn.utils.clip_grad_norm_(self.parameters(), 10.0)
        optimizer.step()
        return objective

    def training_step(self, batch: list[Tensor], _: int) -> None:
        """Take the step. Without a loss in return, Lightning does not call backward."""
        self.log("loss", self.take(batch[0]), on_step=False, on_epoch=True)

    def optimizer_step(self, epoch: int, index: int, optimizer: Any, closure: Callable[[], Any] | None = None) -> None:
        """Call `training_step`, in which the optimizer steps; Lightning would step once more."""
        assert closure is not None
        closure()

    def on_train_epoch_end(self) -> None:
        """Keep the loss of the epoch."""
        self.losses.append(self.trainer.callback_metrics["loss"].item())


def main(epochs: int = 20, **options: Any) -> Autoencoder:
    """Train; returns the model, with the loss of each epoch."""
    pl.seed_everything(0)
    images = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    data = torch.utils.data.TensorDataset(images)
    batches = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True, drop_last=True)  # the last has another shape
    model = Autoencoder()
    pl.Trainer(max_epochs=epochs, **options).fit(model, batches)
    return model


if __name__ == "__main__":
    trained = main()
    print(f"losses {', '.join(f'{loss:.2f}' for loss in trained.losses)}; {trained.take.n_captures} captures")
