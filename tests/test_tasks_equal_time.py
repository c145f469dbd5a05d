"""The costly decoders of the task equal-time."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.tasks.equal_time import MODELS, Model


def flops_and_gradients(model: Model, times: int) -> tuple[int, list[torch.Tensor]]:
    """Of the decoder alone, forward and backward, and the gradients of all weights for the losses of three assignments."""
    generator = torch.Generator().manual_seed(0)
    model.decoder.times = times
    seen, rest = model.draw(torch.rand(50, 9, generator=generator, dtype=torch.float64), 2, generator)
    row = torch.tensor([0, 0, 1])
    z = model.structure.argmax(torch.randn(3, *model.structure.score_shape, generator=generator, dtype=torch.float64))
    counter = FlopCounterMode(display=False)
    with counter:
        losses = model.loss(seen, rest)(z, row)
        gradients = torch.autograd.grad(losses.sum(), list(model.parameters()), allow_unused=True)
    return counter.get_total_flops(), [g for g in gradients if g is not None]


@pytest.mark.parametrize("kind", MODELS)
def test_costs_are_computed_and_change_nothing(kind: str) -> None:
    """Each further evaluation of the decoder adds the same operations; losses' gradients stay as they are."""
    torch.manual_seed(0)
    model = MODELS[kind](9, 1, is_sparse=False).double()
    one, expected = flops_and_gradients(model, 1)
    two, _ = flops_and_gradients(model, 2)
    many, found = flops_and_gradients(model, 100)
    assert many - one == 99 * (two - one)
    assert two - one > one / 2
    torch.testing.assert_close(found, expected)
