"""Estimators do not wait for their device, and their state follows the model there."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum import estimators as se
from sparsum.estimators import AbstractEstimator
from tests.estimators.test_conformance import CASES, CONTEXT
from tests.simplex.test_devices import every_device, n_waits, scores

# What counts the atoms of a ragged sum, or looks for rows without a distribution, waits once.
SUMS = (se.Dense, se.Sparse, se.TopK, se.SparseMAP)


@every_device
@pytest.mark.parametrize("name", [name for name in CASES if "active set" not in name])  # which asks after every step
def test_waits(name: str, device: str) -> None:
    case = CASES[name]
    structure = sp.Bits(10)
    estimator = copy.deepcopy(case) if isinstance(case, AbstractEstimator) else case(structure)  # other tests use it, too
    estimator = estimator.to(device)
    x, weight = scores(20, 10).to(device).requires_grad_(), scores(10, 5, seed=1).to(device)
    context = torch.zeros(20, CONTEXT, device=device)

    def loss(z: Tensor, row: Tensor) -> Tensor:
        return (z @ weight).square().sum(-1)

    def step() -> None:
        estimator(x, structure, loss, context=context).surrogate.sum().backward()

    assert n_waits(step, device) <= (2 if isinstance(estimator, SUMS) else 1)
    if not isinstance(estimator, SUMS):
        estimator.validate_args = False
        assert n_waits(step, device) == 0
        estimator.validate_args = True


@every_device
def test_state_moves_with_the_model(device: str) -> None:
    model = torch.nn.ModuleDict({"estimator": se.GumbelSoftmax(se.Anneal()), "other": se.ScoreFunction()})
    model.to(device)
    for name in ("estimator", "other"):
        estimate = model[name](scores(4, 3).to(device), sp.OneOf(3), lambda z, row: z.float() if z.ndim == 1 else z[:, 0])
        assert estimate.value.device.type == device
    assert all(value.device.type == device for value in model.state_dict().values())
