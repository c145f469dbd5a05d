"""Captured training steps: on a GPU they do what eager steps do."""

from __future__ import annotations

import copy

import pytest
import torch
from lightning_fabric import Fabric
from sparsum_experiments import bitvector_vae, signal_game, ssvae
from sparsum_experiments.experiment import AbstractExperiment
from sparsum_experiments.registry import make_args, make_experiment
from sparsum_experiments.training.steps import CapturedSteps, Steps, steps_for

from tests.simplex.test_devices import n_waits

CASES = [
    (name, method)
    for name, kind in (
        ("ssvae", ssvae.SemisupervisedVAE),
        ("signal-game", signal_game.SignalGame),
        ("bitvector-vae", bitvector_vae.BitvectorVAE),
    )
    for method in kind.methods
]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="captures on a GPU only")


def experiment_of(name: str, method: str, device: str) -> AbstractExperiment:
    options = {"data": "digits", "device": device, "batch_size": 16}
    if name == "bitvector-vae" and method in {"dense", "sparse", "entmax15"}:
        options["bits"] = 5
    return make_experiment(name, make_args(name, method, options), torch.device(device))


def objectives(steps: Steps, n: int) -> torch.Tensor:
    order = steps.experiment.start_epoch(steps.generator.manual_seed(0))
    with steps.epoch():
        return torch.stack([steps.take(order, i).objective.clone() for i in range(n)])


def test_steps_on_a_cpu_are_not_captured() -> None:
    steps = steps_for(experiment_of("ssvae", "sparse", "cpu"), Fabric(accelerator="cpu", devices=1))
    assert type(steps) is Steps
    assert objectives(steps, 2).isfinite().all()


@needs_gpu
@pytest.mark.parametrize(("name", "method"), CASES)
def test_captured_steps_equal_eager_ones(name: str, method: str) -> None:
    captured_experiment, eager_experiment = (experiment_of(name, method, "cuda") for _ in range(2))
    eager_experiment.model.load_state_dict(copy.deepcopy(captured_experiment.model.state_dict()))
    fabric = Fabric(accelerator="cuda", devices=1)
    captured = steps_for(captured_experiment, fabric)
    assert isinstance(captured, CapturedSteps)
    found = objectives(captured, 12)
    assert captured.n_captures, "nothing was captured"
    # Noise within the loss depends on the padding, so it is compared where there is none.
    if name != "ssvae" or method not in {"sparse", "entmax15"}:
        torch.testing.assert_close(found, objectives(Steps(eager_experiment, fabric), 12), rtol=1e-3, atol=1e-3)
    again = objectives(steps_for(experiment_of(name, method, "cuda"), fabric), 12)
    assert torch.equal(found, again), "the same seed, another result"


@needs_gpu
def test_captured_steps_keep_the_mean_of_each_batch_once() -> None:
    """Also of a batch whose step starts again, since its support has another size than the one before.

    Steps are small: with larger ones, a rounding error becomes a difference of one part in a hundred within twenty steps.
    """
    fabric = Fabric(accelerator="cuda", devices=1)
    options = {"data": "digits", "device": "cuda", "batch_size": 16, "solver": "systematic", "lr": 1e-7}
    options |= {"score_centre": "batch", "score_temperature": 0.02}  # so that the supports of batches differ in size
    args = make_args("bitvector-vae", "sparsemap", options)
    captured, plain = (make_experiment("bitvector-vae", args, torch.device("cuda")) for _ in range(2))
    steps = steps_for(captured, fabric)
    assert isinstance(steps, CapturedSteps)
    torch.testing.assert_close(objectives(steps, 30), objectives(Steps(plain, fabric), 30), rtol=1e-4, atol=1e-3)
    assert steps.n_captures > 1
    kept, expected = (vae.model.state_dict()["centring.mean"] for vae in (captured, plain))
    torch.testing.assert_close(kept, expected, rtol=1e-2, atol=1e-3)
    assert captured.model.state_dict()["centring.n_kept"] == 30


@needs_gpu
@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("method", ["sparsemap", "sparsemap-budget"])
def test_captured_steps_with_the_active_set(method: str, bits: int) -> None:
    """They go where others go, if they are small: else atoms that tie make rounding errors visible."""
    fabric = Fabric(accelerator="cuda", devices=1)
    options = {"data": "digits", "device": "cuda", "batch_size": 16, "bits": bits, "solver": "active-set", "lr": 1e-7}
    args = make_args("bitvector-vae", method, options)
    captured, plain = (make_experiment("bitvector-vae", args, torch.device("cuda")) for _ in range(2))
    steps = steps_for(captured, fabric)
    assert isinstance(steps, CapturedSteps)
    found = objectives(steps, 12)
    assert steps.n_captures, "nothing was captured"
    torch.testing.assert_close(found, objectives(Steps(plain, fabric), 12), rtol=1e-4, atol=1e-3)


@needs_gpu
@pytest.mark.parametrize(("name", "method"), [("ssvae", "sparse"), ("signal-game", "nvil"), ("bitvector-vae", "topk")])
def test_steps_go_on_from_a_checkpoint_to_the_last_bit(name: str, method: str) -> None:
    """A new process has nothing captured yet, and takes its first steps one by one."""
    fabric = Fabric(accelerator="cuda", devices=1)
    steps, later = (steps_for(experiment_of(name, method, "cuda"), fabric) for _ in range(2))
    objectives(steps, 10)
    later.experiment.model.load_state_dict(steps.experiment.model.state_dict())
    later.optimiser.load_state_dict(copy.deepcopy(steps.optimiser.state_dict()))
    assert torch.equal(objectives(steps, 10), objectives(later, 10))


@needs_gpu
@pytest.mark.parametrize(("name", "method"), CASES)
def test_a_step_waits_at_most_once(name: str, method: str) -> None:
    """For the size of the support: what torch's own debug mode counts."""
    steps = steps_for(experiment_of(name, method, "cuda"), Fabric(accelerator="cuda", devices=1))
    objectives(steps, 12)
    order = steps.experiment.start_epoch(steps.generator.manual_seed(0))
    with steps.epoch():
        found = n_waits(lambda: [steps.take(order, i) for i in range(4)], "cuda")
    # A step of other sizes than the one before looks twice.
    assert found <= 8
    if method.startswith(("sfe", "nvil", "gumbel", "st-gumbel", "sum-and-sample")):
        assert found == 0
