"""The mean of chains by Newton's method on the dual, against the active set and dense linear algebra."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum.solvers import ActiveSet
from sparsum.solvers.flows import MAX_STEPS, flow_mean, solve_chain
from sparsum.solvers.mean import find_mean
from sparsum.structures.scores import BoundScores, flatten


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch is so sparse that the active set is chosen."""
    monkeypatch.setattr("sparsum.solvers.mean.FEW_STEPS", 1)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def chain(length: int, n: int, n_rows: int, scale: float = 1.0, lengths: Tensor | None = None) -> BoundScores:
    scores = scale * normal(n_rows, length, n), scale * normal(n_rows, length - 1, n, n, seed=1)
    return sp.Sequence(length, n, lengths=lengths).bind(scores)


def mean_by_active_set(bound: BoundScores) -> Tensor:
    solution = ActiveSet(tolerance=1e-12).solve(bound)
    return flatten(bound.structure.marginals(solution.atoms, solution.probs, solution.segments))


def newton(bound: BoundScores) -> tuple[Tensor, Tensor]:
    length, n = bound.structure.score_shape
    lengths = torch.full((bound.n_rows,), length)
    return flow_mean(bound.flat, torch.ones(bound.flat.shape[-1], dtype=torch.float64), (length, n), lengths)


@pytest.mark.parametrize("scale", [0.01, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("shape", [(1, 3), (2, 2), (5, 1), (4, 5), (10, 3)], ids=str)
def test_it_is_the_mean_of_the_active_set(shape: tuple[int, int], scale: float) -> None:
    bound = chain(*shape, 16, scale)
    mean, steps = newton(bound)
    assert bool(mean.isfinite().all())
    assert int(steps.max()) < MAX_STEPS
    torch.testing.assert_close(mean, mean_by_active_set(bound), atol=1e-9, rtol=0)


def test_lengths_and_forbidden_parts() -> None:
    bound = chain(6, 3, 48, lengths=torch.arange(48) % 6 + 1)
    flat = bound.flat.masked_fill(normal(*bound.flat.shape, seed=4) > 1.3, -torch.inf)
    bound = bound.with_flat(flat)
    is_possible = bound.score(bound.argmax(), bound.row(1)) > -torch.inf
    bound = bound.select(is_possible.nonzero().squeeze(-1))
    assert bound.n_rows > 20
    mean = find_mean(bound, ActiveSet())
    assert bool(mean.is_solved.all())
    assert int(mean.steps.max()) < MAX_STEPS  # without the active set
    torch.testing.assert_close(mean.vector, mean_by_active_set(bound), atol=1e-9, rtol=0)


@dataclasses.dataclass(frozen=True)
class Weighted(sp.Sequence):
    """Different weights of the quadratic term for each part."""

    def quadratic(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        return flat, 0.5 + torch.rand(flat.shape[-1], dtype=flat.dtype, generator=torch.Generator().manual_seed(2))


def test_weights() -> None:
    bound = Weighted(5, 3).bind((normal(20, 5, 3), normal(20, 4, 3, 3, seed=1)))
    mean = find_mean(bound, ActiveSet())
    assert int(mean.steps.max()) < MAX_STEPS
    torch.testing.assert_close(mean.vector, mean_by_active_set(bound), atol=1e-9, rtol=0)


@pytest.mark.parametrize("size", [1e4, 1e9, 1e15])
def test_large_scores_do_not_absorb_others(size: float) -> None:
    """A constant for all tags of a position does not matter; one large score makes the rest of its position irrelevant."""
    bound = chain(5, 3, 10)
    wanted = find_mean(bound, ActiveSet()).vector
    unary, transitions = bound.tensors
    shifted = unary.clone()
    shifted[:, 2] = torch.round(8 * unary[:, 2]) / 8
    exact = sp.Sequence(5, 3).bind((shifted, transitions))
    moved = shifted.clone()
    moved[:, 2] += round(size)
    found = find_mean(sp.Sequence(5, 3).bind((moved, transitions)), ActiveSet())
    torch.testing.assert_close(found.vector, find_mean(exact, ActiveSet()).vector, atol=1e-9, rtol=0)
    assert not torch.equal(wanted, found.vector)
    peaked = unary.clone()
    peaked[:, 2, 0] = size
    found = find_mean(sp.Sequence(5, 3).bind((peaked, transitions)), ActiveSet(tolerance=1e-9))
    forced = unary.clone()
    forced[:, 2, 1:] = -torch.inf
    only = find_mean(sp.Sequence(5, 3).bind((forced, transitions)), ActiveSet())
    torch.testing.assert_close(found.vector, only.vector, atol=1e-7, rtol=0)


def test_rows_that_newton_does_not_solve_are_left_to_the_active_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsum.solvers.flows.MAX_STEPS", 8)
    bound = chain(6, 4, 20)
    mean, _ = newton(bound)
    is_left = mean.isnan().any(-1)
    assert 0 < int(is_left.sum()) <= 20
    found = find_mean(bound, ActiveSet(tolerance=1e-12))
    assert bool(found.is_solved.all())
    torch.testing.assert_close(found.vector, mean_by_active_set(bound), atol=1e-9, rtol=0)


def test_block_tridiagonal_systems() -> None:
    n_rows, length, n = 3, 5, 4
    factor = torch.zeros(n_rows, length, n, length, n, dtype=torch.float64)
    for i in range(length):
        factor[:, i, :, i] = normal(n_rows, n, n, seed=i) + 3 * torch.eye(n, dtype=torch.float64)
        if i:
            factor[:, i, :, i - 1] = normal(n_rows, n, n, seed=9 + i)
    square = factor.reshape(n_rows, length * n, length * n)
    dense = (square @ square.mT).reshape(n_rows, length, n, length, n)
    blocks = torch.stack([dense[:, i, :, i] for i in range(length)], 1)
    links = torch.stack([dense[:, i, :, i + 1] for i in range(length - 1)], 1)
    right = normal(n_rows, length, n, seed=20)
    wanted = torch.linalg.solve(square @ square.mT, right.flatten(1)).reshape(right.shape)
    torch.testing.assert_close(solve_chain(blocks, links, right), wanted)
