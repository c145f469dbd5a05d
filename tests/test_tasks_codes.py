"""The mathematics of the task of discrete codes: the exact log-likelihood, its bound, and quantization."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli

import sparsum as sp
from benchmarks.tasks import codes


def small(n_groups: int, n_each: int, row: str = "reinmax") -> codes.VAE:
    """A model of five pixels, in float64, with likelihoods that differ between codes."""
    torch.manual_seed(0)
    model = codes.VAE(5, sp.Groups(n_groups, n_each), 6, row).double()
    with torch.no_grad():
        list(model.decoder.parameters())[-2].mul_(5.0)
    return model


def by_loop(model: codes.VAE, x: Tensor) -> Tensor:
    """The log-density log p(x) of binary pixels: one code after the other, as a plain mean of probabilities."""
    structure = model.structure
    total = torch.zeros(len(x), dtype=torch.float64)
    for code in itertools.product(range(structure.n_each), repeat=structure.n_groups):
        one_hot = torch.zeros(1, *structure.score_shape, dtype=torch.float64)
        for group, category in enumerate(code):
            one_hot[0, group, category] = 1.0
        total += Bernoulli(logits=model.decoder(one_hot)).log_prob(x).sum(-1).exp()
    mean: Tensor = total / structure.n_each**structure.n_groups
    return mean.log()


def test_the_exact_log_likelihood_is_that_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """All codes occur once, whether they are given as indices or as vectors, and in whatever portions."""
    model, x = small(3, 4), torch.randint(2, (7, 5)).double()
    wanted = by_loop(model, x)
    assert torch.allclose(codes.log_likelihood(model.decoder, model.structure, x), wanted, atol=1e-10)
    monkeypatch.setattr(codes, "AT_ONCE", 10)
    assert torch.allclose(codes.log_likelihood(model.decoder, model.structure, x), wanted, atol=1e-10)


def test_the_bound_approaches_the_log_likelihood() -> None:
    """Samples give less than the exact value in the mean, and nearly all of it once the proposal is fitted."""
    model, x = small(3, 4), torch.randint(2, (7, 5)).double()
    exact, g = codes.log_likelihood(model.decoder, model.structure, x).mean(), torch.Generator().manual_seed(0)
    log_count = model.structure.log_count()

    def joint(z: Tensor, row: Tensor) -> Tensor:
        return model.likelihood(x)(z, row) - log_count

    flat = torch.zeros(7, 3, 4, dtype=torch.float64)
    rough = torch.stack([codes.importance_bound(flat, model.structure, joint, 2, g) for _ in range(50)]).mean()
    logits = codes.fitted(flat, model.structure, joint, g)
    fine = codes.importance_bound(logits, model.structure, joint, 4096, g).mean()
    assert rough < exact - 0.05
    assert math.isclose(fine, exact, abs_tol=0.02)


def test_quantization_rounds_to_all_levels_and_has_a_gradient() -> None:
    model = small(1, 4, codes.FSQ)
    scores = torch.linspace(-3, 3, 201, dtype=torch.float64).unsqueeze(-1).requires_grad_()
    levels = model.levels(scores)
    assert levels.detach().round().unique().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert (levels.detach() - levels.detach().round()).abs().max() < 1e-12
    (slope,) = torch.autograd.grad(levels.sum(), scores)
    assert torch.allclose(slope, 1.5 * (1 - scores.detach().tanh().square()))
