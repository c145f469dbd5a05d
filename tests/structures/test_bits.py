"""Bits, budgets, subsets, groups and enumerated sets: argmax and the k best against brute force, and errors."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sparsum.segments import Segments
from sparsum.structures import AbstractStructure
from sparsum.structures.bits import Bits, Budget, Subset
from sparsum.structures.enumerated import Enumerated
from sparsum.structures.groups import Groups
from sparsum.structures.kbest import undominated_sets

CPU = torch.device("cpu")


def members(structure: AbstractStructure) -> Tensor:
    """All atoms of a small structure, by itertools: (count, *event_shape)."""
    match structure:
        case Bits(n):
            kept = list(itertools.product((0.0, 1.0), repeat=n))
        case Budget(n, most):
            kept = [z for z in itertools.product((0.0, 1.0), repeat=n) if sum(z) <= most]
        case Subset(n, k):
            kept = [z for z in itertools.product((0.0, 1.0), repeat=n) if sum(z) == k]
        case Groups(n_groups, n_each):
            return torch.tensor(list(itertools.product(range(n_each), repeat=n_groups)))
        case Enumerated():
            return torch.arange(round(math.exp(structure.log_count())))
        case _:
            raise TypeError(structure)
    return torch.tensor(kept)


def values_of(structure: AbstractStructure, rows: Tensor, atoms: Tensor) -> Tensor:
    """The scores in float64 of atoms of shape (n_rows, k, *event_shape): (n_rows, k)."""
    n_rows, k = atoms.shape[:2]
    row = torch.arange(n_rows).repeat_interleave(k)
    return structure.score(rows.double(), atoms.reshape(n_rows * k, *atoms.shape[2:]), row).view(n_rows, k)


def check(structure: AbstractStructure, scores: Tensor, k: int) -> int:
    """Compare argmax and topk with brute force; return how many atoms were compared."""
    everything = members(structure)
    count, event = len(everything), everything.shape[1:]
    n_best = min(k, count)
    batch = scores.shape[: scores.ndim - structure.score_ndim]
    best, argmax = structure.topk(scores, k), structure.argmax(scores)
    assert best.shape == (*batch, n_best, *event)
    assert argmax.shape == (*batch, *event)
    assert best.dtype == argmax.dtype == (everything.dtype if everything.dtype == torch.int64 else scores.dtype)
    n_rows = batch.numel()
    rows, best, argmax = scores.reshape(n_rows, *scores.shape[len(batch) :]), best.reshape(n_rows, n_best, *event), argmax
    every = values_of(structure, rows, everything.expand(n_rows, *everything.shape))
    expected = every.sort(-1, descending=True).values[:, :n_best]
    found = values_of(structure, rows, best)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-12)
    at_first = values_of(structure, rows, argmax.reshape(n_rows, 1, *event))
    torch.testing.assert_close(at_first, expected[:, :1], atol=1e-9, rtol=1e-12)
    allowed = {tuple(z.reshape(-1).tolist()) for z in everything}
    for atoms in best:
        keys = {tuple(z.reshape(-1).tolist()) for z in atoms}
        assert len(keys) == n_best
        assert keys <= allowed
    if not isinstance(structure, Enumerated):
        assert torch.equal(best[:, 0], argmax.reshape(n_rows, *event))
    return best.shape[:2].numel()


def small_structures() -> list[AbstractStructure]:
    found: list[AbstractStructure] = [Bits(n) for n in (1, 2, 3, 5)]
    found += [Budget(n, most) for n in (1, 3, 5) for most in range(n + 1)]
    found += [Subset(n, k) for n in (1, 3, 5) for k in range(n + 1)]
    found += [Groups(1, 4), Groups(3, 1), Groups(2, 3), Groups(3, 3), Groups(5, 2)]
    found.append(Enumerated(torch.tensor([[[0.5, 0.0], [-1.0, 0.0]], [[0.0, 2.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, 0.0]]])))
    return found


def score_shape(structure: AbstractStructure) -> tuple[int, ...]:
    match structure:
        case Bits(n) | Budget(n) | Subset(n):
            return (n,)
        case Groups(n_groups, n_each):
            return n_groups, n_each
        case _:
            return (2, 2)


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "random": lambda noise: noise,
    "tied": lambda noise: noise.mul(1.5).round(),
    "positive": lambda noise: noise.abs() + 0.1,
    "equal": torch.zeros_like,
    "forbidden": lambda noise: noise.masked_fill(noise < 0.3, -torch.inf),
    "all forbidden": lambda noise: torch.full_like(noise, -torch.inf),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("structure", small_structures(), ids=repr)
def test_all_k_against_brute_force(structure: AbstractStructure, kind: str, generator: torch.Generator) -> None:
    scores = KINDS[kind](torch.randn(4, *score_shape(structure), dtype=torch.float64, generator=generator))
    count = len(members(structure))
    assert structure.log_count() == pytest.approx(math.log(count), abs=1e-12)
    n_compared = sum(check(structure, scores, k) for k in range(1, count + 3))
    assert n_compared == 4 * (count * (count + 1) // 2 + 2 * count)


@st.composite
def cases(draw: st.DrawFn) -> tuple[AbstractStructure, Tensor, int]:
    n = draw(st.integers(1, 8))
    kind = draw(st.sampled_from(["bits", "budget", "subset", "groups"]))
    ones = draw(st.integers(0, n))
    structure: AbstractStructure = {
        "bits": Bits(n),
        "budget": Budget(n, ones),
        "subset": Subset(n, ones),
        "groups": Groups(1 + ones % 4, 1 + n % 4),
    }[kind]
    batch = draw(st.sampled_from([(), (3,), (2, 2), (0,), (2, 0)]))
    shape = (*batch, *score_shape(structure))
    dtype = draw(st.sampled_from([torch.float16, torch.float32, torch.float64]))
    entries = st.one_of(st.integers(-2, 2), st.just(-math.inf), st.floats(-4, 4, width=16))
    flat = draw(st.lists(entries, min_size=math.prod(shape), max_size=math.prod(shape)))
    return structure, torch.tensor(flat, dtype=dtype).reshape(shape), draw(st.integers(1, 40))


@given(cases())
def test_any_scores_batch_and_dtype(case: tuple[AbstractStructure, Tensor, int]) -> None:
    check(*case)


@pytest.mark.parametrize(
    "structure", [Bits(6), Budget(6, 2), Budget(6, 5), Subset(6, 3), Groups(2, 3), Enumerated(torch.eye(6))], ids=repr
)
def test_same_scores_same_atoms_wherever_they_stand(structure: AbstractStructure, generator: torch.Generator) -> None:
    rows = torch.randint(-1, 2, (50, 6), generator=generator).float() / 3
    rows = rows.view(50, 2, 3) if isinstance(structure, Groups) else rows
    order = torch.randperm(50, generator=generator)
    for k in (1, 4, 9):
        atoms = structure.topk(rows, k)
        assert torch.equal(structure.topk(rows[order], k), atoms[order])
        assert torch.equal(structure.topk(rows[7], k), atoms[7])
    assert torch.equal(structure.argmax(rows[order]), structure.argmax(rows)[order])


def best_values(scores: list[float], k: int, counts: range) -> list[float]:
    """The k best sums over subsets with certain numbers of elements: a slow dynamic program over (element, count)."""
    best = {0: [0.0]}
    for score in scores:
        larger = {count + 1: [value + score for value in values] for count, values in best.items() if count < counts[-1]}
        best = {c: heapq.nlargest(k, best.get(c, []) + larger.get(c, [])) for c in best.keys() | larger.keys()}
    return heapq.nlargest(k, itertools.chain.from_iterable(best.get(c, []) for c in counts))


def best_flips(scores: list[float], k: int) -> list[float]:
    """The k best sums over all subsets, from a heap of flips: the last bit moves on, or is joined by the next one."""
    costs = sorted(map(abs, scores))
    start = sum(score for score in scores if score > 0)
    found, heap = [start], [(costs[0], 0)]
    while len(found) < k:
        cost, last = heapq.heappop(heap)
        found.append(start - cost)
        if last + 1 < len(costs):
            heapq.heappush(heap, (cost + costs[last + 1], last + 1))
            heapq.heappush(heap, (cost - costs[last] + costs[last + 1], last + 1))
    return found


@pytest.mark.parametrize("k", [10, 100, 500])
@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_many_bits_against_a_heap(k: int, scale: float, generator: torch.Generator) -> None:
    rows = scale * torch.randn(8, 128, dtype=torch.float64, generator=generator)
    atoms = Bits(128).topk(rows, k)
    expected = torch.tensor([best_flips(row.tolist(), k) for row in rows], dtype=torch.float64)
    torch.testing.assert_close((atoms @ rows.unsqueeze(-1)).squeeze(-1), expected, atol=1e-12, rtol=1e-12)
    assert all(len(each.unique(dim=0)) == k for each in atoms)


@pytest.mark.parametrize(
    ("structure", "counts", "k"),
    [
        (Budget(128, 64), range(65), 10),
        (Budget(128, 60), range(61), 10),
        (Budget(64, 4), range(5), 60),
        (Budget(40, 40), range(41), 60),
        (Subset(50, 7), range(7, 8), 100),
        (Subset(40, 20), range(20, 21), 60),
        (Subset(60, 59), range(59, 60), 30),
    ],
    ids=repr,
)
def test_many_counted_bits_against_a_dynamic_program(
    structure: Budget | Subset, counts: range, k: int, generator: torch.Generator
) -> None:
    # The last rows have about as many positive scores as the budget allows, one more, and far fewer.
    rows = torch.randn(5, structure.n, dtype=torch.float64, generator=generator)
    limit = counts[-1]
    for row, n_positive in ((2, limit), (3, min(limit + 1, structure.n)), (4, limit // 3)):
        rows[row] = rows[row].abs()
        rows[row, n_positive:] *= -1
    atoms = structure.topk(rows, k)
    expected = torch.tensor([best_values(row.tolist(), k, counts) for row in rows], dtype=torch.float64)
    torch.testing.assert_close((atoms @ rows.unsqueeze(-1)).squeeze(-1), expected, atol=1e-12, rtol=1e-12)
    assert all(len(each.unique(dim=0)) == k for each in atoms)
    assert set(atoms.sum(-1).unique().tolist()) <= set(map(float, counts))


def test_many_groups_merge_to_the_best(generator: torch.Generator) -> None:
    rows = torch.randn(4, 9, 6, dtype=torch.float64, generator=generator)
    structure = Groups(9, 6)
    atoms = structure.topk(rows, 70)
    found = values_of(structure, rows, atoms)
    for row, values in zip(rows, found, strict=True):
        sums = [0.0]
        for group in row.tolist():
            sums = heapq.nlargest(70, [a + b for a in sums for b in group])
        torch.testing.assert_close(values, torch.tensor(sums, dtype=torch.float64), atol=1e-12, rtol=0)
    assert all(len(each.unique(dim=0)) == 70 for each in atoms)


@pytest.mark.parametrize(("k", "n_sets"), [(2, 2), (10, 17), (20, 46), (50, 173), (100, 474)])
def test_the_table_of_sets(k: int, n_sets: int) -> None:
    table = undominated_sets(k, k - 1, CPU)
    assert sum(table.lengths) + 1 == len(table.members) + 1 == n_sets


@pytest.mark.parametrize(("k", "width"), [(4, 3), (7, 6), (12, 6), (20, 6), (64, 6)])
def test_the_table_of_sets_against_brute_force(k: int, width: int) -> None:
    sets = [s for size in range(width + 1) for s in itertools.combinations(range(width), size)]

    def dominates(t: tuple[int, ...], s: tuple[int, ...]) -> bool:
        return len(t) <= len(s) and all(a <= b for a, b in zip(reversed(t), reversed(s), strict=False))

    kept = {s for s in sets if s and sum(dominates(t, s) for t in sets) <= k}
    assert {tuple(sorted(set(s))) for s in undominated_sets(k, width, CPU).members.tolist()} == kept


def test_infinite_scores() -> None:
    scores = torch.tensor([math.inf, -1.0, -math.inf, 0.5])
    assert Bits(4).topk(scores, 2).tolist() == [[1, 0, 0, 1], [1, 0, 0, 0]]
    assert Budget(4, 1).argmax(scores).tolist() == [1, 0, 0, 0]
    assert Budget(4, 2).topk(scores, 2).tolist() == [[1, 0, 0, 1], [1, 0, 0, 0]]
    assert Subset(4, 2).topk(scores, 2).tolist() == [[1, 0, 0, 1], [1, 1, 0, 0]]
    assert Enumerated(torch.eye(4)).topk(scores, 4).tolist() == [0, 3, 1, 2]
    impossible = torch.tensor([[-math.inf, 1.0, -math.inf]])
    assert Subset(3, 2).score(impossible, Subset(3, 2).argmax(impossible), torch.tensor([0])) == -math.inf


def test_scores_that_need_a_gradient_or_are_not_contiguous(generator: torch.Generator) -> None:
    scores = torch.randn(6, 4, 3, generator=generator, requires_grad=True).mT.transpose(0, 2)  # shape: (4, 3, 6)
    for structure in (Bits(6), Budget(6, 2), Subset(6, 2)):
        for atoms in (structure.argmax(scores), structure.topk(scores, 5)):
            assert not atoms.requires_grad
        assert torch.equal(structure.topk(scores, 5), structure.topk(scores.detach().contiguous(), 5))


def test_log_count_of_many_bits() -> None:
    assert Bits(2000).log_count() == pytest.approx(2000 * math.log(2))
    assert Budget(2000, 2000).log_count() == pytest.approx(2000 * math.log(2), rel=1e-14)
    assert Subset(2000, 1).log_count() == pytest.approx(math.log(2000))
    assert Groups(1000, 10).log_count() == pytest.approx(1000 * math.log(10))


@pytest.mark.parametrize("structure", [Bits(3), Budget(3, 2), Subset(3, 2)], ids=repr)
def test_the_objective_scores_both_states(structure: Bits | Budget | Subset, generator: torch.Generator) -> None:
    scores = torch.randn(5, 3, dtype=torch.float64, generator=generator)
    mean = torch.rand(5, 3, dtype=torch.float64, generator=generator)
    linear, weights = structure.quadratic(scores)
    value = (linear * mean).sum(-1) - (weights * mean.square()).sum(-1) / 2
    both = (scores * mean).sum(-1) - (mean.square() + (1 - mean).square()).sum(-1) / 2
    torch.testing.assert_close(value - 1.5, both)
    forbidden, _ = structure.quadratic(torch.full((1, 3), -math.inf))
    assert (forbidden == -math.inf).all()


def test_the_paper_objective_is_that_of_the_scores() -> None:
    linear, weights = Bits(2, symmetric=False).quadratic(torch.tensor([[0.5, -1.0]]))
    assert linear.tolist() == [[0.5, -1.0]]
    assert weights.tolist() == [1, 1]


def test_scores_and_marginals_of_groups_are_those_of_one_hot_vectors(generator: torch.Generator) -> None:
    structure = Groups(3, 4)
    rows = torch.randn(5, 3, 4, dtype=torch.float64, generator=generator)
    atoms = torch.randint(4, (10, 3), generator=generator)
    segments = Segments.from_lengths(torch.full((5,), 2), n=10)
    probs = torch.rand(10, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(
        structure.score(rows, atoms, segments.row), AbstractStructure.score(structure, rows, atoms, segments.row)
    )
    torch.testing.assert_close(
        structure.marginals(atoms, probs, segments), AbstractStructure.marginals(structure, atoms, probs, segments)
    )


def test_enumerated_sets_are_values() -> None:
    first, second = Enumerated(torch.eye(3)), Enumerated(torch.eye(3, dtype=torch.float64))
    assert first == second
    assert hash(first) == hash(second)
    assert first != Enumerated(torch.ones(3, 3))
    assert first != Bits(3)
    assert repr(first) == "Enumerated(3 vectors of shape (3,))"
    assert first.is_fixed_size
    assert not Enumerated(torch.eye(3) * 2).is_fixed_size
    assert Enumerated(torch.ones(2, 3, 4)).score_ndim == 2
    assert first.vectors(torch.tensor([2])).tolist() == [[0, 0, 1]]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Bits(0), ValueError, "n must be at least 1, got 0"),
        (lambda: Bits(2.0), TypeError, "n must be an int, got float"),  # type: ignore[arg-type]
        (lambda: Bits(True), TypeError, "n must be an int, got bool"),
        (lambda: Bits(2, symmetric=1), TypeError, "symmetric must be a bool, got int"),  # type: ignore[arg-type]
        (lambda: Budget(3, 4), ValueError, "most must be from 0 to 3, got 4 for n = 3"),
        (lambda: Budget(3, -1), ValueError, "most must be from 0 to 3, got -1 for n = 3"),
        (lambda: Subset(3, 4), ValueError, "k must be from 0 to 3, got 4 for n = 3"),
        (lambda: Subset(3, "2"), TypeError, "k must be an int, got str"),  # type: ignore[arg-type]
        (lambda: Groups(0, 2), ValueError, "n_groups must be at least 1, got 0"),
        (lambda: Groups(2, 1.5), TypeError, "n_each must be an int, got float"),  # type: ignore[arg-type]
        (lambda: Enumerated([[1.0]]), TypeError, "vectors must be a torch.Tensor, got list"),  # type: ignore[arg-type]
        (lambda: Enumerated(torch.eye(2).long()), TypeError, "vectors must have a floating-point dtype, got torch.int64"),
        (lambda: Enumerated(torch.ones(2)), ValueError, "vectors must have shape .count, .event., .* got .2,."),
        (lambda: Enumerated(torch.ones(0, 2)), ValueError, "vectors must not be empty"),
        (lambda: Enumerated(torch.full((1, 2), math.nan)), ValueError, "vectors must be finite"),
        (lambda: Bits(3).argmax(torch.zeros(2)), ValueError, "must have shape .*batch, 3., got .2,."),
        (lambda: Budget(3, 1).topk(torch.zeros(2, 3).long(), 2), TypeError, "floating-point dtype, got torch.int64"),
        (lambda: Subset(3, 1).topk(torch.zeros(2), 2), ValueError, "must have shape .*batch, 3., got .2,."),
        (lambda: Groups(2, 3).argmax(torch.zeros(3, 2)), ValueError, "must have shape .*batch, 2, 3., got .3, 2."),
        (lambda: Enumerated(torch.eye(3)).argmax(torch.zeros(2)), ValueError, "must have shape .*batch, 3., got .2,."),
    ],
)
def test_errors_name_the_argument_and_what_was_seen(
    make: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()
