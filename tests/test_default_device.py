"""Everything stays on the device of its arguments, whatever torch's default device is.

The meta device stands for another one: what is created there by mistake has no values, and does not mix with the CPU's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Independent, kl_divergence

import sparsum as sp

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
TARGET, MASK = X.argmin(-1), X.amax(-1, keepdim=True) > X
ROWS = torch.rand(3, generator=torch.Generator().manual_seed(0)) + 1
Q = sp.sparsemap(X, sp.OneOf(4))
BITS = sp.sparsemap(X, sp.Bits(4))
GROUPS = sp.sparsemap(X.reshape(3, 2, 2), sp.Groups(2, 2))
PAIRS = sp.topk_sparsemax((X.reshape(3, 2, 2), X.reshape(3, 1, 2, 2)), sp.Sequence(2, 2), 3)
EMBEDDED = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0))
PRIOR = Categorical(logits=X)
BIT_PRIOR, GROUP_PRIOR = Independent(Bernoulli(logits=X), 1), Independent(Categorical(logits=X.reshape(3, 2, 2)), 1)
UNIFORM = sp.UniformOver(sp.Bits(4))

CALLS: dict[str, Callable[[], Any]] = {
    "sparsemax": lambda: sp.sparsemax(X),
    "sparsemax, k": lambda: sp.sparsemax(X, 0, k=2, mask=MASK),
    "sparsemax, half": lambda: sp.sparsemax(X.half(), temperature=0.5),
    "entmax15": lambda: sp.entmax15(X, mask=MASK, temperature=ROWS),
    "entmax": lambda: sp.entmax(X, 1.3),
    "entmax, rows": lambda: sp.entmax(X, ROWS, temperature=ROWS),
    "sparsemax_loss": lambda: sp.sparsemax_loss(X, TARGET, mask=MASK),
    "entmax15_loss": lambda: sp.entmax15_loss(X, sp.sparsemax(X)),
    "entmax_loss": lambda: sp.entmax_loss(X, TARGET, ROWS, reduction="none"),
    "embed": lambda: sp.embed(TARGET, EMBEDDED[:, 0]),
    "embed, groups": lambda: sp.embed(torch.zeros_like(X).long(), EMBEDDED),
    "sparsemap": lambda: sp.sparsemap(X, sp.OneOf(4)),
    "from_dense": lambda: sp.SparseDistribution.from_dense(sp.sparsemax(X)),
    "distribution": lambda: sp.SparseDistribution(Q.atoms, Q.probs, Q.row),
    "expect": lambda: Q.expect(lambda z, row: z.float() + row),
    "expect, chunks": lambda: Q.expect(lambda z: z.float(), chunk_size=2),
    "log_prob": lambda: Q.log_prob(TARGET),
    "entropy": lambda: Q.entropy(),
    "mean": lambda: [Q.mean, BITS.mean, GROUPS.mean, *PAIRS.mean],
    "variance": lambda: [Q.variance, BITS.variance, GROUPS.variance, *PAIRS.variance],
    "mode": lambda: BITS.mode,
    "sample": lambda: BITS.sample((3,)),
    "expand": lambda: Q.expand((2, 3)),
    "index": lambda: [Q[1], Q[TARGET], BITS[MASK[:, 0]]],
    "truncate": lambda: BITS.truncate(2),
    "detach": lambda: BITS.detach(),
    "to": lambda: Q.to(torch.float64),
    "enumerate_support": lambda: Q.enumerate_support(),
    "to Categorical": lambda: kl_divergence(Q, PRIOR),
    "to Bernoulli": lambda: kl_divergence(BITS, BIT_PRIOR),
    "to Categoricals": lambda: kl_divergence(GROUPS, GROUP_PRIOR),
    "Gibbs to Categoricals": lambda: kl_divergence(sp.Gibbs(X.reshape(3, 2, 2), sp.Groups(2, 2)), GROUP_PRIOR),
    "to uniform": lambda: kl_divergence(BITS, UNIFORM.expand((2, 3))),
    "to sparse": lambda: kl_divergence(Q, Q),
    "uniform log_prob": lambda: UNIFORM.log_prob(X),
    "uniform sample": lambda: UNIFORM.sample((2,), generator=torch.Generator("cpu")),
}


def tensors(result: Any) -> list[Tensor]:
    if isinstance(result, sp.SparseDistribution):
        return [result.atoms, result.probs, result.row, result.is_exact, result.n_atoms_per_row]
    return [tensor for part in result for tensor in tensors(part)] if isinstance(result, list) else [result]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_nothing_is_made_elsewhere(call: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    wanted = tensors(call())
    torch.manual_seed(0)
    with torch.device("meta"):
        found = tensors(call())
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.device.type == "cpu"
        torch.testing.assert_close(ours, theirs)


def test_gradients_neither() -> None:
    x = X.double().requires_grad_()

    def gradient() -> Tensor:
        q = sp.sparsemap(x, sp.OneOf(4))
        value = q.expect(lambda z: z.double().sin(), chunk_size=2) + q.truncate(2).entropy() + q[[1, 0, 1]].variance.sum(-1)
        value = value + sp.entmax_loss(x, TARGET, ROWS.double(), mask=MASK, reduction="none")
        return torch.autograd.grad((value + sp.entmax15(x, temperature=ROWS)[:, 0]).sum(), x)[0]

    wanted = gradient()
    with torch.device("meta"):
        torch.testing.assert_close(gradient(), wanted)


SCORES: dict[str, tuple[sp.AbstractStructure, Any]] = {
    "one of": (sp.OneOf(4), X),
    "bits": (sp.Bits(4), X),
    "budget": (sp.Budget(4, 2), X),
    "subset": (sp.Subset(4, 2), X),
    "groups": (sp.Groups(2, 2), X.reshape(3, 2, 2)),
    "lengths": (sp.Sequence(2, 2, lengths=[2, 1, 1]), X.reshape(3, 2, 2)),
    "pairs": (sp.Sequence(2, 2), (X.reshape(3, 2, 2), X.reshape(3, 1, 2, 2))),
    "tree": (sp.Tree(2), X.reshape(3, 2, 2)),
    "projective tree": (sp.ProjectiveTree(2, lengths=[2, 1, 1]), X.reshape(3, 2, 2)),
    "binary tree": (sp.BinaryTree(2), X.reshape(3, 2, 2)),
    "single root": (sp.Tree(2, single_root=True, lengths=[2, 1, 1]), X.reshape(3, 2, 2)),
    "permutation": (sp.Permutation(4), X),
    "alignment": (sp.Alignment(2, 3, lengths=[[2, 3], [1, 3], [2, 2]]), torch.cat([X, X], -1)[:, :6].reshape(3, 2, 3)),
    "segmentation": (sp.Segmentation(2, 2, 1, lengths=[2, 1, 2]), X.reshape(3, 2, 2, 1)),
    "knapsack": (sp.Knapsack((1, 2, 2, 3), 3), X),
    "diagram": (sp.DecisionDiagram(4, [[1, -2], [2, 3]]), X),
    "paths": (sp.Paths([(0, 1), (0, 1), (1, 2), (1, 2)]), X),
    "matching": (sp.Matching(2), X.reshape(3, 2, 2)),
    "enumerated": (sp.Enumerated(EMBEDDED[:, :, 0]), X[:, :2]),
}


def estimators() -> list[sp.estimators.AbstractEstimator]:
    se = sp.estimators
    sums = [se.Dense(), se.Sparse(), se.Sparse(1.5), se.TopK(2), se.SparseMAP(), se.SparseMAP(sp.solvers.ActiveSet())]
    samplers = [se.ScoreFunction(), se.SelfCritic(), se.LeaveOneOut(), se.SumAndSample(), se.UnorderedSet(2)]
    relaxed = [
        se.GumbelSoftmax(),
        se.StraightThrough(),
        se.ReinMax(),
        se.Simple(),
        se.Rebar(),
        se.Relax(4),
        se.Arm(),
        se.Disarm(),
        se.Imle(),
    ]
    return [*sums, *samplers, *relaxed]


ESTIMATORS = estimators()


def squares(z: Tensor, row: Tensor) -> Tensor:
    return z.float().reshape(len(row), -1).square().sum(-1)


@pytest.mark.parametrize("name", SCORES)
def test_estimators_stay_on_the_device_of_the_scores(name: str) -> None:
    structure, scores = SCORES[name]
    parts = scores if isinstance(scores, tuple) else (scores,)
    n_taken = 0
    for estimator in ESTIMATORS:
        if not estimator.needs.is_met(structure) or (
            isinstance(estimator, sp.estimators.Relax) and name not in {"one of", "bits"}
        ):
            continue
        leaves = tuple(part.clone().requires_grad_() for part in parts)
        with torch.device("meta"):
            generator = torch.Generator("cpu").manual_seed(0)
            estimate = estimator(leaves if len(leaves) > 1 else leaves[0], structure, squares, generator=generator)
            estimate.surrogate.sum().backward()
        assert estimate.value.device.type == "cpu"
        n_taken += 1
    assert n_taken >= 6


@pytest.mark.parametrize("name", SCORES)
def test_distributions_and_bounds_stay_on_the_device_of_the_scores(name: str) -> None:
    structure, scores = SCORES[name]
    with torch.device("meta"):
        generator = torch.Generator("cpu").manual_seed(0)
        assert sp.estimators.topk_bound(scores, structure, squares, 3).value.device.type == "cpu"
        if structure.has_partition:
            p = sp.Gibbs(scores, structure)
            assert p.sample((2,), generator=generator).device.type == p.entropy().device.type == "cpu"
            for bound in (sp.estimators.distinct_bound, sp.estimators.vimco, sp.estimators.wake_wake):
                assert bound(scores, structure, squares, 3, generator=generator).value.device.type == "cpu"


def test_layers_stay_on_the_device_of_the_scores() -> None:
    scores, norm, monitor = torch.randn(4, 3), sp.nn.ScoreNorm(3, learn_temperature=True), sp.nn.SaturationMonitor(1)
    with torch.device("meta"):
        for module in (norm, norm.eval()):
            assert module(scores).device.type == "cpu"
        monitor(sp.sparsemap(norm(scores), sp.OneOf(3)))
    assert monitor.n_saturated.device.type == "cpu"
