"""Layers of the experiments."""

from __future__ import annotations

import torch
from sparsum_experiments.models.layers import Centred


def batches(n: int) -> torch.Tensor:
    return torch.randn(n, 16, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 5


def test_centred_columns_have_mean_zero_and_no_gradient_in_common() -> None:
    x = batches(1)[0].requires_grad_()
    y = Centred(3).double()(x)
    torch.testing.assert_close(y, x - x.mean(0))
    (gradient,) = torch.autograd.grad((y * batches(1)[0].square()).sum(), x)
    torch.testing.assert_close(gradient.sum(0), torch.zeros(3, dtype=torch.float64))


def test_what_is_taken_away_outside_of_training_is_a_running_mean() -> None:
    """First the mean of all batches, and then one in which each batch counts a tenth."""
    layer, seen = Centred(3).double(), batches(40)
    expected = torch.zeros(3, dtype=torch.float64)
    for i, x in enumerate(seen):
        layer(x)
        layer.keep()
        layer.keep()  # nothing is kept twice
        weight = max(1 / (i + 1), 0.1)
        expected = (1 - weight) * expected + weight * x.mean(0)
    layer.eval()
    torch.testing.assert_close(layer(seen[0]), seen[0] - expected)
    layer.keep()
    torch.testing.assert_close(layer(seen[0]), seen[0] - expected)


def test_a_running_mean_goes_on_from_what_was_saved() -> None:
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


def test_numbers_that_are_not_finite_stay_in_their_rows() -> None:
    x = batches(1)[0]
    x[3, 1], x[5, 2] = torch.nan, torch.inf
    y = Centred(3).double()(x)
    assert (~y.isfinite()).nonzero().tolist() == [[3, 1], [5, 2]]
    torch.testing.assert_close(y[:3], (x - torch.stack([column[column.isfinite()].mean() for column in x.T]))[:3])
