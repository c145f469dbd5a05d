"""What a step changes is found and undone, and operations run as if nobody watched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparsum as sp
from sparsum import kernels
from sparsum.captured.watch import Undo, Watch
from tests.captured.training import Training, batches, training

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": torch.optim.Adam,
    "Adam, fused": lambda p: torch.optim.Adam(p, fused=True),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, foreach=True, amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD, fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "RMSprop": torch.optim.RMSprop,
    "Adagrad": torch.optim.Adagrad,
}


def state_of(one: Training) -> list[Tensor]:
    moments = [value for state in one.optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return [tensor.clone() for tensor in (*one.model.state_dict().values(), *moments)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_that_a_step_changes_is_undone(name: str) -> None:
    """Weights, moments, counts and running statistics, whose schemas do not tell that they change."""
    one = training("ScoreFunction", "bits", has_norm=True, device="cpu", make=OPTIMIZERS[name])
    first, second = batches(2, "cpu")
    one.step(first)
    before, noise = state_of(one), one.generator.get_state()
    wanted = one.step(second)
    after = state_of(one)
    one = training("ScoreFunction", "bits", has_norm=True, device="cpu", make=OPTIMIZERS[name])
    one.step(first)
    undo = Undo()
    with Watch(undo):
        found = one.step(second)
    assert torch.equal(found["objective"], wanted["objective"])
    assert all(map(torch.equal, state_of(one), after))
    undo.apply()
    assert all(map(torch.equal, state_of(one), before))
    assert sum(not torch.equal(*pair) for pair in zip(before, after, strict=True)) <= len(undo)
    one.generator.set_state(noise)
    assert torch.equal(one.step(second)["objective"], wanted["objective"])


def test_overlapping_views_are_undone_in_reverse_order() -> None:
    x = torch.arange(6.0)
    undo = Undo()
    with Watch(undo):
        x[:4] += 10
        x[2:] *= 3
        x[:4] += 1
        x[1] = -5
        x.view(2, 3).t_().fill_(7)
    undo.apply()
    assert torch.equal(x, torch.arange(6.0))


def test_tensors_that_the_step_made_do_not_matter() -> None:
    x = torch.ones(3)
    undo = Undo()
    with Watch(undo) as watch:
        y = x.clone()
        y += 1
        y[0] = 2
        z = torch.tensor([1.0, 2.0])
        z.mul_(2)
        del y, z
        (x * 2).relu_()
    assert len(undo) == 0
    assert len(watch.existing) == 1


def test_changes_that_are_not_kept_are_noticed() -> None:
    x = torch.ones(3)
    with Watch(None) as watch:
        (x + 1).add_(1)
        assert not watch.has_lost
        x.add_(1)
    assert watch.has_lost


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(5), nn.BatchNorm1d(5, momentum=None), nn.InstanceNorm1d(4, track_running_stats=True)]
)
def test_running_statistics(norm: nn.Module) -> None:
    x = torch.randn(4, 5) if isinstance(norm, nn.BatchNorm1d) else torch.randn(2, 4, 6)
    before = [tensor.clone() for tensor in norm.state_dict().values()]
    undo = Undo()
    with Watch(undo):
        norm(x)
    assert not all(map(torch.equal, norm.state_dict().values(), before))
    undo.apply()
    assert all(map(torch.equal, norm.state_dict().values(), before))


def test_gradient_scalers_are_found() -> None:
    layer = nn.Linear(2, 2)
    optimizer, scaler = torch.optim.SGD(layer.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    with Watch(Undo()) as watch:
        scaler.scale(layer(torch.ones(1, 2)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler in watch.scalers


def test_kernels_and_caches_work_as_without_it() -> None:
    x = torch.randn(3, 4)
    with Watch(Undo()):
        assert kernels.is_unobserved(x)
        with pytest.raises(ValueError, match="temperature"):
            sp.sparsemap(x, sp.Bits(4), temperature=torch.tensor([1.0, -1.0, 1.0]))
    with torch._subclasses.FakeTensorMode():
        assert not kernels.is_unobserved(x)
