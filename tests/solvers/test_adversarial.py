"""SparseMAP is right in every row that it certifies, and names all others: against exact rational arithmetic."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum.solvers import AbstractSolver, ActiveSet, Nested, NotConverged, Sparsemax, Systematic
from tests.solvers.adversarial import CASES, MAKERS, Knapsack, attack, attack_topk

#: Kinds of scores, and structures, in which every row can be solved.
ALWAYS = {"normal", "integers", "halves", "one assignment", "two assignments", "nearly binding", "vertices"}


#: What has a closed form.
CLOSED: list[tuple[str, AbstractSolver]] = [
    ("bits", Systematic()),
    ("bits of the paper", Systematic()),
    ("budget", Systematic()),
    ("budget of the paper", Systematic()),
    ("subsets", Systematic()),
    ("bits", Nested()),
    ("bits of the paper", Nested()),
    ("groups", Nested()),
    ("one of four", Sparsemax()),
]
closed = pytest.mark.parametrize(("name", "solver"), CLOSED, ids=str)


def check_closed(name: str, solver: AbstractSolver, n: int, n_exact: int) -> None:
    for kind in MAKERS:
        found = attack(name, kind, n, n_exact, closed_form=solver)
        # Systematic splits have marginals in fixed point, of 40 binary places.
        assert 0 <= found.gap <= 2e-11
        assert found.distance <= 1e-11


def check(name: str, kind: str, n: int, n_exact: int) -> None:
    found = attack(name, kind, n, n_exact)
    # Points are not 0/1: the tolerance is relative to the square of their size, here at most 4.
    most = 1.7e-8 if "points" in name else 1.2e-9
    assert 0 <= found.gap <= most
    assert found.distance <= (2 * most) ** 0.5
    assert found.n_named <= n // 2
    if kind in ALWAYS:
        assert not found.n_named
        # Others have features below the tolerance.
        assert kind in {"vertices", "nearly binding"} or found.distance <= 1e-12


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", CASES)
def test_a_few_hundred_rows(name: str, kind: str) -> None:
    check(name, kind, 25, 3)


@closed
def test_closed_forms_in_a_few_hundred_rows(name: str, solver: AbstractSolver) -> None:
    check_closed(name, solver, 40, 3)


@pytest.mark.slow
@closed
def test_closed_forms_in_ten_thousand_rows(name: str, solver: AbstractSolver) -> None:
    check_closed(name, solver, -(-10_000 // len(MAKERS)), 20)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_ten_thousand_rows(name: str) -> None:
    for kind in MAKERS:
        check(name, kind, -(-10_000 // len(MAKERS)), 20)


@pytest.mark.parametrize("name", CASES)
def test_the_k_best(name: str) -> None:
    """Except where large scores compete, or a structure does not declare its groups: sums of parts then lose digits."""
    competing = {"swamped", "masked"} if "transitions" in name or name in {"permutations", "trees with one root"} else set()
    competing |= {"masked"} if name == "trees" else set()
    competing |= {"swamped", "offset"} if name == "one's own" else set()
    for kind in MAKERS:
        if kind not in competing:
            assert attack_topk(name, kind, 20, 4) <= 1e-11


LARGE = [1e9, 1e12, 1e15, 1e30]


def mean(scores: list[list[float]] | list[float], structure: sp.AbstractStructure) -> Tensor:
    found: Tensor = sp.sparsemap(torch.tensor(scores, dtype=torch.float64), structure, solver=ActiveSet()).mean
    return found


@pytest.mark.parametrize("large", LARGE)
def test_a_large_score_does_not_swamp_other_positions(large: float) -> None:
    def same(found: Tensor, wanted: list[list[float]]) -> None:
        torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), atol=1e-12, rtol=0)

    for structure in (sp.Sequence(2, 2), sp.Groups(2, 2)):
        same(mean([[large, 0.0], [0.9, 0.2]], structure), [[1.0, 0.0], [0.85, 0.15]])
        same(mean([[-large, 0.0], [0.9, 0.2]], structure), [[0.0, 1.0], [0.85, 0.15]])
    scores = [[large, 0.0, 0.0], [0.0, 0.9, 0.2], [0.0, 0.1, 0.1]]
    same(mean(scores, sp.Matching(3)), [[1.0, 0.0, 0.0], [0.0, 0.675, 0.325], [0.0, 0.325, 0.675]])
    same(mean(scores, sp.Tree(3)), [[1.0, 0.0, 0.0], [0.0, 0.85, 0.15], [4 / 15, 11 / 30, 11 / 30]])


@pytest.mark.parametrize("large", LARGE)
@pytest.mark.parametrize(
    ("structure", "rest"),
    [
        (sp.Subset(4, 2), sp.Subset(3, 1)),
        (sp.Budget(4, 2), sp.Budget(3, 1)),
        (Knapsack((1.0,) * 4, 2.0), Knapsack((1.0,) * 3, 1.0)),
    ],
    ids=repr,
)
def test_a_large_score_does_not_swamp_other_bits(
    large: float, structure: sp.AbstractStructure, rest: sp.AbstractStructure
) -> None:
    found = mean([large, 0.9, 0.2, 0.1], structure)
    torch.testing.assert_close(found[0], torch.ones((), dtype=torch.float64))
    torch.testing.assert_close(found[1:], mean([0.9, 0.2, 0.1], rest), atol=1e-12, rtol=0)


def test_scores_that_compete_and_are_too_large_are_named() -> None:
    # The first two vectors differ in two parts, whose scores nearly cancel.
    points = torch.tensor([[1.0, -1.0], [0.5, -0.5], [-3.0, 1.0]], dtype=torch.float64)
    scores = torch.tensor([[1e16 + 2, 1e16], [1.0, 0.0]], dtype=torch.float64)
    with pytest.raises(NotConverged, match="scale down") as caught:
        sp.sparsemap(scores, sp.Enumerated(points))
    assert caught.value.rows == [0]
    kept = sp.sparsemap(scores, sp.Enumerated(points), solver=ActiveSet(strict=False))
    assert kept.is_exact.tolist() == [False, True]


@pytest.mark.parametrize("size", [1e-100, 1e-12, 1e-5, 1e6, 1e100])
def test_the_unit_of_vectors_does_not_matter(size: float) -> None:
    generator = torch.Generator().manual_seed(0)
    points, scores = (torch.randn(n, 3, dtype=torch.float64, generator=generator) for n in (8, 40))
    scores[0] = 0
    plain = sp.sparsemap(scores, sp.Enumerated(points))
    leaf = (size * scores).requires_grad_()
    scaled = sp.sparsemap(leaf, sp.Enumerated(size * points))
    assert bool(scaled.is_exact.all())
    torch.testing.assert_close(scaled.mean / size, plain.mean, atol=1e-12, rtol=1e-12)
    # The Jacobian of a projection has no unit.
    (gradient,) = torch.autograd.grad((scaled.mean / size).square().sum(), leaf)
    plain_leaf = scores.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(sp.sparsemap(plain_leaf, sp.Enumerated(points)).mean.square().sum(), plain_leaf)
    torch.testing.assert_close(gradient * size, wanted, atol=1e-9, rtol=1e-9)
