"""Where estimators meet the ends of floating-point numbers and rows without a distribution."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum import estimators as se


def total(z: Tensor, row: Tensor) -> Tensor:
    return z.flatten(1).sum(-1)


def test_vimco_with_a_weight_of_zero() -> None:
    weights, probs = torch.tensor([1.0, 0.0, 4.0]), torch.zeros(3, requires_grad=True)
    (signal,) = torch.autograd.grad(se.vimco(weights.log(), probs).surrogate, probs)
    for s in range(3):
        others = torch.cat([weights[:s], weights[s + 1 :]])
        replaced = torch.cat([others, others.prod().sqrt().reshape(1)])
        torch.testing.assert_close(signal[s], weights.mean().log() - replaced.mean().log())


def test_vimco_where_all_other_weights_are_zero() -> None:
    weights, probs = torch.tensor([2.0, 0.0]), torch.zeros(2, requires_grad=True)
    (signal,) = torch.autograd.grad(se.vimco(weights.log(), probs).surrogate, probs)
    assert signal.isfinite().all()


@pytest.mark.parametrize("structure", [sp.Matching(3), sp.Subset(3, 2), sp.Budget(3, 2)], ids=repr)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_imle_names_bad_rows_of_structures_without_a_partition_function(structure: sp.AbstractStructure, bad: float) -> None:
    scores = torch.zeros(2, *structure.score_shape)
    scores[1].view(-1)[0] = bad
    with pytest.raises(ValueError, match="row 1 has"):
        se.Imle()(scores, structure, total)


def test_imle_names_rows_that_allow_nothing() -> None:
    with pytest.raises(ValueError, match="row 0 allows nothing"):
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
