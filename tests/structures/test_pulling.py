"""Splitting mean vectors into assignments, and the facets on which it relies."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor

import sparsum as sp
from sparsum.structures import pulling
from sparsum.structures.arborescence import best_heads
from sparsum.structures.cuts import violated_cuts
from sparsum.structures.pulling import Decomposition, Facets, pull
from sparsum.structures.scores import Scores, flatten, unflatten


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def mixtures(
    structure: sp.AbstractStructure, n_rows: int, n_atoms: int, seed: int = 0
) -> tuple[sp.AbstractStructure, Scores]:
    """Means of a few random assignments of each row, and the structure of these rows."""
    scores: Scores = normal(n_rows * n_atoms, *structure.score_shape, seed=seed)
    if isinstance(structure, sp.Sequence):
        length, n = structure.score_shape
        scores = scores, normal(n_rows * n_atoms, length - 1, n, n, seed=seed + 1)
    bound = structure.bind(scores)
    vectors = flatten(bound.structure.vectors(bound.argmax())).double().reshape(n_rows, n_atoms, -1)
    weights = torch.rand(n_rows, n_atoms, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 2))
    mean = (vectors * weights / weights.sum(1, keepdim=True)).sum(1)
    return bound.structure, unflatten(mean, like=bound.scores)


def check(structure: sp.AbstractStructure, mean: Scores, split: Decomposition) -> None:
    """The atoms are assignments, and their mean is the given one."""
    vectors = flatten(structure.vectors(split.atoms)).double()
    assert bool(structure.contains(split.atoms).all())
    total = torch.zeros_like(flatten(mean)).index_add_(0, split.row, vectors * split.weights.unsqueeze(-1))
    torch.testing.assert_close(total, flatten(mean), atol=1e-11, rtol=0)
    assert float(split.left.abs().max()) < 1e-11
    for row in range(len(total)):
        mine = vectors[split.row == row]
        assert int(torch.linalg.matrix_rank(mine[1:] - mine[0])) == len(mine) - 1


@pytest.mark.parametrize(
    "structure",
    [
        sp.Sequence(1, 4),
        sp.Sequence(7, 3),
        sp.Sequence(4, 1),
        sp.Tree(1),
        sp.Tree(7),
        sp.Tree(7, single_root=True),
        sp.Matching(1),
        sp.Matching(6),
        sp.Matching(1, 5),
        sp.Matching(4, 7),
    ],
    ids=repr,
)
@pytest.mark.parametrize("n_atoms", [1, 2, 8])
def test_means_of_assignments_are_split(structure: sp.AbstractStructure, n_atoms: int) -> None:
    structure, mean = mixtures(structure, 20, n_atoms)
    check(structure, mean, structure.pull(mean))


@pytest.mark.parametrize("n_listed", [0, 36])
@pytest.mark.parametrize("single_root", [False, True])
def test_sets_of_many_words_are_found_when_they_are_needed(single_root: bool, n_listed: int) -> None:
    """The split does not depend on which are listed: all, the pairs, or none."""
    structure, mean = mixtures(sp.Tree(9, single_root=single_root), 30, 12)
    wanted, every = structure.pull(mean), structure.facets(torch.device("cpu"))
    assert every.is_complete
    assert len(every.normals) == 2**9 - 10
    found = pull(structure, mean, Facets(every.normals[:n_listed], every.levels[:, :n_listed], is_complete=False))
    assert torch.equal(found.atoms, wanted.atoms)
    torch.testing.assert_close(found.weights, wanted.weights, atol=1e-11, rtol=0)
    check(structure, mean, found)


@pytest.mark.parametrize("structure", [sp.Matching(5), sp.Matching(4, 6), sp.Tree(6)], ids=repr)
def test_steps_in_vain_take_nothing(structure: sp.AbstractStructure, monkeypatch: pytest.MonkeyPatch) -> None:
    structure, mean = mixtures(structure, 20, 6)
    wanted = structure.pull(mean)
    monkeypatch.setattr(pulling, "looks_rarely", lambda left: True)
    found = structure.pull(mean)
    assert torch.equal(found.atoms, wanted.atoms)
    assert torch.equal(found.row, wanted.row)
    torch.testing.assert_close(found.weights, wanted.weights, atol=1e-12, rtol=0)


def test_many_words_of_different_lengths() -> None:
    n_rows, most = 24, 14
    lengths = torch.arange(n_rows) % most + 1
    scores = normal(n_rows, most, most)
    for single_root in (False, True):
        bound = sp.Tree(most, single_root=single_root, lengths=lengths).bind(scores)
        q = sp.sparsemap(scores, sp.Tree(most, single_root=single_root, lengths=lengths))
        check(bound.structure.select(q.row), q.mean, Decomposition(q.atoms, q.probs, q.row, torch.zeros(n_rows)))


def first_different_tag(length: int, n_tags: int, n_parts: int) -> Tensor:
    """A direction that orders sequences by their first different tag."""
    powers = n_tags ** torch.arange(length - 1, -1, -1)
    tags = -(torch.arange(n_tags) * powers.unsqueeze(-1)).double().flatten()
    return torch.cat([tags, torch.zeros(n_parts - length * n_tags, dtype=torch.float64)])


@pytest.mark.parametrize("has_lengths", [False, True])
@pytest.mark.parametrize("has_transitions", [False, True])
def test_the_closed_form_of_sequences(has_lengths: bool, has_transitions: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is pulling, step by step and by Viterbi, for a direction that orders sequences."""
    length, n, n_rows = 5, 3, 40
    scores = normal(n_rows, length, n), normal(n_rows, length - 1, n, n, seed=1)
    structure = sp.Sequence(length, n, lengths=torch.arange(n_rows) % length + 1 if has_lengths else None)
    bound = structure.bind(scores if has_transitions else scores[0])
    q = sp.sparsemap(scores if has_transitions else scores[0], structure, solver=sp.solvers.ActiveSet())
    mean = q.mean
    wanted = bound.structure.pull(mean)
    order = first_different_tag(length, n, bound.flat.shape[-1])
    monkeypatch.setattr(pulling, "direction", lambda n_parts, device: order)
    found = pull(bound.structure, mean, bound.structure.facets(torch.device("cpu")))
    assert torch.equal(found.atoms, wanted.atoms)
    torch.testing.assert_close(found.weights, wanted.weights, atol=1e-12, rtol=0)


def test_points_beyond_the_polytope_are_not_split() -> None:
    """Two words that are each other's heads: what is left says that this is not a mean of trees."""
    split = sp.Tree(2).pull(torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]], dtype=torch.float64))
    assert split.left.tolist() == pytest.approx([1.0, 0.0], abs=1e-12)


def members(structure: Any) -> Tensor:
    bound = structure.bind(normal(1, *structure.score_shape))
    atoms, _ = bound.kbest(round(math.exp(structure.log_count())))
    return flatten(structure.vectors(atoms[0])).double()


@pytest.mark.parametrize("structure", [sp.Tree(3), sp.Tree(4), sp.Tree(3, single_root=True), sp.Matching(2, 4)], ids=repr)
def test_facets_describe_the_hull(structure: sp.AbstractStructure) -> None:
    """The best value over the inequalities, by a linear program, is that of the best assignment."""
    facets, every = structure.facets(torch.device("cpu")), members(structure)
    assert bool((every @ facets.normals.T >= facets.levels).all())
    n, m = structure.score_shape
    rows = torch.eye(n, dtype=torch.float64).repeat_interleave(m, -1)
    equal = [rows, torch.ones(n, dtype=torch.float64)]
    if isinstance(structure, sp.Tree) and structure.single_root:
        equal = [torch.cat([rows, torch.eye(n, dtype=torch.float64).reshape(1, -1)]), torch.ones(n + 1, dtype=torch.float64)]
    for cost in normal(20, n * m):
        inequalities, equalities = (-facets.normals.numpy(), -facets.levels[0].numpy()), [part.numpy() for part in equal]
        found = linprog(-cost.numpy(), *inequalities, *equalities, bounds=(0, None))
        assert -found.fun == pytest.approx(float((every @ cost).max()), abs=1e-9)


@pytest.mark.parametrize("n", [2, 4, 6])
def test_violated_cuts_are_found(n: int) -> None:
    """Points with one head per word; brute force over all sets."""
    points = torch.distributions.Dirichlet(torch.full((n,), 0.3, dtype=torch.float64))
    torch.manual_seed(0)
    heads = points.sample((60, n))
    sets = [list(s) for size in range(1, n + 1) for s in itertools.combinations(range(n), size)]

    def cut(matrix: Tensor, chosen: list[int]) -> float:
        outside = [h for h in range(n) if h not in chosen]
        return float(matrix[chosen][:, outside].sum() + matrix.diagonal()[chosen].sum())

    found = violated_cuts(heads, None)
    for row, matrix in enumerate(heads):
        mine = found.normals[found.row == row] @ matrix.flatten() - found.levels[found.row == row]
        assert bool((mine < 0).all())
        least = min(cut(matrix, chosen) for chosen in sets) - 1
        assert (len(mine) > 0) == (least < -1e-9)
        if len(mine):
            assert float(mine.min()) == pytest.approx(least, abs=1e-9)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 5).flatmap(
        lambda n: st.lists(
            st.lists(st.sampled_from([-math.inf, -2.0, -1.0, 0.0, 0.5, 1.0, 3.0]), min_size=n, max_size=n),
            min_size=n,
            max_size=n,
        )
    ),
    st.booleans(),
)
def test_best_trees_by_brute_force(scores: list[list[float]], single_root: bool) -> None:
    n = len(scores)
    heads = best_heads(scores, single_root=single_root)
    structure = sp.Tree(n, single_root=single_root)
    every = torch.tensor(list(itertools.product(range(n), repeat=n)))
    every = every[structure.contains(every)]
    assert bool(structure.contains(torch.tensor([heads])).all())
    values = [sum(scores[m][h] for m, h in enumerate(tree)) for tree in every.tolist()]
    assert sum(scores[m][h] for m, h in enumerate(heads)) == max(values)
