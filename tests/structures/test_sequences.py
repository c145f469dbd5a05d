"""Sequences, and the k best of any structure, against brute force over all assignments."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from sparsum.segments import Segments
from sparsum.structures import AbstractStructure, OneOf
from sparsum.structures.lawler import kbest
from sparsum.structures.scores import BoundScores, Scores, as_tuple, flatten
from sparsum.structures.sequence import Sequence

KINDS = ("random", "integer", "equal", "forbidding", "nothing")


def draw(kind: str, *shape: int, seed: int = 0) -> Tensor:
    """Scores that are hard in one way or another."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(shape, dtype=torch.float64, generator=generator)
    if kind == "integer":
        return scores.round()
    if kind == "equal":
        return torch.full_like(scores, 0.3)
    if kind in ("forbidding", "nothing"):
        is_forbidden = torch.rand(shape, generator=generator) < (0.4 if kind == "forbidding" else 2)
        return scores.masked_fill(is_forbidden, -torch.inf)
    return scores


def check_search(
    structure: AbstractStructure,
    scores: Scores,  # shape: (n_rows, *score_shape)
    members: Tensor,  # shape: (n_members, n)
    values: Tensor,  # shape: (n_rows, n_members)
    ks: list[int],
    topk: Callable[[Scores, int], Tensor] | None = None,
) -> None:
    """Compare argmax and topk with all members and their scores."""

    def index(atoms: Tensor) -> Tensor:
        is_equal = (atoms.unsqueeze(1) == members.to(atoms.dtype)).all(-1)
        assert is_equal.any(-1).all()  # an atom is a member
        return is_equal.int().argmax(-1)

    truth = values.sort(-1, descending=True).values
    best = values.gather(1, index(structure.argmax(scores)).unsqueeze(-1))
    torch.testing.assert_close(best, truth[:, :1], atol=1e-12, rtol=0)
    bound = structure.bind(scores)
    for k in ks:
        atoms = (topk or structure.topk)(scores, k)
        assert atoms.shape[:2] == (len(values), min(k, len(members)))
        for row in range(len(values)):
            found = index(atoms[row])
            assert len(found.unique()) == len(found)
            torch.testing.assert_close(values[row, found], truth[row, : len(found)], atol=1e-12, rtol=0)
        again, is_valid = bound.kbest(k)
        assert topk or torch.equal(atoms, again)
        assert torch.equal(is_valid, truth[:, : atoms.shape[1]] > -torch.inf)


def all_sequences(length: int, n_tags: int) -> Tensor:
    return torch.tensor(list(itertools.product(range(n_tags), repeat=length)))


def sequence_score(unary: Tensor, transition: Tensor | None, tags: list[int]) -> float:
    total = sum(float(unary[i, tag]) for i, tag in enumerate(tags))
    if transition is not None:
        total += sum(float(transition[i, a, b]) for i, (a, b) in enumerate(itertools.pairwise(tags)))
    return total


def sequence_values(unary: Tensor, transition: Tensor | None, members: Tensor) -> Tensor:
    """The score of each member in each row, by the definition."""
    rows = [(unary[r], None if transition is None else transition[r]) for r in range(len(unary))]
    return torch.tensor([[sequence_score(u, v, tags) for tags in members.tolist()] for u, v in rows], dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("length", "n_tags"), [(1, 1), (1, 3), (3, 1), (3, 3), (4, 2)])
def test_sequences_against_brute_force(length: int, n_tags: int, kind: str) -> None:
    structure, members = Sequence(length, n_tags), all_sequences(length, n_tags)
    unary = draw(kind, 5, length, n_tags)
    transition = draw(kind, 5, length - 1, n_tags, n_tags, seed=1)
    ks = list(range(1, len(members) + 3))
    check_search(structure, unary, members, sequence_values(unary, None, members), ks)
    check_search(structure, (unary, transition), members, sequence_values(unary, transition, members), ks)
    assert math.exp(structure.log_count()) == pytest.approx(len(members))


@pytest.mark.parametrize("shape", [(2, 2), (1, 2, 2), (3, 2, 2), (2, 1, 3, 2, 2), (4, 3, 2, 2), (2, 4, 3, 2, 2), ()])
def test_transitions_broadcast(shape: tuple[int, ...]) -> None:
    structure, unary, transition = Sequence(4, 2), draw("random", 2, 4, 4, 2), draw("random", *shape, seed=1)
    full = transition.expand(2, 4, 3, 2, 2)
    atoms, best = structure.topk((unary, transition), 3), structure.argmax((unary, transition))
    assert atoms.shape == (2, 4, 3, 4)
    assert best.shape == (2, 4, 4)
    for i, j in itertools.product(range(2), range(4)):
        assert torch.equal(atoms[i, j], structure.topk((unary[i, j], full[i, j]), 3))
        assert torch.equal(best[i, j], atoms[i, j, 0])
    bound = structure.bind((unary, transition))
    assert [tuple(tensor.shape) for tensor in bound.tensors] == [(8, 4, 2), (8, 3, 2, 2)]
    assert bound.batch_shape == (2, 4)
    assert bound.structure == structure


@pytest.mark.parametrize("batch", [(), (0,), (3,), (2, 3), (2, 0)])
@pytest.mark.parametrize("has_transitions", [False, True])
def test_shapes_of_sequences(batch: tuple[int, ...], has_transitions: bool) -> None:
    unary = draw("random", *batch, 3, 2).float()
    scores = (unary, draw("random", 2, 2).float()) if has_transitions else unary
    assert Sequence(3, 2).argmax(scores).shape == (*batch, 3)
    assert Sequence(3, 2).topk(scores, 5).shape == (*batch, 5, 3)
    assert Sequence(3, 2).topk(scores, 50).shape == (*batch, 8, 3)
    assert Sequence(3, 2).topk(scores, 5).dtype == torch.int64


@pytest.mark.parametrize("kind", ["random", "equal"])
def test_the_place_in_the_batch_does_not_matter(kind: str) -> None:
    structure, order = Sequence(5, 3), torch.tensor([3, 0, 2, 1])
    unary, transition = draw(kind, 4, 5, 3), draw(kind, 4, 4, 3, 3, seed=1)
    for k in (1, 4, 200):
        assert torch.equal(
            structure.topk((unary[order], transition[order]), k), structure.topk((unary, transition), k)[order]
        )
        assert torch.equal(structure.topk((unary[:1], transition[:1]), k), structure.topk((unary, transition), k)[:1])


def test_long_sequences_agree_with_the_generic_search() -> None:
    structure = Sequence(8, 4)
    bound = structure.bind((draw("random", 3, 8, 4), draw("random", 3, 7, 4, 4, seed=1)))
    assert torch.equal(structure.topk(bound.scores, 6), kbest(bound, 6))


def check_linear(bound: BoundScores, atoms: Tensor, row: Tensor) -> None:
    """Scores and marginals without vectors are those by vectors."""
    segments = Segments.from_row(row, int(row.max()) + 1)
    probs = torch.rand(len(row), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    vectors = flatten(bound.structure.select(row).vectors(atoms)).double()
    flat = bound.flat
    expected = torch.where(vectors == 0, 0.0, vectors * flat[row]).sum(-1)
    torch.testing.assert_close(bound.score(atoms, row), expected, atol=1e-12, rtol=0)
    marginals = flatten(bound.structure.marginals(atoms, probs, segments))
    torch.testing.assert_close(marginals, segments.sum(vectors * probs.unsqueeze(-1)), atol=1e-12, rtol=0)


@pytest.mark.parametrize("has_transitions", [False, True])
@pytest.mark.parametrize("lengths", [None, [4, 1, 3]])
def test_scores_and_marginals_of_sequences(has_transitions: bool, lengths: list[int] | None) -> None:
    unary, transition = draw("random", 3, 4, 3), draw("random", 3, 3, 3, 3, seed=1)
    structure = Sequence(4, 3, lengths=None if lengths is None else torch.tensor(lengths))
    bound = structure.bind((unary, transition) if has_transitions else unary)
    atoms, _ = bound.kbest(3)
    check_linear(bound, atoms.flatten(0, 1), torch.arange(3).repeat_interleave(3))
    unary_vectors = as_tuple(bound.structure.vectors(atoms[:, 0]))[0]
    assert unary_vectors.sum().item() == (12 if lengths is None else sum(lengths))


def test_the_weights_of_transitions() -> None:
    unary, transition = draw("random", 2, 3, 2), draw("random", 2, 2)
    for structure, weight in ((Sequence(3, 2), 1), (Sequence(3, 2, regularise_transitions=False), 0)):
        bound = structure.bind((unary, transition))
        linear, weights = bound.structure.quadratic(bound.flat)
        assert weights.tolist() == [1] * 6 + [weight] * 8
        assert torch.equal(linear, bound.flat)
        assert structure.quadratic(unary.flatten(1))[1].tolist() == [1] * 6


@pytest.mark.parametrize("has_transitions", [False, True])
def test_sequences_of_different_lengths(has_transitions: bool) -> None:
    lengths = torch.tensor([[4, 1, 2], [3, 4, 1]])
    unary, transition = draw("random", 2, 3, 4, 3), draw("random", 2, 3, 3, 3, 3, seed=1)
    for i, j in itertools.product(range(2), range(3)):  # what stands in the padding is never seen
        unary[i, j, lengths[i, j] :] = torch.nan
        transition[i, j, lengths[i, j] - 1 :] = torch.nan
    structure = Sequence(4, 3, lengths=lengths)
    scores = (unary, transition) if has_transitions else unary
    best, k = structure.argmax(scores), 10
    bound = structure.bind(scores)
    atoms, is_valid = bound.kbest(k)
    assert bound.batch_shape == (2, 3)
    assert torch.equal(structure.topk(scores, k), atoms.reshape(2, 3, k, 4))
    for row, (i, j) in enumerate(itertools.product(range(2), range(3))):
        length = int(lengths[i, j])
        members = all_sequences(length, 3)
        v = transition[i, j, : length - 1] if has_transitions else None
        values = sequence_values(unary[i, j, :length][None], None if v is None else v[None], members)
        truth = values[0].sort(descending=True).values[:k]
        valid = atoms[row][is_valid[row]]
        assert len(valid) == len(valid.unique(dim=0)) == len(truth)
        assert (valid[:, length:] == 0).all()
        assert torch.equal(best[i, j], valid[0])
        score = bound.score(valid, torch.full((len(valid),), row))
        torch.testing.assert_close(score, truth, atol=1e-12, rtol=0)


@dataclass(frozen=True)
class Knapsack(AbstractStructure):
    """A user's own structure: sets of items that fit, by enumeration; neither sizes nor shapes are fixed."""

    weights: tuple[int, ...]
    capacity: int

    @property
    def members(self) -> Tensor:
        fits = [z for z in itertools.product((0, 1), repeat=len(self.weights)) if self._weight(z) <= self.capacity]
        return torch.tensor(fits)

    def _weight(self, z: tuple[int, ...]) -> int:
        return sum(weight * bit for weight, bit in zip(self.weights, z, strict=True))

    def values(self, scores: Tensor) -> Tensor:
        return torch.where(self.members > 0, scores.unsqueeze(-2), 0.0).sum(-1)

    def argmax(self, scores: Tensor) -> Tensor:
        return self.members[self.values(scores).argmax(-1)].to(scores.dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_the_generic_search_over_knapsacks(kind: str) -> None:
    structure = Knapsack((3, 1, 2, 4, 1), 6)
    scores = draw(kind, 4, 5)
    check_search(structure, scores, structure.members, structure.values(scores), list(range(1, len(structure.members) + 3)))


@pytest.mark.parametrize("scale", [1e-200, 1e-20, 1e20, 1e200])
def test_the_generic_search_at_any_scale(scale: float) -> None:
    structure, scores = Knapsack((3, 1, 2, 4, 1), 6), scale * draw("forbidding", 4, 5)
    atoms = structure.topk(scores, 6)
    seen = structure.score(scores, atoms.flatten(0, 1), torch.arange(4).repeat_interleave(6)).view(4, 6)
    torch.testing.assert_close(seen, structure.values(scores).topk(6).values, rtol=1e-12, atol=0)


@pytest.mark.parametrize("batch", [(), (0,), (3,), (2, 3)])
def test_shapes_of_the_generic_search(batch: tuple[int, ...]) -> None:
    structure, scores = Knapsack((3, 1, 2), 4), draw("random", *batch, 3).float()
    atoms = structure.topk(scores, 3)
    assert atoms.dtype == torch.float32
    assert atoms.shape == (*batch, 1 if batch == (0,) else 3, 3)


def test_the_generic_search_leaves_rows_with_nan_to_others() -> None:
    scores = torch.tensor([[torch.nan, 0.2, 0.1, 0.7], [0.3, -torch.inf, 0.9, 0.5]])
    structure = OneOf(4)
    assert kbest(structure.bind(scores), 3)[1].tolist() == [2, 3, 0]


def test_errors_of_the_generic_search() -> None:
    class Doubled(OneOf):
        def vectors(self, atoms: Tensor) -> Tensor:
            return 2 * super().vectors(atoms)

    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        kbest(OneOf(3).bind(torch.zeros(1, 3)), 0)
    with pytest.raises(ValueError, match=r"entries other than 0 and 1: define its topk\(scores, k\)"):
        kbest(Doubled(3).bind(torch.zeros(1, 3)), 2)


def test_errors_of_sequences() -> None:
    with pytest.raises(TypeError, match="length must be an int, got float"):
        Sequence(2.0, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n_tags must be at least 1, got 0"):
        Sequence(2, 0)
    with pytest.raises(TypeError, match="lengths must be an int64 tensor or a list of ints, got int"):
        Sequence(2, 3, lengths=2)
    with pytest.raises(TypeError, match=r"lengths must be an int64 tensor or a list of ints, got torch.float32"):
        Sequence(2, 3, lengths=torch.ones(2))
    with pytest.raises(ValueError, match=r"lengths must be from 1 to 2, got \[0, 3\]"):
        Sequence(2, 3, lengths=torch.tensor([0, 1, 3]))
    structure, unary = Sequence(4, 3), torch.zeros(2, 4, 3)
    with pytest.raises(ValueError, match=r"must have shape \(\*batch, 4, 3\), got \(2, 3, 4\)"):
        structure.argmax(unary.mT)
    with pytest.raises(TypeError, match="floating-point"):
        structure.argmax(unary.long())
    with pytest.raises(ValueError, match=r"must broadcast to \(2, 3, 3, 3\), got \(4, 3, 3\)"):
        structure.argmax((unary, torch.zeros(4, 3, 3)))
    with pytest.raises(TypeError, match=r"floating-point torch.Tensor, got torch.int64"):
        structure.topk((unary, torch.zeros(3, 3).long()), 2)
    with pytest.raises(TypeError, match=r"floating-point torch.Tensor, got NoneType"):
        structure.topk((unary, None), 2)
    with pytest.raises(ValueError, match=r"a pair \(unary, transition\), got 3 tensors"):
        structure.argmax((unary, unary, unary))
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        structure.topk(unary, 0)
    sized = Sequence(4, 3, lengths=torch.tensor([1, 2, 3]))
    with pytest.raises(ValueError, match=r"shape of the batch, \(2,\), got \(3,\) for scores of shape \(2, 4, 3\)"):
        sized.argmax(unary)
    with pytest.raises(ValueError, match=r"one entry for each row, got 5 rows or atoms, and lengths of shape \(3,\)"):
        sized.vectors(torch.zeros(5, 4, dtype=torch.int64))


def test_equality_and_names() -> None:
    assert Sequence(3, 2) == Sequence(3, 2, lengths=torch.tensor([1]))
    assert hash(Sequence(3, 2)) == hash(Sequence(3, 2))
    assert Sequence(3, 2) != Sequence(2, 3)
    assert repr(Sequence(3, 2, lengths=torch.tensor([1]))) == "Sequence(length=3, n_tags=2, regularise_transitions=True)"
