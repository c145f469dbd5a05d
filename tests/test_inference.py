"""From scores to sparse distributions: identities with the dense mappings, certificates, and errors."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import sparsum as sp


def scores(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class TwoBits(sp.AbstractStructure):
    """A user's own structure: two bits that are not both 1, by enumeration."""

    members = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)

    def argmax(self, scores: Tensor) -> Tensor:
        return self.topk(scores, 1)[..., 0, :]

    def topk(self, scores: Tensor, k: int) -> Tensor:
        return self.members[(scores @ self.members.T).topk(min(k, 3), -1).indices]


@pytest.mark.parametrize("shape", [(6,), (5, 6), (2, 3, 6), (3, 33), (3, 9000), (0, 6), (2, 0, 6), (4, 1)])
def test_over_one_of_many_it_is_sparsemax(shape: tuple[int, ...]) -> None:
    x = scores(*shape).requires_grad_()
    q = sp.sparsemap(x, sp.OneOf(shape[-1]))
    probs = sp.sparsemax(x)
    assert q.batch_shape == shape[:-1]
    torch.testing.assert_close(q.to_dense(), probs, atol=1e-15, rtol=0)
    assert torch.equal(q.n_atoms_per_row, (probs > 0).sum(-1))
    assert q.is_exact.all()
    weight = scores(*shape, seed=1)
    (packed,) = torch.autograd.grad((q.to_dense() * weight).sum(), x)
    (dense,) = torch.autograd.grad((probs * weight).sum(), x)
    torch.testing.assert_close(packed, dense, atol=1e-12, rtol=0)


def test_derivatives() -> None:
    x = scores(3, 7).requires_grad_()
    for function in (
        lambda x: sp.sparsemap(x, sp.OneOf(7)).to_dense(),
        lambda x: sp.topk_sparsemax(x, sp.OneOf(7), 3).to_dense(),
        lambda x: sp.sparsemap(x, sp.OneOf(7)).entropy(),
    ):
        assert gradcheck(function, (x,))
        assert gradgradcheck(function, (x,))


def test_extreme_scores() -> None:
    x = torch.tensor([[torch.inf, 0.0, torch.inf], [1e30, -1e30, 1e30], [-torch.inf, -7.0, -torch.inf]], requires_grad=True)
    q = sp.sparsemap(x, sp.OneOf(3))
    assert q.to_dense().tolist() == [[0.5, 0.0, 0.5], [0.5, 0.0, 0.5], [0.0, 1.0, 0.0]]
    q.entropy().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@given(st.lists(st.integers(-4, 4).map(lambda n: n / 4), min_size=1, max_size=9), st.integers(1, 10))
def test_the_certificate_of_topk(values: list[float], k: int) -> None:
    """Where is_exact is true, the result is the sparsemax of all; it is true wherever fewer than k atoms have mass."""
    x = torch.tensor(values, dtype=torch.float64)
    q = sp.topk_sparsemax(x, sp.OneOf(len(x)), k)
    full = sp.sparsemax(x)
    assert q.n_atoms_per_row <= k
    if q.is_exact:
        torch.testing.assert_close(q.to_dense(), full, atol=1e-14, rtol=0)
    assert q.is_exact == (k >= len(x) or bool((full > 0).sum() < k))


@pytest.mark.parametrize("k", [8, 2**70])
def test_topk_of_all_is_exact(k: int) -> None:
    found = sp.topk_sparsemax(torch.zeros(2, 3), sp.Bits(3), k)
    assert found.n_atoms_per_row.tolist() == [8, 8]
    assert found.is_exact.tolist() == [True, True]


def test_topk_rows_with_few_allowed() -> None:
    x = torch.tensor([[0.1, -torch.inf, -torch.inf, 0.0], [0.2, 0.1, 0.0, 0.05]])
    q = sp.topk_sparsemax(x, sp.OneOf(4), 3)
    assert q.n_atoms_per_row.tolist() == [2, 3]
    assert q.is_exact.tolist() == [True, False]


def test_sums_of_scores_keep_their_differences() -> None:
    """Scores of assignments are large sums with small differences, whatever the dtype of the scores."""
    x = torch.ones(1, 64, 2) * torch.tensor([1.0, 0.9])
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        q = sp.topk_sparsemax(x.to(dtype), sp.Groups(64, 2), 3)
        wanted = sp.topk_sparsemax(x.to(dtype).double(), sp.Groups(64, 2), 3)
        assert q.probs.dtype == dtype
        torch.testing.assert_close(q.probs.double(), wanted.probs, atol=torch.finfo(dtype).eps, rtol=0)
    q = sp.topk_sparsemax(torch.tensor([[1e6, 0.1]]), sp.Bits(2), 2)
    torch.testing.assert_close(q.probs, torch.tensor([0.55, 0.45]))


def test_enumerated_scores_of_very_different_size() -> None:
    structure = sp.Enumerated(torch.eye(3))
    assert structure.argmax(torch.tensor([[-1e9, 0.5, 0.5004]])) == 2
    torch.testing.assert_close(
        sp.sparsemap(torch.tensor([[-1e30, 0.5, 0.7]]), structure).mean, torch.tensor([[0.0, 0.4, 0.6]])
    )
    x = torch.tensor([[1e12 + 0.5, 1e12]], dtype=torch.float64)
    torch.testing.assert_close(sp.sparsemap(x, sp.Enumerated(torch.eye(2))).mean, torch.tensor([[0.75, 0.25]]).double())


@pytest.mark.parametrize(
    "structure", [sp.Matching(3), sp.Tree(3), sp.Sequence(3, 3), sp.Enumerated(torch.eye(3)), sp.Bits(3)]
)
def test_empty_batches_of_every_structure(structure: sp.AbstractStructure) -> None:
    for solver in (None, sp.solvers.ActiveSet()):
        q = sp.sparsemap(torch.zeros(0, *structure.score_shape), structure, solver=solver)
        assert q.batch_shape == (0,)
        assert q.mean.shape == (0, *structure.score_shape)
    assert sp.topk_sparsemax(torch.zeros(0, *structure.score_shape), structure, 2).batch_shape == (0,)


def test_large_equal_scores_are_shared() -> None:
    for size in (1e15, 1e30):
        q = sp.sparsemap(torch.full((1, 2, 2), size, dtype=torch.float64), sp.Matching(2))
        torch.testing.assert_close(q.mean, torch.full((1, 2, 2), 0.5).double())


def test_not_converged_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(sp.NotConverged([3], [7], [0.1])))
    assert error.rows == [3]
    assert "row 3 (gap 0.1 after 7 steps)" in str(error)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_topk_over_a_users_own_structure(k: int) -> None:
    x = scores(20, 2).requires_grad_()
    q = sp.topk_sparsemax(x, TwoBits(), k)
    for row, members in itertools.groupby(zip(q.row.tolist(), q.atoms, q.probs, strict=True), lambda part: part[0]):
        parts = list(members)
        best = (TwoBits.members @ x[row]).topk(min(k, 3))
        expected = sp.sparsemax(best.values)
        torch.testing.assert_close(torch.stack([p for _, _, p in parts]), expected[expected > 0])
        assert torch.equal(torch.stack([z for _, z, _ in parts]), TwoBits.members[best.indices[expected > 0]])
    assert gradcheck(lambda x: sp.topk_sparsemax(x, TwoBits(), k).mean, (x,))


X = torch.randn(2, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sp.sparsemap(X, sp.OneOf(4)), ValueError, "scores for OneOf(n=4) must have shape (*batch, 4), got (2, 3)"),
        (lambda: sp.sparsemap(X.long(), sp.OneOf(3)), TypeError, "scores must have a floating-point dtype"),
        (lambda: sp.sparsemap(torch.tensor(1.0), sp.OneOf(1)), ValueError, "at least 1 dimension(s), got ()"),
        (lambda: sp.sparsemap([1.0], sp.OneOf(1)), TypeError, "must be a torch.Tensor, got list"),
        (lambda: sp.sparsemap((X, X), sp.OneOf(3)), TypeError, "scores for OneOf(n=3) must be a torch.Tensor, got tuple"),
        (lambda: sp.sparsemap(X, sp.OneOf), TypeError, "got the class OneOf; make an instance of it"),  # type: ignore[arg-type]
        (lambda: sp.Bits(3).topk(X, 0), ValueError, "k must be at least 1, got 0"),
        (lambda: sp.Groups(1, 3).topk(X[:, None], -1), ValueError, "k must be at least 1, got -1"),
        (lambda: sp.topk_sparsemax(X + torch.inf, sp.Bits(3), 2), ValueError, "row 0 has +inf, row 1 has +inf (of 2)"),
        (lambda: sp.sparsemap(X, 3), TypeError, "structure must be an AbstractStructure such as OneOf"),  # type: ignore[arg-type]
        (lambda: sp.OneOf(0), ValueError, "n must be at least 1, got 0: a structure without assignments"),
        (lambda: sp.OneOf(2.0), TypeError, "n must be an int, got float"),  # type: ignore[arg-type]
        (lambda: sp.topk_sparsemax(X, sp.OneOf(3), 0), ValueError, "k must be at least 1, got 0"),
        (lambda: sp.topk_sparsemax(X, sp.OneOf(3), 1.0), TypeError, "k must be an int, got float"),  # type: ignore[arg-type]
        (
            lambda: sp.sparsemap(torch.tensor([[torch.nan, 1.0], [0.0, 1.0], [-torch.inf] * 2]), sp.OneOf(2)),
            ValueError,
            "a distribution in every row; row 0 has a NaN, row 2 forbids every assignment (of 3)",
        ),
        (
            lambda: sp.topk_sparsemax(torch.full((9, 2), -torch.inf), sp.OneOf(2), 1),
            ValueError,
            "row 4 forbids every assignment and 4 more (of 9)",
        ),
    ],
)
def test_bad_input_is_named(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
