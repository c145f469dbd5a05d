"""Estimators against sums over all assignments, formulas by hand, and exact means over all that may be drawn."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import one_hot

import sparsum as sp
from sparsum import estimators as se
from sparsum.estimators import AbstractEstimator, Estimate
from tests.estimators.test_conformance import CASES, CONTEXT
from tests.reference import sparsemax_by_sorting

every_case = pytest.mark.parametrize("name", CASES)


def members_by_hand(structure: sp.AbstractStructure) -> Tensor:
    """All assignments, from the definition of the structure: (count, *event_shape)."""
    if isinstance(structure, sp.OneOf):
        return torch.arange(structure.n)
    if isinstance(structure, sp.Bits | sp.Subset | sp.Budget):
        bits = torch.tensor(list(itertools.product([0.0, 1.0], repeat=structure.n)), dtype=torch.float64)
        least, most = getattr(structure, "k", 0), getattr(structure, "k", getattr(structure, "most", structure.n))
        return bits[(bits.sum(1) >= least) & (bits.sum(1) <= most)]
    n_positions, n_choices = structure.score_shape
    choices = list(itertools.product(range(n_choices), repeat=n_positions))
    if isinstance(structure, sp.Matching):
        choices = list(itertools.permutations(range(n_choices), n_positions))
    return torch.tensor([z for z in choices if not isinstance(structure, sp.Tree) or is_tree(z)])


def is_tree(heads: tuple[int, ...]) -> bool:
    """Whether every word gets to the root, where a word is its own head."""
    ends = list(range(len(heads)))
    for _ in heads:
        ends = [heads[end] for end in ends]
    return all(heads[end] == end for end in ends)


@dataclass
class Toy:
    """Random scores, a loss with weights of its own for each row, and what the loss saw."""

    structure: sp.AbstractStructure
    parts: list[Tensor]  # scores of shape (n_rows, *score_shape), and perhaps of transitions
    weights: Tensor  # shape: (n_rows, 2, n_parts)
    seen: list[Tensor] = field(default_factory=list)

    @classmethod
    def draw(
        cls, structure: sp.AbstractStructure, n: int, seed: int = 0, *, pairs: bool = False, equal: bool = False
    ) -> Toy:
        generator, shape = torch.Generator().manual_seed(seed), structure.score_shape
        shapes = [(2, torch.Size(shape).numel()), shape, *([(shape[0] - 1, shape[-1], shape[-1])] if pairs else [])]
        drawn = [torch.randn(1 if equal else n, *size, dtype=torch.float64, generator=generator) for size in shapes]
        weights, *parts = (tensor.expand(n, *tensor.shape[1:]).clone().requires_grad_() for tensor in drawn)
        return cls(structure, parts, weights)

    def loss(self, z: Tensor, row: Tensor) -> Tensor:
        """A quadratic loss of atoms or vectors."""
        vectors = (z if z.is_floating_point() else one_hot(z, self.structure.score_shape[-1])).double().flatten(1)
        self.seen.append(vectors.detach())
        linear, squared = (vectors.unsqueeze(1) * self.weights[row]).sum(-1).unbind(1)
        return 1 + linear + squared.square()

    def run(self, estimator: AbstractEstimator, seed: int = 0, **others: Any) -> tuple[Estimate, list[Tensor]]:
        """An estimate, and the gradients of the sum of its surrogates in scores and weights."""
        self.seen.clear()
        others = {"context": torch.ones(len(self.weights), CONTEXT), "loss": self.loss} | others
        scores = self.parts[0] if len(self.parts) == 1 else tuple(self.parts)
        estimate = estimator(scores, self.structure, generator=torch.Generator().manual_seed(seed), **others)
        leaves = [*self.parts, self.weights]
        return estimate, list(torch.autograd.grad(estimate.surrogate.sum(), leaves, retain_graph=True))

    def terms(self) -> tuple[Tensor, Tensor]:
        """The scores and the losses of all assignments: (n_rows, count) each."""
        z, n_rows = members_by_hand(self.structure), len(self.weights)
        losses = self.loss(z.repeat(n_rows, *[1] * (z.ndim - 1)), torch.arange(n_rows).repeat_interleave(len(z)))
        vectors = self.seen[-1][: len(z)]
        scores = torch.where(vectors > 0, self.parts[0].flatten(1).unsqueeze(1), 0.0).sum(-1)
        for transition in self.parts[1:]:
            scores = scores + transition[:, torch.arange(transition.shape[1]), z[:, :-1], z[:, 1:]].sum(-1)
        return scores, losses.reshape(n_rows, len(z))

    def exact(self) -> tuple[Tensor, list[Tensor]]:
        """The expected loss of each row, and the gradients of their sum."""
        scores, losses = self.terms()
        value = (scores.softmax(-1) * losses).sum(-1)
        return value.detach(), list(torch.autograd.grad(value.sum(), [*self.parts, self.weights]))


def make(name: str, structure: sp.AbstractStructure) -> AbstractEstimator:
    case = CASES[name]
    return copy.deepcopy(case) if isinstance(case, AbstractEstimator) else case(structure)


# What holds for all.

STRUCTURES = [sp.OneOf(5), sp.Bits(4), sp.Groups(2, 3), sp.Sequence(3, 2)]
BANNED = [[1, 3], [0, 2], [1, 3, 5], [2]]  # flattened parts; one group and one position are left a single choice
SINGLE = [sp.OneOf(1), sp.Groups(2, 1), sp.Sequence(2, 1), sp.Bits(2)]


@every_case
def test_forbidden_parts_are_never_seen_and_get_no_gradient(name: str) -> None:
    n_checked = 0
    for structure, banned in zip(STRUCTURES, BANNED, strict=True):
        estimator, toy = make(name, structure), Toy.draw(structure, 60)
        if not estimator.needs.is_met(structure):
            continue
        toy.parts[0].detach().flatten(1)[:, banned] = -torch.inf
        for seed in range(2):  # the second with a baseline
            estimate, gradients = toy.run(estimator, seed)
            assert (torch.cat(toy.seen)[:, banned] == 0).all()
            assert (gradients[0].flatten(1)[:, banned] == 0).all()
            assert all(tensor.isfinite().all() for tensor in [estimate.value, estimate.surrogate, *gradients])
        assert estimate.distribution.entropy().isfinite().all()
        n_checked += 1
    assert n_checked >= 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("loss_dtype", [torch.float16, torch.float32], ids=str)
@every_case
def test_scores_and_losses_may_have_different_precisions(name: str, dtype: torch.dtype, loss_dtype: torch.dtype) -> None:
    for structure in STRUCTURES:
        estimator, toy = make(name, structure), Toy.draw(structure, 20)
        if not estimator.needs.is_met(structure):
            continue
        toy.parts = [(4 * toy.parts[0].detach()).to(dtype).requires_grad_()]
        for _ in range(2):
            estimate, gradients = toy.run(estimator, loss=lambda z, row: toy.loss(z, row).to(loss_dtype))  # noqa: B023
            assert gradients[0].dtype == dtype
            assert all(tensor.isfinite().all() for tensor in [estimate.value, estimate.surrogate, *gradients])


@pytest.mark.parametrize("shape", [(2, 3), ()])
@every_case
def test_a_batch_of_any_shape_is_its_flattened_rows(name: str, shape: tuple[int, ...]) -> None:
    structure, n = sp.Bits(3), torch.Size(shape).numel()
    toy, estimator, found = Toy.draw(structure, n), make(name, structure).eval(), []
    for batch_shape in (shape, (n,)):
        scores, context = toy.parts[0].reshape(*batch_shape, 3), torch.linspace(0, 1, n * CONTEXT).reshape(*batch_shape, -1)
        generator = torch.Generator().manual_seed(0)
        estimate = estimator(scores, structure, toy.loss, context=context, generator=generator)
        (gradient,) = torch.autograd.grad(estimate.surrogate.sum(), toy.parts)
        assert estimate.value.shape == batch_shape
        found.append((estimate.value.reshape(n), estimate.calls.reshape(n), gradient))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("structure", SINGLE, ids=str)
@every_case
def test_a_single_assignment_leaves_nothing_to_learn_but_the_loss(name: str, structure: sp.AbstractStructure) -> None:
    estimator, toy = make(name, structure), Toy.draw(structure, 5)
    if estimator.needs.is_met(structure):
        if isinstance(structure, sp.Bits):
            toy.parts[0].detach().fill_(-torch.inf)
        for seed in range(2):
            estimate, gradients = toy.run(estimator, seed)
            value, wanted = toy.exact()
            torch.testing.assert_close(estimate.value, value)
            torch.testing.assert_close(gradients, [torch.zeros_like(toy.parts[0]), wanted[1]])


# Exact sums.


@pytest.mark.parametrize(
    "estimator",
    [se.Dense(), se.Dense(chunk_size=3), se.UnorderedSet(8), se.SumAndSample(8), se.SumAndSample(7)],
    ids=["dense", "chunks", "unordered set", "sum", "sum and the only other"],
)
@pytest.mark.parametrize("structure", [sp.OneOf(8), sp.OneOf(6), sp.Bits(3), sp.Groups(3, 2), sp.Sequence(3, 2)], ids=str)
def test_what_covers_all_assignments_is_the_exact_sum(estimator: AbstractEstimator, structure: sp.AbstractStructure) -> None:
    estimator, toy = copy.deepcopy(estimator), Toy.draw(structure, 3, pairs=isinstance(structure, sp.Sequence))
    for _ in range(2):  # the second with a baseline
        estimate, gradients = toy.run(estimator)
        torch.testing.assert_close((estimate.value, gradients), toy.exact())


def test_sparse_is_sparsemax_over_all_bit_vectors() -> None:
    toy = Toy.draw(sp.Bits(3), 4)
    scores, losses = (tensor.detach() for tensor in toy.terms())
    probs = torch.stack([sparsemax_by_sorting(row) for row in scores])
    estimate, gradients = toy.run(se.Sparse())
    torch.testing.assert_close(estimate.value, (probs * losses).sum(-1))
    assert torch.equal(estimate.calls, (probs > 0).sum(-1))
    # The derivative of sparsemax centres what it is given over the support.
    support = (probs > 0).double()
    centred = support * (losses - (support * losses).sum(-1, keepdim=True) / support.sum(-1, keepdim=True))
    torch.testing.assert_close(gradients[0], centred @ members_by_hand(sp.Bits(3)))


# Formulas by hand: the gradient of log p(z) for one of several categories is z - p.


def by_hand(toy: Toy, z: Tensor, signal: Tensor) -> list[Tensor]:
    """The gradients of sampled vectors z with signals, in scores and weights."""
    score = (signal.unsqueeze(-1) * (z - toy.parts[0].detach().softmax(-1).unsqueeze(1))).mean(1)
    losses = losses_of(toy, z).mean(1)
    return [score, *torch.autograd.grad(losses.sum(), toy.weights)]


def losses_of(toy: Toy, z: Tensor) -> Tensor:
    n_rows, n_each = z.shape[:2]
    return toy.loss(z.flatten(0, 1), torch.arange(n_rows).repeat_interleave(n_each)).reshape(n_rows, n_each)


@pytest.mark.parametrize("decay", [None, 0.7])
def test_score_function_by_hand(decay: float | None) -> None:
    toy, estimator, baseline = Toy.draw(sp.OneOf(3), 30), se.ScoreFunction(2, decay=decay), 0.0
    for step in range(3):
        _, gradients = toy.run(estimator, step)
        z = toy.seen[0].reshape(30, 2, 3)
        losses = losses_of(toy, z).detach()
        torch.testing.assert_close(gradients, by_hand(toy, z, losses - baseline), rtol=1e-6, atol=1e-6)
        share = 1 / (step + 1) if decay is None or step == 0 else 1 - decay
        baseline += share * (losses.mean().item() - baseline)


def test_leave_one_out_and_self_critic_by_hand() -> None:
    toy = Toy.draw(sp.OneOf(3), 30)
    _, gradients = toy.run(se.LeaveOneOut(2))
    z = toy.seen[0].reshape(30, 2, 3)
    losses = losses_of(toy, z).detach()
    torch.testing.assert_close(gradients, by_hand(toy, z, losses - losses.flip(1)))
    for estimator in (se.SelfCritic(), se.SelfCritic(greedy=True)):
        estimate, gradients = toy.run(estimator)
        z, second = (seen.unsqueeze(1) for seen in toy.seen)
        assert torch.equal(second.argmax(-1).squeeze(1), toy.parts[0].argmax(-1)) == estimator.greedy
        losses = losses_of(toy, z).detach()
        torch.testing.assert_close(gradients, by_hand(toy, z, losses - losses_of(toy, second).detach()))
        torch.testing.assert_close(estimate.value, losses.squeeze(1))


@pytest.mark.parametrize("normalise", [False, True])
def test_nvil_by_hand(normalise: bool) -> None:
    toy, network = Toy.draw(sp.OneOf(3), 30), torch.nn.Linear(CONTEXT, 1, dtype=torch.float64)
    toy.weights.detach().mul_(3)  # so that standard deviations are more than 1
    estimator = se.NVIL(network=network, normalise=normalise)
    context = torch.rand(30, CONTEXT, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    centre, square = 0.0, 0.0
    for step in range(4):
        estimate, gradients = toy.run(estimator, step, context=context)
        z = toy.seen[0].unsqueeze(1)
        left = losses_of(toy, z).detach() - network(context)
        signal = (left - centre) / max(1.0, square**0.5)
        torch.testing.assert_close(gradients, by_hand(toy, z, signal.detach()), rtol=1e-5, atol=1e-5)
        leaves = [*network.parameters(), context]
        learned = torch.autograd.grad(estimate.surrogate.sum(), leaves, materialize_grads=True)
        wanted = [*torch.autograd.grad(signal.square().sum(), leaves[:2]), torch.zeros_like(context)]
        torch.testing.assert_close(list(learned), wanted, rtol=1e-5, atol=1e-5)
        if normalise:
            share = 1.0 if step == 0 else 0.2
            square += share * ((left - centre).square().mean().item() - square)
            centre += share * (left.mean().item() - centre)
    assert estimator.is_unbiased != normalise == (square > 1)


# Means over everything that may be drawn, one possibility for each of many equal rows.


def check_mean(toy: Toy, estimator: AbstractEstimator, chance: Tensor) -> None:
    estimate, gradients = toy.run(estimator)
    value, wanted = toy.exact()
    torch.testing.assert_close((chance * estimate.value).sum(), value[0])
    for found, truth in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(torch.tensordot(chance, found, 1), truth[0], rtol=1e-6, atol=1e-9)


def test_sum_and_sample_is_exact_over_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    toy, estimator = Toy.draw(sp.OneOf(5), 3, equal=True), se.SumAndSample(2)
    assert estimator.baseline is not None
    estimator.baseline.mean.fill_(3.0)
    order = toy.parts[0][0].argsort()
    monkeypatch.setattr("sparsum.estimators.sum_and_sample.sample_outside", lambda *_: order[:3, None])
    check_mean(toy, estimator, toy.parts[0][0, order[:3]].detach().softmax(0))


def test_unordered_set_is_exact_over_all_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    toy, pairs = Toy.draw(sp.OneOf(4), 6, equal=True), torch.combinations(torch.arange(4))
    log_probs = toy.parts[0][0].detach().log_softmax(0)[pairs]
    name = "sparsum.estimators.unordered_set.sample_without_replacement"
    monkeypatch.setattr(name, lambda *_: (pairs.unsqueeze(-1), log_probs))
    probs = log_probs.exp()
    check_mean(toy, se.UnorderedSet(2), probs.prod(1) * (1 / (1 - probs)).sum(1))


@pytest.mark.parametrize("structure", [sp.OneOf(4), sp.Groups(2, 3), sp.Bits(3)], ids=str)
def test_reinmax_is_exact_for_a_quadratic_loss(structure: sp.AbstractStructure, monkeypatch: pytest.MonkeyPatch) -> None:
    z = members_by_hand(structure)
    choices = z.reshape(len(z), -1).long()
    toy = Toy.draw(structure, len(z), equal=True)
    chance = toy.terms()[0][0].detach().softmax(0)
    monkeypatch.setattr("sparsum.estimators.relaxations.gumbel", lambda shape, *_: 99 * one_hot(choices, shape[-1])[:, None])
    check_mean(toy, se.ReinMax(), chance)


@settings(max_examples=20)
@given(seed=st.integers(0, 999), probs=st.lists(st.integers(1, 19), min_size=2, max_size=2))
def test_antithetic_pairs_are_exact_over_all_noise_and_disarm_varies_less(seed: int, probs: list[int]) -> None:
    # With probabilities that are multiples of 1 / 20, the midpoint rule integrates piecewise linear functions exactly.
    middle = (torch.arange(20, dtype=torch.float64) + 0.5) / 20
    grid, spreads = torch.cartesian_prod(middle, middle), []
    toy = Toy.draw(sp.Bits(2), 400, seed, equal=True)
    toy.parts = [(torch.tensor(probs, dtype=torch.float64) / 20).logit().repeat(400, 1).requires_grad_()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand", lambda *_, **__: grid)
        for estimator in (se.Disarm(), se.Arm()):
            check_mean(toy, estimator, torch.full((400,), 1 / 400, dtype=torch.float64))
            spreads.append(toy.run(estimator)[1][0].var(0))
    assert (spreads[0] <= spreads[1] + 1e-12).all()


# Variances.


def spread(estimator: AbstractEstimator, toy: Toy) -> float:
    return toy.run(estimator)[1][0].var(0).sum().item()


def test_a_relaxed_loss_that_is_near_the_loss_lowers_the_variance() -> None:
    toy = Toy.draw(sp.Bits(20), 4000, equal=True)
    toy.weights.detach()[:, 1] = 0.0  # linear
    assert 3 * spread(se.Rebar(0.5), toy) < spread(se.ScoreFunction(baseline=False), toy)


def test_training_lowers_the_variance_of_relax() -> None:
    toy, estimator = Toy.draw(sp.OneOf(3), 4000, equal=True), se.Relax(3, CONTEXT, hidden=(16,))
    small, before = Toy.draw(sp.OneOf(3), 100, equal=True), spread(estimator, toy)
    optimiser = torch.optim.Adam(estimator.parameters(), lr=0.02)
    for step in range(150):
        estimate, _ = small.run(estimator, step)
        optimiser.zero_grad()
        estimate.surrogate.mean().backward()
        optimiser.step()
    assert 2 * spread(estimator, toy) < before
