"""The bound of different samples: `distinct_bound` against sums by hand and a twin that goes sample by sample."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import sparsum as sp
from sparsum import estimators as se
from sparsum.estimators.bounds.distinct import is_first, log_inclusion
from sparsum.segments import Segments, reading_sizes
from sparsum.structures import AbstractStructure
from tests.estimators.test_bounds import LogJoint, problem
from tests.simplex.test_devices import every_device

INF = math.inf
STRUCTURES: list[AbstractStructure] = [
    sp.OneOf(5),
    sp.Bits(3),
    sp.Groups(2, 3),
    sp.Sequence(3, 2, has_transitions=False),
    sp.Enumerated(torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 2.0], [1.0, 1.0, 0.0], [0.5, 0.0, 0.0]])),
    sp.Tree(3),
]


def seeded(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def assignments(structure: AbstractStructure) -> Tensor:
    """All of them."""
    return structure.topk(torch.zeros(1, *structure.score_shape), 1000)[0]


def log_likelihoods(structure: AbstractStructure, log_joint: LogJoint, n_rows: int) -> Tensor:
    every = assignments(structure)
    return torch.stack([log_joint(every, torch.full((len(every),), i)).logsumexp(0) for i in range(n_rows)])


def twin(
    scores: Tensor, structure: AbstractStructure, log_joint: LogJoint, k: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, list[int]]:
    """The bound, the gradient in the scores and the calls of one row after the other, from one sample after the other."""
    latest = 2 * k + 32
    n = math.ceil(latest + 8 * math.sqrt(latest))
    q = sp.Gibbs(scores, structure)
    samples = q.sample((n,), generator=generator)
    waits = torch.empty(len(scores), n, dtype=torch.float64).exponential_(generator=generator)
    values, objective, calls = [], torch.zeros(()), []
    for i in range(len(scores)):
        found: list[Tensor] = []
        time, until = 0.0, float(latest)
        for sample, wait in zip(samples[:, i], waits[i].tolist(), strict=True):
            time += wait
            if any(torch.equal(sample, other) for other in found):
                continue
            if len(found) == k or time >= latest:
                until = min(time, until)
                break
            found.append(sample)
        atoms, row = torch.stack(found), torch.full((len(found),), i)
        log_q = q.log_prob_of(atoms, row)
        weights = log_joint(atoms, row).detach().exp() / (1 - (-until * log_q.detach().exp()).exp())
        values.append(weights.sum().log())
        objective = objective + (weights / weights.sum() * log_q).sum()
        calls.append(len(found))
    (gradient,) = torch.autograd.grad(objective, scores)
    return torch.stack(values), gradient, calls


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
@given(seed=st.integers(0, 10**6), k=st.integers(2, 3), scale=st.sampled_from([0.01, 1.0, 8.0]))
def test_the_bound_and_its_gradient_are_those_of_one_sample_after_the_other(
    structure: AbstractStructure, seed: int, k: int, scale: float
) -> None:
    scores, _, log_joint = problem(structure, 3, seed, scale)
    bound = se.distinct_bound(scores, structure, log_joint, k, generator=seeded(seed))
    value, gradient, calls = twin(scores, structure, log_joint, k, seeded(seed))
    assert bound.calls.tolist() == calls
    torch.testing.assert_close((bound.value, bound.surrogate.detach()), (value, value))
    torch.testing.assert_close(torch.autograd.grad(bound.surrogate.sum(), scores), (gradient,))


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_it_is_the_likelihood_on_average(structure: AbstractStructure, k: int) -> None:
    """So its logarithm is below the log-likelihood on average."""
    n = 4_000 if isinstance(structure, sp.Tree) else 20_000
    scores, _, log_joint = problem(structure, 1, seed=k, scale=0.5)
    many = scores.detach().expand(n, *structure.score_shape)
    bound = se.distinct_bound(many, structure, lambda z, row: log_joint(z, torch.zeros_like(row)), k, generator=seeded())
    (exact,) = log_likelihoods(structure, log_joint, 1).exp()
    likelihood = bound.value.exp()
    error = likelihood.std() / math.sqrt(n)
    assert abs(likelihood.mean() - exact) < 4.5 * error
    assert error < 0.1 * exact
    assert bound.value.mean() < exact.log()


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_all_assignments_are_summed_where_they_are_no_more_than_k(structure: AbstractStructure) -> None:
    """Then the scores follow the exact gradient of the cross-entropy towards the posterior, and nothing is random."""
    scores, _, log_joint = problem(structure, 2, seed=1)
    every = assignments(structure)
    bound = se.distinct_bound(scores, structure, log_joint, len(every) + 2)
    torch.testing.assert_close(bound.value, log_likelihoods(structure, log_joint, 2))
    assert bound.calls.tolist() == [len(every)] * 2
    q, expected = sp.Gibbs(scores, structure), torch.zeros(())
    for i in range(2):
        row = torch.full((len(every),), i)
        expected = expected + (log_joint(every, row).softmax(0) * q.log_prob_of(every, row)).sum()
    (found,) = torch.autograd.grad(bound.surrogate.sum(), scores)
    torch.testing.assert_close(found, torch.autograd.grad(expected, scores)[0])


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_the_gradient_of_the_model_is_that_of_the_bound(structure: AbstractStructure) -> None:
    scores, weights, log_joint = problem(structure, 2, seed=1)

    def value(weights: Tensor) -> Tensor:
        joint: LogJoint = lambda z, row: log_joint(z, row, weights)  # noqa: E731
        return se.distinct_bound(scores.detach(), structure, joint, 3, generator=seeded()).surrogate

    assert torch.autograd.gradcheck(value, (weights.requires_grad_(),))


def test_samples_differ_and_come_without_replacement() -> None:
    """The first two of three different samples: the chance of a pair is the sum over the orders in which it comes."""
    n, probs = 40_000, torch.tensor([0.5, 0.3, 0.2])
    seen: list[tuple[Tensor, Tensor]] = []

    def log_joint(z: Tensor, row: Tensor) -> Tensor:
        seen.append((z, row))
        return torch.zeros(len(z))

    bound = se.distinct_bound(probs.log().expand(n, 3), sp.OneOf(3), log_joint, 2, generator=seeded())
    assert (bound.calls == 2).all()
    (z, row) = seen[0]
    assert torch.equal(row, torch.arange(n).repeat_interleave(2))
    pairs = Counter(tuple(sorted(pair)) for pair in z.reshape(n, 2).tolist())
    for a, b in itertools.combinations(range(3), 2):
        p, r = probs[a].item(), probs[b].item()
        chance = p * r / (1 - p) + r * p / (1 - r)
        assert abs(pairs[a, b] / n - chance) < 4.5 * math.sqrt(chance * (1 - chance) / n)


def test_calls_are_as_few_as_what_is_likely() -> None:
    scores = torch.tensor([[30.0, -30.0, 30.0, 30.0, -30.0], [30.0, 0.0, 0.0, -30.0, 30.0], [0.0, 0.1, 0.2, 0.3, 0.4]])
    bound = se.distinct_bound(scores, sp.Bits(5), lambda z, row: -z.sum(-1), 8, generator=seeded())
    assert bound.calls.tolist() == [1, 4, 8]
    # What is sure to come is summed as it is.
    torch.testing.assert_close(bound.value[0], torch.tensor(-3.0))
    terms = torch.tensor([-2.0, -3.0, -3.0, -4.0])
    torch.testing.assert_close(bound.value[1], terms.logsumexp(0), rtol=1e-4, atol=0)


def test_next_to_nothing_does_not_underflow() -> None:
    """A sample of many bits has a probability that no float holds."""
    scores = torch.zeros(2, 5000, dtype=torch.float64, requires_grad=True)
    bound = se.distinct_bound(scores, sp.Bits(5000), lambda z, row: -z.sum(-1), 3, generator=seeded())
    likelihood = 5000 * math.log1p(math.exp(-1))
    assert bound.value.isfinite().all()
    assert (bound.value < likelihood).all()
    (gradient,) = torch.autograd.grad(bound.surrogate.sum(), scores)
    assert gradient.isfinite().all()
    log_probs = torch.tensor([-5000.0, -41.0, -39.0, -1.0, 0.0], dtype=torch.float64)
    found = log_inclusion(log_probs, torch.full((5,), math.log(2.0), dtype=torch.float64))
    expected = [-5000 + math.log(2), -41 + math.log(2), *(math.log(-math.expm1(-2 * math.exp(x))) for x in (-39, -1, 0))]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-15, atol=0)


@given(st.data())
def test_the_first_of_each_kind(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(0, 3), st.integers(1, 9)))
    length = data.draw(st.sampled_from([None, 1, 3]))
    whole = (*shape, *([] if length is None else [length]))
    size = math.prod(whole)
    atoms = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)), dtype=torch.int64)
    atoms = atoms.reshape(whole)
    found = is_first(atoms)
    expected = [[all(not torch.equal(atom, other) for other in row[:i]) for i, atom in enumerate(row)] for row in atoms]
    assert found.tolist() == expected


def test_shares_of_segments() -> None:
    segments = Segments.from_lengths(torch.tensor([2, 0, 3, 1]), 6)
    values = torch.tensor([-1e6, -1e6 + 1, 0.0, -INF, 1.0, -INF])
    expected = torch.cat([values[:2].softmax(0), values[2:5].softmax(0), torch.zeros(1)])
    torch.testing.assert_close(segments.softmax(values), expected)


def test_the_same_seed_gives_the_same() -> None:
    scores, _, log_joint = problem(sp.Bits(6), 3, seed=0)
    one, same, other = (se.distinct_bound(scores, sp.Bits(6), log_joint, 3, generator=seeded(s)).value for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_what_is_forbidden_does_not_come() -> None:
    """On average it is the sum over the rest; all of it is summed where the structure has no more than k in all."""
    n, scores = 20_000, torch.tensor([0.5, -INF, 1.0, -INF, -1.0], dtype=torch.float64)
    for k in (2, 4, 5):
        seen: list[Tensor] = []

        def log_joint(z: Tensor, row: Tensor, seen: list[Tensor] = seen) -> Tensor:
            seen.append(z)
            return -z.double()

        bound = se.distinct_bound(scores.expand(n, 5), sp.OneOf(5), log_joint, k, generator=seeded())
        assert seen[0].unique().tolist() == [0, 2, 4]
        likelihood, exact = bound.value.exp(), 1 + math.exp(-2) + math.exp(-4)
        if k == 5:
            torch.testing.assert_close(likelihood, torch.full_like(likelihood, exact))
            assert (bound.calls == 3).all()
        assert abs(likelihood.mean() - exact) <= 4.5 * likelihood.std() / math.sqrt(n) + 1e-12


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
@pytest.mark.parametrize("k", [2, 100])
def test_the_lowest_number_forbids_as_infinity_does(structure: AbstractStructure, k: int) -> None:
    """Masks are often made with it. It is so for samples, and where all is summed."""
    scores, _, log_joint = problem(structure, 2, seed=3)
    found = []
    for lowest in (-INF, torch.finfo(torch.float64).min):
        masked = scores.detach().clone()
        masked[1].view(-1)[-1] = lowest
        bound = se.distinct_bound(masked.requires_grad_(), structure, log_joint, k, generator=seeded())
        found.append((bound.value, bound.calls, torch.autograd.grad(bound.surrogate.sum(), masked)[0]))
    torch.testing.assert_close(found[0], found[1])
    assert found[1][0].isfinite().all()


def test_a_function_may_change_what_it_is_given() -> None:
    scores, _, log_joint = problem(sp.Bits(4), 3, seed=4)

    def changing(z: Tensor, row: Tensor) -> Tensor:
        values = log_joint(z, row).detach()
        z.zero_()
        row.zero_()
        return values

    for function in (
        lambda joint: se.topk_bound(scores, sp.Bits(4), joint, 3),
        lambda joint: se.distinct_bound(scores, sp.Bits(4), joint, 3, generator=seeded()),
    ):
        bounds = [function(joint) for joint in (changing, lambda z, row: log_joint(z, row).detach())]
        torch.testing.assert_close(bounds[0].value, bounds[1].value)
        torch.testing.assert_close(*(torch.autograd.grad(bound.surrogate.sum(), scores) for bound in bounds))


def test_padding_changes_nothing() -> None:
    scores, weights, log_joint = problem(sp.Bits(4), 5, seed=2, scale=3.0)
    weights.requires_grad_()

    def found() -> tuple[Tensor, ...]:
        bound = se.distinct_bound(scores, sp.Bits(4), log_joint, 6, generator=seeded())
        return bound.value, bound.calls, *torch.autograd.grad(bound.surrogate.sum(), (scores, weights))

    expected = found()
    with reading_sizes(lambda sizes, most: [most, *sizes.tolist()[1:]]):
        torch.testing.assert_close(found(), expected)


def test_rows_of_different_lengths() -> None:
    structure = sp.Sequence(4, 2, has_transitions=False, lengths=torch.tensor([1, 4]))
    scores = torch.zeros(2, 4, 2, requires_grad=True)
    bound = se.distinct_bound(scores, structure, lambda z, row: torch.zeros(len(z)), 9, generator=seeded())
    assert bound.calls.tolist() == [2, 9]
    torch.testing.assert_close(bound.value[0], torch.tensor(math.log(2)), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("k", [3, 8])
def test_low_precision(dtype: torch.dtype, k: int) -> None:
    scores = torch.tensor([[0.5, -0.25, 2.0]], dtype=dtype, requires_grad=True)
    bound = se.distinct_bound(scores, sp.Bits(3), lambda z, row: -z.to(dtype).sum(-1), k, generator=seeded())
    exact = scores.detach().double().requires_grad_()
    expected = se.distinct_bound(exact, sp.Bits(3), lambda z, row: -z.sum(-1), k, generator=seeded())
    assert bound.value.dtype == torch.float32
    torch.testing.assert_close(bound.value.double(), expected.value, rtol=1e-2, atol=0)
    bound.surrogate.sum().backward()
    assert scores.grad is not None
    assert scores.grad.dtype == dtype


@pytest.mark.parametrize("k", [2, 4])
def test_what_is_no_number_stays_in_its_row(k: int) -> None:
    scores = torch.zeros(3, 2, requires_grad=True)
    rest = torch.tensor([0.0, torch.nan, -INF])
    bound = se.distinct_bound(scores, sp.Bits(2), lambda z, row: z.sum(-1) + rest[row], k, generator=seeded())
    assert bound.value.isnan().tolist() == [False, True, False]
    assert bound.surrogate.isnan().tolist() == [False, True, False]
    assert bound.value[2] == -INF
    (gradient,) = torch.autograd.grad(bound.surrogate.sum(), scores)
    assert gradient.isnan().any(-1).tolist() == [False, True, False]
    assert gradient[2].eq(0).all(), "where no sample explains anything there is nothing to learn"


@pytest.mark.parametrize("k", [2**70, 10**400], ids=["more than 64 bits", "more than a float"])
def test_a_number_of_samples_that_no_machine_holds_means_all(k: int) -> None:
    scores = torch.zeros(2, 3)
    assert se.distinct_bound(scores, sp.Bits(3), lambda z, row: z.sum(-1), k).calls.tolist() == [8, 8]
    assert se.topk_bound(scores, sp.Bits(3), lambda z, row: z.sum(-1), k).calls.tolist() == [8, 8]


def test_what_does_not_fit_is_refused() -> None:
    scores, structure = torch.zeros(2, 3), sp.Bits(3)
    with pytest.raises(TypeError, match="k must be an int, got float"):
        se.distinct_bound(scores, structure, lambda z, row: z.sum(-1), 2.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k must be at least 2, got 1"):
        se.distinct_bound(scores, structure, lambda z, row: z.sum(-1), 1)
    with pytest.raises(TypeError, match="log_joint must be a function of assignments and their rows, got float"):
        se.distinct_bound(scores, structure, 0.5, 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Gibbs does not support Matching"):
        se.distinct_bound(scores.unsqueeze(1), sp.Matching(1, 3), lambda z, row: z.sum(-1).float(), 2)
    with pytest.raises(TypeError, match="structure must be an AbstractStructure such as"):
        se.distinct_bound(scores, 3, lambda z, row: z.sum(-1), 2)  # type: ignore[arg-type]
    for k in (2, 8):
        with pytest.raises(TypeError, match=r"generator must be a torch\.Generator or None, got int"):
            se.distinct_bound(scores, structure, lambda z, row: z.sum(-1), k, generator=0)  # type: ignore[arg-type]
    bad = torch.tensor([[0.0, torch.nan], [0.0, 0.0], [INF, 0.0]])
    for k in (2, 4):
        with pytest.raises(ValueError, match=r"row 0 has a NaN, row 2 has \+inf \(of 3\)"):
            se.distinct_bound(bad, sp.Bits(2), lambda z, row: z.sum(-1), k)
    for k in (2, 3):
        with pytest.raises(ValueError, match="row 0 forbids every assignment"):
            se.distinct_bound(torch.full((1, 3), -INF), sp.OneOf(3), lambda z, row: z.float(), k)


@every_device
def test_it_on_every_device(device: str) -> None:
    """On average, since devices have noise of their own."""
    scores, weights, log_joint = problem(sp.Bits(3), 1, seed=5)
    many = scores.detach().to(device).expand(4000, 3)
    joint: LogJoint = lambda z, row: log_joint(z, torch.zeros_like(row), weights.to(device))  # noqa: E731
    bound = se.distinct_bound(many, sp.Bits(3), joint, 3, generator=seeded(0, device))
    (exact,) = log_likelihoods(sp.Bits(3), log_joint, 1).exp()
    likelihood = bound.value.exp().cpu()
    assert abs(likelihood.mean() - exact) < 4.5 * likelihood.std() / math.sqrt(4000)
