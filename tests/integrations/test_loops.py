"""Loops of other libraries train as a plain loop does, with captured steps: on a GPU as graphs, else as they are."""

from __future__ import annotations

import functools
import pathlib
import warnings

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import sparsum as sp

pytestmark = pytest.mark.integrations

EPOCHS, N_BITS = 5, 32


def images() -> Tensor:
    return torch.tensor(load_digits().data, dtype=torch.float32) / 16


def distortion(decoder: nn.Module, z: Tensor, x: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(decoder(z), x, reduction="none").sum(-1)


def assert_codes_inform(encoder: nn.Module, decoder: nn.Module) -> None:
    """An image decoded from its bits is closer than the best image that is the same for all, by 3 nats."""
    x = images()
    codes = sp.Bits(N_BITS).argmax(encoder.eval()(x))
    assert len(codes.unique(dim=0)) > 1000
    same = torch.special.entr(x.mean(0)) + torch.special.entr(1 - x.mean(0))
    assert distortion(decoder, codes, x).mean() < same.sum() - 3


@functools.cache
def plain_losses() -> list[float]:
    """The losses of each epoch of the same model in a loop of torch alone, without captured steps."""
    torch.manual_seed(0)
    x = images()
    encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, N_BITS), sp.nn.ScoreNorm(N_BITS))
    decoder = nn.Sequential(nn.Linear(N_BITS, 64), nn.ReLU(), nn.Linear(64, 64))
    parameters = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-3, fused=True)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    data = torch.utils.data.TensorDataset(x)
    batches = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True, drop_last=True)
    losses = []
    for _ in range(EPOCHS):
        total = 0.0
        for (batch,) in batches:
            optimizer.zero_grad()
            q = sp.sparsemap(encoder(batch), sp.Bits(N_BITS))
            fit = q.expect(lambda z, row, batch=batch: distortion(decoder, z, batch[row]))
            objective = (fit - q.entropy()).mean()
            objective.backward()
            nn.utils.clip_grad_norm_(parameters, 10.0)
            optimizer.step()
            total += objective.item()
        scheduler.step()
        losses.append(total / len(batches))
    assert_codes_inform(encoder, decoder)
    return losses


def test_lightning(tmp_path: pathlib.Path) -> None:
    """A LightningModule learns what the plain loop learns, with checkpoints and a schedule."""
    from examples import with_lightning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning gives advice on workers, loggers and steps without a loss
        model = with_lightning.main(epochs=EPOCHS, default_root_dir=tmp_path, enable_progress_bar=False, logger=False)
    assert model.losses == pytest.approx(plain_losses(), rel=0.01)  # rounding decides which atoms are taken at ties
    assert_codes_inform(model.encoder, model.decoder)
    assert model.trainer.global_step == EPOCHS * (1797 // 64)
    assert model.trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(3e-3 * 0.95**EPOCHS)
    assert list(tmp_path.rglob("*.ckpt"))
    assert bool(model.take.n_captures) == torch.cuda.is_available()


def test_accelerate(capsys: pytest.CaptureFixture[str]) -> None:
    """A loop of accelerate learns what the plain loop learns."""
    from examples import with_accelerate

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        losses = with_accelerate.main(epochs=EPOCHS)
    assert losses == pytest.approx(plain_losses(), rel=0.01)
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert ("0 captures" not in last) == torch.cuda.is_available()
