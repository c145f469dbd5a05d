"""Layers of the experiments."""

from __future__ import annotations

import torch

from sparsum.experiments._layers import Centred


def batches(n: int) -> torch.Tensor:
    return torch.randn(n, 16, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 5


def test_centred_columns_have_mean_zero_and_no_gradient_in_common() -> None:
    x = batches(1)[0].requires_grad_()
    y = Centred(3).double()(x)
    torch.testing.assert_close(y, x - x.mean(0))
    (gradient,) = torch.autograd.grad((y * batches(1)[0].square()).sum(), x)
    torch.testing.assert_close(gradient.sum(0), torch.zeros(3, dtype=torch.float64))


def test_what_is_taken_away_outside_of_training_is_the_mean_of_the_batches() -> None:
    layer, seen = Centred(3).double(), batches(40)
    for x in seen:
        layer(x)
        layer.keep()
        layer.keep()  # nothing is kept twice
    layer.eval()
    torch.testing.assert_close(layer(seen[0]), seen[0] - seen.mean((0, 1)))
    layer.keep()
    torch.testing.assert_close(layer(seen[0]), seen[0] - seen.mean((0, 1)))


def test_later_batches_count_more_in_the_end() -> None:
    layer = Centred(1)
    for i in range(2000):
        layer(torch.full((4, 1), float(i >= 1000)))
        layer.keep()
    assert layer.mean.item() > 1 - 1e-4
    again = Centred(1)
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again.eval()(torch.ones(1, 1)), layer.eval()(torch.ones(1, 1)))
