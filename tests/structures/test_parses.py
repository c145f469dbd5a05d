"""Projective and binary trees against enumerations that follow their definitions."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sparsum as sp
from tests.structures.test_sequences import KINDS, check_search, draw

both_rootings = pytest.mark.parametrize("single_root", [False, True])


def is_projective(heads: tuple[int, ...], *, single_root: bool) -> bool:
    """A tree in which every word between a head and its modifier, where the root is at -1, descends from the head."""
    above = [-1 if head == m else head for m, head in enumerate(heads)]

    def ancestors(m: int) -> list[int]:
        found: list[int] = []
        while m >= 0 and len(found) <= len(heads):
            m = above[m]
            found.append(m)
        return found

    if any(-1 not in ancestors(m) for m in range(len(heads))) or (single_root and above.count(-1) > 1):
        return False
    edges = [(min(m, head), max(m, head), head) for m, head in enumerate(above)]
    return all(head in ancestors(k) for low, high, head in edges for k in range(low + 1, high))


def all_projective(n: int, *, single_root: bool) -> Tensor:
    trees = itertools.product(range(n), repeat=n)
    return torch.tensor([heads for heads in trees if is_projective(heads, single_root=single_root)])


def spans_of(first: int, last: int) -> list[list[tuple[int, int]]]:
    """The spans of all binary trees over the words from first to last."""
    if first == last:
        return [[(first, first)]]
    halves = [(left, right) for k in range(first, last) for left in spans_of(first, k) for right in spans_of(k + 1, last)]
    return [[(first, last), *left, *right] for left, right in halves]


def all_binary(n: int, n_labels: int | None) -> Tensor:
    atoms = []
    for spans in spans_of(0, n - 1):
        places = sorted(first * n + last for first, last in spans)
        for labels in itertools.product(range(n_labels or 1), repeat=len(places)):
            atoms.append([place * (n_labels or 1) + label for place, label in zip(places, labels, strict=True)])
    return torch.tensor(sorted(atoms))


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@both_rootings
@pytest.mark.parametrize("n", [1, 2, 4])
def test_projective_trees_are_those_of_the_definition(n: int, single_root: bool) -> None:
    members, structure = all_projective(n, single_root=single_root), sp.ProjectiveTree(n, single_root=single_root)
    report = sp.testing.check_structure(structure, members=members)
    assert report.counts["members"] == 2
    every = torch.tensor(list(itertools.product(range(n), repeat=n)))
    assert torch.equal(every[structure.contains(every)], members)


@pytest.mark.parametrize(("n", "n_labels"), [(1, None), (2, None), (5, None), (1, 3), (3, 2)])
def test_binary_trees_are_those_of_the_definition(n: int, n_labels: int | None) -> None:
    report = sp.testing.check_structure(sp.BinaryTree(n, n_labels), members=all_binary(n, n_labels))
    assert report.counts["members"] == 2


def test_what_is_a_binary_tree() -> None:
    """Among all increasing lists of 5 parts; and with labels, no span has two of them."""
    every = torch.tensor(list(itertools.combinations(range(9), 5)))
    assert torch.equal(every[sp.BinaryTree(3).contains(every)], all_binary(3, None))
    every = torch.tensor(list(itertools.combinations(range(8), 3)))
    assert torch.equal(every[sp.BinaryTree(2, 2).contains(every)], all_binary(2, 2))


@both_rootings
@pytest.mark.parametrize("n", [1, 7, 40])
def test_equal_scores_count_the_trees(n: int, single_root: bool) -> None:
    for structure in (sp.ProjectiveTree(n, single_root=single_root), sp.BinaryTree(n), sp.BinaryTree(n, 3)):
        p = sp.Gibbs(torch.zeros(structure.score_shape, dtype=torch.float64), structure)
        assert float(p.log_partition) == pytest.approx(structure.log_count(), abs=1e-9)


@pytest.mark.parametrize(
    "structure",
    [sp.ProjectiveTree(3), sp.ProjectiveTree(3, single_root=True), sp.BinaryTree(3), sp.BinaryTree(2, 2)],
    ids=str,
)
def test_the_log_partition_is_twice_differentiable(structure: sp.AbstractStructure) -> None:
    scores = randn(2, *structure.score_shape).requires_grad_()
    assert torch.autograd.gradcheck(structure.log_partition, (scores,))
    assert torch.autograd.gradgradcheck(structure.log_partition, (scores,))


@both_rootings
def test_examples_of_different_lengths(single_root: bool) -> None:
    """Each is what it is alone, whatever the padding holds."""
    lengths, scores = [5, 1, 3], randn(3, 5, 5)
    structure = sp.ProjectiveTree(5, single_root=single_root, lengths=lengths)
    p, best, several = sp.Gibbs(scores, structure), structure.argmax(scores), structure.topk(scores, 3)
    samples = p.sample((200,), generator=torch.Generator().manual_seed(0))
    assert p.log_prob(samples).isfinite().all()
    for row, length in enumerate(lengths):
        part, alone = scores[row, :length, :length], sp.ProjectiveTree(length, single_root=single_root)
        assert torch.equal(best[row, :length], alone.argmax(part))
        assert not best[row, length:].any()
        few = alone.topk(part, 3)
        assert torch.equal(several[row, : len(few), :length], few)
        peer = sp.Gibbs(part, alone)
        torch.testing.assert_close(p.log_partition[row], peer.log_partition)
        torch.testing.assert_close(p.mean[row, :length, :length], peer.mean)
        assert not samples[:, row, length:].any()
        assert alone.contains(samples[:, row, :length]).all()
    q = sp.sparsemap(scores, structure)
    torch.testing.assert_close(q.mean[2, :3, :3], sp.sparsemap(scores[2, :3, :3], sp.ProjectiveTree(3, single_root)).mean)


def test_projective_trees_of_many_words() -> None:
    """The best tree agrees with `Tree` where that is projective, as are trees of neighbours; scores are large, too."""
    n = 60
    near = (torch.arange(n).unsqueeze(1) - torch.arange(n)).abs() <= 1
    scores = torch.where(near, 100 * randn(4, n, n), -torch.inf)
    assert torch.equal(sp.ProjectiveTree(n).argmax(scores), sp.Tree(n).argmax(scores))
    p, peer = sp.Gibbs(scores, sp.ProjectiveTree(n)), sp.Gibbs(scores, sp.Tree(n))
    torch.testing.assert_close(p.log_partition, peer.log_partition)
    torch.testing.assert_close(p.mean, peer.mean, rtol=0, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_best_projective_trees(data: st.DataObject) -> None:
    """For small integers, with many ties and forbidden parts; a row without a tree still gets one."""
    n, single_root = data.draw(st.integers(1, 4)), data.draw(st.booleans())
    value = st.one_of(st.integers(-2, 2).map(float), st.just(-math.inf))
    scores = torch.tensor(data.draw(st.lists(value, min_size=n * n, max_size=n * n)), dtype=torch.float64).view(n, n)
    members = all_projective(n, single_root=single_root)
    values = scores[torch.arange(n), members].sum(-1)
    best = sp.ProjectiveTree(n, single_root=single_root).argmax(scores)
    assert scores[torch.arange(n), best].sum() == values.max()
    assert (members == best).all(-1).any()


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_best_binary_trees(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 4))
    value = st.one_of(st.integers(-2, 2).map(float), st.just(-math.inf))
    scores = torch.tensor(data.draw(st.lists(value, min_size=n * n, max_size=n * n)), dtype=torch.float64).view(n, n)
    members = all_binary(n, None)
    best = sp.BinaryTree(n).argmax(scores)
    assert scores.flatten()[best].sum() == scores.flatten()[members].sum(-1).max()
    assert (members == best).all(-1).any()


@pytest.mark.parametrize("value", [1e12, -torch.inf, torch.nan])
def test_scores_of_what_is_not_a_span_are_ignored(value: float) -> None:
    scores = randn(4, 4)
    others = torch.where(torch.ones(4, 4).triu().bool(), scores, value)
    for each in (scores, others):
        p = sp.Gibbs(each, sp.BinaryTree(4))
        assert torch.equal(p.mean.tril(-1), torch.zeros(4, 4, dtype=torch.float64))
    assert torch.equal(sp.BinaryTree(4).argmax(scores), sp.BinaryTree(4).argmax(others))
    assert torch.equal(sp.Gibbs(scores, sp.BinaryTree(4)).log_partition, p.log_partition)
    assert torch.equal(sp.BinaryTree(4).topk(scores, 3), sp.BinaryTree(4).topk(others, 3))
    assert torch.equal(sp.sparsemap(scores, sp.BinaryTree(4)).mean, sp.sparsemap(others, sp.BinaryTree(4)).mean)


SMALL: list[tuple[sp.AbstractStructure, Tensor]] = [
    (sp.ProjectiveTree(1), all_projective(1, single_root=False)),
    (sp.ProjectiveTree(3), all_projective(3, single_root=False)),
    (sp.ProjectiveTree(4, single_root=True), all_projective(4, single_root=True)),
    (sp.BinaryTree(1, 2), all_binary(1, 2)),
    (sp.BinaryTree(4), all_binary(4, None)),
    (sp.BinaryTree(2, 2), all_binary(2, 2)),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("structure", "members"), SMALL, ids=str)
def test_best_trees_against_all_trees(structure: sp.AbstractStructure, members: Tensor, kind: str) -> None:
    scores, ones = draw(kind, 3, *structure.score_shape), structure.vectors(members).flatten(1) > 0
    values = torch.where(ones, scores.flatten(1).unsqueeze(1), 0.0).sum(-1)
    check_search(structure, scores, members, values, [1, 2, len(members), len(members) + 2])


@pytest.mark.parametrize("kind", ["random", "equal", "forbidding"])
@pytest.mark.parametrize(("structure", "members"), SMALL[1::2] + SMALL[4:], ids=str)
def test_sums_and_samples_against_all_trees(structure: sp.AbstractStructure, members: Tensor, kind: str) -> None:
    """Probabilities, marginals and entropy by enumeration; frequencies of 4,000 samples within five deviations."""
    scores = draw(kind, *structure.score_shape, seed=3)
    if kind == "forbidding":  # one tree is allowed in any case
        scores = torch.where(structure.vectors(members[-1:])[0] > 0, 0.5, scores)
    ones = structure.vectors(members).double()
    values = torch.where(ones > 0, scores, 0.0).flatten(1).sum(-1)
    p, probs = sp.Gibbs(scores, structure), values.softmax(0)
    torch.testing.assert_close(p.log_partition, values.logsumexp(0))
    torch.testing.assert_close(p.log_prob(members), values.log_softmax(0))
    torch.testing.assert_close(p.mean, (probs.view(-1, *[1] * scores.ndim) * ones).sum(0), atol=1e-12, rtol=0)
    torch.testing.assert_close(p.entropy(), torch.special.entr(probs).sum())
    samples = p.sample((4000,), generator=torch.Generator().manual_seed(1))
    counts = (samples.unsqueeze(1) == members).all(-1).sum(0)
    assert counts.sum() == 4000  # every sample is a tree
    assert not counts[probs == 0].any()
    assert ((counts / 4000 - probs).abs() <= 5 * (probs * (1 - probs) / 4000).sqrt() + 1e-9).all()


@pytest.mark.parametrize(("structure", "members"), SMALL[1:3] + SMALL[4:], ids=str)
def test_sparsemap_is_a_projection_with_a_gradient(structure: sp.AbstractStructure, members: Tensor) -> None:
    """The mean m satisfies (t - m) . (a_z - m) <= 0 for all z, and equals the mean of its atoms."""
    scores = randn(2, *structure.score_shape, seed=5).requires_grad_()
    q = sp.sparsemap(scores, structure)
    mean, ones = q.mean.flatten(1), structure.vectors(members).double().flatten(1)
    is_part = (ones > 0).any(0)
    residual = torch.where(is_part, scores.flatten(1) - mean, 0.0)
    assert (residual.unsqueeze(1) * (ones - mean.unsqueeze(1))).sum(-1).max() < 1e-8
    assert structure.contains(q.atoms).all()
    weights = randn(2, *structure.score_shape, seed=6)
    assert torch.autograd.gradcheck(lambda t: (sp.sparsemap(t, structure).mean * weights).sum(), (scores,))


@pytest.mark.parametrize("structure", [sp.ProjectiveTree(3), sp.BinaryTree(3), sp.BinaryTree(2, 2)], ids=str)
def test_nan_is_reported_and_does_not_spread(structure: sp.AbstractStructure) -> None:
    scores = randn(2, *structure.score_shape)
    alone = structure.topk(scores[1:], 2)
    scores[0, 0, 1] = torch.nan
    assert torch.equal(structure.topk(scores, 2)[1:], alone)
    for function in (sp.sparsemap, sp.Gibbs):
        with pytest.raises(ValueError, match="row 0 has a NaN"):
            function(scores, structure)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        sp.ProjectiveTree(0)
    with pytest.raises(ValueError, match="n_labels must be at least 1, got 0"):
        sp.BinaryTree(3, n_labels=0)
    with pytest.raises(ValueError, match=r"must have shape \(\*batch, 3, 3, 2\)"):
        sp.BinaryTree(3, n_labels=2).argmax(torch.zeros(3, 3, 3))
    with pytest.raises(ValueError, match="row 0 has a NaN"):
        sp.sparsemap(torch.full((1, 3, 3), torch.nan), sp.BinaryTree(3))
    with pytest.raises(ValueError, match="row 1 forbids every assignment"):
        sp.Gibbs(torch.stack([torch.zeros(3, 3), torch.full((3, 3), -torch.inf)]), sp.BinaryTree(3))
