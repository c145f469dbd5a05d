"""The active set solver on small structures of the test's own, against slow references and its own certificates."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import sparsum as sp
from sparsum.segments import Segments, reading_sizes
from sparsum.solvers import NotConverged, Solution, kkt, loop
from sparsum.solvers.active_set import ActiveSet
from sparsum.structures import AbstractStructure
from sparsum.structures.scores import BoundScores, as_tuple, flatten, unflatten


@dataclasses.dataclass(frozen=True)
class SomeBits(AbstractStructure):
    """At most ``most`` of n bits, by sorting."""

    n: int
    most: int
    is_symmetric: bool = True

    def argmax(self, scores: Tensor) -> Tensor:
        best = scores.topk(self.most, -1)
        return torch.zeros_like(scores).scatter(-1, best.indices, (best.values > 0).to(scores.dtype))

    def quadratic(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        ones = torch.ones(self.n, dtype=flat.dtype)
        return (flat + 1, 2 * ones) if self.is_symmetric else (flat, ones)

    def members(self) -> Tensor:
        bits = torch.tensor(list(itertools.product((0.0, 1.0), repeat=self.n)), dtype=torch.float64)
        return bits[bits.sum(-1) <= self.most]

    def marginals_by_bisection(self, scores: Tensor) -> Tensor:
        x = (scores.double() + 1) / 2 if self.is_symmetric else scores.double()
        low, high = torch.zeros(len(x), 1, dtype=torch.float64), x.amax(-1, keepdim=True).clamp_min(0)
        for _ in range(200):
            middle = (low + high) / 2
            is_over = (x - middle).clamp(0, 1).sum(-1, keepdim=True) > self.most
            low, high = torch.where(is_over, middle, low), torch.where(is_over, high, middle)
        is_free = x.clamp(0, 1).sum(-1, keepdim=True) <= self.most
        return torch.where(is_free, x, x - high).clamp(0, 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Listed(AbstractStructure):
    """An explicit list of vectors, with weights of the quadratic term."""

    list_: Tensor
    weight: Tensor | None = None

    def argmax(self, scores: Tensor) -> Tensor:
        return torch.where(self.list_ == 0, 0.0, scores.unsqueeze(-2) * self.list_).sum(-1).argmax(-1)

    def vectors(self, atoms: Tensor) -> Tensor:
        return self.list_[atoms]

    def quadratic(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        return flat, torch.ones(flat.shape[-1], dtype=flat.dtype) if self.weight is None else self.weight.to(flat.dtype)

    def members(self) -> Tensor:
        return self.list_


@dataclasses.dataclass(frozen=True)
class Pairs(AbstractStructure):
    """One of n and one of m, scored by two tensors."""

    n: int
    m: int

    def argmax(self, scores: tuple[Tensor, Tensor]) -> Tensor:
        return torch.stack([scores[0].argmax(-1), scores[1].argmax(-1)], -1)

    def vectors(self, atoms: Tensor) -> tuple[Tensor, Tensor]:
        one_hot = torch.nn.functional.one_hot
        return one_hot(atoms[:, 0], self.n).float(), one_hot(atoms[:, 1], self.m).float()

    def members(self) -> Tensor:
        atoms = torch.tensor(list(itertools.product(range(self.n), range(self.m))))
        return flatten(self.vectors(atoms)).double()


@dataclasses.dataclass(frozen=True, eq=False)
class FirstBits(AbstractStructure):
    """Bits of which a row has its own number: the vectors of its atoms depend on the row."""

    lengths: Tensor

    def argmax(self, scores: Tensor) -> Tensor:
        return (scores > 0).long() * self.is_there(scores)

    def vectors(self, atoms: Tensor) -> Tensor:
        return atoms * self.is_there(atoms)

    def is_there(self, rows: Tensor) -> Tensor:
        assert len(rows) == len(self.lengths)
        return torch.arange(rows.shape[-1]) < self.lengths.unsqueeze(-1)

    def select(self, index: Tensor) -> FirstBits:
        return FirstBits(self.lengths[index])


def chain(length: int, n_tags: int) -> Listed:
    """All sequences of tags; the transitions are not regularised."""
    one_hot = torch.nn.functional.one_hot
    tags = torch.tensor(list(itertools.product(range(n_tags), repeat=length)))
    unary = one_hot(tags, n_tags).flatten(1).double()
    pairs = one_hot(tags[:, :-1] * n_tags + tags[:, 1:], n_tags**2).flatten(1).double()
    return Listed(torch.cat([unary, pairs], -1), torch.cat([torch.ones(unary.shape[-1]), torch.zeros(pairs.shape[-1])]))


def bind(structure: AbstractStructure, scores: Any) -> BoundScores:
    """Rows of scores, which may be a tuple."""
    tensors = as_tuple(scores)
    return BoundScores(structure, tensors, tensors[0].shape[:1])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def mean_of(solution: Solution, structure: AbstractStructure) -> Tensor:
    vectors = flatten(structure.select(solution.segments.row).vectors(solution.atoms)).double()
    return solution.segments.sum(vectors * solution.probs.double().unsqueeze(-1))


def value_by_qp(b: Tensor, weight: Tensor, members: Tensor) -> tuple[float, np.ndarray]:
    """The optimum over the explicit simplex by a generic constrained solver, and its mean."""
    vectors, linear, w = members.numpy(), b.numpy(), weight.numpy()

    def loss(xi: np.ndarray) -> float:
        mu = xi @ vectors
        return float(-(linear @ mu) + 0.5 * w @ mu**2)

    result = minimize(
        loss,
        np.full(len(vectors), 1 / len(vectors)),
        jac=lambda xi: -vectors @ (linear - w * (xi @ vectors)),
        bounds=[(0, None)] * len(vectors),
        constraints={"type": "eq", "fun": lambda xi: np.sum(xi) - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    return -result.fun, result.x @ vectors


def check(solution: Solution, structure: AbstractStructure, scores: Any, tolerance: float = 1e-9) -> None:
    """What every solution has to satisfy; the certificate is computed afresh."""
    flat = flatten(scores).detach().double()
    b, weight = structure.quadratic(flat)
    assert bool(solution.is_solved.all()), solution.outcome
    assert bool((solution.probs > 0).all())
    assert bool((solution.segments.row.diff() >= 0).all())
    assert bool((solution.segments.lengths > 0).all())
    assert bool((solution.segments.lengths <= flat.shape[-1] + 1).all())
    total = solution.segments.sum(solution.probs.detach().double())
    torch.testing.assert_close(
        total, torch.ones_like(total), atol=1e-6 if solution.probs.dtype.itemsize < 8 else 1e-12, rtol=0
    )
    assert len(solution.outcome) == len(flat)
    assert all(outcome.startswith("optimal: gap") for outcome in solution.outcome)
    if solution.probs.dtype == torch.float64:
        mean = mean_of(solution, structure).detach()
        residual = torch.where(b == -torch.inf, b, b - weight * mean)
        best = flatten(structure.vectors(structure.argmax(unflatten(residual, like=scores)))).double()
        gap = torch.where(residual == -torch.inf, 0.0, (best - mean) * residual).sum(-1)
        assert float(gap.max()) <= tolerance + 1e-11 * flat.shape[-1]


SMALL: dict[str, Any] = {
    "bits": SomeBits(5, 5),
    "bits of the paper": SomeBits(5, 5, is_symmetric=False),
    "budget": SomeBits(6, 2),
    "budget of one": SomeBits(6, 1, is_symmetric=False),
    "points": Listed(normal(12, 4)),
    "one point": Listed(normal(1, 4)),
    "integer points": Listed(normal(20, 3, seed=3).mul(2).round()),
    "weighted points": Listed(normal(12, 4), torch.tensor([1.0, 0.5, 2.0, 3.0])),
    "pairs": Pairs(3, 4),
    "chain": chain(3, 2),
    "chain of three": chain(3, 3),
}


def scores_for(structure: Any, n_rows: int, scale: float = 1.0, seed: int = 1) -> Any:
    flat = scale * normal(n_rows, structure.members().shape[-1], seed=seed)
    return tuple(flat.split([structure.n, structure.m], -1)) if isinstance(structure, Pairs) else flat


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_it_agrees_with_a_generic_solver(name: str, scale: float) -> None:
    structure = SMALL[name]
    scores = scores_for(structure, 6, scale)
    solution = ActiveSet().solve(bind(structure, scores))
    check(solution, structure, scores)
    b, weight = structure.quadratic(flatten(scores))
    mean = mean_of(solution, structure)
    value = (b * mean - 0.5 * weight * mean.square()).sum(-1)
    for row in range(6):
        expected, expected_mean = value_by_qp(b[row], weight, structure.members())
        assert float(value[row]) == pytest.approx(expected, abs=1e-7)
        is_unique = weight > 0
        torch.testing.assert_close(mean[row][is_unique], torch.from_numpy(expected_mean)[is_unique], atol=1e-3, rtol=0)


@pytest.mark.parametrize("most", [0, 1, 10, 20, 40])
@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize(
    "scores",
    [
        normal(16, 40),
        normal(16, 40).round(),
        (2 * normal(16, 40)).round() / 2,
        torch.zeros(2, 40, dtype=torch.float64),
        torch.ones(2, 40, dtype=torch.float64),
        torch.full((2, 40), 0.3, dtype=torch.float64),
        -torch.ones(2, 40, dtype=torch.float64),
        torch.rand(16, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
        1e-8 * normal(4, 40),
        1e6 * normal(4, 40),
        torch.cat([normal(4, 38), torch.tensor([[1e30, -1e30]]).expand(4, 2)], -1),
    ],
    ids=["normal", "integer", "half", "zero", "one", "equal", "minus", "uniform", "small", "large", "huge"],
)
def test_marginals_of_bits_are_a_clamp(most: int, is_symmetric: bool, scores: Tensor) -> None:
    structure = SomeBits(40, most, is_symmetric)
    solution = ActiveSet().solve(bind(structure, scores))
    assert bool(solution.is_solved.all())
    torch.testing.assert_close(mean_of(solution, structure), structure.marginals_by_bisection(scores), atol=1e-9, rtol=0)
    assert int(solution.atoms.sum(-1).max()) <= most


@pytest.mark.parametrize("most", [128, 64, 40])
def test_many_bits(most: int) -> None:
    structure = SomeBits(128, most)
    uniform = torch.rand(32, 128, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores = torch.cat([normal(32, 128), uniform])
    solution = ActiveSet().solve(bind(structure, scores))
    check(solution, structure, scores)
    torch.testing.assert_close(mean_of(solution, structure), structure.marginals_by_bisection(scores), atol=1e-9, rtol=0)


@pytest.mark.parametrize("most", [2000, 500])
def test_very_many_bits(most: int) -> None:
    structure, scores = SomeBits(2000, most), normal(2, 2000)
    solution = ActiveSet().solve(bind(structure, scores))
    assert bool(solution.is_solved.all())
    torch.testing.assert_close(mean_of(solution, structure), structure.marginals_by_bisection(scores), atol=1e-9, rtol=0)


@pytest.mark.parametrize("distance", [1e-3, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10, 0.0])
def test_nearly_equal_points(distance: float) -> None:
    points = normal(6, 5)
    structure = Listed(torch.cat([points] + [points + distance * normal(6, 5, seed=seed) for seed in range(1, 7)]))
    scores = torch.cat([scale * normal(16, 5, seed=7) for scale in (0.3, 1.0, 3.0)])
    check(ActiveSet().solve(bind(structure, scores)), structure, scores)


def test_chains_with_ties_and_free_transitions() -> None:
    structure = chain(4, 3)
    n_parts = structure.members().shape[-1]
    for scores in (normal(100, n_parts), normal(100, n_parts).round(), torch.zeros(1, n_parts, dtype=torch.float64)):
        check(ActiveSet().solve(bind(structure, scores)), structure, scores)


def test_without_a_quadratic_term_it_is_the_best_atom() -> None:
    structure = Listed(normal(30, 4), torch.zeros(4))
    scores = normal(8, 4, seed=1)
    solution = ActiveSet(start=torch.arange(8).unsqueeze(-1)).solve(bind(structure, scores))
    assert torch.equal(solution.atoms, structure.argmax(scores))


def linear(solution: Solution, vectors: Tensor, seed: int) -> Tensor:
    return solution.segments.sum(solution.probs * (vectors @ normal(vectors.shape[-1], seed=seed)))


def quadratic(solution: Solution, vectors: Tensor, seed: int) -> Tensor:
    matrix = normal(vectors.shape[-1], vectors.shape[-1], seed=seed)
    return solution.segments.sum(solution.probs * ((vectors @ matrix) * vectors).sum(-1))


@pytest.mark.parametrize("loss", [linear, quadratic])
@pytest.mark.parametrize("name", ["bits", "budget", "points", "weighted points", "pairs", "chain"])
def test_gradients(name: str, loss: Callable[[Solution, Tensor, int], Tensor]) -> None:
    structure = SMALL[name]
    count = 0
    for seed in range(4):
        scores = scores_for(structure, 3, 0.7, seed=seed)
        inputs = scores if isinstance(scores, tuple) else (scores,)

        def function(*inputs: Tensor) -> Tensor:
            solution = ActiveSet().solve(bind(structure, inputs if len(inputs) > 1 else inputs[0]))
            return loss(solution, flatten(structure.vectors(solution.atoms)).double(), 5)

        inputs = tuple(x.clone().requires_grad_() for x in inputs)
        assert gradcheck(function, inputs, eps=1e-6, atol=1e-6)
        assert gradgradcheck(function, inputs, atol=1e-6)
        count += 1
    assert count == 4


def test_gradient_of_the_mean_is_that_of_the_clamp() -> None:
    structure, scores = SomeBits(16, 16), normal(16, 16).requires_grad_()
    solution = ActiveSet().solve(bind(structure, scores))
    weight = normal(16, seed=2)
    (gradient,) = torch.autograd.grad((mean_of(solution, structure) @ weight).sum(), scores)
    is_inside = (scores.detach().abs() < 1).double()
    torch.testing.assert_close(gradient, 0.5 * weight * is_inside, atol=1e-9, rtol=0)


def test_a_forbidden_part_is_as_if_it_were_not_there() -> None:
    scores = normal(8, 6)
    less = scores.clone()
    less[:, [1, 4]] = -torch.inf
    less.requires_grad_()
    kept = [0, 2, 3, 5]
    for is_symmetric in (True, False):
        solution = ActiveSet().solve(SomeBits(6, 3, is_symmetric).bind(less))
        check(solution, SomeBits(6, 3, is_symmetric), less)
        assert not solution.atoms[:, [1, 4]].any()
        smaller = ActiveSet().solve(SomeBits(4, 3, is_symmetric).bind(scores[:, kept]))
        assert torch.equal(solution.atoms[:, kept], smaller.atoms)
        torch.testing.assert_close(solution.probs, smaller.probs)
        (gradient,) = torch.autograd.grad(solution.probs.square().sum(), less)
        assert bool(gradient.isfinite().all())
        assert not gradient[:, [1, 4]].any()


@pytest.mark.parametrize("structure", [SomeBits(32, 32), SomeBits(32, 12), Listed(normal(60, 32).sign())])
@pytest.mark.parametrize("is_rounded", [True, False])
def test_a_row_gets_the_same_atoms_in_any_batch(structure: Any, is_rounded: bool) -> None:
    scores = normal(24, 32, seed=4)
    scores = scores.round() / 2 if is_rounded else scores
    whole = ActiveSet().solve(bind(structure, scores))
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    permuted = ActiveSet().solve(bind(structure, scores[order]))
    for place, row in enumerate(order.tolist()):
        alone = ActiveSet().solve(bind(structure, scores[row : row + 1]))
        assert torch.equal(whole.atoms[whole.segments.row == row], alone.atoms)
        assert torch.equal(permuted.atoms[permuted.segments.row == place], alone.atoms)
        torch.testing.assert_close(whole.probs[whole.segments.row == row], alone.probs, atol=1e-10, rtol=0)
        assert whole.steps[row] == alone.steps[0] == permuted.steps[place]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    scores = normal(8, 64).to(dtype).requires_grad_()
    structure = SomeBits(64, 30)
    solution = ActiveSet().solve(bind(structure, scores))
    exact = ActiveSet().solve(bind(structure, scores.detach().double()))
    assert solution.probs.dtype == solution.atoms.dtype == dtype
    assert torch.equal(solution.atoms.double(), exact.atoms)
    assert bool((solution.probs > 0).all())
    torch.testing.assert_close(
        solution.probs.double(), exact.probs, atol=torch.finfo(dtype).eps, rtol=torch.finfo(dtype).eps
    )
    (gradient,) = torch.autograd.grad(solution.probs.square().sum(), scores)
    assert gradient.dtype == dtype
    assert bool(gradient.isfinite().all())


def test_empty_batch() -> None:
    scores = torch.zeros(0, 5, requires_grad=True)
    solution = ActiveSet().solve(SomeBits(5, 3).bind(scores))
    assert solution.atoms.shape == (0, 5)
    assert solution.probs.shape == solution.is_solved.shape == solution.steps.shape == solution.gap.shape == (0,)
    assert solution.outcome == ()
    solution.probs.sum().backward()
    assert scores.grad is not None


def test_rows_of_different_sizes() -> None:
    lengths = torch.tensor([1, 6, 3, 4])
    scores = normal(4, 6)
    solution = ActiveSet().solve(FirstBits(lengths).bind(scores))
    expected = torch.where(torch.arange(6) < lengths.unsqueeze(-1), scores.clamp(0, 1), 0)
    torch.testing.assert_close(mean_of(solution, FirstBits(lengths)), expected, atol=1e-9, rtol=0)
    again = ActiveSet(start=(solution.atoms, solution.segments.row)).solve(FirstBits(lengths).bind(scores))
    assert not again.steps.any()


def test_warm_start() -> None:
    scores, structure = normal(8, 24), SomeBits(24, 10)
    cold = ActiveSet().solve(bind(structure, scores))
    row = cold.segments.row
    again = ActiveSet(start=(cold.atoms, row)).solve(bind(structure, scores))
    assert not again.steps.any()
    assert torch.equal(again.atoms, cold.atoms)
    torch.testing.assert_close(again.probs, cold.probs)
    shuffled = torch.randperm(len(row), generator=torch.Generator().manual_seed(0))
    near = ActiveSet(start=(cold.atoms[shuffled], row[shuffled])).solve(
        structure.bind(scores + 1e-3 * normal(8, 24, seed=1))
    )
    check(near, structure, scores + 1e-3 * normal(8, 24, seed=1), tolerance=2e-9)
    assert int(near.steps.sum()) < int(cold.steps.sum())


def test_a_start_may_repeat_depend_and_be_forbidden() -> None:
    scores, structure = normal(3, 4), SomeBits(4, 4)
    every = structure.members().expand(3, -1, -1)
    check(ActiveSet(start=every).solve(bind(structure, scores)), structure, scores)
    check(ActiveSet(start=every[:, -1:].expand(-1, 5, -1)).solve(bind(structure, scores)), structure, scores)
    scores[:, 0] = -torch.inf
    check(ActiveSet(start=every).solve(bind(structure, scores)), structure, scores)
    check(ActiveSet(start=every[:, -1:]).solve(bind(structure, scores)), structure, scores)
    for bad in (every[:2], every[..., :3], every[:, :0], (every[0], torch.zeros(16, dtype=torch.int64))):
        with pytest.raises(ValueError, match=r"start must .*\(atoms, row\)"):
            ActiveSet(start=bad).solve(bind(structure, scores))


def test_out_of_steps() -> None:
    scores, structure = normal(6, 32), SomeBits(32, 12)
    scores[2] = 100 * torch.arange(32)  # one atom at once
    with pytest.raises(NotConverged, match=r"row 0 \(gap .* after 5 steps\)") as error:
        ActiveSet(max_steps=5).solve(bind(structure, scores))
    assert error.value.rows == [0, 1, 3, 4, 5]
    assert min(error.value.gap) > 1e-9
    scores.requires_grad_()
    solution = ActiveSet(max_steps=5, strict=False).solve(bind(structure, scores))
    assert solution.is_solved.tolist() == [False, False, True, False, False, False]
    assert solution.outcome[0].startswith("out of steps: gap ")
    assert solution.outcome[2] == "optimal: gap 0 after 0 steps"
    assert bool((solution.probs > 0).all())
    torch.testing.assert_close(solution.segments.sum(solution.probs), torch.ones(6, dtype=torch.float64))
    assert bool((solution.gap[~solution.is_solved] > 1e-9).all())
    mean, exact = mean_of(solution, structure), structure.marginals_by_bisection(scores.detach())
    # The gap bounds how far the objective is from its optimum, and so the distance: here w = 2.
    assert bool(((mean - exact).square().sum(-1) <= solution.gap + 1e-12).all())
    (gradient,) = torch.autograd.grad(solution.probs.square().sum(), scores)
    assert bool(gradient.isfinite().all())


def test_a_loose_tolerance_stops_early() -> None:
    scores, structure = normal(6, 32), SomeBits(32, 12)
    loose, tight = ActiveSet(tolerance=1e-2).solve(bind(structure, scores)), ActiveSet().solve(bind(structure, scores))
    assert bool((loose.gap <= 1e-2).all())
    assert int(loose.steps.sum()) < int(tight.steps.sum())


def test_scores_that_are_no_numbers() -> None:
    scores = normal(4, 3)
    scores[1, 2] = scores[3, 0] = torch.nan
    with pytest.raises(ValueError, match=r"row 1 has a NaN, row 3 has a NaN \(of 4\)"):
        ActiveSet().solve(SomeBits(3, 2).bind(scores))
    with pytest.raises(ValueError, match=r"row 1 has \+inf, row 3 has \+inf"):
        ActiveSet().solve(SomeBits(3, 2).bind(scores.nan_to_num(torch.inf)))


def test_nothing_allowed() -> None:
    scores = (normal(2, 3), normal(2, 4))
    scores[1][1] = -torch.inf
    with pytest.raises(ValueError, match=r"row 1 forbids every assignment \(of 2\)"):
        ActiveSet().solve(bind(Pairs(3, 4), scores))


def test_arguments() -> None:
    with pytest.raises(ValueError, match="max_steps must be at least 1"):
        ActiveSet(max_steps=0)
    with pytest.raises(TypeError, match="max_steps must be an int"):
        ActiveSet(max_steps=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="chunk_size must be at least 1"):
        ActiveSet(chunk_size=0)
    with pytest.raises(ValueError, match="tolerance must be at least 0"):
        ActiveSet(tolerance=-1.0)
    with pytest.raises(ValueError, match="tolerance must be finite, got nan"):
        ActiveSet(tolerance=torch.nan)
    assert ActiveSet() == ActiveSet()


def test_the_reduced_inverse_is_a_block_of_the_bordered_one() -> None:
    vectors, weight = normal(2, 4, 6), normal(6, seed=1).square()
    is_active = torch.tensor([[True, True, True, True], [True, False, True, False]])
    tangent = kkt.Tangent.factor(kkt.lifted_gram(vectors, weight, is_active), is_active)
    for row in range(2):
        part = vectors[row][is_active[row]]
        bordered = torch.zeros(len(part) + 1, len(part) + 1, dtype=torch.float64)
        bordered[1:, 1:] = (part * weight) @ part.T
        bordered[0, 1:] = bordered[1:, 0] = 1
        expected = bordered.inverse()[1:, 1:]
        dense = torch.zeros(4, 4, dtype=torch.float64)
        dense[is_active[row].unsqueeze(-1) & is_active[row]] = expected.flatten()
        torch.testing.assert_close(tangent.inverse()[row], dense)
        gradient = normal(2, 4, seed=2)
        torch.testing.assert_close(tangent.solve(gradient)[row], dense @ gradient[row])


@pytest.mark.parametrize("n_columns", [3, 2**11])
def test_products_of_some_rows(n_columns: int) -> None:
    """Large matrices are processed one by one."""
    matrix, x, index = normal(4, 2**10, n_columns), normal(4, 2**10, seed=1), torch.tensor([3, 0, 1])
    found = kkt.multiply_transposed_rows(matrix, x, index)
    torch.testing.assert_close(found, torch.einsum("rsc,rs->rc", matrix[index], x[index]))
    assert kkt.multiply_transposed_rows(matrix, x, index[:0]).shape == (0, n_columns)


def test_independent_atoms() -> None:
    points = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [0.5, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]], dtype=torch.float64)
    is_active = torch.tensor([[True, True, True, True, True, True]])
    gram = kkt.lifted_gram(points, torch.ones(2, dtype=torch.float64), is_active)
    assert kkt.independent(gram, is_active).tolist() == [[True, True, False, False, True, False]]


CHUNKED: dict[str, tuple[AbstractStructure, Any]] = {
    "bits": (SomeBits(12, 5), normal(20, 12)),
    "pairs": (Pairs(3, 4), (normal(20, 3), normal(20, 4))),
    "rows of their own": (FirstBits(torch.arange(20) % 4 + 1), normal(20, 5)),
    "groups": (sp.Groups(3, 4), normal(20, 3, 4)),
    "tags and transitions": (
        sp.Sequence(4, 3).bind((normal(20, 4, 3), normal(20, 3, 3, 3))).structure,
        (normal(20, 4, 3), normal(20, 3, 3, 3)),
    ),
    "trees of different sizes": (sp.Tree(4, lengths=torch.arange(20) % 4 + 1), None),
}


@pytest.mark.parametrize("size", [1, 6, 19])
@pytest.mark.parametrize("name", CHUNKED)
def test_chunks_of_rows(name: str, size: int) -> None:
    structure, scores = CHUNKED[name]
    bound = bind(structure, scores) if scores is not None else structure.bind(normal(20, 4, 4))
    leaves = tuple(tensor.clone().requires_grad_() for tensor in bound.tensors)
    bound = dataclasses.replace(bound, tensors=leaves)
    whole, pieces = ActiveSet().solve(bound), ActiveSet(chunk_size=size).solve(bound)
    for field in ("atoms", "is_solved", "steps"):
        assert torch.equal(getattr(pieces, field), getattr(whole, field))
    assert torch.equal(pieces.segments.row, whole.segments.row)
    assert pieces.max_steps == whole.max_steps
    torch.testing.assert_close(pieces.probs, whole.probs, atol=1e-12, rtol=0)
    torch.testing.assert_close(pieces.gap, whole.gap, atol=1e-10, rtol=0)
    weight = torch.arange(len(whole.probs), dtype=torch.float64).cos()
    gradients = [torch.autograd.grad((each.probs * weight).sum(), leaves) for each in (pieces, whole)]
    for mine, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, wanted, atol=1e-9, rtol=0)


def test_chunks_start_from_given_atoms() -> None:
    structure, scores = SomeBits(12, 5), normal(20, 12)
    found = ActiveSet().solve(bind(structure, scores))
    for start in ((found.atoms, found.segments.row), torch.zeros(20, 1, 12, dtype=torch.float64)):
        whole, pieces = (ActiveSet(start=start, chunk_size=size).solve(bind(structure, scores)) for size in (None, 3))
        assert torch.equal(pieces.atoms, whole.atoms)
        assert torch.equal(pieces.steps, whole.steps)


def test_errors_name_the_rows_of_the_batch() -> None:
    scores = normal(9, 32)
    with pytest.raises(NotConverged) as caught:
        ActiveSet(max_steps=2, chunk_size=2).solve(SomeBits(32, 12).bind(scores))
    assert caught.value.rows == list(range(9))
    pair = (normal(9, 3), normal(9, 4))
    pair[1][7] = -torch.inf
    with pytest.raises(ValueError, match=r"row 7 forbids every assignment \(of 9\)"):
        ActiveSet(chunk_size=4).solve(bind(Pairs(3, 4), pair))
    scores[5, 1] = torch.nan
    with pytest.raises(ValueError, match=r"row 5 has a NaN \(of 9\)"):
        ActiveSet(chunk_size=2).solve(SomeBits(32, 12).bind(scores))


def lazily(monkeypatch: pytest.MonkeyPatch, scores: Any, structure: Any, **options: Any) -> tuple[Solution, Solution]:
    """Solutions without and with a look at the rows at each step, of which each is checked."""
    results = []
    for is_lazy in (True, False):
        monkeypatch.setattr(loop, "is_lazy", lambda atoms, is_lazy=is_lazy: is_lazy)
        results.append(ActiveSet(**options).solve(bind(structure, scores)))
    return results[0], results[1]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("kind", ["normal", "ties", "large"])
def test_lazy_steps_are_the_same(monkeypatch: pytest.MonkeyPatch, name: str, kind: str) -> None:
    structure = SMALL[name]
    scores = scores_for(structure, 20, 4.0 if kind == "large" else 1.0)
    if kind == "ties":
        scores = tuple(part.round() for part in scores) if isinstance(scores, tuple) else scores.round()
    lazy, eager = lazily(monkeypatch, scores, structure)
    check(lazy, structure, scores)
    assert torch.equal(lazy.atoms, eager.atoms)
    assert torch.equal(lazy.steps, eager.steps)
    torch.testing.assert_close(lazy.probs, eager.probs, atol=1e-9, rtol=0)


@pytest.mark.parametrize("most", [128, 64, 20])
def test_lazy_steps_over_many_bits(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    structure, scores = SomeBits(128, most), normal(8, 128)
    lazy, eager = lazily(monkeypatch, scores, structure)
    check(lazy, structure, scores)
    assert torch.equal(lazy.atoms, eager.atoms)
    assert torch.equal(lazy.steps, eager.steps)
    few, same = lazily(monkeypatch, scores, structure, max_steps=7, strict=False)
    assert torch.equal(few.atoms, same.atoms)
    assert few.outcome == same.outcome


@pytest.mark.parametrize("distance", [1e-3, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10, 0.0])
def test_lazy_steps_where_atoms_nearly_depend(monkeypatch: pytest.MonkeyPatch, distance: float) -> None:
    points = normal(6, 5)
    structure = Listed(torch.cat([points] + [points + distance * normal(6, 5, seed=seed) for seed in range(1, 7)]))
    scores = torch.cat([scale * normal(16, 5, seed=7) for scale in (0.3, 1.0, 3.0)])
    lazy, _ = lazily(monkeypatch, scores, structure)
    check(lazy, structure, scores)


def test_padded_sizes() -> None:
    structure, scores = SomeBits(12, 5), normal(6, 12).requires_grad_()
    plain = ActiveSet().solve(bind(structure, scores))
    n = len(plain.probs)

    def roomy(sizes: Tensor, most: int) -> list[int]:
        first, *others = sizes.tolist()
        assert first <= most
        return [first + 5, *others]

    with reading_sizes(roomy):
        padded = ActiveSet().solve(bind(structure, scores))
    assert len(padded.probs) == len(padded.atoms) == len(padded.segments.row) == n + 5
    assert torch.equal(padded.atoms[:n], plain.atoms)
    assert torch.equal(padded.segments.lengths, plain.segments.lengths)
    assert bool((padded.segments.row[n:] == 5).all())
    assert not padded.probs[n:].any()
    members = structure.members()
    assert all(bool((members == atom).all(-1).any()) for atom in padded.atoms[n:])
    gradients = [torch.autograd.grad(solution.probs.exp().sum(), scores)[0] for solution in (plain, padded)]
    torch.testing.assert_close(gradients[1], gradients[0])


def test_segments_cover_all_rows() -> None:
    solution = ActiveSet().solve(SomeBits(8, 4).bind(normal(5, 8)))
    assert torch.equal(Segments.from_row(solution.segments.row, 5).lengths, solution.segments.lengths)
