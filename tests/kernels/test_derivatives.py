"""Derivatives of what kernels compute, by every way that torch has, against the plain versions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.autograd.forward_ad as fwad
from torch import Tensor

import sparsum as sp
from sparsum import kernels
from tests.kernels.serving import serving

pytest.importorskip("triton")
# Said by the interpreter, where rows are compared with infinities.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero) encountered")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Function = Callable[[Tensor], Tensor]
FUNCTIONS: dict[str, Function] = {
    "sparsemax": sp.sparsemax,
    "entmax15": sp.entmax15,
    "entmax": lambda x: sp.entmax(x, 1.3),
    "entmax of rows": lambda x: sp.entmax(x, 1.2 + x.sigmoid().mean(-1)),
    "one of n": lambda x: sp.sparsemap(x, sp.OneOf(5)).expect(lambda z, row: (z + 1.0) * (row + 1.0)),
    "bits": lambda x: sp.sparsemap(x, sp.Bits(5)).entropy(),
    "budget": lambda x: sp.sparsemap(x, sp.Budget(5, 2)).entropy(),
}


def on_both(compute: Callable[[Tensor], Tensor], dtype: torch.dtype) -> list[Tensor]:
    """A result without kernels and with them."""
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=dtype).to(DEVICE)
    results = []
    for is_served in (False, True):
        with serving(is_served):
            results.append(compute(x.clone()))
    return results


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_over_reverse(name: str) -> None:
    """A gradient has a tangent where the scores have one: the product of the Hessian with a vector."""

    def product(x: Tensor) -> Tensor:
        with fwad.dual_level():
            dual = fwad.make_dual(x.requires_grad_(), torch.ones_like(x).cumsum(-1))
            (gradient,) = torch.autograd.grad(FUNCTIONS[name](dual).square().sum(), dual)
            tangent: Tensor | None = fwad.unpack_dual(gradient).tangent
        assert tangent is not None
        return tangent

    plain, served = on_both(product, torch.float64)
    torch.testing.assert_close(served, plain)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_batches_of_gradients(name: str) -> None:
    def jacobian(x: Tensor) -> Tensor:
        found: Tensor = torch.autograd.functional.jacobian(FUNCTIONS[name], x, vectorize=True)
        return found

    plain, served = on_both(jacobian, torch.float64)
    torch.testing.assert_close(served, plain)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives(name: str) -> None:
    def hessian(x: Tensor) -> Tensor:
        found: Tensor = torch.autograd.functional.hessian(lambda y: FUNCTIONS[name](y).square().sum(), x)
        return found

    plain, served = on_both(hessian, torch.float64)
    torch.testing.assert_close(served, plain)


def test_views_whose_memory_holds_something_else() -> None:
    x = torch.randn(4, 6, dtype=torch.complex64, generator=torch.Generator().manual_seed(0)).to(DEVICE).conj().imag
    assert x.is_neg()
    torch.testing.assert_close(sp.sparsemax(x), sp.sparsemax(x.clone()))
    assert not kernels.can_read(x)
