"""Structures of a user's own: what each optional method brings, and that what is declared is verified."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import sparsum as sp
from examples.alignment import Alignment
from sparsum import estimators as se

SAMPLERS = [se.ScoreFunction(), se.SelfCritic(), se.NVIL(2), se.LeaveOneOut(3)]
CHAIN_SAMPLERS = [se.SumAndSample(2), se.UnorderedSet(3)]


@dataclass(frozen=True)
class Summed(sp.Matching):
    """Matchings with a partition function and a sampler by enumeration; their assignments stay as they are."""

    def _all(self, device: torch.device) -> Tensor:
        n, m = self.score_shape
        return torch.tensor(list(itertools.permutations(range(m), n)), device=device)

    def log_partition(self, scores: Tensor) -> Tensor:
        members = self._all(scores.device)
        return scores[:, torch.arange(members.shape[1]), members].sum(-1).logsumexp(-1)

    def sample(self, scores: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
        members = self._all(scores.device)
        probs = scores[:, torch.arange(members.shape[1]), members].sum(-1).softmax(-1)
        return members[torch.multinomial(probs, n, replacement=True, generator=generator).T]


def vectors_loss(structure: sp.AbstractStructure) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(z: Tensor, row: Tensor) -> Tensor:
        vectors = z if z.is_floating_point() else structure.vectors(z)
        return 1 + torch.tanh(vectors.double().flatten(1) @ torch.linspace(-1, 1, vectors[0].numel(), dtype=torch.float64))

    return loss


@pytest.mark.parametrize("structure", [Alignment(5, 3), Summed(3), Summed(2, 3)], ids=repr)
def test_it_conforms(structure: sp.AbstractStructure) -> None:
    report = sp.testing.check_structure(structure)
    assert report.counts["gibbs"] == 12
    assert report.counts["is_fixed_size"] == report.counts["group_size"] == 1


@pytest.mark.parametrize("structure", [Alignment(4, 3), Summed(3)], ids=repr)
def test_every_sampling_estimator_takes_it(structure: sp.AbstractStructure) -> None:
    estimators = [*SAMPLERS, *(CHAIN_SAMPLERS if structure.is_chain else [])]
    for estimator in estimators:
        report = sp.testing.check_estimator(estimator, structures=[structure], draws=2000)
        assert report.counts["unbiased"] > 0


@pytest.mark.parametrize("structure", [Alignment(4, 3), Summed(3)], ids=repr)
@pytest.mark.parametrize("bound", [se.topk_bound, se.distinct_bound, se.vimco, se.wake_wake])
def test_every_bound_takes_it(structure: sp.AbstractStructure, bound: object) -> None:
    assert callable(bound)
    scores = torch.randn(4, *structure.score_shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    found = bound(scores, structure, vectors_loss(structure), k=3, generator=torch.Generator().manual_seed(0))
    (-found.surrogate).sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert found.value.shape == (4,)
    total = torch.tensor(math.exp(structure.log_count())).log() + 2  # no assignment has more than exp(2)
    assert (found.value <= total).all()


def test_the_mean_by_the_adjoint_of_potentials_is_differentiable() -> None:
    structure = Alignment(4, 3)
    scores = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: sp.Gibbs(t, structure).mean, scores)
    with torch.no_grad():
        assert not sp.Gibbs(scores, structure).mean.requires_grad


def test_a_subclass_with_other_assignments_loses_what_speaks_of_its_parents() -> None:
    class Even(sp.Bits):
        def argmax(self, scores: Tensor) -> Tensor:
            return torch.zeros_like(scores)

    class Named(sp.Bits):
        """Nothing but a name."""

    class Declared(Even):
        def bit_counts(self) -> sp.structures.BitCounts:
            return sp.structures.BitCounts(0)

    assert not Even(3).has_partition
    assert Even(3).bit_counts() is None
    assert not Even(3).has_free_choices
    assert Named(3).has_partition
    assert Named(3).bit_counts() == sp.Bits(3).bit_counts()
    assert Declared(3).bit_counts() is not None
    with pytest.raises(TypeError, match="must define them again"):
        sp.Gibbs(torch.zeros(1, 3), Even(3))


@dataclass(frozen=True)
class Plane(sp.AbstractStructure):
    """Two-dimensional scores, of which each row uses its best column; no other declaration than the shape."""

    n: int

    @property
    def score_shape(self) -> tuple[int, int]:
        return self.n, self.n

    def argmax(self, scores: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(scores.argmax(-1), self.n).to(scores.dtype)


def test_the_number_of_dimensions_follows_from_the_shape() -> None:
    structure = Plane(3)
    assert structure.score_ndim == 2
    q = sp.sparsemap(torch.randn(2, 4, 3, 3), structure)
    assert q.batch_shape == (2, 4)
    assert q.mean.shape == (2, 4, 3, 3)
    with pytest.raises(ValueError, match=r"must have shape \(\*batch, 3, 3\), got \(6, 6\)"):
        sp.sparsemap(torch.zeros(6, 6), structure)


def test_a_fixed_size_needs_fewer_calls_of_argmax() -> None:
    counts: list[int] = []

    @dataclass(frozen=True)
    class Counted(Plane):
        def argmax(self, scores: Tensor) -> Tensor:
            counts[-1] += len(scores)
            return super().argmax(scores)

    @dataclass(frozen=True)
    class Fixed(Counted):
        is_fixed_size = True

    scores, found = torch.randn(2, 6, 6, dtype=torch.float64), []
    for structure in (Counted(6), Fixed(6)):
        counts.append(0)
        found.append(structure.topk(scores, 5))
    assert torch.equal(*found)
    assert counts[1] * 4 < counts[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"is_fixed_size": True}, r"is_fixed_size: vectors are not 0/1 with \d ones for the atoms \[\["),
        ({"group_size": property(lambda self: 3)}, r"group_size: not exactly one part of each group of 3 for the atoms"),
        ({"contains": lambda self, atoms: atoms.sum(-1) == 0}, r"contains denies the assignments \[\["),
        (
            {"bit_counts": lambda self: sp.structures.BitCounts(0)},
            r"bit_counts: BitCounts.* does not hold for the atoms \[\[",
        ),
        (
            {"argmax": lambda self, scores: torch.full_like(scores, 2.0)},
            r"argmax returns atoms that are not assignments: \[\[",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_declared_wrongly_is_reported_with_the_atoms(change: dict[str, object], message: str) -> None:
    members = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3)
    wrong = type("Wrong", (sp.Bits,), change)(3)
    with pytest.raises(AssertionError, match=message):
        sp.testing.check_structure(wrong, members=members)


def test_lengths_may_be_lists() -> None:
    scores = torch.randn(3, 4, 2)
    listed, tensor = sp.Sequence(4, 2, lengths=[4, 1, 2]), sp.Sequence(4, 2, lengths=torch.tensor([4, 1, 2]))
    assert torch.equal(listed.argmax(scores), tensor.argmax(scores))
    assert sp.Tree(3, lengths=[[3, 1], [2, 2]]).argmax(torch.randn(2, 2, 3, 3)).shape == (2, 2, 3)
    for wrong in (["a"], [1.5], [[1], [2, 3]]):
        with pytest.raises(TypeError, match="lengths must be an int64 tensor or a list of ints"):
            sp.Sequence(4, 2, lengths=wrong)
    assert dataclasses.replace(listed, n_tags=3).lengths is not None
