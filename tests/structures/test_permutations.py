"""Permutations against enumeration, and points of the permutahedron against generic solvers."""

from __future__ import annotations

import itertools
import math

import pytest
import scipy.optimize
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import sparsum as sp
from sparsum.structures import permutahedron


def everything(n: int) -> Tensor:
    return torch.tensor(list(itertools.permutations(range(n))))


def drawn(n_rows: int, n: int, scale: float, seed: int) -> Tensor:
    return scale * torch.randn(n_rows, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


entries = st.one_of(st.integers(-2, 2).map(float), st.floats(-3, 3), st.sampled_from([1e30, -1e30, 1e-30]))


@st.composite
def rows(draw: st.DrawFn) -> Tensor:
    n = draw(st.integers(1, 6))
    return torch.tensor(draw(st.lists(st.lists(entries, min_size=n, max_size=n), min_size=1, max_size=3))).double()


@given(rows(), st.integers(1, 130))
def test_the_k_best_have_the_k_largest_scores(scores: Tensor, k: int) -> None:
    n = scores.shape[-1]
    found = sp.Permutation(n).topk(scores, k)
    assert found.shape[1] == min(k, math.factorial(n))
    assert all(len(atoms.unique(dim=0)) == len(atoms) for atoms in found)
    assert bool(sp.Permutation(n).contains(found.flatten(0, 1)).all())
    values = (found.double() @ scores.unsqueeze(-1)).squeeze(-1)
    wanted = (scores @ everything(n).double().T).sort(-1, descending=True).values[:, :k]
    torch.testing.assert_close(values, wanted, rtol=1e-9, atol=1e-9 * max(1.0, float(scores.abs().max())))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0, 100.0])
def test_the_mean_is_a_projection(n: int, scale: float) -> None:
    """Isotonic regression by scipy, and optimality: no vertex is better for the residual than the mean."""
    scores = drawn(20, n, scale, seed=n)
    mean = permutahedron.closest(scores)
    for row, found in zip(scores, mean, strict=True):
        order = row.argsort()
        ranks = torch.arange(n, dtype=torch.float64)
        fitted = torch.from_numpy(scipy.optimize.isotonic_regression((row[order] - ranks).numpy()).x)
        torch.testing.assert_close(found[order], row[order] - fitted, rtol=0, atol=1e-10 * max(1.0, scale))
    residual = scores - mean
    best = permutahedron.ranks(residual).double()
    assert float(((best - mean) * residual).sum(-1).max()) <= 1e-9 * max(1.0, scale)


@given(rows())
def test_points_are_split_into_permutations(scores: Tensor) -> None:
    """At most n, affinely independent, with the point as their mean."""
    n = scores.shape[-1]
    mean = permutahedron.closest(scores)
    split = permutahedron.rankings_of(mean)
    assert float(split.left.abs().max()) <= 1e-10
    found = torch.zeros_like(mean).index_add_(0, split.row, split.weights.unsqueeze(-1) * split.atoms.double())
    torch.testing.assert_close(found, mean, rtol=0, atol=1e-9)
    for r in range(len(scores)):
        atoms = split.atoms[split.row == r].double()
        assert 1 <= len(atoms) <= n
        assert int(torch.linalg.matrix_rank(atoms[1:] - atoms[:1])) == len(atoms) - 1 if len(atoms) > 1 else True


def test_many_items() -> None:
    scores = drawn(3, 60, 0.3 * 60, seed=0)
    q = sp.sparsemap(scores, sp.Permutation(60))
    torch.testing.assert_close(q.mean, permutahedron.closest(scores), rtol=0, atol=1e-8)
    assert int(torch.bincount(q.row).max()) <= 60


def test_expectations_are_continuous() -> None:
    """Along a line that passes many faces and ties, no expectation jumps: steps shrink with the distance."""
    first, second = drawn(2, 5, 1.5, seed=3)
    n_steps = 4000
    way = torch.linspace(0, 1, n_steps + 1, dtype=torch.float64).unsqueeze(-1)
    q = sp.sparsemap(first + way * (second - first), sp.Permutation(5))
    values = drawn(1, 120, 1.0, seed=4)[0]
    code = torch.tensor([5**i for i in range(5)])
    place = {int(atom @ code): i for i, atom in enumerate(everything(5))}

    def loss(z: Tensor) -> Tensor:
        return values[torch.tensor([place[int(atom @ code)] for atom in z])]

    assert len({tuple(atom.tolist()) for atom in q.atoms}) > 10
    assert float(q.expect(loss).diff().abs().max()) < 40 / n_steps


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_gradients(scale: float) -> None:
    scores = drawn(4, 5, scale, seed=5).requires_grad_()
    weights = drawn(1, 5, 1.0, seed=6)[0]

    def expected(scores: Tensor) -> Tensor:
        found: Tensor = sp.sparsemap(scores, sp.Permutation(5)).expect(lambda z: (z.double() @ weights).sin())
        return found

    assert torch.autograd.gradcheck(expected, scores)
    assert torch.autograd.gradgradcheck(expected, scores)


def test_minus_infinity_forbids_all_ranks_but_the_first() -> None:
    scores = torch.tensor([[0.1, -torch.inf, 0.0], [-torch.inf, -torch.inf, 0.0]])
    q = sp.sparsemap(scores[:1], sp.Permutation(3))
    assert bool((q.atoms[:, 1] == 0).all())
    torch.testing.assert_close(q.mean, torch.tensor([[1.55, 0.0, 1.45]]))
    _, is_allowed = sp.Permutation(3).kbest(scores[:1], 6)
    assert is_allowed.sum() == 2
    with pytest.raises(ValueError, match="row 1 forbids every assignment"):
        sp.sparsemap(scores, sp.Permutation(3))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sp.Permutation(0), ValueError, "n must be at least 1, got 0"),
        (lambda: sp.Permutation(2.0), TypeError, "n must be an int, got float"),  # type: ignore[arg-type]
        (lambda: sp.Permutation(3).argmax(torch.zeros(2)), ValueError, r"must have shape \(\*batch, 3\)"),
        (lambda: sp.Permutation(3).topk(torch.zeros(3), 0), ValueError, "k must be at least 1"),
        (lambda: sp.Gibbs(torch.zeros(3), sp.Permutation(3)), TypeError, "Permutation"),
    ],
)
def test_bad_input_is_named(call: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()  # type: ignore[operator]
