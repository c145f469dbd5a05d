"""Objectives that bound a log-likelihood: `topk_bound` and `wake_wake` against sums by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import sparsum as sp
from sparsum import estimators as se
from sparsum.segments import reading_sizes
from sparsum.structures import AbstractStructure
from tests.simplex.test_devices import every_device

INF = math.inf
LogJoint = Callable[..., Tensor]
STRUCTURES: list[AbstractStructure] = [
    sp.OneOf(5),
    sp.Bits(3),
    sp.Budget(4, 2),
    sp.Subset(4, 2),
    sp.Groups(2, 3),
    sp.Enumerated(torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 2.0], [1.0, 1.0, 0.0], [0.5, 0.0, 0.0]])),
]


def problem(structure: AbstractStructure, n: int, seed: int, scale: float = 1.0) -> tuple[Tensor, Tensor, LogJoint]:
    """Scores, what the joint depends on, and log p(x, z) as a function of the vectors of assignments."""
    generator = torch.Generator().manual_seed(seed)
    shape = (n, *structure.score_shape)
    scores, weights = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(2))

    def log_joint(z: Tensor, row: Tensor, weights: Tensor = weights) -> Tensor:
        vectors = structure.vectors(z)
        assert isinstance(vectors, Tensor)
        values = (vectors.to(weights.dtype) * weights[row]).flatten(1)
        return values.sum(-1) - values.square().sum(-1)

    return (scale * scores).requires_grad_(), weights, log_joint


def twin(scores: Tensor, structure: AbstractStructure, log_joint: LogJoint, k: int) -> tuple[Tensor, Tensor]:
    """The bound and the gradient in the scores of one row after the other, by their definition."""
    values, gradients = [], []
    for i, row in enumerate(scores.detach()):
        atoms = structure.topk(row[None], k)[0]
        vectors = structure.vectors(atoms)
        assert isinstance(vectors, Tensor)
        terms = log_joint(atoms, torch.full((len(atoms),), i))
        lead = terms.softmax(0) - sp.sparsemax((vectors.to(row.dtype) * row).flatten(1).sum(-1))
        values.append(terms.exp().sum().log())
        gradients.append(torch.einsum("a,a...->...", lead, vectors.to(row.dtype)))
    return torch.stack(values), torch.stack(gradients)


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 12), scale=st.sampled_from([0.01, 1.0, 30.0]))
def test_the_bound_and_its_gradient_are_those_of_the_definition(
    structure: AbstractStructure, seed: int, k: int, scale: float
) -> None:
    scores, _, log_joint = problem(structure, 3, seed, scale)
    bound = se.topk_bound(scores, structure, log_joint, k)
    value, gradient = twin(scores, structure, log_joint, k)
    torch.testing.assert_close((bound.value, bound.surrogate.detach()), (value, value))
    torch.testing.assert_close(torch.autograd.grad(bound.surrogate.sum(), scores), (gradient,))


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_the_gradient_of_the_model_is_that_of_the_sum(structure: AbstractStructure) -> None:
    scores, weights, log_joint = problem(structure, 2, seed=1)

    def value(weights: Tensor) -> Tensor:
        return se.topk_bound(scores.detach(), structure, lambda z, row: log_joint(z, row, weights), 3).surrogate

    assert torch.autograd.gradcheck(value, (weights.requires_grad_(),))


@given(seed=st.integers(0, 10**6), scale=st.sampled_from([0.1, 1.0, 5.0]))
def test_it_lies_between_the_elbo_and_the_log_likelihood(seed: int, scale: float) -> None:
    """The more assignments, the tighter; all of them give the log-likelihood itself."""
    structure = sp.Bits(4)
    scores, _, log_joint = problem(structure, 4, seed, scale)
    every = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)))
    exact = torch.stack([log_joint(every, torch.full((16,), i)).logsumexp(0) for i in range(4)])
    bounds = torch.stack([se.topk_bound(scores, structure, log_joint, k).value for k in (1, 2, 5, 16, 40)])
    assert (bounds.diff(dim=0) > -1e-12).all()
    torch.testing.assert_close(bounds[-2:], exact.expand(2, 4))
    q = sp.topk_sparsemax(scores, structure, 5)
    assert (q.expect(log_joint) + q.entropy() <= bounds[2] + 1e-12).all()


@pytest.mark.parametrize("scale", [0.1, 5.0])
def test_what_it_lacks_is_the_posterior_of_the_other_assignments(scale: float) -> None:
    structure = sp.Bits(4)
    scores, _, log_joint = problem(structure, 4, 0, scale)
    every = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)))
    exact = torch.stack([log_joint(every, torch.full((16,), i)) for i in range(4)])
    chosen = (every.to(scores.dtype) @ scores.detach().T).topk(3, 0).indices.T  # shape: (4, 3)
    mass = exact.softmax(-1).gather(-1, chosen).sum(-1)
    bound = se.topk_bound(scores, structure, log_joint, 3)
    torch.testing.assert_close(exact.logsumexp(-1) - bound.value, -mass.log())


@given(seed=st.integers(0, 10**6), k=st.integers(1, 30))
def test_undecided_bits_cost_it_log_2_each(seed: int, k: int) -> None:
    """A uniform prior over n bits and probabilities of x that are at most 1: it is at most log k - n log 2."""
    scores = torch.randn(3, 100, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ceiling = math.log(k) - 100 * math.log(2)
    useless = se.topk_bound(scores, sp.Bits(100), lambda z, row: -100 * math.log(2) + 0 * z.sum(-1), k).value
    torch.testing.assert_close(useless, torch.full_like(useless, ceiling))  # where log p(x) is 0
    some = se.topk_bound(scores, sp.Bits(100), lambda z, row: -100 * math.log(2) - z.sum(-1), k).value
    assert bool((some <= ceiling).all())


def test_the_scores_follow_the_fenchel_young_loss_of_sparsemax() -> None:
    structure = sp.OneOf(6)
    scores, _, log_joint = problem(structure, 3, seed=0)
    (found,) = torch.autograd.grad(se.topk_bound(scores, structure, log_joint, 6).surrogate.sum(), scores)
    posterior = torch.stack([log_joint(torch.arange(6), torch.full((6,), i)).softmax(0) for i in range(3)])
    (expected,) = torch.autograd.grad(sp.sparsemax_loss(scores, posterior, reduction="sum"), scores)
    torch.testing.assert_close(found, -expected)


def test_scores_learn_what_explains_best() -> None:
    """Also where it is not among the first: assignments that are better bring their neighbours."""
    target = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    scores = torch.linspace(-1, 1, 8).neg().requires_grad_()  # shape: (n_bits,), wrong in bits 1 and 5
    optimiser, structure = torch.optim.SGD([scores], lr=0.3), sp.Bits(8)
    for _ in range(100):
        bound = se.topk_bound(scores, structure, lambda z, row: -3 * (z - target).abs().sum(-1), k=3)
        optimiser.zero_grad()
        (-bound.surrogate).backward()
        optimiser.step()
    assert torch.equal(structure.argmax(scores.detach()), target)


def test_rows_with_fewer_assignments_have_those() -> None:
    scores = torch.tensor([[1.0, 0.5, 0.0], [0.0, -INF, -INF], [0.3, -INF, 0.1]], requires_grad=True)
    seen: list[Tensor] = []

    def log_joint(z: Tensor, row: Tensor) -> Tensor:
        seen.append(torch.stack([row, z], -1))
        return -z.float()

    bound = se.topk_bound(scores, sp.OneOf(3), log_joint, 3)
    assert bound.calls.tolist() == [3, 1, 2]
    assert seen[0].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [2, 0], [2, 2]]
    terms = torch.tensor([0.0, -1.0, -2.0])
    torch.testing.assert_close(bound.value, torch.stack([terms.logsumexp(0), terms[0], terms[[0, 2]].logsumexp(0)]))
    (gradient,) = torch.autograd.grad(bound.surrogate.sum(), scores)
    assert gradient.isfinite().all()
    assert gradient[1].eq(0).all()


def test_padding_changes_nothing() -> None:
    scores, weights, log_joint = problem(sp.OneOf(4), 5, seed=2)
    with torch.no_grad():
        scores[1:3, 1:] = -INF
    weights.requires_grad_()

    def found() -> tuple[Tensor, ...]:
        bound = se.topk_bound(scores, sp.OneOf(4), log_joint, 3)
        return bound.value, bound.calls, *torch.autograd.grad(bound.surrogate.sum(), (scores, weights))

    expected = found()
    with reading_sizes(lambda sizes, most: [most, *sizes.tolist()[1:]]):
        torch.testing.assert_close(found(), expected)


def _seeded(scores: Tensor, structure: AbstractStructure, log_joint: LogJoint, k: int) -> se.Bound:
    return se.distinct_bound(scores, structure, log_joint, k, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("bound_of", [se.topk_bound, _seeded], ids=["topk_bound", "distinct_bound"])
def test_batches_of_any_shape(bound_of: Callable[..., se.Bound]) -> None:
    scores, _, log_joint = problem(sp.Bits(3), 6, seed=3)
    flat = bound_of(scores, sp.Bits(3), log_joint, 4)
    shaped = bound_of(scores.reshape(2, 3, 3), sp.Bits(3), log_joint, 4)
    torch.testing.assert_close(shaped.value, flat.value.reshape(2, 3))
    assert bound_of(scores[0], sp.Bits(3), log_joint, 4).surrogate.shape == ()
    empty = bound_of(torch.zeros(0, 3, requires_grad=True), sp.Bits(3), lambda z, row: z.sum(-1), 4)
    assert empty.value.shape == (0,)
    empty.surrogate.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision(dtype: torch.dtype) -> None:
    scores = torch.tensor([[0.5, -0.25, 2.0]], dtype=dtype, requires_grad=True)
    bound = se.topk_bound(scores, sp.Bits(3), lambda z, row: -z.to(dtype).sum(-1), 8)
    assert bound.value.dtype == torch.float32
    torch.testing.assert_close(bound.value, torch.tensor([3 * math.log1p(math.exp(-1))]), rtol=1e-2, atol=0)
    bound.surrogate.sum().backward()
    assert scores.grad is not None
    assert scores.grad.dtype == dtype


def test_what_is_no_number_stays_in_its_row() -> None:
    scores = torch.zeros(3, 2, requires_grad=True)
    rest = torch.tensor([0.0, torch.nan, -INF])
    bound = se.topk_bound(scores, sp.Bits(2), lambda z, row: z.sum(-1) + rest[row], 4)
    assert bound.value.isnan().tolist() == [False, True, False]
    (gradient,) = torch.autograd.grad(bound.surrogate.sum(), scores)
    assert gradient.isnan().any(-1).tolist() == [False, True, False]
    assert (gradient[2] < 0).all(), "what explains nothing should lose its score"
    assert bound.surrogate.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("bound_of", [se.topk_bound, se.distinct_bound])
def test_a_row_that_nothing_explains_teaches_the_model_nothing(bound_of: Callable[..., se.Bound]) -> None:
    """Its -inf is the logarithm of a sum of 0, whose gradient is infinite; that of the other row has to survive it."""
    weights, rest = torch.ones(2, requires_grad=True), torch.tensor([0.0, -INF])
    scores = torch.zeros(2, 2, requires_grad=True)
    bound = bound_of(scores, sp.Bits(2), lambda z, row: z @ weights + rest[row], 4)
    alone = bound_of(scores[:1], sp.Bits(2), lambda z, row: z @ weights, 4)
    assert bound.value.tolist() == [alone.value.item(), -INF]
    (found,) = torch.autograd.grad(bound.surrogate.sum(), weights)
    torch.testing.assert_close(found, torch.autograd.grad(alone.surrogate.sum(), weights)[0])


@pytest.mark.parametrize("level", [0.0, -1e3, -1e6, -1e30])
def test_large_numbers_leave_weights_that_sum_to_one(level: float) -> None:
    """In single precision: a bit that is the same in all of the best has no gradient, whatever the log-likelihood."""
    scores = torch.tensor([[0.2, -0.1, 3.0, 0.05]], requires_grad=True)
    table = torch.randn(16, generator=torch.Generator().manual_seed(0)) + level

    def log_joint(z: Tensor, row: Tensor) -> Tensor:
        return table[(z @ torch.tensor([1.0, 2.0, 4.0, 8.0])).long()]

    (gradient,) = torch.autograd.grad(se.topk_bound(scores, sp.Bits(4), log_joint, 8).surrogate.sum(), scores)
    exact = scores.detach().double().requires_grad_()
    bound = se.topk_bound(exact, sp.Bits(4), lambda z, row: log_joint(z.float(), row).double(), 8)
    torch.testing.assert_close(gradient.double(), torch.autograd.grad(bound.surrogate.sum(), exact)[0], rtol=0, atol=1e-6)
    assert gradient[0, 2].abs() < 1e-6


def test_what_does_not_fit_is_refused() -> None:
    scores, structure = torch.zeros(2, 3), sp.Bits(3)
    with pytest.raises(TypeError, match="k must be an int, got float"):
        se.topk_bound(scores, structure, lambda z, row: z.sum(-1), 2.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        se.topk_bound(scores, structure, lambda z, row: z.sum(-1), 0)
    with pytest.raises(TypeError, match="log_joint must be a function of assignments and their rows, got float"):
        se.topk_bound(scores, structure, 0.5, 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"log_joint must return one number per atom, shape \(4,\), got \(4, 3\)"):
        se.topk_bound(scores, structure, lambda z, row: z, 2)
    with pytest.raises(TypeError, match=r"log_joint must return a floating-point torch.Tensor, got torch.int64"):
        se.topk_bound(scores, structure, lambda z, row: row, 2)
    with pytest.raises(TypeError, match="structure must be an AbstractStructure such as"):
        se.topk_bound(scores, 3, lambda z, row: z.sum(-1), 2)  # type: ignore[arg-type]
    bad = torch.tensor([[0.0, torch.nan], [0.0, 0.0], [INF, 0.0]])
    with pytest.raises(ValueError, match=r"row 0 has a NaN, row 2 has \+inf \(of 3\)"):
        se.topk_bound(bad, sp.Bits(2), lambda z, row: z.sum(-1), 2)
    with pytest.raises(ValueError, match="row 0 forbids every assignment"):
        se.topk_bound(torch.full((1, 2), -INF), sp.OneOf(2), lambda z, row: z.float(), 2)


@every_device
def test_the_bound_on_every_device(device: str) -> None:
    scores, weights, log_joint = problem(sp.Bits(3), 4, seed=5)
    expected = se.topk_bound(scores, sp.Bits(3), log_joint, 2)
    there = scores.detach().to(device).requires_grad_()
    found = se.topk_bound(there, sp.Bits(3), lambda z, row: log_joint(z, row, weights.to(device)), 2)
    torch.testing.assert_close(found.value.cpu(), expected.value)
    gradients = (torch.autograd.grad(one.surrogate.sum(), s)[0].cpu() for one, s in ((found, there), (expected, scores)))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("n_samples", [2, 4])
def test_the_gradient_of_wake_wake_is_that_of_weighted_samples(n_samples: int) -> None:
    generator = torch.Generator().manual_seed(0)
    log_p, log_q = (torch.randn(n_samples, 3, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2))
    bound = se.wake_wake_from_weights(log_p - log_q, log_q)
    weights = (log_p - log_q).detach().exp()
    torch.testing.assert_close(bound.value, weights.mean(0).log())
    torch.testing.assert_close(bound.surrogate.detach(), bound.value)
    assert bound.calls.tolist() == [n_samples] * 3
    share = weights / weights.sum(0)
    torch.testing.assert_close(torch.autograd.grad(bound.surrogate.sum(), (log_p, log_q)), (share, share))


def test_wake_wake_with_weights_of_zero() -> None:
    log_p = torch.tensor([[0.0, -INF], [-INF, -INF]], requires_grad=True)
    log_q = torch.full((2, 2), -1.0, requires_grad=True)
    bound = se.wake_wake_from_weights(log_p - log_q, log_q)
    torch.testing.assert_close(bound.value, torch.tensor([1.0 - math.log(2), -INF]))
    (found,) = torch.autograd.grad(bound.surrogate[0], log_q)
    assert found.tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_wake_wake_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"same shape \(n_samples, \*batch\) with at least 2 samples, got"):
        se.wake_wake_from_weights(torch.zeros(1, 3), torch.zeros(1, 3))
    with pytest.raises(TypeError, match=r"log_weights must be a floating-point torch.Tensor, got list"):
        se.wake_wake_from_weights([0.0, 1.0], torch.zeros(2))  # type: ignore[arg-type]
