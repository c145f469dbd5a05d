"""Trees and matchings against brute force over all of them."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from torch import Tensor

from sparsum.structures.lawler import kbest
from sparsum.structures.matching import Matching
from sparsum.structures.sized import AbstractSized
from sparsum.structures.tree import Tree
from tests.structures.test_sequences import KINDS, check_linear, check_search, draw


def is_tree(heads: tuple[int, ...], *, single_root: bool) -> bool:
    n_roots = sum(head == m for m, head in enumerate(heads))
    if n_roots == 0 or (single_root and n_roots > 1):
        return False
    ends = list(range(len(heads)))
    for _ in heads:
        ends = [heads[m] for m in ends]
    return all(heads[end] == end for end in ends)


def all_trees(n: int, *, single_root: bool) -> Tensor:
    return torch.tensor([z for z in itertools.product(range(n), repeat=n) if is_tree(z, single_root=single_root)])


def all_members(structure: AbstractSized) -> Tensor:
    n, m = structure.score_shape
    if isinstance(structure, Tree):
        return all_trees(n, single_root=structure.single_root)
    return torch.tensor(list(itertools.permutations(range(m), n)))


def all_values(scores: Tensor, members: Tensor) -> Tensor:
    """The score of each member in each row, by the definition."""
    position = torch.arange(members.shape[1])
    return torch.stack([row[position, members].sum(-1) for row in scores])


STRUCTURES: list[AbstractSized] = [
    *(Tree(n, single_root) for n in (1, 2, 3, 4) for single_root in (False, True)),
    *(Matching(n, m) for n, m in ((1, None), (1, 3), (2, None), (2, 4), (3, None), (3, 4), (4, None))),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_against_brute_force(structure: AbstractSized, kind: str) -> None:
    members = all_members(structure)
    scores = draw(kind, 3, *structure.score_shape)
    count = len(members)
    ks = list(range(1, count + 3)) if count <= 16 else [1, 2, 3, 7, count - 1, count, count + 2]
    check_search(structure, scores, members, all_values(scores, members), ks)
    assert math.exp(structure.log_count()) == pytest.approx(count)


@pytest.mark.parametrize("structure", [Tree(5), Tree(5, single_root=True), Matching(4, 6), Tree(6)], ids=repr)
def test_many_matrices(structure: AbstractSized) -> None:
    members = all_members(structure)
    for kind in ("random", "integer", "forbidding"):
        scores = draw(kind, 100, *structure.score_shape, seed=2)
        values = all_values(scores, members)
        best = all_values_of(scores, structure.argmax(scores))
        torch.testing.assert_close(best, values.amax(-1), atol=1e-12, rtol=0)
        few = structure.topk(scores[:10], 4)
        seen = torch.stack([all_values_of(scores[:10], few[:, i]) for i in range(4)], -1)
        torch.testing.assert_close(seen, values[:10].topk(4).values, atol=1e-12, rtol=0)


def all_values_of(scores: Tensor, atoms: Tensor) -> Tensor:
    return scores.gather(-1, atoms.unsqueeze(-1)).squeeze(-1).sum(-1)


@pytest.mark.parametrize("single_root", [False, True])
def test_large_trees_are_trees_and_no_change_of_one_head_improves_them(single_root: bool) -> None:
    structure, n = Tree(30, single_root), 30
    scores = draw("random", 4, n, n)
    atoms = structure.argmax(scores)
    for row in range(4):
        heads = atoms[row].tolist()
        assert is_tree(tuple(heads), single_root=single_root)
        for m, h in itertools.product(range(n), range(n)):
            if is_tree((*heads[:m], h, *heads[m + 1 :]), single_root=single_root):
                assert scores[row, m, h] <= scores[row, m, heads[m]] + 1e-12


def test_a_single_root_costs_no_precision() -> None:
    scores = torch.tensor([[1e15, 0.0, 0.0], [0.0, 1e15 + 1, 0.0], [0.0, 0.125, 0.0]], dtype=torch.float64)
    assert Tree(3, single_root=True).argmax(scores).tolist() == [1, 1, 1]
    tiny = torch.tensor([[1e9, 0.0], [1e-7, 1e9]], dtype=torch.float64)
    assert Tree(2, single_root=True).topk(tiny, 3).tolist() == [[0, 0], [1, 1]]


def test_the_two_ways_to_force_a_part_agree() -> None:
    for structure in (Tree(4), Tree(4, single_root=True), Matching(3, 4)):
        scores = draw("random", 3, *structure.score_shape)
        assert torch.equal(kbest(structure.bind(scores), 9), structure.topk(scores, 9))


@pytest.mark.parametrize("structure", [Tree(3), Matching(3), Matching(3, 5)], ids=repr)
@pytest.mark.parametrize("batch", [(), (0,), (3,), (2, 3), (2, 0)])
def test_shapes(structure: AbstractSized, batch: tuple[int, ...]) -> None:
    scores = draw("random", *batch, *structure.score_shape).float()
    best, atoms = structure.argmax(scores), structure.topk(scores, 4)
    assert best.shape == (*batch, 3)
    assert best.dtype == atoms.dtype == torch.int64
    assert atoms.shape == (*batch, 1 if 0 in batch else 4, 3)
    if batch == (2, 3):
        assert torch.equal(atoms[1, 2], structure.topk(scores[1, 2], 4))
        assert torch.equal(atoms[:, :, 0], best)


@pytest.mark.parametrize("structure", [Tree(4), Tree(4, single_root=True), Matching(3, 4)], ids=repr)
@pytest.mark.parametrize("kind", ["random", "equal"])
def test_the_place_in_the_batch_does_not_matter(structure: AbstractSized, kind: str) -> None:
    scores, order = draw(kind, 4, *structure.score_shape), torch.tensor([3, 0, 2, 1])
    for k in (1, 5, 20):
        assert torch.equal(structure.topk(scores[order], k), structure.topk(scores, k)[order])
        assert torch.equal(structure.topk(scores[:1], k), structure.topk(scores, k)[:1])


@pytest.mark.parametrize("full", [Tree(4), Tree(4, single_root=True), Matching(4), Matching(4, 5)], ids=repr)
@pytest.mark.parametrize("kind", ["random", "integer", "forbidding"])
def test_examples_of_different_sizes(full: AbstractSized, kind: str) -> None:
    n, m = full.score_shape
    lengths = torch.tensor([[4, 1, 2], [3, 4, 1]])
    scores, sliced = draw(kind, 2, 3, n, m), []
    for i, j in itertools.product(range(2), range(3)):
        length = int(lengths[i, j])
        sliced.append(scores[i, j, :length, : length + m - n].clone())
        scores[i, j, length:] = torch.nan  # what stands in the padding is never seen
        scores[i, j, :, length + m - n :] = torch.nan
    structure = dataclasses.replace(full, lengths=lengths)
    k = 7
    best = structure.argmax(scores).reshape(6, n)
    bound = structure.bind(scores)
    atoms, is_valid = bound.kbest(k)
    assert bound.batch_shape == (2, 3)
    assert torch.equal(structure.topk(scores, k), atoms.reshape(2, 3, -1, n))
    for row, matrix in enumerate(sliced):
        length = len(matrix)
        small = Tree(length, full.single_root) if isinstance(full, Tree) else Matching(length, length + m - n)
        truth = all_values(matrix[None], all_members(small))[0].sort(descending=True).values[:k]
        truth = truth[truth > -torch.inf]
        valid = atoms[row][is_valid[row]]
        assert len(valid) == len(valid.unique(dim=0)) == len(truth)
        assert (valid[:, length:] == 0).all()
        score = bound.score(valid, torch.full((len(valid),), row))
        torch.testing.assert_close(score, truth, atol=1e-12, rtol=0)
        assert len(truth) == 0 or torch.equal(best[row], valid[0])
        vectors = bound.structure.select(torch.tensor([row])).vectors(valid)
        assert (vectors.sum((-2, -1)) == length).all()
    check_linear(bound, atoms[:, 0], torch.arange(6))


@pytest.mark.parametrize("structure", [Tree(3), Matching(2, 3)], ids=repr)
def test_scores_and_marginals(structure: AbstractSized) -> None:
    scores = draw("random", 4, *structure.score_shape).requires_grad_()
    atoms = structure.topk(scores, 5)
    assert not atoms.requires_grad
    row = torch.arange(4).repeat_interleave(5)
    check_linear(structure.bind(scores), atoms.flatten(0, 1), row)
    (gradient,) = torch.autograd.grad(structure.score(scores, atoms.flatten(0, 1), row).sum(), scores)
    assert torch.equal(gradient.float(), structure.vectors(atoms.flatten(0, 1)).unflatten(0, (4, 5)).sum(1))


@pytest.mark.parametrize("structure", [Tree(3), Tree(3, single_root=True), Matching(3)], ids=repr)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_scores_without_a_best_do_not_end_the_batch(structure: AbstractSized, value: float) -> None:
    scores = draw("random", 2, 3, 3)
    alone = structure.topk(scores[1:], 4)
    scores[0, 1] = value
    assert torch.equal(structure.topk(scores, 4)[1:], alone)
    assert torch.equal(structure.argmax(scores)[1:], alone[:, 0])


def test_errors() -> None:
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        Tree(0)
    with pytest.raises(TypeError, match="n must be an int, got bool"):
        Tree(True)
    with pytest.raises(ValueError, match="m must be at least 3, got 2"):
        Matching(3, 2)
    with pytest.raises(TypeError, match="m must be an int, got float"):
        Matching(3, 3.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"lengths must be from 1 to 3, got \[4\]"):
        Matching(3, 5, lengths=torch.tensor([1, 4]))
    with pytest.raises(
        ValueError, match=r"scores for Tree\(n=3, single_root=False\) must have shape \(\*batch, 3, 3\), got \(3, 4\)"
    ):
        Tree(3).argmax(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="at least 2 dimension"):
        Matching(3).argmax(torch.zeros(3))
    with pytest.raises(ValueError, match=r"shape of the batch, \(\), got \(1,\)"):
        Tree(3, lengths=torch.tensor([2])).argmax(torch.zeros(3, 3))


@pytest.mark.parametrize("single_root", [False, True])
def test_cycles_may_be_nested_deeply(single_root: bool) -> None:
    """Each word prefers the previous one, and the cycle of all previous words prefers it: 1,050 contractions."""
    n = 1051
    scores = torch.full((n, n), -1e9, dtype=torch.float64)
    word = torch.arange(n)
    scores[word[1:], word[:-1]] = 0.0
    scores[0, 1:] = -word[1:].double()
    heads = Tree(n, single_root=single_root).argmax(scores)
    assert heads.tolist() == [0, *range(n - 1)]
