"""The VAE with 200 bits: its measures against enumeration, and what its methods maximise."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import sparsum as sp
from benchmarks.tasks import binary_vae
from benchmarks.tasks.binary_vae import (
    FULL,
    LONG,
    N_STEPS,
    SHORT,
    BinaryVAE,
    Model,
    Objective,
    checkpoints,
    elbo,
    interpolated,
    log_weights,
    mean_bound,
    sampled_elbo,
)
from benchmarks.tasks.binary_vae_curves import at_equal_seconds, curves_of
from benchmarks.tasks.task import Options, Trial
from sparsum.estimators import AbstractEstimator

N_PIXELS, N_BITS = 5, 4


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model(N_PIXELS, N_BITS, width=6).double()


@pytest.fixture
def x() -> Tensor:
    return torch.tensor([[1, 0, 1, 1, 0], [0, 0, 1, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.float64)


def every_code() -> Tensor:
    """All bit vectors: (16, 4)."""
    return torch.tensor(list(itertools.product([0.0, 1.0], repeat=N_BITS)), dtype=torch.float64)


def log_joints(model: Model, x: Tensor) -> Tensor:
    """The log-density log p(x, z) of all codes by the probability of each pixel: (n_rows, 16)."""
    probs = torch.distributions.Bernoulli(logits=model.decoder(every_code()))
    return torch.stack([probs.log_prob(row).sum(-1) for row in x]) - N_BITS * math.log(2)


def log_posteriors(scores: Tensor) -> Tensor:
    """The log-probability log q(z | x) of all codes: (n_rows, 16)."""
    z = every_code()
    return (z * functional.logsigmoid(scores)[:, None] + (1 - z) * functional.logsigmoid(-scores)[:, None]).sum(-1)


@pytest.mark.parametrize("sharpness", [None, 0.5])
def test_many_samples_give_the_likelihood(model: Model, x: Tensor, sharpness: float | None) -> None:
    """The bound of many samples is log p(x) by enumeration, and the mean weight is the ELBO; both in float64."""
    weights = log_weights(model, x, 20_000, torch.Generator().manual_seed(0), sharpness=sharpness)
    exact = log_joints(model, x)
    assert mean_bound(weights) == pytest.approx(exact.logsumexp(1).mean().item(), abs=0.01)
    log_q = log_posteriors(model.encoder(x) * (1 if sharpness is None else sharpness))
    expected = (log_q.exp() * (exact - log_q)).sum(1).mean().item()
    assert weights.mean().item() == pytest.approx(expected, abs=0.02)


def test_weights_do_not_depend_on_the_number_at_once(model: Model, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are weighed one after the other, with the same noise."""
    whole = log_weights(model, x, 50, torch.Generator().manual_seed(0))
    monkeypatch.setattr("benchmarks.tasks.binary_vae.AT_ONCE", 1)
    torch.testing.assert_close(log_weights(model, x, 50, torch.Generator().manual_seed(0)), whole)


@pytest.mark.parametrize("objective", [elbo, sampled_elbo])
@pytest.mark.parametrize("estimator", [sp.estimators.Disarm(), sp.estimators.LeaveOneOut(2)], ids=["DisARM", "LeaveOneOut"])
def test_gradients_are_those_of_the_elbo(
    model: Model, x: Tensor, objective: Callable[[AbstractEstimator], Objective], estimator: AbstractEstimator
) -> None:
    """Averaged over many copies of each image, the gradient of the last biases is that of the exact ELBO."""
    biases = [list(net.parameters())[-1] for net in (model.encoder, model.decoder)]
    log_q = log_posteriors(model.encoder(x))
    exact = torch.autograd.grad(-(log_q.exp() * (log_joints(model, x) - log_q)).sum(1).mean(), biases)
    many, calls = objective(estimator)(model, x.repeat(40_000, 1), torch.Generator().manual_seed(0))
    assert calls == 2 * 3 * 40_000
    for found, wanted in zip(torch.autograd.grad(many, biases), exact, strict=True):
        torch.testing.assert_close(found, wanted, atol=0.01, rtol=0)


def test_an_interrupted_training_continues(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after its state was kept, a trial ends as an undisturbed one; a damaged state is an error that names it."""
    monkeypatch.setitem(N_STEPS, FULL, 5)
    monkeypatch.setattr(binary_vae, "KEPT_EVERY", 3)
    trial = Trial(FULL, "distinct_bound (30)", 1e-3, 0)
    options = Options(torch.device("cpu"), "digits", kept=tmp_path)
    task, alone = (BinaryVAE(dataclasses.replace(options, kept=kept)) for kept in (tmp_path, None))
    for each in (task, alone):
        each.test, each.few, each.n_samples = each.test[:20], each.few[:20], (4, 8)
    wanted = alone.train(trial, lambda text: None)

    def stop(text: str) -> None:
        if text.startswith("step 5 "):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        task.train(trial, stop)
    said = list[str]()
    found = task.train(trial, said.append)
    assert said[0].startswith("step 5 of 5")
    for metrics in (found, wanted):
        assert len(metrics.pop("curve_seconds")) == 4  # type: ignore[arg-type]
    assert found == wanted
    (file,) = tmp_path.iterdir()
    other = dataclasses.replace(trial, seed=1)
    file.rename(task.kept(other))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"must be the state of .*'seed': 1.*, got .*'seed': 0.*; remove it to begin anew"):
        task.train(other, said.append)
    task.kept(other).rename(file)  # type: ignore[union-attr]
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match=f"{file.name} is corrupted"):
        task.train(trial, said.append)


def test_the_rate_is_that_of_the_trial() -> None:
    task = BinaryVAE(Options(torch.device("cpu"), "digits", is_quick=True))
    trials = [Trial(SHORT, "DisARM (2)", rate, 0) for rate in (1e-3, 1e-1)]
    first, second = (task.train(trial, lambda text: None)["validation"] for trial in trials)
    assert first != second


def test_a_folder_that_cannot_be_written_to_is_found_at_once(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    task = BinaryVAE(Options(torch.device("cpu"), "digits", kept=tmp_path / "file"))
    with pytest.raises(OSError, match="file"):
        task.train(Trial(FULL, "DisARM (2)", 1e-3, 0), lambda text: None)


def test_checkpoints_are_equally_spaced_in_log_time() -> None:
    """From a hundredth of the steps to all of them, each once."""
    assert checkpoints(10_000) == [100, 178, 317, 563, 1000, 1779, 3163, 5624, 10_000]
    assert checkpoints(3) == [1, 2, 3]


def test_curves_are_interpolated_in_the_logarithm() -> None:
    """Halfway between 1 and 100 is 10; nothing is said of what is outside."""
    assert interpolated([1, 100], [0, 4], 10) == pytest.approx(2)
    assert interpolated([1, 100], [0, 4], 200) is None


def test_curves_are_compared_at_equal_seconds() -> None:
    """The time of a step is that of a run alone, and the curve a mean over seeds."""
    row = "DisARM (2)"
    curve = {"curve_steps": [100.0, 10_000.0], "curve_calls": [1.0, 100.0], "curve_seconds": [9.0, 9000.0]}
    record: dict[Trial, dict[str, Any]] = {
        Trial(SHORT, row, 1e-3, 0): {"metrics": {"ms": 20.0}},
        Trial(LONG, row, 1e-3, 0): {"metrics": curve | {"curve_bound": [-120.0, -100.0]}},
        Trial(LONG, row, 1e-3, 1): {"metrics": curve | {"curve_bound": [-110.0, -90.0]}},
    }
    assert curves_of(record, LONG)[row] == {
        "steps": [100.0, 10_000.0],
        "calls": [1.0, 100.0],
        "bound": [-115.0, -95.0],
        "seconds": [2.0, 200.0],
    }
    assert at_equal_seconds(curves_of(record, LONG), 20).endswith(f"| {row} | -105.00 | 1,000 |")
    record[Trial(SHORT, row, 1e-3, 0)]["metrics"]["ms"] = 1.0
    assert at_equal_seconds(curves_of(record, LONG), 20).endswith(f"| {row} |  |  |")  # trained for 10 seconds only
