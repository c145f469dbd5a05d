"""The kernel of a network from one number to one number, against the network itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

_scalar_map = pytest.importorskip("sparsum_experiments.kernels.scalar_map")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def plain(x: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
    return ((x.unsqueeze(-1) * inner).sigmoid() @ outer).sigmoid()


@pytest.mark.parametrize(("shape", "n_hidden"), [((3, 7), 5), ((200,), 16), ((0,), 4), ((1, 1), 1), ((2, 65), 100)])
def test_value_and_gradients_are_those_of_the_network(shape: tuple[int, ...], n_hidden: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).mul(3).to(DEVICE)
    inner, outer = torch.randn(2, n_hidden, generator=generator).to(DEVICE)
    grad = torch.randn(shape, generator=generator).to(DEVICE)
    wanted_inputs = [tensor.double().requires_grad_() for tensor in (x, inner, outer)]
    wanted = plain(*wanted_inputs)
    h = _scalar_map.forward(x, inner, outer)
    torch.testing.assert_close(h, wanted.float(), rtol=1e-5, atol=1e-6)
    found = _scalar_map.backward(x, inner, outer, h, grad)
    gradients = torch.autograd.grad(wanted, wanted_inputs, grad.double())
    for ours, theirs in zip(found, gradients, strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:overflow encountered")  # said by the interpreter
def test_saturated_units_stay_numbers() -> None:
    """Exponentials overflow to infinity there, and their reciprocals to 0."""
    x = torch.tensor([-1e4, -200.0, 0.0, 200.0, 1e4], device=DEVICE)
    inner, outer = torch.tensor([1.0, -3.0], device=DEVICE), torch.tensor([50.0, 300.0], device=DEVICE)
    h = _scalar_map.forward(x, inner, outer)
    torch.testing.assert_close(h, plain(x, inner, outer))
    for gradient in _scalar_map.backward(x, inner, outer, h, torch.ones_like(x)):
        assert gradient.isfinite().all()
