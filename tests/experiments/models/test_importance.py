"""Importance sampling against exhaustive sums over up to 2**12 bit vectors."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from sparsum_experiments.bitvector_vae import Args, BitvectorVAE
from sparsum_experiments.data import Images, Split
from sparsum_experiments.models import importance
from sparsum_experiments.models.bits_per_dim import bits_per_dim
from sparsum_experiments.models.importance import LogJoint, LogLikelihood, Sampling, draw_outside, proposal
from torch import Tensor

import sparsum as sp
from tests.simplex.test_devices import every_device

METRICS = {"elbo", "rate", "distortion", "entropy", "calls", "used_bits", "sharpness"}
METRICS |= {f"bits_per_dim_{way}{end}" for way in ("paper", "proposal") for end in ("", "_se")}


def all_bits(n: int, device: str = "cpu") -> Tensor:
    return torch.tensor(list(itertools.product([0.0, 1.0], repeat=n)), device=device)


def toy(n_rows: int, n_bits: int, device: str = "cpu", *, equal: bool = False) -> tuple[LogJoint, Tensor, Tensor]:
    """A log-joint with interactions between bits, scores of an approximate posterior, and the exact log p(x) of each row."""
    generator = torch.Generator().manual_seed(0)
    linear = torch.randn(1 if equal else n_rows, n_bits, generator=generator).expand(n_rows, -1).to(device)
    pairs = 0.15 * torch.randn(n_bits, n_bits, generator=generator).to(device)

    def log_joint(z: Tensor, row: Tensor) -> Tensor:
        return (z * linear[row]).sum(-1) + ((z @ pairs) * z).sum(-1) - 1000  # whose exponential is 0

    z = all_bits(n_bits, device)
    row = torch.arange(n_rows, device=device).repeat_interleave(len(z))
    terms = log_joint(z.repeat(n_rows, 1), row).double().reshape(n_rows, len(z))
    return log_joint, linear, terms.logsumexp(1)


def sampling(n_samples: int = 4000, n_at_once: int = 20_000, device: str = "cpu", seed: int = 0) -> Sampling:
    return Sampling(n_samples, torch.Generator(device).manual_seed(seed), n_at_once)


def atoms_of(scores: Tensor, k: int) -> sp.SparseDistribution:
    return sp.topk_sparsemax(0.01 * scores, sp.Bits(scores.shape[-1]), k)  # so flat that all k have nonzero probability


def check(found: LogLikelihood, exact: Tensor, largest_error: float) -> None:
    """Estimates are within a few standard errors, which are small."""
    assert (found.standard_error < largest_error).all()
    assert ((found.value - exact).abs() <= 4.5 * found.standard_error + 1e-6).all()
    assert found.value.dtype == torch.float64
    mean, standard_error = found.mean()
    assert mean == pytest.approx(found.value.mean().item())
    assert standard_error == pytest.approx(found.standard_error.norm().item() / len(exact))


@every_device
@pytest.mark.parametrize("n_bits", [1, 4, 12])
def test_both_estimates_against_exhaustive_sums(n_bits: int, device: str) -> None:
    log_joint, scores, exact = toy(20, n_bits, device)
    dense = importance.log_likelihood(log_joint, sp.Gibbs(scores, sp.Bits(n_bits)), sampling(device=device))
    check(dense, exact, 0.2)
    for sharpness in (0.5, 1.0, 1.5):
        check(importance.from_samples(log_joint, proposal(scores, sharpness), sampling(device=device)), exact, 0.5)
    for k in (1, 10):
        found = importance.log_likelihood(log_joint, atoms_of(scores, k), sampling(device=device))
        check(found, exact, 0.3)


@pytest.mark.parametrize("way", ["samples", "atoms"])
def test_errors_are_calibrated_and_the_estimate_is_a_bound(way: str) -> None:
    n_rows = 2000  # identical
    log_joint, scores, exact = toy(n_rows, 6, equal=True)
    if way == "samples":
        found = importance.from_samples(log_joint, proposal(scores, 0.5), sampling(50, 10**6))
    else:
        found = importance.from_atoms(log_joint, atoms_of(scores, 2), sampling(50, 10**6))
    deviation = found.value - exact
    assert found.standard_error.square().mean().sqrt().item() == pytest.approx(deviation.std().item(), rel=0.1)
    ratio = deviation.exp()  # the estimate of p(x) is unbiased, its logarithm is biased downwards
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / math.sqrt(n_rows)
    error = deviation.std() / math.sqrt(n_rows)
    assert deviation.mean() < -error
    assert abs(deviation.mean() + 0.5 * deviation.var()) < 4 * error


def test_atoms_are_not_counted_twice() -> None:
    log_joint, scores, exact = toy(30, 4)
    q = atoms_of(scores, 8)  # half of all
    found = importance.from_atoms(log_joint, q, sampling(4000, 10**6))
    check(found, exact, 0.05)
    # The authors' code: the sum over the atoms, plus samples from the prior, which may be atoms.
    prior = importance.from_samples(log_joint, sp.Gibbs(torch.zeros_like(scores), sp.Bits(4)), sampling(4000, 10**6))
    terms = log_joint(q.atoms, q.row).double()
    inside = torch.stack([terms[q.row == row].logsumexp(0) for row in range(30)])
    twice = torch.logaddexp(inside, prior.value)
    assert (twice - exact > 10 * found.standard_error).all()
    assert (inside < exact).all()


@pytest.mark.parametrize(("n_atoms", "is_exact"), [(16, True), (15, True), (14, False)])
def test_the_estimate_is_exact_if_at_most_one_vector_is_no_atom(n_atoms: int, is_exact: bool) -> None:
    log_joint, scores, exact = toy(10, 4)
    found = importance.from_atoms(log_joint, atoms_of(scores, n_atoms), sampling(50))
    assert torch.allclose(found.value, exact, atol=1e-5, rtol=0.0) == is_exact
    assert bool((found.standard_error < 1e-6).all()) == is_exact


@every_device
def test_samples_outside_of_the_atoms_are_uniform(device: str) -> None:
    scores = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).to(device)
    atoms, row = atoms_of(scores, 5).atoms[:8], torch.tensor([0] * 5 + [1] * 2 + [2], device=device)
    ragged = sp.SparseDistribution(atoms, torch.tensor([0.2] * 5 + [0.5] * 2 + [1.0], device=device), row)
    samples = draw_outside(ragged, 22_000, torch.Generator(device).manual_seed(0))
    codes = (samples @ torch.tensor([8.0, 4.0, 2.0, 1.0], device=device)).long()
    for i, n_atoms in enumerate([5, 2, 1]):
        counts = torch.bincount(codes[i], minlength=16).double()
        own = atoms[row == i] @ torch.tensor([8.0, 4.0, 2.0, 1.0], device=device)
        assert set((counts == 0).nonzero().flatten().tolist()) == set(own.long().tolist())
        others, expected = counts[counts > 0], 22_000 / (16 - n_atoms)
        assert ((others - expected).square() / expected).sum() < 2.5 * (16 - n_atoms)  # chi-square


def test_is_among_with_many_bits() -> None:
    generator = torch.Generator().manual_seed(0)
    atoms = torch.randint(0, 2, (3, 50, 128), generator=generator).float()
    samples = torch.randint(0, 2, (3, 20, 128), generator=generator).float()
    samples[0, 3], samples[2, 7] = atoms[0, 49], atoms[2, 0]
    samples[1, 5] = atoms[0, 1]  # an atom of another row
    samples[1, 6], samples[1, 7] = torch.zeros(128), torch.ones(128)
    expected = (samples.unsqueeze(2) == atoms.unsqueeze(1)).all(-1).any(-1)
    assert torch.equal(importance.is_among(samples, atoms), expected)
    assert expected.nonzero().tolist() == [[0, 3], [2, 7]]


def test_the_number_of_assignments_at_a_time_is_bounded() -> None:
    log_joint, scores, exact = toy(10, 8)
    sizes = []

    def spy(z: Tensor, row: Tensor) -> Tensor:
        sizes.append(len(z))
        return log_joint(z, row)

    check(importance.from_samples(spy, proposal(scores, 1.0), sampling(503, 70)), exact, 0.3)
    assert max(sizes) == 70
    assert sum(sizes) == 5030
    sizes.clear()
    q = atoms_of(scores, 20)
    check(importance.from_atoms(spy, q, sampling(503, 70)), exact, 0.3)
    assert max(sizes) == 70
    assert sum(sizes) == 5030 + 200


def test_error_of_the_logarithm_of_a_mean() -> None:
    values = torch.randn(5, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found, weights = importance.log_mean(values + 900), values.exp()
    torch.testing.assert_close(found.value, weights.mean(1).log() + 900)
    torch.testing.assert_close(found.standard_error, weights.std(1) / math.sqrt(40) / weights.mean(1))
    one = torch.zeros(1, 40, dtype=torch.float64)
    one[0, 0] = 1000.0
    assert importance.log_mean(one).standard_error.item() == pytest.approx(1.0)
    assert importance.log_mean(torch.zeros(1, 40)).standard_error.item() == 0.0


def fake_images() -> Images:
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.randint(2, 15, (5, 16), generator=generator)

    def split(n: int) -> Split:
        y = torch.randint(0, 5, (n,), generator=generator)
        return Split((prototypes[y] + torch.randint(-2, 3, (n, 16), generator=generator)).to(torch.uint8), y)

    return Images("fake", (4, 4), 17, split(200), split(40), split(30), torch.zeros(200, dtype=torch.bool))


def trained(**options: Any) -> BitvectorVAE:
    vae = BitvectorVAE(Args(batch_size=20, **options), torch.device("cpu"), fake_images())
    optimiser, generator = torch.optim.Adam(vae.model.parameters(), lr=1e-2), torch.Generator().manual_seed(0)
    for i in range(60):
        order = vae.start_epoch(generator)
        optimiser.zero_grad()
        vae.model(vae.batch(order, i % vae.n_steps, generator), generator).objective.backward()
        optimiser.step()
    return vae


@torch.no_grad()
def exact_log_likelihood(vae: BitvectorVAE, x: Tensor) -> float:
    z = all_bits(vae.args.bits)
    row = torch.arange(len(x)).repeat_interleave(len(z))
    terms = vae.model.log_joint(x)(z.repeat(len(x), 1), row)
    return terms.double().reshape(len(x), len(z)).logsumexp(1).mean().item()


@pytest.mark.parametrize("method", ["topk", "sparsemap", "sparsemap-budget", "sfe", "gumbel", "dense", "entmax15"])
def test_evaluation_of_a_model_against_exhaustive_sums(method: str) -> None:
    vae, fractions = trained(method=method, bits=8), list[float]()
    metrics = vae.evaluate(torch.Generator().manual_seed(0), n_samples=1024, progress=fractions.append)
    log_likelihood = exact_log_likelihood(vae, vae.images.test.x)
    exact = -log_likelihood / (16 * math.log(2))
    for way in ("paper", "proposal"):
        error = metrics[f"bits_per_dim_{way}_se"]
        assert abs(metrics[f"bits_per_dim_{way}"] - exact) < 4.5 * error + 1e-5, way
        assert error < 0.01
    assert metrics["elbo"] < log_likelihood + (0.5 if method in {"sfe", "gumbel"} else 0.0)
    assert metrics["elbo"] == pytest.approx(-metrics["rate"] - metrics["distortion"])
    measured = {name for name in metrics if not name.endswith("_se") or name in METRICS}
    assert measured - {"exact", "unsolved"} == METRICS
    assert metrics["elbo_se"] > 0
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def test_evaluation_has_a_seed_and_a_limit() -> None:
    vae = trained(method="topk", bits=8)
    first, again, other = (vae.evaluate(torch.Generator().manual_seed(seed), limit=10, n_samples=50) for seed in (0, 0, 1))
    assert first == again
    assert first["bits_per_dim_proposal"] != other["bits_per_dim_proposal"]
    assert first["elbo"] == vae.validate(torch.Generator(), split="test", limit=10)["elbo"]
    with pytest.raises(ValueError, match="n_samples must be at least 2, got 1"):
        vae.evaluate(torch.Generator(), n_samples=1)


def test_the_sharpness_is_selected_on_held_out_images() -> None:
    linear = 2 * torch.randn(40, 60, generator=torch.Generator().manual_seed(0))

    class Sharp:
        """A model whose scores are four times too small for the first half of its images."""

        def scores(self, x: Tensor) -> Tensor:
            return linear[x[:, 0]] / torch.where(x[:, :1] < 20, 4.0, 1.0)

        def posterior(self, x: Tensor, generator: torch.Generator) -> sp.Gibbs:
            return sp.Gibbs(self.scores(x), sp.Bits(60))

        def log_joint(self, x: Tensor) -> LogJoint:
            return lambda z, row: (z * linear[x[row, 0]]).sum(-1)

    first, second = torch.arange(40).unsqueeze(-1).split(20)
    assert bits_per_dim(Sharp(), second, first, sampling(200), 20)["sharpness"] == 4
    metrics = bits_per_dim(Sharp(), first, second, sampling(200), 20)
    assert metrics["sharpness"] == 1
    assert metrics["bits_per_dim_proposal"] == pytest.approx(metrics["bits_per_dim_paper"], rel=0.2)


def test_annealing_adds_an_estimate_and_reports_progress() -> None:
    vae = trained(method="topk", bits=8)
    images = vae.images.test.x
    fractions: list[float] = []

    def measured(n_annealed: int) -> dict[str, float]:
        return bits_per_dim(
            vae.model, images, images[:5], sampling(50), 20, n_annealed=n_annealed, progress=fractions.append
        )

    plain = measured(0)
    fractions.clear()
    annealed = measured(10)
    assert {name: annealed[name] for name in plain} == plain
    assert annealed["n_annealed"] == 10
    assert annealed["bits_per_dim_annealed"] == pytest.approx(plain["bits_per_dim_proposal"], rel=0.05)
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(1.0)
    assert max(after - before for before, after in itertools.pairwise(fractions)) < 0.05
    for wrong in (-1, 1):
        with pytest.raises(ValueError, match=f"n_annealed must be 0 or at least 2, got {wrong}"):
            measured(wrong)


def test_other_distributions_are_rejected() -> None:
    log_joint, scores, _ = toy(2, 3)
    with pytest.raises(TypeError, match=r"posterior must be .* got Bernoulli"):
        importance.log_likelihood(log_joint, torch.distributions.Bernoulli(logits=scores), sampling())
