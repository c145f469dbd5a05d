"""Layers that the experiments share."""

from __future__ import annotations

import torch
from sparsum_experiments.models.layers import Centred


def batches(n: int) -> torch.Tensor:
    return torch.randn(n, 16, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 5


def test_centred_columns_have_zero_mean_and_zero_mean_gradient() -> None:
    x = batches(1)[0].requires_grad_()
    y = Centred(3).double()(x)
    torch.testing.assert_close(y, x - x.mean(0))
    (gradient,) = torch.autograd.grad((y * batches(1)[0].square()).sum(), x)
    torch.testing.assert_close(gradient.sum(0), torch.zeros(3, dtype=torch.float64))


def test_evaluation_subtracts_a_running_mean() -> None:
    """At first the mean of all batches, then a moving average in which each batch has a weight of 0.1."""
    layer, seen = Centred(3).double(), batches(40)
    expected = torch.zeros(3, dtype=torch.float64)
    for i, x in enumerate(seen):
        layer(x)
        layer.keep()
        layer.keep()  # a second call changes nothing
        weight = max(1 / (i + 1), 0.1)
        expected = (1 - weight) * expected + weight * x.mean(0)
    layer.eval()
    torch.testing.assert_close(layer(seen[0]), seen[0] - expected)
    layer.keep()
    torch.testing.assert_close(layer(seen[0]), seen[0] - expected)


def test_the_running_mean_resumes_from_a_state_dict() -> None:
    seen = batches(6)
    layer, again = Centred(3).double(), Centred(3).double()
    for x in seen[:3]:
        layer(x)
        layer.keep()
    again.load_state_dict(layer.state_dict())
    for x in seen[3:]:
        for one in (layer, again):
            one(x)
            one.keep()
    assert torch.equal(again.eval()(seen[0]), layer.eval()(seen[0]))


def test_non_finite_values_stay_in_their_rows() -> None:
    x = batches(1)[0]
    x[3, 1], x[5, 2] = torch.nan, torch.inf
    y = Centred(3).double()(x)
    assert (~y.isfinite()).nonzero().tolist() == [[3, 1], [5, 2]]
    torch.testing.assert_close(y[:3], (x - torch.stack([column[column.isfinite()].mean() for column in x.T]))[:3])
