"""Entmax for alphas without a dedicated solver: accuracy on hard rows, steps, and rows that do not disturb each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum.simplex import any_alpha
from tests.reference import entmax_by_root_finding

N = 300
ALPHAS = [1.05, 1.2, 1.3, 1.7, 1.9, 1.999, 2.001, 2.5, 4.0, 30.0]


def _random(scale: float = 1.0) -> Tensor:
    return scale * torch.randn(N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


HARD: dict[str, Callable[[], Tensor]] = {
    "normal": _random,
    "wide": lambda: _random(30.0),
    "narrow": lambda: _random(1e-6),
    "heavy-tailed": lambda: -_random(4.0).exp(),
    "constant": lambda: torch.zeros(N, dtype=torch.float64),
    "one above": lambda: torch.tensor([0.0] + [-1e-3] * (N - 1), dtype=torch.float64),
    "arithmetic": lambda: -torch.linspace(0, 10, N, dtype=torch.float64),
    "geometric": lambda: -torch.logspace(-8, 3, N, dtype=torch.float64),
    "few allowed": lambda: torch.where(torch.arange(N) < 3, 0.1 * torch.arange(N), -torch.inf).double(),
}
every_hard_row = pytest.mark.parametrize("name", HARD)


@every_hard_row
@pytest.mark.parametrize("alpha", ALPHAS)
def test_accuracy_on_hard_rows(name: str, alpha: float) -> None:
    """Float64 to rounding, float32 to half a unit of the largest probability, against root finding on the definition."""
    x = HARD[name]()
    expected = entmax_by_root_finding(x, alpha)
    # The reference has an error of its own: that of its threshold, amplified by the slope of the smallest probability.
    atol = 1e-11 if alpha <= 2 else 1e-15 ** min(1 / (alpha - 1), 0.75)
    torch.testing.assert_close(sp.entmax(x, alpha), expected, atol=atol, rtol=0)
    single = entmax_by_root_finding(x.float().double(), alpha)
    torch.testing.assert_close(sp.entmax(x.float(), alpha).double(), single, atol=max(atol, 1e-7), rtol=0)


@every_hard_row
@pytest.mark.parametrize("alpha", [1.0, *ALPHAS])
def test_optimality(name: str, alpha: float) -> None:
    """The conditions that define the solution, independent of any solver: x - p^a / a is constant on the support."""
    x, a = HARD[name](), alpha - 1
    p = sp.entmax(x, alpha)
    assert abs(p.sum().item() - 1) < 1e-12
    potential = x - (p.log() if a == 0 else p.pow(a) / a)
    on_support = potential[p > 0]
    assert (on_support.max() - on_support.min()).item() < 1e-9 * max(1, x[p > 0].abs().max().item())
    if bool((p == 0).any()) and a > 0:
        assert x[p == 0].max().item() <= on_support.max().item() + 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_takes_as_many_steps_as_its_slowest_row(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are solved do not step on and on, and no row needs more than a dozen steps."""
    rows = torch.stack([make() for make in HARD.values()]).to(dtype)
    plain, counts = any_alpha.probs_and_slopes, [0]

    def counted(*args: Any) -> Any:
        counts[0] += 1
        return plain(*args)

    monkeypatch.setattr(any_alpha, "probs_and_slopes", counted)
    for alpha in (1.0, 1.1, 1.3, 1.9, 2.0):
        alphas = torch.full((len(rows),), alpha, dtype=torch.float64)
        counts[0] = 0
        sp.entmax(rows, alphas)
        assert counts[0] <= 12


def test_every_row_is_solved_as_if_it_were_alone() -> None:
    """Different alphas in one batch, below and above 2, over several chunks."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(700, N, generator=generator, dtype=torch.float64)
    alpha = 1 + 2 * torch.rand(700, generator=generator, dtype=torch.float64)
    probs = sp.entmax(x, alpha)
    for row in range(0, 700, 37):
        torch.testing.assert_close(probs[row], sp.entmax(x[row], alpha[row].item()), atol=1e-14, rtol=0)


def test_nan_stays_in_its_row() -> None:
    x = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    x[1, 3] = torch.nan
    alpha = torch.tensor([1.3, 1.3, torch.nan, 3.0])
    probs = sp.entmax(x, alpha)
    assert probs.isnan().any(-1).tolist() == [False, True, True, False]
    torch.testing.assert_close(probs[[0, 3]], sp.entmax(x[[0, 3]], alpha[[0, 3]]))


@pytest.mark.parametrize("alpha", [1.0, 1.001, 1.3, 1.9, 2.5, 30.0])
def test_the_version_for_graphs(alpha: float) -> None:
    """A fixed number of steps within a bracket ends where the loops end."""
    rows = torch.stack([make() for name, make in HARD.items()])
    shifted = rows - rows.amax(-1, keepdim=True)
    alphas = torch.full((len(rows), 1), alpha, dtype=torch.float64)
    solved, traced = (any_alpha.solve_any_alpha(shifted, alphas, traceable=is_traced) for is_traced in (False, True))
    atol = 1e-12 if alpha <= 2 else 1e-15 ** min(1 / (alpha - 1), 0.75)
    torch.testing.assert_close(solved, traced, atol=atol, rtol=0)


def test_float32_gradients_in_alpha() -> None:
    """Computed without a series, against float64, which gradcheck covers."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2, 60, N, generator=generator)
    alpha = torch.linspace(1.0005, 2.0, 60)
    single, double = ((x.to(dtype), alpha.to(dtype), weight.to(dtype)) for dtype in (torch.float32, torch.float64))
    grads = []
    for scores, alphas, weights in (single, double):
        inputs = (scores.requires_grad_(), alphas.requires_grad_())
        grads.append(torch.autograd.grad(sp.entmax(*inputs), inputs, weights))
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-5)


def test_float32_gradients_with_alphas_above_2_in_a_tensor() -> None:
    """They amplify rounding errors at the boundary of the support, and are computed in float64."""
    generator = torch.Generator().manual_seed(0)
    x, weight = 2 * torch.randn(2, 2000, 6, generator=generator)
    grads = []
    for dtype in (torch.float32, torch.float64):
        scores, alphas = x.to(dtype).requires_grad_(), torch.full((2000, 1), 4.0, dtype=dtype)
        grads.append(torch.autograd.grad(sp.entmax(scores, alphas), scores, weight.to(dtype))[0].double())
    torch.testing.assert_close(*grads, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("alpha", [2.0001, 2.5, 3.0, 50.0])
def test_ties_above_2(alpha: float) -> None:
    """Equal scores share the mass to rounding, whatever else is in the batch."""
    for n in (3, 93, 244):
        probs = sp.entmax(torch.zeros(n, dtype=torch.float64), alpha)
        torch.testing.assert_close(probs, torch.full_like(probs, 1 / n), atol=0, rtol=1e-14)


@pytest.mark.parametrize(("alpha", "scale"), [(3.0, 1e-3), (5.0, 1e-8), (20.0, 1e-12), (1.3, 1e-8)])
def test_nearly_equal_scores_in_graphs(alpha: float, scale: float) -> None:
    """Small differences of scores, which a large alpha amplifies, are not lost to rounding."""
    x = scale * torch.randn(1, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    alphas = torch.full((1, 1), alpha, dtype=torch.float64)
    traced = any_alpha.solve_any_alpha(x - x.amax(-1, keepdim=True), alphas, traceable=True)
    torch.testing.assert_close(traced, sp.entmax(x, alpha), atol=1e-13, rtol=0)


def test_reverse_over_forward_of_a_linear_loss() -> None:
    """The second derivative of sparsemax is 0, which torch represents by a tensor that cannot be changed in place."""
    weight = torch.tensor([1.0, 2.0, 3.0])
    hessian = torch.func.jacrev(torch.func.jacfwd(lambda x: (sp.sparsemax(x) * weight).sum()))
    assert not hessian(torch.tensor([0.3, 0.1, 0.2])).any()


@pytest.mark.parametrize("alpha", [1.3, 2.0, 2.5])
def test_the_gradient_of_a_row_of_nan_is_nan(alpha: float) -> None:
    x = torch.tensor([[torch.nan, 0.0, 0.0], [0.1, 0.0, 0.2]], requires_grad=True)
    for learned in (torch.full((2,), alpha), torch.full((2,), alpha, requires_grad=True)):
        (grad,) = torch.autograd.grad(sp.entmax(x, learned), x, torch.ones(2, 3))
        assert grad.isnan().all(-1).tolist() == [True, False]
