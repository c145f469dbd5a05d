"""Loops of other libraries take captured steps: on a GPU as graphs, else as they are."""

from __future__ import annotations

import pathlib
import warnings

import pytest
import torch

pytestmark = pytest.mark.integrations


def test_lightning(tmp_path: pathlib.Path) -> None:
    from examples import with_lightning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning gives advice on workers, loggers and steps without a loss
        model = with_lightning.main(epochs=5, default_root_dir=tmp_path, enable_progress_bar=False, logger=False)
    assert model.losses[-1] < model.losses[0] - 5
    assert model.trainer.global_step == 5 * (1797 // 64)
    assert model.trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(3e-3 * 0.95**5)
    assert list(tmp_path.rglob("*.ckpt"))
    assert bool(model.take.n_captures) == torch.cuda.is_available()


def test_accelerate(capsys: pytest.CaptureFixture[str]) -> None:
    from examples import with_accelerate

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        losses = with_accelerate.main(epochs=5)
    assert losses[-1] < losses[0] - 5
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert ("0 captures" not in last) == torch.cuda.is_available()
