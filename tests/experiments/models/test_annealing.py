"""Annealed importance sampling against exhaustive sums, and against importance sampling without annealing."""

from __future__ import annotations

import math

import pytest
import torch
from sparsum_experiments.models import importance
from sparsum_experiments.models.annealing import Annealing, from_annealing, uniform
from sparsum_experiments.models.bits_per_dim import annealed_mean
from sparsum_experiments.models.importance import LogLikelihood, proposal_logits
from torch import Tensor

from tests.experiments.models.test_importance import check, sampling, toy
from tests.simplex.test_devices import every_device


def annealing(n_chains: int, n_steps: int, device: str = "cpu") -> Annealing:
    return Annealing(torch.Generator(device).manual_seed(0), n_chains, n_steps)


def mean_ratio(found: LogLikelihood, exact: Tensor) -> tuple[float, float]:
    """The mean of estimate / p(x) over identical rows, and its standard error."""
    ratio = (found.value - exact).exp()
    return ratio.mean().item(), ratio.std().item() / math.sqrt(len(ratio))


@every_device
@pytest.mark.parametrize("n_bits", [1, 4, 12])
def test_against_exhaustive_sums(n_bits: int, device: str) -> None:
    log_joint, scores, exact = toy(20, n_bits, device)
    for sharpness in (0.5, 1.0):
        check(from_annealing(log_joint, sharpness * scores, annealing(200, 50, device)), exact, 0.2)


@pytest.mark.parametrize("n_steps", [1, 2, 20])
def test_unbiased_from_a_wrong_initial_distribution(n_steps: int) -> None:
    """For any number of steps. Chains start far from the posterior and have to move, so that a wrong step would show."""
    log_joint, scores, exact = toy(3000, 4, equal=True)
    found = from_annealing(log_joint, 1.5 - 0.5 * scores, annealing(20, n_steps))
    mean, error = mean_ratio(found, exact)
    assert abs(mean - 1) < 4 * error
    assert error < 0.05


def test_more_steps_reduce_the_variance() -> None:
    log_joint, scores, exact = toy(200, 8, equal=True)
    errors = [
        (from_annealing(log_joint, -scores, annealing(4, n_steps)).value - exact).square().mean().item()
        for n_steps in (1, 30, 300)
    ]
    assert errors[0] > 4 * errors[1] > 16 * errors[2]


def test_one_step_is_importance_sampling() -> None:
    """With one step no chain moves: weights are p(x, z) / q(z)."""
    log_joint, scores, _ = toy(10, 6)
    found = from_annealing(log_joint, scores, annealing(500, 1))
    direct = importance.from_samples(log_joint, importance.proposal(scores, 1.0), sampling(500))
    assert (found.value - direct.value).abs().max() < 5 * (found.standard_error + direct.standard_error).max()
    assert found.standard_error.mean().item() == pytest.approx(direct.standard_error.mean().item(), rel=0.2)


def test_chains_find_a_posterior_that_the_initial_distribution_misses() -> None:
    """The mass is far from the initial distribution: importance sampling misses it, chains move there."""
    n_bits = 12
    target = (torch.arange(n_bits) % 2).double()

    def log_joint(z: Tensor, row: Tensor) -> Tensor:
        return -3.0 * (z.double() - target).abs().sum(-1)

    exact = n_bits * math.log1p(math.exp(-3.0))
    logits = 4 * (1 - 2 * target).float().expand(50, -1)
    chains = from_annealing(log_joint, logits, annealing(8, 1000)).value.mean().item()
    samples = importance.from_samples(log_joint, importance.proposal(logits, 1.0), sampling(1000)).value.mean().item()
    assert chains == pytest.approx(exact, abs=0.5)
    assert samples < exact - 2


def test_the_same_generator_gives_the_same_estimate() -> None:
    log_joint, scores, _ = toy(5, 6)
    first, second = (from_annealing(log_joint, scores, annealing(3, 10)) for _ in range(2))
    assert torch.equal(first.value, second.value)


def test_nan_stays_in_its_row() -> None:
    log_joint, scores, exact = toy(3, 6)

    def broken(z: Tensor, row: Tensor) -> Tensor:
        return torch.where(row == 1, torch.nan, log_joint(z, row))

    found = from_annealing(broken, scores, annealing(100, 30)).value
    assert found.isnan().tolist() == [False, True, False]
    assert (found - exact)[[0, 2]].abs().max() < 0.3


def test_empty_batch() -> None:
    log_joint, _, _ = toy(1, 4)
    assert from_annealing(log_joint, torch.zeros(0, 4), annealing(3, 5)).value.shape == (0,)


def test_proposal_logits_are_clamped() -> None:
    scores = torch.tensor([[-9.0, 0.5]])
    assert proposal_logits(scores, 2.0).tolist() == [[-12.0, 1.0]]


def test_the_mean_over_all_rows_when_some_are_annealed() -> None:
    """Rows differ by much more than the gain of annealing, so the mean of the first rows would be wrong."""
    generator = torch.Generator().manual_seed(0)
    truth = 100 * torch.randn(400, generator=generator, dtype=torch.float64)
    gain = 1 + 0.1 * torch.randn(400, generator=generator, dtype=torch.float64)
    none = torch.zeros_like(truth)
    sampled, annealed = LogLikelihood(truth - gain, none), LogLikelihood(truth, none + 0.01)
    mean, error = annealed_mean(LogLikelihood(*(part[:40] for part in annealed)), sampled)
    assert error == pytest.approx(0.1 / math.sqrt(40), rel=0.3)
    assert abs(mean - truth.mean().item()) < 3 * error < abs(truth[:40].mean() - truth.mean())
    assert annealed_mean(annealed, sampled) == pytest.approx((truth.mean().item(), 0.01 / math.sqrt(400)))


@pytest.mark.parametrize("noise", [0.1, 1.0])
@pytest.mark.parametrize("m", [40, 200, 400])
def test_the_standard_error_of_that_mean_is_calibrated(m: int, noise: float) -> None:
    """Whether images differ by more or by less than the noise of the chains: no noise is counted twice."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    found = []
    for _ in range(400):
        truth = normal(400)  # other images every time; their mean is subtracted below
        sampled = LogLikelihood(truth - 1 - 0.5 * normal(400), torch.zeros(400))
        annealed = LogLikelihood((truth + noise * normal(400))[:m], torch.full((m,), noise, dtype=torch.float64))
        mean, error = annealed_mean(annealed, sampled)
        found.append((mean - truth.mean().item(), error))
    deviations, errors = torch.tensor(found, dtype=torch.float64).unbind(1)
    assert deviations.std().item() == pytest.approx(errors.mean().item(), rel=0.12)


def test_uniform_samples_are_finer_than_float32() -> None:
    """Samples in float32 are multiples of 2**-24, and one of them, 0, would set a bit of probability 1e-12."""
    steps = 2**24 * uniform((1000,), torch.Generator().manual_seed(0))
    assert (steps != steps.round()).all()


@pytest.mark.parametrize(("n_chains", "n_steps"), [(1, 10), (4, 0)])
def test_too_few_chains_or_steps_are_rejected(n_chains: int, n_steps: int) -> None:
    log_joint, scores, _ = toy(2, 4)
    with pytest.raises(ValueError, match=f"at least 2 chains and 1 step, got {n_chains} chains and {n_steps} steps"):
        from_annealing(log_joint, scores, annealing(n_chains, n_steps))
