"""The kernels of entmax with any alpha against the plain version: on a GPU if there is one, else interpreted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.distributions import constraints

import sparsum as sp
from sparsum.simplex.solve import solve_plainly
from tests.kernels.serving import serving
from tests.kernels.test_simplex import DEVICE, DTYPES, assert_near, laid_out, odd_rows

kernels = pytest.importorskip("sparsum.kernels.entmax")
simplex = pytest.importorskip("sparsum.kernels.simplex")
# The interpreter computes with numpy, which warns of infinities.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def expected(x: Tensor, alphas: Tensor, mask: Tensor | None = None) -> Tensor:
    """The plain version on the CPU, in double precision."""
    x = x.cpu().double()
    x = x if mask is None else x.masked_fill(~mask.cpu().expand(x.shape), -torch.inf)
    return solve_plainly(x, alphas.cpu().double().expand(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], 1))


@contextlib.contextmanager
def small_blocks() -> Iterator[None]:
    """Groups of 4 entries, 4 to a chunk and 2 to a batch."""
    cut = simplex.Groups(size=4, chunk=4, batch=2, warps=1)
    with mock.patch.object(kernels, "groups_of", return_value=cut):
        yield


@settings(max_examples=40)
@given(
    n=st.integers(1, 40),
    seed=st.integers(0, 1000),
    path=st.sampled_from(["tile", "groups"]),
    alpha=st.sampled_from([1.0, 1.0001, 1.05, 1.2, 1.3, 1.9, 2.0, 2.2, 4.0]),
    kind=st.sampled_from(["number", "shared", "rows"]),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(["plain", "columns", "sliced"]),
    masked=st.sampled_from(["no", "all", "by column", "by row"]),
)
def test_probabilities_of_all_kinds_of_rows(
    n: int, seed: int, path: str, alpha: float, kind: str, dtype: torch.dtype, layout: str, masked: str
) -> None:
    """Values, infinities, NaN, ties, masks and strides, a number, one alpha or many; and the sum in the output's dtype."""
    x = laid_out(odd_rows(n, seed, dtype), layout)
    shapes = {"all": x.shape, "by column": (1, 1, n), "by row": (*x.shape[:2], 1)}
    mask = torch.rand(shapes.get(masked, ()), generator=torch.Generator().manual_seed(seed)).to(DEVICE) < 0.7
    allowed = None if masked == "no" else mask
    alphas = (
        torch.linspace(alpha, alpha + 0.3, 8, dtype=torch.float64)
        if kind == "rows"
        else torch.full((1,), alpha, dtype=torch.float64)
    )
    alphas = alphas.to(DEVICE)
    with small_blocks():
        probs = kernels.forward(x, allowed, alpha if kind == "number" else alphas, path=path)
    wanted = expected(x, alphas, allowed)
    assert probs.dtype == dtype
    assert probs.shape == x.shape
    assert_near(probs, wanted, dtype)
    is_distribution = wanted.sum(-1) > 0
    assert constraints.simplex.check(probs.cpu()[is_distribution]).all()


@pytest.mark.parametrize("path", ["tile", "groups"])
@pytest.mark.parametrize("alpha", [1.1, 1.2, 1.25, 1.3, 1.4, 1.6, 1.8, 1.95, 2.0])
def test_error_in_single_precision(alpha: float, path: str) -> None:
    """At most 5e-7 before rounding, whatever the spread of the scores."""
    x = torch.randn(6, 1, 200, generator=torch.Generator().manual_seed(0))
    x *= torch.tensor([0.01, 0.1, 0.5, 1.0, 3.0, 10.0]).view(6, 1, 1)
    alphas = torch.full((1,), alpha, dtype=torch.float64, device=DEVICE)
    probs = kernels.forward(x.to(DEVICE), None, alpha, path=path)
    assert (probs.cpu().double() - expected(x, alphas)).abs().max().item() < 5e-7


@pytest.mark.parametrize("path", ["tile", "groups"])
@pytest.mark.parametrize(("alpha", "scale"), [(3.0, 1e-3), (4.0, 1e-6), (5.0, 1e-8), (1.3, 1e-8)])
def test_nearly_equal_scores(alpha: float, scale: float, path: str) -> None:
    """Small differences of scores, which a large alpha amplifies, are not lost to rounding."""
    x = scale * torch.randn(1, 1, 64, generator=torch.Generator().manual_seed(0))
    alphas = torch.full((1,), alpha, dtype=torch.float64, device=DEVICE)
    probs = kernels.forward(x.to(DEVICE), None, alphas, path=path)
    assert (probs.cpu().double() - expected(x, alphas)).abs().max().item() < 1e-6


def test_an_alpha_below_1_or_nan_makes_its_row_nan() -> None:
    x = torch.randn(3, 1, 5, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    probs = kernels.forward(x, None, torch.tensor([1.5, 0.9, torch.nan], device=DEVICE))
    assert probs.isnan().squeeze(1).all(-1).tolist() == [False, True, True]
    assert not probs[0].isnan().any()


@pytest.mark.parametrize("n", [1, 7, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("path", ["tile", "groups"])
def test_gradients(n: int, dtype: torch.dtype, path: str) -> None:
    """Of scores and alphas, for rows of several groups, against the plain version in double precision."""
    generator = torch.Generator().manual_seed(n)
    x, grad = torch.randn(2, 6, n, generator=generator, dtype=torch.float64)
    alphas = torch.linspace(1, 2.2, 6, dtype=torch.float64)
    scores, learned = x.clone().requires_grad_(), alphas.clone().requires_grad_()
    with serving(False):
        wanted = torch.autograd.grad(sp.entmax(scores, learned), (scores, learned), grad)
    probs = sp.entmax(x, alphas).unsqueeze(1).to(DEVICE, dtype)
    with small_blocks():
        found = kernels.backward(
            probs, grad.unsqueeze(1).to(DEVICE, dtype), alphas.to(DEVICE), with_alpha=True, path=path
        )  # fmt: skip
    tolerance = 1e-11 if dtype == torch.float64 else 2e-5
    torch.testing.assert_close(found[0].squeeze(1).cpu().double(), wanted[0], atol=tolerance, rtol=0)
    torch.testing.assert_close(found[1].cpu().double(), wanted[1], atol=tolerance, rtol=tolerance)


def test_operators_and_their_derivatives() -> None:
    """What graphs call: the same values, and first derivatives of scores and alphas."""
    x = torch.randn(4, 1, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE)
    for alphas in (torch.tensor([1.3], dtype=torch.float64), torch.linspace(1.1, 1.9, 4, dtype=torch.float64)):
        inputs = (x.requires_grad_(), alphas.to(DEVICE).requires_grad_())
        assert torch.autograd.gradcheck(lambda x, alphas: kernels.entmax_forward(x, None, alphas), inputs)
