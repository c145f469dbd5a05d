"""Where estimators meet the ends of floating-point numbers and rows without a distribution."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum import estimators as se


def total(z: Tensor, row: Tensor) -> Tensor:
    return z.flatten(1).sum(-1)


def test_vimco_with_a_weight_of_zero() -> None:
    weights, probs = torch.tensor([1.0, 0.0, 4.0]), torch.zeros(3, requires_grad=True)
    (signal,) = torch.autograd.grad(se.vimco_from_weights(weights.log(), probs).surrogate, probs)
    for s in range(3):
        others = torch.cat([weights[:s], weights[s + 1 :]])
        replaced = torch.cat([others, others.prod().sqrt().reshape(1)])
        torch.testing.assert_close(signal[s], weights.mean().log() - replaced.mean().log())


def test_vimco_where_all_weights_are_zero() -> None:
    """A row without any has no gradient, and leaves the others theirs."""
    log_weights = torch.tensor([[-torch.inf, 0.0], [-torch.inf, 1.0]], requires_grad=True)
    log_probs = torch.zeros(2, 2, requires_grad=True)
    bound = se.vimco_from_weights(log_weights, log_probs)
    assert bound.value[0] == bound.surrogate[0] == -torch.inf
    of_weights, of_probs = torch.autograd.grad(bound.surrogate.sum(), (log_weights, log_probs))
    assert of_weights[:, 0].eq(0).all()
    assert of_probs[:, 0].eq(0).all()
    torch.testing.assert_close(of_weights[:, 1], torch.tensor([0.0, 1.0]).softmax(0))


def test_vimco_where_all_other_weights_are_zero() -> None:
    weights, probs = torch.tensor([2.0, 0.0]), torch.zeros(2, requires_grad=True)
    (signal,) = torch.autograd.grad(se.vimco_from_weights(weights.log(), probs).surrogate, probs)
    assert signal.isfinite().all()


@pytest.mark.parametrize("structure", [sp.Matching(3), sp.Subset(3, 2), sp.Budget(3, 2)], ids=repr)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_imle_names_bad_rows_of_structures_without_a_partition_function(structure: sp.AbstractStructure, bad: float) -> None:
    scores = torch.zeros(2, *structure.score_shape)
    scores[1].view(-1)[0] = bad
    with pytest.raises(ValueError, match="row 1 has"):
        se.Imle()(scores, structure, total)


def test_imle_names_rows_that_allow_nothing() -> None:
    with pytest.raises(ValueError, match="row 0 forbids every assignment"):
        se.Imle()(torch.full((1, 3, 3), -torch.inf), sp.Matching(3), total)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sum_and_sample_keeps_a_small_rest_in_half_precision(dtype: torch.dtype, generator: torch.Generator) -> None:
    scores = torch.tensor([[8.0, 0, 0, 0]], dtype=dtype).expand(20_000, 4)
    seen: list[Tensor] = []

    def loss(z: Tensor, row: Tensor) -> Tensor:
        seen.append(z.reshape(-1, 2))
        return (z > 0).float()

    value = se.SumAndSample(1)(scores, sp.OneOf(4), loss, generator=generator).value
    assert value.mean().item() == pytest.approx(1 - scores[0].double().softmax(0)[0].item(), rel=1e-3)
    assert (seen[0][:, 0] != seen[0][:, 1]).all()


def test_a_forbidden_bit_and_a_large_loss(generator: torch.Generator) -> None:
    scores = torch.tensor([[0.0, -torch.inf]], requires_grad=True)
    for estimator in (se.Arm(), se.Disarm()):
        estimate = estimator(scores, sp.Bits(2), lambda z, row: 1e10 * z.sum(-1), generator=generator)
        (gradient,) = torch.autograd.grad(estimate.surrogate.sum(), scores)
        assert estimate.surrogate.isfinite().all()
        assert gradient.isfinite().all()
        assert gradient[0, 1] == 0


@pytest.mark.parametrize("kind", [se.GumbelSoftmax, se.StraightThrough, se.ReinMax, se.Rebar])
def test_temperatures_whose_quotients_overflow_are_refused(kind: type[se.GumbelSoftmax]) -> None:
    with pytest.raises(ValueError, match="temperature must be at least 1e-06, got 1e-40"):
        kind(1e-40)
    scores = torch.zeros(50, 3, requires_grad=True)
    estimate = kind(1e-6)(scores, sp.OneOf(3), lambda z, row: sp.embed(z, torch.eye(3)).square().sum(-1))
    (gradient,) = torch.autograd.grad(estimate.surrogate.sum(), scores)
    assert gradient.isfinite().all()


def test_numbers_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="rate must be finite, got inf"):
        se.Anneal(rate=math.inf)
    with pytest.raises(ValueError, match="scale must be finite, got nan"):
        se.Rebar(scale=math.nan)


def test_a_context_of_another_dtype_than_the_network() -> None:
    estimate = se.NVIL(2)(
        torch.zeros(2, 3).double(), sp.OneOf(3), lambda z, row: z.double(), context=torch.ones(2, 2).double()
    )
    assert estimate.value.dtype == torch.float64


def test_the_mean_of_losses_whose_sum_overflows() -> None:
    baseline = se.RunningMean()
    baseline.update(torch.tensor([3e38, 3e38]))
    torch.testing.assert_close(baseline.mean, torch.tensor(3e38))
    baseline.update(torch.tensor([1e39], dtype=torch.float64))  # infinite in float32, so left out
    assert baseline.count == 2


def test_estimators_whose_row_check_is_off_keep_a_nan_in_its_row(generator: torch.Generator) -> None:
    scores = torch.zeros(3, 4)
    scores[1, 2] = torch.nan
    estimator = se.ScoreFunction(baseline=False)
    estimator.validate_args = False
    leaf = scores.requires_grad_()
    estimate = estimator(leaf, sp.OneOf(4), lambda z, row: z.float(), generator=generator)
    (gradient,) = torch.autograd.grad(estimate.surrogate[[0, 2]].sum(), leaf)
    assert gradient[[0, 2]].isfinite().all()


def test_a_loss_may_change_its_assignments_in_place(generator: torch.Generator) -> None:
    scores = torch.randn(5, 3, generator=generator)

    def gradient(loss: Callable[[Tensor, Tensor], Tensor], estimator: se.AbstractEstimator) -> Tensor:
        leaf = scores.clone().requires_grad_()
        found = estimator(leaf, sp.Bits(3), loss, generator=torch.Generator().manual_seed(0))
        return torch.autograd.grad(found.surrogate.sum(), leaf)[0]

    def changes(z: Tensor, row: Tensor) -> Tensor:
        result = z.mul(torch.tensor([1.0, 2.0, 4.0])).sum(-1)
        z.mul_(2).sub_(1)
        return result

    def keeps(z: Tensor, row: Tensor) -> Tensor:
        return changes(z.clone(), row)

    for estimator in (se.ScoreFunction(baseline=False), se.SelfCritic(), se.UnorderedSet(2), se.SparseMAP(), se.TopK(2)):
        assert torch.equal(gradient(changes, estimator), gradient(keeps, estimator))


def test_losses_in_half_precision_that_would_overflow(generator: torch.Generator) -> None:
    scores = torch.zeros(2, 4, dtype=torch.float16, requires_grad=True)
    estimate = se.LeaveOneOut(4)(scores, sp.OneOf(4), lambda z, row: z.half() + 20_000, generator=generator)
    (gradient,) = torch.autograd.grad(estimate.surrogate.sum(), scores)
    assert gradient.isfinite().all()
    many = torch.zeros(1, 1000, dtype=torch.float16, requires_grad=True)
    estimate = se.ScoreFunction()(many, sp.Bits(1000), lambda z, row: z.sum(-1) - 300, generator=generator)
    assert torch.equal(estimate.surrogate, estimate.value)
    assert estimate.value.isfinite().all()


@pytest.mark.parametrize("estimator", [se.Rebar(), se.Relax(3), se.ScoreFunction(), se.GumbelSoftmax(), se.Imle()])
def test_inference_mode(estimator: se.AbstractEstimator) -> None:
    with torch.inference_mode():
        estimate = estimator(torch.zeros(4, 3), sp.Bits(3), lambda z, row: z.sum(-1))
    assert estimate.value.shape == (4,)


@pytest.mark.parametrize("estimator", [se.SumAndSample(1), se.UnorderedSet(2)], ids=["SumAndSample", "UnorderedSet"])
def test_a_small_rest_keeps_its_digits(estimator: se.AbstractEstimator, generator: torch.Generator) -> None:
    row = torch.tensor([18.0, 0.0, 0.5, -0.3])
    scores = row.expand(20_000, 4).clone().requires_grad_()
    losses = torch.tensor([0.0, 1.0, 2.0, 3.0])
    estimate = estimator(scores, sp.OneOf(4), lambda z, row: losses[z], generator=generator)
    (gradients,) = torch.autograd.grad(estimate.surrogate.sum(), scores)
    leaf = row.double().requires_grad_()
    (wanted,) = torch.autograd.grad((leaf.softmax(0) * losses).sum(), leaf)
    off = (gradients.double().mean(0) - wanted).abs() / (gradients.double().std(0) / 20_000**0.5 + 1e-3 * wanted.abs())
    assert (off < 5).all()


def test_derived_structures_with_other_assignments_are_not_summed_as_their_parents() -> None:
    class EvenBits(sp.Bits):
        def argmax(self, scores: Tensor) -> Tensor:
            best = super().argmax(scores)
            worst = scores.abs().argmin(-1, keepdim=True)
            flipped = best.scatter(-1, worst, 1 - best.gather(-1, worst))
            return torch.where(best.sum(-1, keepdim=True) % 2 == 0, best, flipped)

    class Named(sp.Bits):
        """Nothing but another name."""

    with pytest.raises(TypeError, match=r"takes structures that sparsum\.Gibbs takes"):
        se.ScoreFunction()(torch.zeros(2, 3), EvenBits(3), total)
    assert se.ScoreFunction()(torch.zeros(2, 3), Named(3), total).value.shape == (2,)


def test_a_structure_that_does_not_say_how_many_assignments_it_has() -> None:
    class First(sp.AbstractStructure):
        def argmax(self, scores: Tensor) -> Tensor:
            return torch.zeros_like(scores)

    with pytest.raises(TypeError, match=r"estimators for this structure: Imle, TopK, SparseMAP$"):
        se.ScoreFunction()(torch.zeros(2, 3), First(), total)
    with pytest.raises(ValueError, match=r"has an unknown number \(define log_count\), possibly more than max_count=65536"):
        se.Dense()(torch.zeros(2, 3), First(), total)


def test_contexts_of_other_shapes_and_dtypes() -> None:
    scores = torch.zeros(4, 3)
    for estimator in (se.NVIL(1), se.Relax(3, 1)):
        for context in (torch.ones(4), torch.ones(4, 1, dtype=torch.int64)):
            assert estimator(scores, sp.OneOf(3), lambda z, row: z.float(), context=context).value.shape == (4,)
        with pytest.raises(ValueError, match=r"context must have 1 features per element, .*, got 2"):
            estimator(scores, sp.OneOf(3), lambda z, row: z.float(), context=torch.ones(4, 2))
