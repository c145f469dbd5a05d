"""Public objects are pickled and deep-copied: what is made of a copy is what the original gives."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparsum as sp
from sparsum.solvers import ActiveSet, Nested, NotConverged, Pulled, Systematic
from tests.properties.estimators import ESTIMATORS, loss_of
from tests.properties.structures import STRUCTURES, case_of


def saved(value: Any) -> Any:
    """As a model is saved as a whole."""
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "torch.save": saved,
}
every_way = pytest.mark.parametrize("way", WAYS)


def scores_of(name: str) -> Any:
    case = case_of(name)
    return case.scores(torch.randn(3, case.n_parts, generator=torch.Generator().manual_seed(0)))


@every_way
@pytest.mark.parametrize("name", STRUCTURES)
def test_structures(name: str, way: str) -> None:
    """Also after they were used, when they may hold what they have computed."""
    structure, scores = STRUCTURES[name], scores_of(name)
    wanted = structure.topk(scores, 3)
    made = WAYS[way](structure)
    assert made == structure
    assert hash(made) == hash(structure)
    assert repr(made) == repr(structure)
    assert torch.equal(made.topk(scores, 3), wanted)
    torch.testing.assert_close(sp.sparsemap(scores, made).probs, sp.sparsemap(scores, structure).probs, atol=0, rtol=0)


@every_way
@pytest.mark.parametrize("name", STRUCTURES)
def test_distributions(name: str, way: str) -> None:
    structure, scores = STRUCTURES[name], scores_of(name)
    made: list[Any] = [sp.sparsemap(scores, structure), sp.topk_sparsemax(scores, structure, 2), sp.UniformOver(structure)]
    if structure.has_partition:
        made.append(sp.Gibbs(scores, structure))
    for each in made:
        again = WAYS[way](each)
        drawn = [p.sample((3,), generator=torch.Generator().manual_seed(0)) for p in (each, again)]
        assert torch.equal(*drawn)
        if each.batch_shape:
            assert torch.equal(again.log_prob(drawn[0]), each.log_prob(drawn[0]))
            assert torch.equal(again.entropy(), each.entropy())
        assert repr(again) == repr(each)


@every_way
@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators(name: str, way: str) -> None:
    """With their learned state, after a step."""
    structure = "Bits" if name in ("Arm", "Disarm") else "OneOf"
    case = case_of(structure)
    torch.manual_seed(0)
    estimator = ESTIMATORS[name](case)
    leaf = torch.randn(3, case.n_parts, requires_grad=True)
    loss, context = loss_of(case, torch.randn(3, case.n_parts)), torch.randn(3, 2)

    def step(of: sp.estimators.AbstractEstimator) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        estimate = of(leaf, case.structure, loss, context=context, generator=generator)
        return torch.autograd.grad(estimate.surrogate.sum(), leaf, materialize_grads=True)[0]

    step(estimator)
    made = WAYS[way](estimator)
    if way == "copy":  # its tensors are those of the original
        assert made.state_dict().keys() == estimator.state_dict().keys()
        return
    assert torch.equal(step(made), step(estimator))


MODULES: dict[str, tuple[nn.Module, Callable[[Any], Any]]] = {
    "Sparsemax": (sp.Sparsemax(temperature=2.0), lambda m: m(torch.eye(3))),
    "Entmax15": (sp.Entmax15(), lambda m: m(torch.eye(3))),
    "Entmax": (sp.Entmax(1.5, bounds=(1.1, 2.0)), lambda m: m(torch.eye(3))),
    "BoundedAlpha": (sp.BoundedAlpha(1.5, (1.1, 2.0), n_heads=2), lambda m: m()),
    "SparsemaxLoss": (sp.SparsemaxLoss(), lambda m: m(torch.eye(3), torch.arange(3))),
    "Entmax15Loss": (sp.Entmax15Loss(), lambda m: m(torch.eye(3), torch.arange(3))),
    "EntmaxLoss": (sp.EntmaxLoss(1.3), lambda m: m(torch.eye(3), torch.arange(3))),
    "SparsemapLoss": (sp.SparsemapLoss(sp.Tree(3)), lambda m: m(torch.eye(3), torch.arange(3))),
    "StructuredNLL": (sp.StructuredNLL(sp.Tree(3)), lambda m: m(torch.eye(3), torch.arange(3))),
    "ScoreNorm": (sp.nn.ScoreNorm(3), lambda m: m(torch.eye(3))),
    "Router": (sp.nn.Router(3, 4), lambda m: m(torch.eye(3)).probs),
    "SparseCodebook": (sp.nn.SparseCodebook(4, 3, revive_after=None), lambda m: m(torch.eye(3)).vectors),
    "SaturationMonitor": (sp.nn.SaturationMonitor(), lambda m: m(sp.SparseDistribution.from_dense(torch.eye(3))).probs),
}


@every_way
@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str, way: str) -> None:
    module, call = MODULES[name]
    call(module)
    made = WAYS[way](module)
    assert repr(made) == repr(module)
    assert torch.equal(call(made), call(module))


@every_way
@pytest.mark.parametrize("solver", [ActiveSet(), Pulled(), Nested(), Systematic(), sp.solvers.Sparsemax()], ids=repr)
def test_solvers(solver: sp.solvers.AbstractSolver, way: str) -> None:
    assert repr(WAYS[way](solver)) == repr(solver)
    structure = sp.OneOf(4) if isinstance(solver, sp.solvers.Sparsemax) else sp.Bits(4)
    found = [sp.sparsemap(torch.linspace(-1, 1, 4), structure, solver=each).probs for each in (WAYS[way](solver), solver)]
    assert torch.equal(*found)


@every_way
def test_results_and_errors(way: str) -> None:
    """What workers of a pool hand back."""
    estimate = sp.estimators.Sparse()(torch.eye(3), sp.OneOf(3), lambda z: z.float())
    again = WAYS[way](estimate)
    assert torch.equal(again.surrogate, estimate.surrogate)
    assert torch.equal(again.distribution.mean, estimate.distribution.mean)
    bound = sp.estimators.topk_bound(torch.eye(3), sp.OneOf(3), lambda z: z.float(), 2)
    assert torch.equal(WAYS[way](bound).value, bound.value)
    solution = ActiveSet().solve(sp.Bits(3).bind(torch.eye(3)))
    assert torch.equal(WAYS[way](solution).probs, solution.probs)
    for kind in sp.estimators.Needs:
        assert WAYS[way](kind) is kind
    if way != "torch.save":
        error = WAYS[way](NotConverged([3], [10], [0.5]))
        assert (error.rows, str(error)) == ([3], str(NotConverged([3], [10], [0.5])))
        assert str(WAYS[way](sp.NoDistribution("row 3"))) == "row 3"
