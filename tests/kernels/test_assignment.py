"""The kernel for matchings: its dual variables certify the matching, and SciPy finds none that is better."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import sparsum as sp
from tests.kernels.serving import serving

pytest.importorskip("triton")
# Said by the interpreter, where forbidden parts are compared.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def check_certified(scores: Tensor) -> int:
    """Feasible dual variables with the same value as the matching prove that it is the best; returns how many were."""
    from sparsum.kernels import assignment

    n_rows, n, _ = scores.shape
    columns, row_duals, column_duals, is_found = assignment.best(scores, torch.full((n_rows,), n, device=DEVICE))
    for matrix, is_possible in zip(scores.cpu().numpy(), is_found.tolist(), strict=True):
        try:
            linear_sum_assignment(matrix, maximize=True)
        except ValueError:
            assert not is_possible
        else:
            assert is_possible
    scores, columns = scores[is_found], columns[is_found]
    row_duals, column_duals = row_duals[is_found], column_duals[is_found]
    assert (columns.sort(-1).values.diff(dim=-1) > 0).all()
    rounding = 1e-12 * scores.masked_fill(scores == -torch.inf, 0).abs().amax((1, 2)).clamp_min(1e-30)
    slack = -scores - row_duals.unsqueeze(-1) - column_duals.unsqueeze(-2)
    assert (slack >= -rounding[:, None, None]).all()
    assert (slack.gather(2, columns.unsqueeze(-1)).squeeze(-1).abs() <= rounding.unsqueeze(-1)).all()
    is_free = torch.ones_like(column_duals).scatter(1, columns, 0.0)
    assert (column_duals <= rounding.unsqueeze(-1)).all()
    assert (column_duals * is_free == 0).all()  # with fewer rows than columns: unused columns have no price
    return len(scores)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 6),
    n_more=st.integers(0, 4),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-9, 1.0, 1e9]),
    is_tied=st.booleans(),
    forbidden=st.sampled_from([0.0, 0.3, 0.7]),
)
def test_duals_certify_the_matching(n: int, n_more: int, seed: int, scale: float, is_tied: bool, forbidden: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(3, n, n + n_more, generator=generator, dtype=torch.float64)
    if is_tied:
        scores = scores.round()
    scores = scores.masked_fill(torch.rand(scores.shape, generator=generator) < forbidden, -torch.inf)
    check_certified((scale * scores).to(DEVICE))


@pytest.mark.parametrize(("n", "m"), [(30, 30), (20, 33)])
def test_larger_matrices(n: int, m: int) -> None:
    scores = torch.randn(2, n, m, generator=torch.Generator().manual_seed(n), dtype=torch.float64).to(DEVICE)
    assert check_certified(scores) == 2


@pytest.mark.parametrize("m", [4, 5])
def test_sparsemap_over_matchings_is_the_same(m: int) -> None:
    """Of the mean and its gradient; searches and splits by the kernels, and by SciPy."""
    scores = torch.randn(3, 4, m, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE)
    found = []
    for is_served in (True, False):
        leaf = scores.clone().requires_grad_()
        with serving(is_served):
            q = sp.sparsemap(leaf, sp.Matching(4, m))
        (gradient,) = torch.autograd.grad(q.mean.square().sum(), leaf)
        found.append((q.mean.detach(), q.probs.detach(), q.atoms, gradient))
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(here, there, rtol=0, atol=1e-9)


@pytest.mark.parametrize("structure", [sp.Matching(3), sp.Tree(3)], ids=repr)
def test_lengths_may_be_any_view(structure: sp.Matching | sp.Tree) -> None:
    """A kernel reads lengths as if they were contiguous."""
    scores = torch.randn(3, *structure.score_shape, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    spread = torch.tensor([1, 3, 2, 3, 3, 3])
    for lengths, values in ((spread[::2], [1, 2, 3]), (torch.tensor([2]).expand(3), [2, 2, 2])):
        with serving(True):
            found = dataclasses.replace(structure, lengths=lengths.to(DEVICE)).argmax(scores)
        assert torch.equal(found, dataclasses.replace(structure, lengths=values).argmax(scores))
