"""SparseMAP with pulled atoms: continuity, the whole gradient, and the mean, against brute force over all assignments."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor

import sparsum as sp
from sparsum.solvers import ActiveSet, NotConverged, Pulled, Solution
from sparsum.structures.scores import BoundScores, Scores, as_tuple, flatten
from tests.solvers.adversarial import MAKERS, attack


@dataclass(frozen=True)
class Knapsack(sp.AbstractStructure):
    """A user's own structure: bit vectors with a limited weight, by enumeration."""

    weights: tuple[float, ...]
    most: float

    @property
    def score_shape(self) -> tuple[int, ...]:
        return (len(self.weights),)

    def argmax(self, scores: Tensor) -> Tensor:
        bits = self.members().to(scores)
        return bits[torch.where(bits > 0, scores.unsqueeze(-2), 0.0).sum(-1).argmax(-1)]

    def members(self) -> Tensor:
        bits = torch.tensor(list(itertools.product((0.0, 1.0), repeat=len(self.weights))), dtype=torch.float64)
        return bits[bits @ torch.tensor(self.weights, dtype=torch.float64) <= self.most]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scores_for(structure: sp.AbstractStructure, n_rows: int, seed: int = 0, scale: float = 1.0) -> Scores:
    """Normal scores; a sequence gets transitions, the same for all rows or one for each by turns."""
    scores = scale * normal(n_rows, *structure.score_shape, seed=seed)
    if not isinstance(structure, sp.Sequence):
        return scores
    length, n = structure.score_shape
    return scores, scale * normal(*([n_rows] if seed % 2 else []), length - 1, n, n, seed=seed + 1)


def lengths(n_rows: int, most: int) -> Tensor:
    return torch.arange(n_rows) % most + 1


#: A structure for each number of rows.
CASES: dict[str, Callable[[int], sp.AbstractStructure]] = {
    "sequence": lambda n_rows: sp.Sequence(6, 4),
    "longer sequence": lambda n_rows: sp.Sequence(10, 5),
    "sequence, lengths": lambda n_rows: sp.Sequence(6, 3, lengths=lengths(n_rows, 6)),
    "tree": lambda n_rows: sp.Tree(6),
    "tree, single root": lambda n_rows: sp.Tree(6, single_root=True),
    "tree, lengths": lambda n_rows: sp.Tree(6, lengths=lengths(n_rows, 6)),
    "tree, single root, lengths": lambda n_rows: sp.Tree(5, single_root=True, lengths=lengths(n_rows, 5)),
    "matching": lambda n_rows: sp.Matching(6),
    "matching, more columns": lambda n_rows: sp.Matching(4, 6),
    "matching, lengths": lambda n_rows: sp.Matching(5, 6, lengths=lengths(n_rows, 5)),
}
POINTS = normal(20, 4, seed=3)
#: Structures without facets.
OTHERS: dict[str, Callable[[int], sp.AbstractStructure]] = {
    "points": lambda n_rows: sp.Enumerated(POINTS),
    "corners": lambda n_rows: sp.Enumerated((normal(30, 5, seed=4) > 0).double().unique(dim=0)),
    "knapsack": lambda n_rows: Knapsack((2, 3, 4, 5, 6), 11),
}
#: Those of the adversarial rows.
ADVERSARIAL = ["tags", "tags and transitions", "trees", "trees with one root", "permutations", "matchings"]
#: Structures whose assignments can be listed.
SMALL: dict[str, sp.AbstractStructure] = {
    "sequence": sp.Sequence(3, 3),
    "tree": sp.Tree(4),
    "tree, single root": sp.Tree(4, single_root=True),
    "matching": sp.Matching(4),
    "matching, more columns": sp.Matching(3, 4),
    "points": sp.Enumerated(POINTS),
    "knapsack": Knapsack((2, 3, 4, 5, 6), 11),
}


def members(structure: sp.AbstractStructure) -> Tensor:
    """All vectors: (n, n_parts)."""
    if isinstance(structure, Knapsack):
        return structure.members()
    if isinstance(structure, sp.Enumerated):
        return POINTS
    bound = structure.bind(scores_for(structure, 1))
    atoms, _ = bound.kbest(round(np.exp(structure.log_count())))
    return flatten(bound.structure.vectors(atoms[0])).double()


def solve(structure: sp.AbstractStructure, scores: Scores, **options: Any) -> tuple[BoundScores, Solution]:
    bound = structure.bind(scores)
    return bound, Pulled(**options).solve(bound)


def vectors_of(bound: BoundScores, solution: Solution) -> Tensor:
    return flatten(bound.structure.select(solution.segments.row).vectors(solution.atoms)).double()


def mean_of(bound: BoundScores, solution: Solution) -> Tensor:
    return solution.segments.sum(vectors_of(bound, solution) * solution.probs.unsqueeze(-1))


def expected(bound: BoundScores, solution: Solution) -> Tensor:
    """The expectation of sin(<z, w>), which is not a function of the mean: (n_rows,)."""
    vectors = vectors_of(bound, solution)
    return solution.segments.sum(torch.sin(3 * vectors @ normal(vectors.shape[-1], seed=9)) * solution.probs)


def entropy(bound: BoundScores, solution: Solution) -> Tensor:
    return -solution.segments.sum(torch.xlogy(solution.probs, solution.probs))


def jump(structure: sp.AbstractStructure, n_rows: int, seed: int = 0) -> float:
    """The largest change of an expected loss under noise of 1e-9."""
    scores = scores_for(structure, n_rows, seed)
    noisy = tuple(t + 1e-9 * normal(*t.shape, seed=seed + 7) for t in as_tuple(scores))
    before, after = (expected(*solve(structure, x)) for x in (scores, noisy if isinstance(scores, tuple) else noisy[0]))
    return float((after - before).abs().max())


@pytest.mark.parametrize("name", CASES | OTHERS)
def test_expected_losses_do_not_jump(name: str) -> None:
    n_rows = 120 if name in CASES else 60
    assert jump((CASES | OTHERS)[name](n_rows), n_rows) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES | OTHERS)
def test_expected_losses_do_not_jump_in_many_rows(name: str) -> None:
    n_rows, n_batches = (1000, 10) if name in CASES else (200, 1)
    assert max(jump((CASES | OTHERS)[name](n_rows), n_rows, seed) for seed in range(n_batches)) < 1e-5


@pytest.mark.parametrize("name", CASES | OTHERS)
def test_atoms_are_different_independent_assignments(name: str) -> None:
    """Affinely independent atoms are at most dim + 1."""
    structure = (CASES | OTHERS)[name](60)
    bound, solution = solve(structure, scores_for(structure, 60, seed=1))
    row = solution.segments.row
    assert bool(bound.structure.select(row).contains(solution.atoms).all())
    assert bool((solution.probs > 0).all())
    torch.testing.assert_close(solution.segments.sum(solution.probs), torch.ones(60, dtype=torch.float64))
    vectors = vectors_of(bound, solution)
    for i in range(60):
        mine = vectors[row == i]
        assert np.linalg.matrix_rank((mine[1:] - mine[0]).numpy()) == len(mine) - 1


def mean_by_nnls(t: Tensor, vectors: Tensor) -> Tensor:
    """The point of the hull of vectors that is closest to t, by Lawson and Hanson's method for the weights."""
    matrix = torch.cat([(vectors - t).T, torch.ones(1, len(vectors), dtype=torch.float64)])
    weights, _ = nnls(matrix.numpy(), np.append(np.zeros(len(t)), 1.0), maxiter=10_000)
    return torch.from_numpy(weights / weights.sum()) @ vectors


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("name", SMALL)
def test_the_mean_is_that_of_a_generic_solver(name: str, scale: float) -> None:
    structure = SMALL[name]
    bound, solution = solve(structure, scores_for(structure, 12, seed=2, scale=scale))
    every, mean = members(structure), mean_of(bound, solution)
    for t, found in zip(bound.flat, mean, strict=True):
        torch.testing.assert_close(found, mean_by_nnls(t, every), atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", SMALL)
def test_the_jacobian_of_the_mean_is_the_projector_on_the_face(name: str) -> None:
    """Of the vectors that are optimal under the residual, t minus the mean."""
    structure, every = SMALL[name], members(SMALL[name])
    scores = scores_for(structure, 6, seed=4)
    bound = structure.bind(scores)

    def mean(flat: Tensor) -> Tensor:
        rows = bound.with_flat(flat)
        return mean_of(rows, Pulled().solve(rows))

    flat = bound.flat
    jacobian = torch.autograd.functional.jacobian(lambda x: mean(x).sum(0), flat).transpose(0, 1)
    for t, found, slope in zip(flat, mean(flat), jacobian, strict=True):
        values = every @ (t - found)
        face = every[values > values.max() - 1e-9]
        basis = torch.linalg.svd(face[1:] - face[0], full_matrices=False)
        basis = basis.Vh[basis.S > 1e-9]
        torch.testing.assert_close(slope, basis.T @ basis, atol=1e-8, rtol=0)


@pytest.mark.parametrize("quantity", [expected, entropy, mean_of], ids=lambda function: function.__name__)
@pytest.mark.parametrize("name", CASES)
def test_finite_differences(name: str, quantity: Callable[[BoundScores, Solution], Tensor]) -> None:
    """In all rows whose atoms are the same at both ends, with probabilities that are not tiny; there must be many."""
    n_rows, h = 40, 1e-6
    structure = CASES[name](n_rows)
    bound = structure.bind(scores_for(structure, n_rows, seed=6))
    flat, direction = bound.flat, normal(*bound.flat.shape, seed=8)
    bounds = [bound.with_flat(flat + step * direction) for step in (-h, h)]
    low, high = [Pulled().solve(rows) for rows in bounds]
    values = [quantity(rows, solution) for rows, solution in zip(bounds, (low, high), strict=True)]
    difference = ((values[1] - values[0]) / (2 * h)).reshape(n_rows, -1)

    def at(x: Tensor) -> Tensor:
        rows = bound.with_flat(x)
        return quantity(rows, Pulled().solve(rows))

    slope = torch.func.jvp(at, (flat,), (direction,))[1]
    n_checked = 0
    for i in range(n_rows):
        mine, other = (solution.segments.row == i for solution in (low, high))
        if not torch.equal(low.atoms[mine], high.atoms[other]) or float(low.probs[mine].min()) < 1e-4:
            continue
        n_checked += 1
        torch.testing.assert_close(slope[i].reshape(-1), difference[i], atol=1e-5, rtol=1e-5)
    assert n_checked >= n_rows * 0.8


@pytest.mark.parametrize("name", CASES)
def test_forward_mode_is_reverse_mode(name: str) -> None:
    structure = CASES[name](12)
    bound = structure.bind(scores_for(structure, 12, seed=3))
    direction = normal(*bound.flat.shape, seed=5)

    def total(flat: Tensor) -> Tensor:
        rows = bound.with_flat(flat)
        return expected(rows, Pulled().solve(rows)).sum()

    slope = torch.func.jvp(total, (bound.flat,), (direction,))[1]
    gradient = torch.func.grad(total)(bound.flat)
    torch.testing.assert_close(slope, (gradient * direction).sum())
    assert float(slope.abs()) > 1e-3


@pytest.mark.parametrize("name", CASES)
def test_ties_and_forbidden_parts(name: str) -> None:
    """Small integers, some of them -inf: the mean is that of the active set, and the atoms are allowed."""
    structure = CASES[name](60)
    scores = structure.bind(scores_for(structure, 60, seed=3)).flat
    rounded = (2 * scores).round().masked_fill(scores < -1.5, -torch.inf)
    # The same part is allowed in all rows, so that each has an assignment.
    bound = structure.bind(scores_for(structure, 60, seed=3)).with_flat(rounded)
    is_possible = bound.score(bound.argmax(), bound.row(1)) > -torch.inf
    bound = bound.select(is_possible.nonzero().squeeze(-1))
    assert bound.n_rows > 20
    solution, wanted = Pulled().solve(bound), ActiveSet().solve(bound)
    torch.testing.assert_close(mean_of(bound, solution), mean_of(bound, wanted), atol=1e-8, rtol=0)
    used = vectors_of(bound, solution) > 0
    assert bool((bound.flat[solution.segments.row][used] > -torch.inf).all())


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_solved_alike_in_any_batch(name: str) -> None:
    structure = CASES[name](20)
    bound = structure.bind(scores_for(structure, 20, seed=1))
    whole = Pulled().solve(bound)
    for i in (0, 7, 19):
        alone = Pulled().solve(bound.select(torch.tensor([i])))
        assert torch.equal(alone.atoms, whole.atoms[whole.segments.row == i])
        torch.testing.assert_close(alone.probs, whole.probs[whole.segments.row == i], atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", ["tree", "tree, single root", "matching", "matching, more columns"])
def test_projections_find_the_same_atoms_as_facets(kind: str) -> None:
    """A subclass with another `argmax` has no facets; it is pulled in the same direction."""
    structure = SMALL[kind]
    base: Any = type(structure)
    plain_kind = type("Plain", (base,), {"_best": lambda self, rows: base._best(self, rows)})
    options = {"single_root": structure.single_root} if isinstance(structure, sp.Tree) else {}
    plain = plain_kind(*structure.score_shape[: 1 if options else 2], **options)
    assert not plain.can_pull
    scores = scores_for(structure, 25, seed=5)
    (_, found), (_, wanted) = solve(plain, scores), solve(structure, scores)
    assert torch.equal(found.atoms, wanted.atoms)
    torch.testing.assert_close(found.probs, wanted.probs, atol=1e-9, rtol=0)


def test_a_product_of_simplices_is_split_like_groups() -> None:
    """A sequence without transitions; the order of tags and the common quantiles are those of `Nested`."""
    scores = normal(30, 5, 4)
    q = sp.sparsemap(scores, sp.Sequence(5, 4))
    p = sp.sparsemap(scores, sp.Groups(5, 4), solver=sp.solvers.Nested())
    assert torch.equal(q.atoms, p.atoms)
    torch.testing.assert_close(q.probs, p.probs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(dtype: torch.dtype) -> None:
    scores = normal(4, 5, 5).to(dtype).requires_grad_()
    q = sp.sparsemap(scores, sp.Matching(5))
    assert q.probs.dtype == dtype
    (gradient,) = torch.autograd.grad((q.mean.double() * normal(5, 5, seed=1)).sum(), scores)
    assert gradient.dtype == dtype
    wanted = sp.sparsemap(scores.detach().double(), sp.Matching(5))
    assert torch.equal(q.atoms, wanted.atoms)
    torch.testing.assert_close(q.probs.double(), wanted.probs, atol=torch.finfo(dtype).eps, rtol=0)


@pytest.mark.parametrize("structure", [sp.Sequence(4, 3), sp.Tree(4), sp.Matching(3, 4), sp.Enumerated(POINTS)], ids=repr)
def test_empty_batch(structure: sp.AbstractStructure) -> None:
    bound = structure.bind(scores_for(structure, 2))
    empty = bound.select(torch.zeros(0, dtype=torch.int64))
    solution = Pulled().solve(empty)
    assert solution.atoms.shape == (0, *Pulled().solve(bound).atoms.shape[1:])
    assert solution.probs.shape == (0,)
    scores = empty.flat.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(Pulled().solve(empty.with_flat(scores)).probs.sum(), scores)
    assert gradient.shape == scores.shape


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    "name", ["tags", "tags and transitions", "trees", "trees with one root", "permutations", "matchings"]
)
def test_adversarial_rows(name: str, kind: str) -> None:
    """In exact arithmetic; as many rows are solved as by the active set."""
    found, active_set = (attack(name, kind, 20, 4, closed_form=solver) for solver in (Pulled(), ActiveSet()))
    assert found.n_named <= active_set.n_named
    assert found.gap <= 1e-10
    assert found.distance <= 1e-10


def test_steps_are_limited() -> None:
    structure = sp.Matching(6)
    scores = normal(8, 6, 6)
    with pytest.raises(NotConverged) as caught:
        solve(structure, scores, max_steps=2)
    bound, solution = solve(structure, scores, max_steps=2, strict=False)
    assert caught.value.rows == (~solution.is_solved).nonzero().squeeze(-1).tolist()
    assert 0 < len(caught.value.rows) <= 8
    assert bool(bound.structure.contains(solution.atoms).all())
    torch.testing.assert_close(solution.segments.sum(solution.probs), torch.ones(8, dtype=torch.float64))


def test_arguments() -> None:
    with pytest.raises(ValueError, match="max_steps"):
        Pulled(max_steps=0)
    with pytest.raises(ValueError, match="tolerance"):
        Pulled(tolerance=-1.0)
    scores = normal(2, 3, 2), normal(2, 2, 2, 2)
    with pytest.raises(TypeError, match="unique mean"):
        sp.sparsemap(scores, sp.Sequence(3, 2, regularise_transitions=False), solver=Pulled())
    # Without transitions, the mean is unique in any case.
    sp.sparsemap(scores[0], sp.Sequence(3, 2, regularise_transitions=False), solver=Pulled())


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("structure", [sp.Sequence(3, 2), sp.Tree(3), sp.Matching(3)], ids=repr)
def test_rows_without_a_distribution_are_named(structure: sp.AbstractStructure, value: float) -> None:
    scores = scores_for(structure, 4)
    first = as_tuple(scores)[0].clone()
    first[2, 1] = value
    with pytest.raises(ValueError, match="row 2 "):
        sp.sparsemap((first, *scores[1:]) if isinstance(scores, tuple) else first, structure)
