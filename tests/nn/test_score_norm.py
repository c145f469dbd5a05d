"""Normalized scores against slow twins, and where their statistics come from."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import sparsum as sp
from sparsum.nn import ScoreNorm


def made(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return 3 + 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def norm_of(shape: int | tuple[int, ...], **options: Any) -> ScoreNorm:
    return ScoreNorm(shape, **options).double()


def holes(*shape: int, seed: int = 0) -> Tensor:
    """Scores some of which are forbidden, and one of which is NaN."""
    scores = made(*shape, seed=seed)
    scores[torch.rand(shape, generator=torch.Generator().manual_seed(seed + 1)) < 0.3] = -torch.inf
    scores[0].view(-1)[0] = torch.nan
    return scores


def set_temperature(norm: ScoreNorm, temperature: float) -> None:
    assert norm.log_temperature is not None
    torch.nn.init.constant_(norm.log_temperature, math.log(temperature))


def slow(norm: ScoreNorm, rows: Tensor) -> Tensor:
    """One part after the other, for a module that has not been trained and parts with at least two scores."""
    columns = [column[column.isfinite()] for column in rows.flatten(1).T]
    variance = sum(float(column.var(correction=0)) for column in columns) / len(columns)
    factor = norm.spread / math.sqrt(variance + norm.eps)
    results = [(full - column.mean()) * factor for full, column in zip(rows.flatten(1).T, columns, strict=True)]
    return torch.stack(results, -1).view(rows.shape)


@pytest.mark.parametrize("shape", [4, (4,), (2, 3), (1,)])
@pytest.mark.parametrize("batch", [(7,), (2, 5)])
def test_a_batch_has_mean_0_and_the_target_spread(shape: Any, batch: tuple[int, ...]) -> None:
    norm = norm_of(shape, spread=0.8, eps=0.0)
    scores = made(*batch, *norm.shape)
    rows = norm(scores).reshape(-1, *norm.shape)
    torch.testing.assert_close(rows.mean(0), torch.zeros(norm.shape, dtype=torch.float64))
    torch.testing.assert_close(rows.square().mean().sqrt(), torch.tensor(0.8, dtype=torch.float64))
    torch.testing.assert_close(rows, slow(norm, scores.reshape(-1, *norm.shape)))


@given(st.integers(2, 20), st.integers(1, 5), st.floats(0.1, 1.0), st.integers(0, 2**32), st.floats(0.1, 4.0))
def test_the_share_of_bits_in_the_window(n_rows: int, n_bits: int, spread: float, seed: int, power: float) -> None:
    """By Chebyshev's inequality, for any distribution of the scores: here also heavy tails and common offsets."""
    scores = made(n_rows, n_bits, seed=seed)
    scores = 100 + scores.sign() * scores.abs() ** power
    is_inside = norm_of(n_bits, spread=spread)(scores).abs() < 1 + 1e-9
    assert float(is_inside.double().mean()) >= 1 - spread**2 - 1e-9


def test_scores_that_are_not_finite_are_ignored() -> None:
    norm, scores = norm_of((2, 3)), holes(9, 2, 3)
    found, wanted = norm(scores), slow(norm, scores)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    assert int(found.isnan().sum()) == 1
    assert torch.equal(found == -torch.inf, scores == -torch.inf)
    assert all(bool(value.isfinite().all()) for value in norm.state_dict().values())


@pytest.mark.parametrize("options", [{}, {"learn_temperature": True, "spread": 1.5}])
@pytest.mark.parametrize("is_training", [True, False])
def test_gradients(options: dict[str, Any], is_training: bool) -> None:
    norm = norm_of(4, **options)
    norm(made(5, 4, seed=3))
    norm.train(is_training)
    is_allowed = holes(6, 4).isfinite()
    scores = made(6, 4, seed=1).requires_grad_()

    def outputs(scores: Tensor, *parameters: Tensor) -> Tensor:
        fixed = copy.deepcopy(dict(norm.named_buffers()))
        names = dict(zip(dict(norm.named_parameters()), parameters, strict=True))
        result = torch.func.functional_call(norm, fixed | names, (scores.masked_fill(~is_allowed, -torch.inf),))
        return torch.where(is_allowed, result, 0.0)

    assert torch.autograd.gradcheck(outputs, (scores, *norm.parameters()))


def test_evaluation_uses_averages_over_the_steps() -> None:
    momentum, norm = 0.3, norm_of(3, momentum=0.3, eps=0.0)
    batches = [made(5, 3, seed=seed) for seed in range(4)]
    for batch in batches:
        norm(batch)
    weights = torch.tensor([(1 - momentum) ** age for age in reversed(range(4))], dtype=torch.float64)
    weights /= weights.sum()
    mean = sum(weight * batch.mean(0) for weight, batch in zip(weights, batches, strict=True))
    variance = sum(weight * batch.var(0, correction=0).mean() for weight, batch in zip(weights, batches, strict=True))
    scores, state = made(2, 3, seed=9), copy.deepcopy(norm.state_dict())
    norm.eval()
    torch.testing.assert_close(norm(scores), 0.5 * (scores - mean) / variance**0.5)
    assert all(torch.equal(value, state[name]) for name, value in norm.state_dict().items())


def test_the_first_evaluation_changes_nothing() -> None:
    norm, scores = norm_of(3).eval(), made(4, 3)
    assert torch.equal(norm(scores), scores)


def test_rows_that_come_alone() -> None:
    """A batch of one row is normalized as in evaluation, and the variance is that between rows."""
    norm = norm_of(2, momentum=0.2, eps=0.0)
    rows = [made(1, 2, seed=seed) for seed in range(30)]
    assert torch.equal(norm(rows[0]), rows[0])
    for row in rows[1:]:
        wanted = copy.deepcopy(norm).eval()(row)
        assert torch.equal(norm(row), wanted)
    weights = torch.tensor([0.8**age for age in reversed(range(30))], dtype=torch.float64).unsqueeze(-1)
    weights /= weights.sum()
    mean = (weights * torch.cat(rows)).sum(0)
    torch.testing.assert_close(norm.running_mean, mean)
    torch.testing.assert_close(norm.running_var, (weights * (torch.cat(rows) - mean).square()).sum(0))


def test_single_rows_do_not_set_a_scale() -> None:
    """A single row has no spread: scores stay what they are, up to a shift, instead of being divided by almost 0."""
    for options in ({}, {"momentum": 1.0}):
        norm, row = norm_of(2, **options), made(1, 2)
        norm(row)
        if options:
            norm(made(50, 2))
            norm(row)
        other = norm(row + 0.5)
        assert float(other.detach().abs().max()) < 10
        assert float(norm.eval()(made(3, 2)).abs().max()) < 20


def test_huge_scores_spoil_no_statistics() -> None:
    norm = ScoreNorm(2)
    norm(torch.tensor([[1e30, 0.0], [-1e30, 1.0]]))
    for seed in range(50):
        norm(made(32, 2, seed=seed, dtype=torch.float32))
    assert norm.eval()(made(4, 2, dtype=torch.float32)).isfinite().all()
    half = ScoreNorm(2).half()
    half(500 * made(32, 2).half())
    assert half.running_var.isfinite().all()


def test_no_spread_at_all_without_eps() -> None:
    scores = torch.ones(4, 3, dtype=torch.float64, requires_grad=True)
    norm_of(3, eps=0.0)(scores).sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def test_a_part_that_no_row_has() -> None:
    norm = norm_of(2)
    scores = made(5, 2)
    scores[:, 1] = -torch.inf
    found = norm(scores)
    torch.testing.assert_close(found[:, 0], slow(norm, scores[:, :1]).squeeze(-1))
    assert norm.seen.tolist() == [pytest.approx(0.1), 0.0]
    torch.testing.assert_close(norm.eval()(scores), found)
    assert norm(torch.zeros(0, 2)).shape == (0, 2)


def test_equal_scores_become_0() -> None:
    norm, scores = norm_of(3), torch.full((4, 3), 7.0, dtype=torch.float64, requires_grad=True)
    found = norm(scores)
    found.square().sum().backward()
    assert not bool(found.any())
    assert scores.grad is not None
    assert bool(scores.grad.isfinite().all())


def test_the_state_is_saved() -> None:
    norm, other = norm_of(3, learn_temperature=True), norm_of(3, learn_temperature=True)
    norm(made(5, 3))
    set_temperature(norm, 1.3)
    other.load_state_dict(norm.state_dict())
    assert set(norm.state_dict()) == {"running_mean", "running_var", "seen", "log_temperature"}
    scores = made(2, 3, seed=4)
    assert torch.equal(other.eval()(scores), norm.eval()(scores))


def test_the_temperature_divides() -> None:
    norm, plain = norm_of(3, learn_temperature=True), norm_of(3)
    set_temperature(norm, 2.0)
    scores = made(5, 3)
    torch.testing.assert_close(2 * norm(scores), plain(scores))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    scores = made(50, 3).to(dtype)
    wanted = ScoreNorm(3)(scores.float())
    assert torch.equal(ScoreNorm(3)(scores), wanted.to(dtype))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ScoreNorm(3)(scores), wanted)
    halved = ScoreNorm(3).to(dtype)
    halved(scores)
    assert bool(halved.eval()(scores).isfinite().all())


def test_whole_graphs() -> None:
    """Training steps of a compiled module are those of the module, and so are evaluations."""
    torch.compiler.reset()
    ours, theirs = (norm_of((2, 3), learn_temperature=True) for _ in range(2))
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for seed in range(4):
        results = []
        for module, source in ((compiled, ours), (theirs, theirs)):
            source.train(seed < 3)
            scores = holes(5, 2, 3, seed=seed).requires_grad_()
            found = module(scores)
            found[found.isfinite()].square().sum().backward()
            results.append((found, scores.grad, *source.buffers()))
        for our, their in zip(*results, strict=True):
            torch.testing.assert_close(our, their, equal_nan=True)
    for our, their in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(our, their)


def test_no_number_is_read_by_the_host() -> None:
    """On the meta device, where tensors have no data, reading one fails."""
    norm = ScoreNorm((2, 3), learn_temperature=True).to("meta")
    scores = torch.empty(5, 2, 3, device="meta", requires_grad=True)
    norm(scores).sum().backward()
    assert scores.grad is not None
    assert norm.eval()(scores).shape == (5, 2, 3)


def test_bits_that_adam_would_lose_stay_alive() -> None:
    """One large step in the direction that all rows share makes every row a single atom, unless scores are normalized."""
    scores = made(8, 20).float() / 10 + 5
    assert float(sp.sparsemap(scores, sp.Bits(20)).saturation) == 1
    q = sp.sparsemap(ScoreNorm(20)(scores), sp.Bits(20))
    assert float(q.saturation) == 0
    assert bool(((q.usage - 0.5).abs() < 0.3).all())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"shape": 0}, ValueError, "shape must be at least 1"),
        ({"shape": (2, 0)}, ValueError, r"shape\[1\] must be at least 1"),
        ({"shape": 2.0}, TypeError, "shape must be a sequence of ints, got float"),
        ({"spread": 0}, ValueError, "spread must be finite and larger than 0"),
        ({"eps": -1.0}, ValueError, "eps must be at least 0"),
        ({"momentum": 0.0}, ValueError, "momentum must be finite and larger than 0"),
        ({"momentum": 1.5}, ValueError, "momentum must be at most 1, got 1.5"),
        ({"sync": 1}, TypeError, "sync must be a bool"),
        ({"learn_temperature": None}, TypeError, "learn_temperature must be a bool"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ScoreNorm(**{"shape": 3, **options})


def test_bad_inputs() -> None:
    norm = ScoreNorm((2, 3))
    with pytest.raises(ValueError, match=r"scores must have shape \(\*batch, 2, 3\), got \(5, 3\)"):
        norm(torch.zeros(5, 3))
    with pytest.raises(ValueError, match=r"got \(3,\)"):
        norm(torch.zeros(3))
    with pytest.raises(TypeError, match="scores must have a floating-point dtype"):
        norm(torch.zeros(2, 2, 3, dtype=torch.int64))
