"""SIMPLE: exact where the loss is linear, and biased as its formula says where it is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sparsum as sp


@pytest.mark.parametrize("structure", [sp.Subset(5, 2), sp.Budget(5, 3), sp.OneOf(4), sp.Tree(3)], ids=repr)
def test_simple_is_exact_for_linear_losses(structure: sp.AbstractStructure) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, *structure.score_shape, dtype=torch.float64, generator=generator).requires_grad_()
    costs = torch.randn(structure.score_shape, dtype=torch.float64, generator=generator)

    def loss(z: Tensor, row: Tensor) -> Tensor:
        vectors = z if z.is_floating_point() else structure.vectors(z)
        return (vectors * costs).flatten(1).sum(-1)

    found, wanted = (
        torch.autograd.grad(estimator(scores, structure, loss, generator=generator).surrogate.sum(), scores)[0]
        for estimator in (sp.estimators.Simple(2), sp.estimators.Dense())
    )
    torch.testing.assert_close(found, wanted)


def test_the_mean_of_the_gradient_is_that_of_the_formula() -> None:
    """For a quadratic loss: the Jacobian of the marginals times the mean gradient over all subsets."""
    structure, generator = sp.Subset(4, 2), torch.Generator().manual_seed(0)
    scores = torch.randn(1, 4, dtype=torch.float64, generator=generator).requires_grad_()
    matrix = torch.randn(4, 4, dtype=torch.float64, generator=generator)

    def loss(z: Tensor, row: Tensor) -> Tensor:
        return ((z @ matrix) * z).sum(-1)

    p = sp.Gibbs(scores, structure)
    slope = (p.mean @ (matrix + matrix.T)).detach()  # linear in z, so its mean is that at the mean
    (wanted,) = torch.autograd.grad((p.mean * slope).sum(), scores)
    estimate = sp.estimators.Simple(20_000)(scores, structure, loss, generator=generator)
    (found,) = torch.autograd.grad(estimate.surrogate.sum(), scores)
    torch.testing.assert_close(found, wanted, atol=0.03, rtol=0)
    exact = torch.autograd.grad(sp.estimators.Dense()(scores, structure, loss).surrogate.sum(), scores)[0]
    assert bool((exact - wanted).abs().max() > 0.1)
