"""Forward and reverse mode, and their compositions, through every way from scores to a sparse distribution."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jacrev, jvp

import sparsum as sp
from sparsum.solvers import ActiveSet, Nested, Sparsemax, Systematic

POINTS = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

#: The shape of the scores, and the map from scores to a distribution.
CASES: dict[str, tuple[tuple[int, ...], Callable[[Tensor], sp.SparseDistribution]]] = {
    "sequence": ((3, 3), lambda t: sp.sparsemap(t, sp.Sequence(3, 3), solver=ActiveSet())),
    "transitions": ((3, 3), lambda t: sp.sparsemap((t, t[..., 1:, None, :] - t[..., :-1, :, None]), sp.Sequence(3, 3))),
    "tree": ((3, 3), lambda t: sp.sparsemap(t, sp.Tree(3), solver=ActiveSet())),
    "matching": ((3, 3), lambda t: sp.sparsemap(t, sp.Matching(3), solver=ActiveSet())),
    "enumerated": ((3,), lambda t: sp.sparsemap(t, sp.Enumerated(POINTS), solver=ActiveSet())),
    "bits": ((4,), lambda t: sp.sparsemap(t, sp.Bits(4), solver=ActiveSet())),
    "systematic bits": ((4,), lambda t: sp.sparsemap(t, sp.Bits(4), solver=Systematic())),
    "systematic budget": ((4,), lambda t: sp.sparsemap(t, sp.Budget(4, 1), solver=Systematic())),
    "systematic subset": ((4,), lambda t: sp.sparsemap(t, sp.Subset(4, 2), solver=Systematic())),
    "nested bits": ((4,), lambda t: sp.sparsemap(t, sp.Bits(4), solver=Nested())),
    "nested groups": ((2, 3), lambda t: sp.sparsemap(t, sp.Groups(2, 3), solver=Nested())),
    "sparsemax": ((4,), lambda t: sp.sparsemap(t, sp.OneOf(4), solver=Sparsemax())),
    "k best sequences": ((3, 3), lambda t: sp.topk_sparsemax(t, sp.Sequence(3, 3), 4)),
    "k best trees": ((3, 3), lambda t: sp.topk_sparsemax(t, sp.Tree(3), 4)),
    "k best matchings": ((3, 3), lambda t: sp.topk_sparsemax(t, sp.Matching(3), 4)),
    "k best bits": ((4,), lambda t: sp.topk_sparsemax(t, sp.Bits(4), 4)),
}


def inputs(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Scores of two rows, and a direction."""
    generator = torch.Generator().manual_seed(1)
    x, v = (torch.randn(2, *shape, dtype=torch.float64, generator=generator) for _ in range(2))
    return 0.7 * x, v


@pytest.mark.parametrize("name", CASES)
def test_forward_mode_is_reverse_mode(name: str) -> None:
    shape, solve = CASES[name]
    x, v = inputs(shape)

    def entropy(t: Tensor) -> Tensor:
        return solve(t).entropy().sum()

    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(entropy(leaf), leaf)
    slope = (gradient * v).sum()
    assert float(slope.abs()) > 1e-3
    value, tangent = jvp(entropy, (x,), (v,))[:2]
    torch.testing.assert_close(value, entropy(x))
    torch.testing.assert_close(tangent, slope)
    with forward_ad.dual_level():
        torch.testing.assert_close(forward_ad.unpack_dual(entropy(forward_ad.make_dual(x, v))).tangent, slope)
    torch.testing.assert_close(grad(entropy)(x), gradient)


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_are_finite_differences_of_the_first(name: str) -> None:
    shape, solve = CASES[name]
    x, v = inputs(shape)

    def entropy(t: Tensor) -> Tensor:
        return solve(t).entropy().sum()

    step = 1e-5 * v
    wanted = (grad(entropy)(x + step) - grad(entropy)(x - step)) / 2e-5
    forward_over_reverse = jvp(grad(entropy), (x,), (v,))[1]
    reverse_over_forward = grad(lambda t: jvp(entropy, (t,), (v,))[1])(x)
    for found in (forward_over_reverse, reverse_over_forward):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["sequence", "tree", "bits"])
def test_jacobians_of_the_mean(name: str) -> None:
    shape, solve = CASES[name]
    x, _ = inputs(shape)
    forward, reverse = (transform(lambda t: solve(t).mean)(x) for transform in (jacfwd, jacrev))
    torch.testing.assert_close(forward, reverse)
    assert float(forward.abs().max()) > 0.1
