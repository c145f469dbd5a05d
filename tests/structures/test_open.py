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
from examples.chain import Alignment
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
        ({"group_sizes": property(lambda self: (3,))}, r"group_size: not exactly one part of each group of 3 for the atoms"),
        ({"contains": lambda self, atoms: atoms.sum(-1) == 0}, r"contains returns False for the assignments \[\["),
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


def test_a_subclass_loses_each_method_that_it_does_not_define() -> None:
    class Stars(sp.Tree):
        def argmax(self, scores: Tensor) -> Tensor:
            return torch.arange(self.n).expand(*scores.shape[:-2], self.n)

        def log_partition(self, scores: Tensor) -> Tensor:
            return scores.diagonal(dim1=-2, dim2=-1).sum(-1)

    assert not Stars(3).has_partition  # the sampler of its parent has other assignments


def test_what_samplers_see_is_what_partition_functions_see() -> None:
    seen = []

    class Spy(sp.Tree):
        def log_partition(self, scores: Tensor) -> Tensor:
            seen.append(scores.isneginf().sum().item())
            return super().log_partition(scores)

        def sample(self, scores: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
            seen.append(scores.isneginf().sum().item())
            return super().sample(scores, n, generator)

    sp.Gibbs(
        torch.zeros(1, 2, 2).index_put((torch.tensor(0), torch.tensor(0), torch.tensor(1)), torch.tensor(-torch.inf)), Spy(2)
    ).sample()
    assert seen == [1, 1]


def test_contains_is_checked_for_what_is_not_an_assignment() -> None:
    class Lax(sp.Matching):
        def contains(self, atoms: Tensor) -> Tensor:
            return torch.ones(len(atoms), dtype=torch.bool)

    with pytest.raises(AssertionError, match=r"contains accepts atoms that are not assignments: \[\["):
        sp.testing.check_structure(Lax(3))
    assert sp.UniformOver(sp.Matching(2)).log_prob(torch.tensor([[0, 0], [1, 0]])).tolist() == [
        -math.inf,
        pytest.approx(-math.log(2)),
    ]


def test_forgotten_vectors_are_named() -> None:
    @dataclass(frozen=True)
    class Forgotten(sp.AbstractStructure):
        score_shape = (2, 2)

        def argmax(self, scores: Tensor) -> Tensor:
            return scores.argmax(-1)

    for call in (lambda s: sp.sparsemap(torch.randn(1, 2, 2), s), lambda s: sp.topk_sparsemax(torch.randn(1, 2, 2), s, 2)):
        with pytest.raises(ValueError, match=r"must have 4 entries, one for each score, got 2; define vectors\(atoms\)"):
            call(Forgotten())


def test_a_forgotten_score_shape_is_named() -> None:
    """Scores of two dimensions are then taken for a batch of rows, of which argmax finds fewer atoms."""

    class Shapeless(sp.AbstractStructure):
        def argmax(self, scores: Tensor) -> Tensor:
            best = scores.flatten(-2).argmax(-1, keepdim=True) % 6
            bits = torch.zeros(*best.shape[:-1], 6).scatter(-1, best, 1.0).to(scores)
            return bits.reshape(*bits.shape[:-1], 2, 3)

        def __repr__(self) -> str:
            return "Shapeless()"

    calls: list[Callable[[Tensor], object]] = [
        lambda scores: sp.sparsemap(scores, Shapeless()),
        lambda scores: sp.topk_sparsemax(scores, Shapeless(), 2),
    ]
    for call in calls:
        with pytest.raises(
            ValueError, match=r"argmax of Shapeless\(\) must return one atom for each of .*define score_shape"
        ):
            call(torch.randn(4, 2, 3))


def even_argmax(_structure: sp.AbstractStructure, scores: Tensor) -> Tensor:
    """The best bits of which an even number is 1: the positive ones, the least important of them flipped if need be."""
    best = (scores > 0).to(scores.dtype)
    least = scores.abs().argmin(-1, keepdim=True)
    flipped = best.scatter(-1, least, 1 - best.gather(-1, least))
    return torch.where(best.sum(-1, keepdim=True) % 2 == 0, best, flipped)


def test_another_argmax_brings_another_search() -> None:
    class Even(sp.Bits):
        argmax = even_argmax

    class Mixin:
        argmax = even_argmax

    class Mixed(Mixin, sp.Bits):
        pass

    class Weighted(sp.OneOf):
        def vectors(self, atoms: Tensor) -> Tensor:
            return 2 * super().vectors(atoms)

    assert math.isinf(Even(3).log_count())
    assert not Mixed(3).has_partition
    assert Mixed(3).bit_counts() is None
    assert not Weighted(3).is_fixed_size
    assert Weighted(3).group_size is None
    scores = torch.tensor([[0.5, -0.2, 0.9]], dtype=torch.float64)
    for structure in (Even(3), Mixed(3)):
        atoms = structure.topk(scores, 4)[0]
        assert (atoms.sum(-1) % 2 == 0).all()
        assert len(atoms.unique(dim=0)) == 4


@dataclass(frozen=True)
class FewBits(sp.AbstractStructure):
    """At most two of n bits, by brute force: nothing but an argmax."""

    n: int

    def members(self) -> Tensor:
        every = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * self.n)
        return every[every.sum(-1) <= 2]

    def argmax(self, scores: Tensor) -> Tensor:
        members = self.members()
        return members[torch.where(members > 0, scores.unsqueeze(-2), 0.0).sum(-1).argmax(-1)].to(scores.dtype)


@pytest.mark.parametrize("low", [-1e9, -1e15, -1e30, -1e300])
def test_the_search_takes_very_low_scores(low: float) -> None:
    structure, scores = FewBits(4), torch.tensor([[low, 0.2, 0.7, 0.4]], dtype=torch.float64)
    values = (structure.members() * scores).sum(-1)
    best = structure.topk(scores, 7)[0]
    torch.testing.assert_close((best * scores).sum(-1), values.sort(descending=True).values[:7])


def test_half_precision_does_not_forbid() -> None:
    q = sp.topk_sparsemax(torch.full((1, 7, 2), -1e4).half(), sp.Groups(7, 2), 2)
    assert len(q.atoms) == 2
    scores = torch.zeros(1, 7, 2)
    scores[..., 1] = -1e4
    assert se.topk_bound(scores.half(), sp.Groups(7, 2), lambda z: z.float().sum(-1), 128).calls.tolist() == [128]


def test_samples_are_in_the_dtype_of_the_scores() -> None:
    @dataclass(frozen=True)
    class Coins(FewBits):
        def log_partition(self, scores: Tensor) -> Tensor:
            return (scores @ self.members().T).logsumexp(-1)

        def sample(self, scores: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
            probs = (scores @ self.members().T).softmax(-1)
            return self.members()[torch.multinomial(probs, n, replacement=True, generator=generator).T]

    assert sp.Gibbs(torch.zeros(2, 3), Coins(3)).sample().dtype == torch.float32


def test_samples_of_fractions_are_told_apart() -> None:
    vectors = torch.tensor([[0.25, 0.0], [0.5, 0.0], [0.0, 0.75], [0.0, 0.5], [0.1, 0.1], [0.2, 0.2], [0.3, 0.3]])

    @dataclass(frozen=True)
    class Fractions(sp.AbstractStructure):
        score_shape = (2,)

        def argmax(self, scores: Tensor) -> Tensor:
            return vectors[(scores @ vectors.T).argmax(-1)].to(scores.dtype)

        def log_partition(self, scores: Tensor) -> Tensor:
            return (scores @ vectors.double().T).logsumexp(-1)

        def sample(self, scores: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
            probs = (scores @ vectors.double().T).softmax(-1)
            return vectors[torch.multinomial(probs, n, replacement=True, generator=generator).T]

    def joint(z: Tensor) -> Tensor:
        return z.sum(-1)

    rows, generator = torch.zeros(4000, 2), torch.Generator().manual_seed(0)
    found = se.distinct_bound(rows, Fractions(), joint, k=3, generator=generator)
    assert found.value.exp().mean().item() == pytest.approx(joint(vectors).exp().sum().item(), rel=0.02)


@pytest.mark.parametrize("n", [1, 2])
def test_a_structure_that_does_not_count_its_few_assignments_conforms(n: int) -> None:
    @dataclass(frozen=True)
    class Few(sp.AbstractStructure):
        score_shape = (1,)

        def argmax(self, scores: Tensor) -> Tensor:
            return (scores > 0).to(scores.dtype) if n == 2 else torch.ones_like(scores)

    assert sp.testing.check_structure(Few()).counts["topk_sparsemax"] > 0


def test_lengths_may_be_lists() -> None:
    scores = torch.randn(3, 4, 2)
    listed, tensor = sp.Sequence(4, 2, lengths=[4, 1, 2]), sp.Sequence(4, 2, lengths=torch.tensor([4, 1, 2]))
    assert torch.equal(listed.argmax(scores), tensor.argmax(scores))
    assert sp.Tree(3, lengths=[[3, 1], [2, 2]]).argmax(torch.randn(2, 2, 3, 3)).shape == (2, 2, 3)
    for wrong in (["a"], [1.5], [[1], [2, 3]]):
        with pytest.raises(TypeError, match="lengths must be an int64 tensor or a list of ints"):
            sp.Sequence(4, 2, lengths=wrong)
    assert dataclasses.replace(listed, n_tags=3).lengths is not None
