"""Properties of estimators and bounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum import estimators as se
from sparsum.estimators import AbstractEstimator
from sparsum.structures.scores import flatten
from tests.properties.drawing import WIDE, Draw
from tests.properties.registry import about
from tests.properties.structures import Case, case_of, some_rows

CONTEXT = 2

ESTIMATORS: dict[str, Callable[[Case], AbstractEstimator]] = {
    "Dense": lambda case: se.Dense(),
    "Sparse": lambda case: se.Sparse(),
    "Sparse, 1.5": lambda case: se.Sparse(1.5),
    "TopK": lambda case: se.TopK(2),
    "SparseMAP": lambda case: se.SparseMAP(),
    "ScoreFunction": lambda case: se.ScoreFunction(2),
    "SelfCritic": lambda case: se.SelfCritic(),
    "NVIL": lambda case: se.NVIL(CONTEXT, hidden=(3,)),
    "LeaveOneOut": lambda case: se.LeaveOneOut(2),
    "SumAndSample": lambda case: se.SumAndSample(2),
    "UnorderedSet": lambda case: se.UnorderedSet(2),
    "Rebar": lambda case: se.Rebar(),
    "Relax": lambda case: se.Relax(case.n_parts, CONTEXT, hidden=(3,)),
    "Arm": lambda case: se.Arm(),
    "Disarm": lambda case: se.Disarm(),
    "GumbelSoftmax": lambda case: se.GumbelSoftmax(se.Anneal(1e-2, every=2)),
    "StraightThrough": lambda case: se.StraightThrough(),
    "ReinMax": lambda case: se.ReinMax(),
    "Simple": lambda case: se.Simple(2),
    "Imle": lambda case: se.Imle(),
}
NAMES = tuple(f"estimators.{name}" for name in ESTIMATORS if "," not in name)
#: Structures with estimators of every kind.
CASES = ("OneOf", "Bits", "Groups", "Subset", "Sequence", "Tree", "Paths", "Matching")


def loss_of(case: Case, losses: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss that is linear in the vectors of atoms, which may be relaxed: one weight for each part of each row."""

    def loss(z: Tensor, row: Tensor) -> Tensor:
        is_vector = z.is_floating_point() and z.ndim == 1 + len(case.shapes[0])
        vectors = z.flatten(1) if is_vector else case.vectors[case.index(z)].to(losses.dtype)
        return (losses[row].to(vectors.dtype) * vectors).sum(-1)

    return loss


@about(
    *NAMES,
    *(f"estimators.{name}" for name in ("AbstractEstimator", "Estimate", "Needs", "Problem", "Anneal", "RunningMean")),
    "estimators.PerturbAndMap",
    weight=12,
)
def estimators_give_finite_numbers(draw: Draw) -> None:
    """Shapes, dtypes and finite gradients; exact sums are the sums; the same generator gives the same estimate."""
    case, name, dtype = case_of(draw.choice(CASES)), draw.choice(list(ESTIMATORS)), draw.choice(WIDE)
    torch.manual_seed(0)
    estimator = ESTIMATORS[name](case).to(dtype)
    if not estimator.needs.is_met(case.structure):
        with pytest.raises(TypeError, match=type(case.structure).__name__):
            estimator(torch.zeros(1, *case.shapes[0]), case.structure, loss_of(case, torch.zeros(1, case.n_parts)))
        return
    n_rows = draw.integer(0, 3)
    flat = some_rows(draw, case, n_rows, dtype, most=1e30)
    losses = torch.randn(n_rows, case.n_parts, dtype=dtype, generator=draw.generator())
    context = torch.randn(n_rows, CONTEXT, dtype=dtype, generator=draw.generator())
    generator, loss = draw.generator(), loss_of(case, losses)
    state, saved = generator.get_state(), {key: value.clone() for key, value in estimator.state_dict().items()}

    def estimate() -> tuple[se.Estimate, Tensor]:
        generator.set_state(state)
        estimator.load_state_dict(saved)
        leaf = flat.clone().requires_grad_()
        try:
            found = estimator(case.scores(leaf), case.structure, loss, context=context, generator=generator)
        except sp.NotConverged:
            raise _NotSolved from None
        (gradient,) = torch.autograd.grad(found.surrogate.sum(), leaf, allow_unused=True)
        return found, torch.zeros_like(leaf) if gradient is None else gradient

    try:
        found, gradient = estimate()
    except _NotSolved:
        return
    for tensor in (found.surrogate, found.value, found.calls):
        assert tensor.shape == (n_rows,)
    assert torch.equal(found.surrogate.detach(), found.value)
    assert bool(found.value.isfinite().all()), (name, case.name, flat)
    assert bool(gradient.isfinite().all()), (name, case.name, flat, gradient)
    assert not bool(gradient[flat == -torch.inf].any()), (name, case.name, flat)
    declared = estimator.n_calls(case.structure)
    if declared is not None and not bool((flat == -torch.inf).any()):
        assert bool((found.calls == declared).all())
    again, same = estimate()
    assert torch.equal(again.value, found.value)
    assert torch.equal(same, gradient)
    if name in ("Sparse", "Sparse, 1.5", "TopK", "SparseMAP"):
        q = found.distribution
        assert isinstance(q, sp.SparseDistribution)
        mean = flatten(q.mean)
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(found.value, (mean * losses).sum(-1).detach(), atol=64 * eps, rtol=64 * eps)
    if name == "Dense":
        for row in range(n_rows):
            if 64 * case.rounding(flat[row].double()) / torch.finfo(torch.float64).eps * torch.finfo(dtype).eps < 1e-2:
                probs = case.below(flat[row].double()).softmax(-1)
                wanted = probs @ (case.vectors @ losses[row].double())
                assert abs(float(found.value[row]) - float(wanted)) < 3e-2


class _NotSolved(Exception):
    """A row is named as not solved, which `sparsemap_is_optimal_or_says_where_it_is_not` is about."""


BOUNDS = {"topk_bound": se.topk_bound, "distinct_bound": se.distinct_bound, "vimco": se.vimco, "wake_wake": se.wake_wake}


@about(
    *(f"estimators.{name}" for name in BOUNDS),
    "estimators.Bound",
    "estimators.vimco_from_weights",
    "estimators.wake_wake_from_weights",
    weight=6,
)
def bounds_on_a_likelihood(draw: Draw) -> None:
    """Finite, of the right shape, not above the exact sum where they are sums over some of the assignments."""
    case, name, dtype = case_of(draw.choice(CASES[:-1])), draw.choice(list(BOUNDS)), draw.choice(WIDE)
    n_rows, k = draw.integer(0, 3), draw.integer(2, 40)
    flat = some_rows(draw, case, n_rows, dtype, most=1e29)
    losses = torch.randn(n_rows, case.n_parts, dtype=dtype, generator=draw.generator())
    leaf = flat.clone().requires_grad_()
    bound = BOUNDS[name](case.scores(leaf), case.structure, loss_of(case, losses), k, generator=draw.generator())
    (gradient,) = torch.autograd.grad(bound.surrogate.sum(), leaf)
    assert bound.value.shape == bound.calls.shape == (n_rows,)
    assert torch.equal(bound.surrogate.detach(), bound.value)
    assert bool(bound.value.isfinite().all()), (name, case.name, flat)
    assert bool(gradient.isfinite().all()), (name, case.name, flat)
    assert bool((bound.calls <= k).all())
    for row in range(n_rows):
        is_allowed = case.below(flat[row].double()) > -torch.inf
        exact = (case.vectors @ losses[row].double())[is_allowed].logsumexp(-1)
        value = float(bound.value[row])
        if name == "topk_bound":
            assert value <= float(exact) + 1e-4
            if k >= len(case.atoms):
                assert abs(value - float(exact)) < 1e-4, (case.name, flat[row])


@about("estimators.vimco_from_weights", "estimators.wake_wake_from_weights", weight=2)
def bounds_from_weights(draw: Draw) -> None:
    """The logarithm of the mean weight, of any size, with a finite gradient."""
    n_rows, k, dtype = draw.integer(0, 3), draw.integer(2, 5), draw.choice(WIDE)
    log_weights = draw.table(n_rows, k, dtype, most=1e30).T
    function = draw.choice([se.vimco_from_weights, se.wake_wake_from_weights])
    log_joint, log_q = (log_weights.clone().requires_grad_(), torch.zeros(k, n_rows, dtype=dtype).requires_grad_())
    bound = function(log_joint, log_q)
    wanted = log_weights.double().logsumexp(0) - torch.tensor(k).log()
    torch.testing.assert_close(bound.value.double(), wanted, atol=1e-4, rtol=1e-5)
    for gradient in torch.autograd.grad(bound.surrogate.sum(), (log_joint, log_q)):
        assert bool(gradient.isfinite().all())


@about("testing.check_estimator", "testing.check_structure", "testing.Report", "testing.CONTEXT_SIZE", weight=1)
def published_checks_pass_with_any_seed(draw: Draw) -> None:
    """What is right passes, whatever the seed."""
    seed = draw.integer(0, 2**31)
    structure = draw.choice([sp.OneOf(3), sp.Bits(2), sp.Groups(2, 2), sp.Paths([(0, 1), (0, 1)]), sp.Matching(2)])
    assert sp.testing.check_structure(structure, seed=seed).counts["argmax"] == 20


@about("diagnose", weight=1)
def exact_sums_have_no_bias(draw: Draw) -> None:
    """`diagnose` finds neither variance nor bias in an exact sum."""
    case = case_of(draw.choice(["OneOf", "Bits", "Groups"]))
    n_rows = draw.integer(1, 2)
    flat = draw.table(n_rows, case.n_parts, torch.float64, most=3.0)
    loss = loss_of(case, torch.randn(n_rows, case.n_parts, dtype=torch.float64, generator=draw.generator()))
    row = sp.diagnose(case.scores(flat), case.structure, loss, [se.Dense()], draws=2, warm_up=0)["Dense"]
    assert row.variance <= 1e-20
    assert row.bias <= 1e-6 or row.bias != row.bias or bool((flat == flat[:, :1]).all()), row
