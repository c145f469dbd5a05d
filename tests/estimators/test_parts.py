"""What estimators are built of, each against a slow twin: distinct samples, weights, sums, noise, optima, state, bounds."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import ks_2samp
from torch import Tensor

import sparsum as sp
from sparsum import estimators as se
from sparsum.estimators import AbstractEstimator
from sparsum.estimators.control_variates import Coupled
from sparsum.estimators.distinct import sample_outside, sample_without_replacement
from sparsum.estimators.members import count_up_to
from sparsum.estimators.relaxations import logits_of
from sparsum.estimators.unordered_set import set_weights
from sparsum.gibbs.chain import Chain
from sparsum.structures.log_space import FORBIDDEN
from tests.estimators.test_identities import Toy, members_by_hand

# Weights of samples without replacement, against exact fractions summed over all orders.


def chance_of_set(probs: Sequence[Fraction], drawn: Fraction = Fraction(0)) -> Fraction:
    """The probability that these are the next samples without replacement, in any order, some being drawn already."""
    total = Fraction(0)
    for order in itertools.permutations(probs):
        chance, gone = Fraction(1), drawn
        for prob in order:
            chance, gone = chance * prob / (1 - gone), gone + prob
        total += chance
    return total


COUNTS = st.integers(1, 50) | st.just(10**30)


@given(drawn=st.lists(COUNTS, min_size=1, max_size=4), outside=COUNTS | st.just(0))
@example(drawn=[10**30, 10**30, 1, 2], outside=0)
@example(drawn=[10**30, 1, 2], outside=1)
def test_set_weights_sum_over_all_orders(drawn: list[int], outside: int) -> None:
    probs = [Fraction(count, sum(drawn) + outside) for count in drawn]
    logs = [math.log(prob.numerator) - math.log(prob.denominator) for prob in probs]
    (weights,), (others,) = set_weights(torch.tensor([logs], dtype=torch.float64))
    for s, prob in enumerate(probs):
        without = chance_of_set(probs[:s] + probs[s + 1 :], prob)
        assert weights[s].item() == pytest.approx(float(prob * without / chance_of_set(probs)), rel=1e-9, abs=1e-12)
        assert others[s, s].item() == pytest.approx(float(prob))
        for r in set(range(len(probs))) - {s}:
            left = [other for i, other in enumerate(probs) if i not in (s, r)]
            ratio = chance_of_set(left, prob + probs[r]) / without
            assert others[s, r].item() == pytest.approx(float(probs[r] * ratio), rel=1e-9, abs=1e-12)
        if not outside:  # the whole domain was drawn: the sum is exact
            assert weights[s].item() == pytest.approx(float(prob), rel=1e-9, abs=1e-12)


def test_set_weights_leave_forbidden_samples_out() -> None:
    logs = torch.tensor([[0.7, 0.3, 0.0, 0.0]], dtype=torch.float64).log()
    weights, others = set_weights(logs.clamp_min(FORBIDDEN))
    torch.testing.assert_close(weights, logs.exp())
    torch.testing.assert_close(others[0, :2], logs.exp().expand(2, 4))
    assert (others[0, :, 2:] == 0).all()
    assert others.isfinite().all()


@given(log_probs=st.lists(st.floats(-2000, -3), min_size=2, max_size=6))
@example(log_probs=[-1386.0] * 12)  # of a vector of 2000 bits, whose probability is no float64
def test_set_weights_sum_to_one_whatever_the_probabilities(log_probs: list[float]) -> None:
    weights, others = set_weights(torch.tensor([log_probs], dtype=torch.float64))
    torch.testing.assert_close(weights.sum(1), torch.ones(1, dtype=torch.float64))
    torch.testing.assert_close(others.sum(2), torch.ones(1, len(log_probs), dtype=torch.float64))


# Samples that differ, against the probabilities of all sets. In those named sure, two have all mass but 1e-9 or so.

INF = math.inf
CHAINS: dict[str, tuple[sp.AbstractStructure, list[Any]]] = {
    "one of": (sp.OneOf(5), [[0.3, -1.0, -INF, 1.2, 0.0]]),
    "one of, sure": (sp.OneOf(6), [[0.0, 22.0, 0.7, 21.5, -1.0, -INF]]),
    "bits": (sp.Bits(3), [[0.5, -1.3, 0.1]]),
    "bits, sure": (sp.Bits(4), [[23.0, 0.3, -22.0, -INF]]),
    "groups": (sp.Groups(2, 3), [[[0.0, 1.0, -0.4], [-INF, -1.0, 0.5]]]),
    "groups, sure": (sp.Groups(2, 3), [[[22.0, 21.0, -INF], [0.5, 23.0, 1.0]]]),
    "pairs": (sp.Sequence(3, 2), [[[0.4, -0.3], [0.1, 1.0], [0.0, -0.8]], [[[2.0, -1.0], [-INF, 1.5]]] * 2]),
    "pairs, sure": (sp.Sequence(3, 2), [[[0.4, -0.3]] * 3, [[[25.0, 0.0], [-1.0, 24.0]]] * 2]),
}
every_chain = pytest.mark.parametrize("name", CHAINS)


def chain_and_probs(name: str, n_rows: int) -> tuple[Chain, Tensor, Tensor]:
    """The chain of equal rows, all rows of choices, and their log-probabilities, by enumeration."""
    structure, parts = CHAINS[name]
    tensors = tuple(torch.tensor([part] * n_rows, dtype=torch.float64) for part in parts)
    potentials = structure.potentials(tensors if len(tensors) > 1 else tensors[0])
    unary, transition = potentials
    length, n_choices = unary.shape[1:]
    choices = torch.cartesian_prod(*[torch.arange(n_choices)] * length).reshape(-1, length)
    scores = unary[0, torch.arange(length), choices].sum(-1)
    if transition is not None:
        scores = scores + transition[0, torch.arange(length - 1), choices[:, :-1], choices[:, 1:]].sum(-1)
    return Chain.from_potentials(potentials), choices, scores.log_softmax(0)


def check_frequencies(drawn: Iterable[Hashable], probs: Mapping[Hashable, float]) -> None:
    """Everything is as frequent as it is probable, within 5 standard deviations, and never what has no probability."""
    counts = Counter(drawn)
    assert set(counts) <= {key for key, prob in probs.items() if prob > 0}
    assert sum(probs.values()) == pytest.approx(1)
    for key, prob in probs.items():
        mean = counts.total() * prob
        assert abs(counts[key] - mean) <= 5 * math.sqrt(mean * abs(1 - prob)) + 1, key


@every_chain
def test_sets_without_replacement_are_as_frequent_as_probable(name: str, generator: torch.Generator) -> None:
    chain, members, log_probs = chain_and_probs(name, 20_000)
    choices, found = sample_without_replacement(chain, 2, generator)
    index = (choices.unsqueeze(2) == members).all(-1).int().argmax(-1)
    torch.testing.assert_close(found, log_probs[index])
    rest = torch.stack([log_probs.index_fill(0, i, -INF).logsumexp(0) for i in torch.arange(len(log_probs))])  # without each
    chances: dict[Hashable, float] = {}
    for a, b in itertools.combinations(range(len(log_probs)), 2):
        both = log_probs[a] + log_probs[b]
        chances[frozenset((a, b))] = ((both - rest[a]).exp() + (both - rest[b]).exp()).item()
    check_frequencies(map(frozenset, index.tolist()), chances)  # of which none has a single member


@every_chain
def test_samples_outside_of_the_best_follow_what_is_left(name: str, generator: torch.Generator) -> None:
    chain, members, log_probs = chain_and_probs(name, 20_000)
    best = log_probs.topk(2).indices
    left = log_probs.index_fill(0, best, -INF)
    assert not name.endswith("sure") or left.logsumexp(0).exp() < 1e-8
    drawn = sample_outside(chain, members[best].expand(20_000, -1, -1), log_probs[best].expand(20_000, -1), generator)
    check_frequencies(
        map(tuple, drawn.tolist()), dict(zip(map(tuple, members.tolist()), left.softmax(0).tolist(), strict=True))
    )


@every_chain
def test_fewer_assignments_than_samples_are_all_drawn_forbidden_ones_last(name: str, generator: torch.Generator) -> None:
    chain, members, log_probs = chain_and_probs(name, 3)
    drawn, found = sample_without_replacement(chain, 100, generator)
    assert drawn.shape[1] == len(members) == count_up_to(CHAINS[name][0], 100)
    n_allowed = int((log_probs > -INF).sum())
    assert (found[:, n_allowed:] < FORBIDDEN / 2).all()
    torch.testing.assert_close(found[:, :n_allowed].exp().sum(1), torch.ones(3, dtype=torch.float64))
    assert all({tuple(z) for z in row} == {tuple(z) for z in members.tolist()} for row in drawn.tolist())


# Perturbed log-probabilities, and vectors that follow the distribution.


@pytest.mark.parametrize("name", ["one of", "bits", "groups"])
def test_perturbed_values_given_a_sample_are_as_those_that_decided_for_it(name: str, generator: torch.Generator) -> None:
    structure, (scores,) = CHAINS[name]
    rows = torch.tensor([scores] * 12_000, dtype=torch.float64)
    problem = se.Problem(structure.bind(rows), lambda z, row: z, None, generator, "test", True)
    free, conditional = Coupled.draw(problem, logits_of(problem)).perturbed.detach().unbind(1)
    decided, n_compared = free.argmax(-1), 0
    assert torch.equal(conditional.argmax(-1), decided)
    for chooser, choice, seen in itertools.product(range(free.shape[1]), range(free.shape[2]), range(free.shape[2])):
        is_seen = decided[:, chooser] == seen
        first, second = (values[is_seen, chooser, choice].numpy() for values in (free, conditional))
        if len(first) and first.max() > FORBIDDEN / 2:
            assert ks_2samp(first, second).pvalue > 1e-4, (chooser, choice, seen)
            n_compared += 1
    assert n_compared >= 8


@pytest.mark.parametrize("structure", [sp.OneOf(4), sp.Bits(3), sp.Groups(2, 3)], ids=str)
@pytest.mark.parametrize(
    "estimator", [se.GumbelSoftmax(1e-4), se.StraightThrough(), se.ReinMax(), se.Imle()], ids=lambda made: made._get_name()
)
def test_vectors_are_as_frequent_as_probable(estimator: AbstractEstimator, structure: sp.AbstractStructure) -> None:
    toy = Toy.draw(structure, 10_000, equal=True)
    toy.run(estimator)
    vectors = toy.seen[0]
    is_near = (vectors - vectors.round()).abs().amax(-1) <= (1e-6 if isinstance(estimator, se.GumbelSoftmax) else 0)
    assert is_near.double().mean() >= (0.99 if isinstance(estimator, se.GumbelSoftmax) else 1)
    chance, members = toy.terms()[0][0].softmax(0), toy.seen[-1].unflatten(0, (10_000, -1))[0]
    chances: dict[Hashable, float] = dict(zip(map(tuple, members.tolist()), chance.tolist(), strict=True))
    check_frequencies(map(tuple, vectors.round().tolist()), chances)


@pytest.mark.parametrize("structure", [sp.Matching(3), sp.Subset(5, 2), sp.Budget(4, 2), sp.Tree(3)], ids=str)
def test_dense_is_the_exact_sum_over_structures_without_independent_choices(structure: sp.AbstractStructure) -> None:
    toy = Toy.draw(structure, 3)
    estimate, gradients = toy.run(se.Dense())
    torch.testing.assert_close((estimate.value, gradients), toy.exact())
    count = len(members_by_hand(structure))
    assert estimate.calls.tolist() == [count] * 3
    with pytest.raises(ValueError, match=rf"Dense sums over all .* has about {count}, more than max_count={count - 1};"):
        toy.run(se.Dense(max_count=count - 1))


@pytest.mark.parametrize("kind", [sp.Matching, sp.Tree])
def test_dense_and_sparse_sum_over_the_assignments_of_each_length(kind: Callable[..., sp.AbstractStructure]) -> None:
    scores, lengths = Toy.draw(sp.Matching(3), 3).parts[0], torch.tensor([1, 2, 3])
    for estimator in (se.Dense(), se.Sparse()):
        whole = estimator(scores, kind(3, lengths=lengths), lambda z, row: z.sum(-1).double())
        for i, n in enumerate(lengths.tolist()):
            alone = estimator(scores[i, :n, :n], kind(n), lambda z, row: z.sum(-1).double())
            torch.testing.assert_close((whole.value[i], whole.calls[i]), (alone.value, alone.calls))


@pytest.mark.parametrize("chunk_size", [1, 3, 100])
@pytest.mark.parametrize("kind", [se.Dense, se.Sparse, se.SparseMAP, lambda **settings: se.TopK(3, **settings)])
def test_chunks_change_nothing_and_backward_sees_the_noise_of_forward(
    kind: Callable[..., AbstractEstimator], chunk_size: int
) -> None:
    toy = Toy.draw(sp.Groups(2, 3), 4)
    whole, chunked = toy.run(kind()), toy.run(kind(chunk_size=chunk_size))
    torch.testing.assert_close((chunked[0].value, chunked[1]), (whole[0].value, whole[1]))
    scale, generator = torch.ones(4, dtype=torch.float64, requires_grad=True), torch.Generator().manual_seed(0)

    def noisy(z: Tensor, row: Tensor) -> Tensor:
        return scale[row] * torch.rand(len(row), dtype=torch.float64, generator=generator)

    estimate = kind(chunk_size=chunk_size)(toy.parts[0], toy.structure, noisy, generator=generator)
    (gradient,) = torch.autograd.grad(estimate.surrogate.sum(), scale)
    torch.testing.assert_close(gradient, estimate.value)  # the loss is linear in its scale


OPTIMA = [sp.Matching(3), sp.Subset(4, 2), sp.Budget(4, 2), sp.Tree(3), sp.Sequence(3, 2), sp.Bits(3)]


@pytest.mark.parametrize(("structure", "pairs"), [*((s, False) for s in OPTIMA), (sp.Sequence(3, 2), True)], ids=str)
def test_imle_hands_out_members_and_descends_to_the_best(structure: sp.AbstractStructure, pairs: bool) -> None:
    toy = Toy.draw(structure, 4, pairs=pairs)
    toy.weights.detach()[:, 1] = 0.0
    _, losses = toy.terms()
    members, best = toy.seen[-1][: losses.shape[1]], losses.argmin(-1)
    for part in toy.parts:
        part.detach().zero_()
    for step in range(60):
        estimate, gradients = toy.run(se.Imle(10.0, samples=2), step)
        assert (toy.seen[0].unsqueeze(1) == members).all(-1).any(-1).all()
        for part, gradient in zip(toy.parts, gradients, strict=False):
            part.detach().sub_(10 * gradient)
    scores = tuple(toy.parts) if pairs else toy.parts[0]
    assert torch.equal(structure.argmax(scores).double(), members_by_hand(structure)[best].double())
    if isinstance(estimate.distribution, se.PerturbAndMap):
        drawn = estimate.distribution.sample((50,), generator=torch.Generator().manual_seed(0))
        is_member = (drawn.unsqueeze(2) == members_by_hand(structure)).flatten(3).all(-1).any(-1)
        assert is_member.tolist() == [[True] * 4] * 50
        with pytest.raises(NotImplementedError, match=r"entropy of optima .* is not known; use SparseMAP or TopK instead"):
            estimate.distribution.entropy()


def test_imle_leaves_padding_alone_and_takes_any_vectors(generator: torch.Generator) -> None:
    lengths = torch.tensor([3, 1, 2])
    is_padding = torch.arange(3) >= lengths.unsqueeze(1)
    seen: list[Tensor] = []

    def loss(z: Tensor, row: Tensor) -> Tensor:
        seen.append(z.detach())
        return (z * torch.arange(6.0).reshape(3, 2)).sum((-1, -2))

    scores = (torch.zeros(3, 3, 2, requires_grad=True), torch.zeros(3, 2, 2, 2, requires_grad=True))
    estimate = se.Imle(samples=50)(scores, sp.Sequence(3, 2, lengths=lengths), loss, generator=generator)
    unary, transition = torch.autograd.grad(estimate.surrogate.sum(), scores)
    assert torch.equal(seen[0].sum(-1).unflatten(0, (3, 50)), (~is_padding).float().unsqueeze(1).expand(3, 50, 3))
    assert (unary[is_padding] == 0).all()
    assert (transition[is_padding[:, 1:]] == 0).all()
    assert (unary[:, 0].abs().sum(-1) > 0).all()
    vectors = torch.tensor([[0.5, -1.0], [2.0, 0.0], [0.0, 0.0]])
    free = torch.zeros(50, 2, requires_grad=True)
    estimate = se.Imle()(free, sp.Enumerated(vectors), lambda z, row: (z - vectors[0]).square().sum(-1), generator=generator)
    assert set(estimate.value.tolist()) == {0.0, 3.25, 1.25}
    assert torch.autograd.grad(estimate.surrogate.sum(), free)[0].isfinite().all()


# State: baselines and temperatures.

NUMBERS = st.floats(-1e3, 1e3, width=32) | st.sampled_from([INF, -INF, math.nan])


@given(batches=st.lists(st.lists(NUMBERS, max_size=5), max_size=6), decay=st.sampled_from([None, 0.0, 0.5, 0.99]))
def test_a_running_mean_is_that_of_all_finite_losses(batches: list[list[float]], decay: float | None) -> None:
    baseline, wanted, count = se.RunningMean(decay), 0.0, 0
    for batch in batches:
        baseline.update(torch.tensor(batch).reshape(-1, 1))
        seen = [loss for loss in batch if math.isfinite(loss)]
        if seen:
            share = len(seen) / (count + len(seen)) if decay is None or not count else 1 - decay
            wanted, count = (1 - share) * wanted + share * sum(seen) / len(seen), count + len(seen)
    assert baseline.count == count
    assert baseline.mean.item() == pytest.approx(wanted, rel=1e-4, abs=1e-3)


def test_a_temperature_falls_by_steps_is_saved_moved_and_kept_in_evaluation() -> None:
    estimator, toy, seen = se.GumbelSoftmax(se.Anneal(0.1, every=3, minimum=0.3)), Toy.draw(sp.OneOf(3), 2), []
    for _ in range(20):
        seen.append(estimator.temperature().item())
        toy.run(estimator)
    assert seen == pytest.approx([max(0.3, math.exp(-0.1 * (step - step % 3))) for step in range(20)])
    estimator.eval()
    assert torch.equal(toy.run(estimator)[0].value, toy.run(estimator)[0].value)
    restored = se.GumbelSoftmax(se.Anneal(0.1, every=3, minimum=0.3))
    restored.load_state_dict(estimator.state_dict())
    assert restored.temperature.step == 20
    assert restored.to(torch.float16).temperature.step.dtype == torch.int64
    assert restored.to("meta").temperature().device.type == "meta"


@pytest.mark.parametrize("rate", [2e3, 3.5e38, 1e300])
def test_a_temperature_that_falls_at_once_is_a_number(rate: float) -> None:
    temperature = se.Anneal(rate, every=2)
    seen = []
    for _ in range(4):
        seen.append(temperature().item())
        temperature.advance()
    assert seen == [1.0, 1.0, 0.5, 0.5]


# The multi-sample bound, against sums over all tuples of samples.


@pytest.mark.parametrize("n_samples", [2, 3])
def test_the_mean_gradient_of_vimco_is_that_of_the_mean_bound(n_samples: int, generator: torch.Generator) -> None:
    scores, joint = (torch.randn(3, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2))
    log_q = scores.log_softmax(0)
    samples = torch.cartesian_prod(*[torch.arange(3)] * n_samples).T  # one tuple for each batch element
    bound = se.vimco_from_weights(joint[samples] - log_q[samples], log_q[samples])
    by_hand = ((joint[samples] - log_q[samples]).exp().mean(0)).log()
    torch.testing.assert_close((bound.value, bound.surrogate), (by_hand.detach(), by_hand))
    chance = log_q[samples].sum(0).exp()
    found = torch.autograd.grad((chance.detach() * bound.surrogate).sum(), (scores, joint), retain_graph=True)
    torch.testing.assert_close(found, torch.autograd.grad((chance * by_hand).sum(), (scores, joint)))
    weights, probs = torch.tensor([1.0, 2.0, 4.0, 8.0][: n_samples + 1]), torch.zeros(n_samples + 1, requires_grad=True)
    (signal,) = torch.autograd.grad(se.vimco_from_weights(weights.log(), probs).surrogate, probs)
    for s in range(n_samples + 1):
        others = torch.cat([weights[:s], weights[s + 1 :]])
        mean = others.prod() ** (1 / n_samples)  # the geometric one
        torch.testing.assert_close(signal[s], weights.mean().log() - torch.cat([others, mean[None]]).mean().log())


def test_vimco_with_a_weight_of_zero_has_the_bound_of_the_others() -> None:
    log_weights = torch.tensor([[0.3, 1.0], [-INF, 0.0], [0.1, -INF]])
    torch.testing.assert_close(se.vimco_from_weights(log_weights, torch.zeros(3, 2)).value, log_weights.exp().mean(0).log())


def test_vimco_refuses_what_does_not_fit() -> None:
    two = torch.zeros(2, 4)
    for first, second in ((two, two[:, :3]), (two[:1], two[:1]), (two[0, 0], two[0, 0])):
        with pytest.raises(ValueError, match=r"same shape \(n_samples, \*batch\) with at least 2 samples, got"):
            se.vimco_from_weights(first, second)
    with pytest.raises(TypeError, match=r"log_probs must be a floating-point torch.Tensor, got torch.int64"):
        se.vimco_from_weights(two, two.long())
