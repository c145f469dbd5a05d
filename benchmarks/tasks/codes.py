"""A VAE of Fashion-MNIST whose code is several categories: sparse sums against samples, relaxations and quantization.

The prior over codes is uniform. Pixels are Bernoulli variables whose observed values are grey levels from 0 to 1, which is
what published comparisons of straight-through estimators train on. With 8 x 4 codes there are 65,536, and log p(x) is summed
over all of them, for every method alike.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import ClassVar, final

import torch
from sparsum_experiments.data import load_images
from torch import Tensor, nn
from torch.nn import functional

import sparsum as sp
from benchmarks.tasks.task import AbstractTask, Column, Metrics, Options, Trial, clock
from sparsum import estimators as es

#: The most atoms, or the number of samples, of methods that call the decoder several times per image.
CALLS = 8
#: Codes that are decoded at once.
AT_ONCE = 4096
#: The logarithm of the number of codes up to which log p(x) is a sum over all of them.
LISTED = math.log(1e5)
#: Factors of the scores in a proposal for importance sampling; validation images choose one for each model.
SHARPNESSES = (0.5, 1.0, 1.5, 2.0, 4.0)
#: Steps and samples that fit the proposal of each test image before it is sampled.
FITTING_STEPS, FITTING_SAMPLES = 60, 32

#: log p(x | z) of packed codes and the images given by their rows.
LogLikelihood = Callable[[Tensor, Tensor], Tensor]
#: The loss of each image, and the calls of the decoder: called with scores, structure, likelihood and generator.
Objective = Callable[[Tensor, sp.Groups, LogLikelihood, torch.Generator], tuple[Tensor, Tensor]]


def negative_elbo(estimator: es.AbstractEstimator) -> Objective:
    """The expected reconstruction loss by an estimator, and the divergence from the uniform prior, which is exact."""

    def objective(
        scores: Tensor, structure: sp.Groups, likelihood: LogLikelihood, g: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        estimate = estimator(scores, structure, lambda z, row: -likelihood(z, row), generator=g)
        return estimate.surrogate + structure.log_count() - estimate.distribution.entropy(), estimate.calls

    return objective


def negative_bound(
    scores: Tensor, structure: sp.Groups, likelihood: LogLikelihood, g: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The bound from distinct samples."""
    bound = es.distinct_bound(scores, structure, _joint(structure, likelihood), CALLS, generator=g)
    return -bound.surrogate, bound.calls


def _joint(structure: sp.Groups, likelihood: LogLikelihood) -> LogLikelihood:
    """The log-density log p(x, z), with the uniform prior."""
    return lambda z, row: likelihood(z, row) - structure.log_count()


SPARSE, FSQ, LONGER = "sparse", "fsq", "reinmax, 4 x steps"
OBJECTIVES: Mapping[str, Objective] = {
    SPARSE: negative_elbo(es.SparseMAP(max_atoms=CALLS)),
    "distinct_bound": negative_bound,
    "leave-one-out": negative_elbo(es.LeaveOneOut(CALLS)),
    "reinmax": negative_elbo(es.ReinMax(1.3)),
    LONGER: negative_elbo(es.ReinMax(1.3)),
    "reinmax, 8 calls": negative_elbo(es.ReinMax(1.3, samples=CALLS)),
    "straight-through": negative_elbo(es.StraightThrough(1.0)),
    "gumbel-softmax": negative_elbo(es.GumbelSoftmax(0.5)),
}
#: The ELBO of dense posteriors is measured by samples, whatever the training used.
DENSE_ELBO = negative_elbo(es.LeaveOneOut(CALLS))


class OneHot(nn.Module):
    """A linear layer of one-hot vectors, given as indices (n, n_groups) or as vectors (n, n_groups, n_each)."""

    offsets: Tensor

    def __init__(self, structure: sp.Groups, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(structure.n_groups * structure.n_each, n_out) / structure.n_groups**0.5)
        self.register_buffer("offsets", torch.arange(structure.n_groups) * structure.n_each)

    def forward(self, z: Tensor) -> Tensor:
        """Sum the rows of all groups: (n, n_out)."""
        if z.is_floating_point():
            return z.flatten(1) @ self.weight
        return functional.embedding_bag(z + self.offsets, self.weight, mode="sum")


class VAE(nn.Module):
    """An encoder of scores and a decoder of codes."""

    def __init__(self, n_pixels: int, structure: sp.Groups, hidden: int, row: str) -> None:
        super().__init__()
        self.structure, self.is_quantized = structure, row == FSQ
        shape = (structure.n_groups,) if self.is_quantized else structure.score_shape
        self.encoder = nn.Sequential(
            nn.Linear(n_pixels, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, math.prod(shape))
        ).append(nn.Unflatten(-1, shape))
        if row == SPARSE:
            self.encoder.append(sp.nn.ScoreNorm(shape, learn_temperature=True))
        elif self.is_quantized:  # without it, the hyperbolic tangent saturates within 50 steps
            self.encoder.append(nn.BatchNorm1d(structure.n_groups))
        first = nn.Linear(structure.n_groups, hidden) if self.is_quantized else OneHot(structure, hidden)
        rest = nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, n_pixels)
        self.decoder = nn.Sequential(first, *rest)

    def likelihood(self, x: Tensor) -> LogLikelihood:
        """The log-density log p(x | z) of packed codes."""
        return lambda z, row: log_bernoulli(self.decoder(z), x[row])

    def codes(self, x: Tensor) -> Tensor:
        """The best code of each image: (n, n_groups), int64."""
        scores = self.encoder(x)
        return self.levels(scores).round().long() if self.is_quantized else self.structure.argmax(scores)

    def levels(self, scores: Tensor) -> Tensor:
        """Finite scalar quantization: each score is bounded and rounded to one of n_each levels, straight through."""
        bounded = (self.structure.n_each - 1) / 2 * (scores.tanh() + 1)
        return bounded + (bounded.round() - bounded).detach()

    def reconstruct(self, levels: Tensor) -> Tensor:
        """Logits of the pixels, from codes; quantized ones are numbers from -1 to 1."""
        logits: Tensor = self.decoder(2 * levels / (self.structure.n_each - 1) - 1 if self.is_quantized else levels)
        return logits


def log_bernoulli(logits: Tensor, x: Tensor) -> Tensor:
    """The log-probability of pixels, summed."""
    return (x * logits).sum(-1) - functional.softplus(logits).sum(-1)


@torch.no_grad()
def log_likelihood(decoder: Callable[[Tensor], Tensor], structure: sp.Groups, x: Tensor) -> Tensor:
    """The log-density log p(x) under a uniform prior, summed over all codes: (n,), float64.

    It is linear in x given the code, so that all images together take one product of matrices.
    """
    places = structure.n_each ** torch.arange(structure.n_groups, device=x.device)
    total = torch.full((len(x),), -torch.inf, dtype=torch.float64, device=x.device)
    for numbers in torch.arange(structure.n_each**structure.n_groups, device=x.device).split(AT_ONCE):
        logits = decoder(numbers.unsqueeze(-1) // places % structure.n_each)
        joint = x @ logits.T - functional.softplus(logits).sum(-1)
        total = torch.logaddexp(total, joint.double().logsumexp(-1))
    return total - structure.log_count()


def importance_bound(
    logits: Tensor, structure: sp.Groups, log_joint: LogLikelihood, n_samples: int, generator: torch.Generator
) -> Tensor:
    """A bound on log p(x), from samples of independent categories with these logits: (n,), float64."""
    q, weights = sp.Gibbs(logits.detach(), structure), list[Tensor]()
    for numbers in torch.arange(n_samples).split(max(1, AT_ONCE // len(logits))):
        z = q.sample((len(numbers),), generator=generator)
        row = torch.arange(len(logits), device=z.device).repeat(len(z))
        with torch.no_grad():
            weights.append((log_joint(z.flatten(0, 1), row).view(z.shape[:2]) - q.log_prob(z)).double())
    return torch.cat(weights).logsumexp(0) - math.log(n_samples)


def fitted(logits: Tensor, structure: sp.Groups, log_joint: LogLikelihood, generator: torch.Generator) -> Tensor:
    """The logits of each image after steps that raise its ELBO; the model stays as it is."""
    logits, estimator = logits.detach().clone().requires_grad_(), es.LeaveOneOut(FITTING_SAMPLES)
    optimizer = torch.optim.Adam([logits], lr=0.05)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, FITTING_STEPS)
    with torch.enable_grad():
        for _ in range(FITTING_STEPS):
            optimizer.zero_grad()
            estimate = estimator(logits, structure, lambda z, row: -torch.no_grad()(log_joint)(z, row), generator=generator)
            (estimate.surrogate - estimate.distribution.entropy()).sum().backward()
            optimizer.step()
            schedule.step()
    return logits.detach()


@final
class Codes(AbstractTask):
    """Discrete codes of images."""

    name, about = "codes", "a VAE of Fashion-MNIST with 8 x 4 and 32 x 32 codes"
    settings = ("8 x 4", "32 x 32")
    rows: ClassVar = {
        SPARSE: f"SparseMAP behind ScoreNorm, at most {CALLS} atoms",
        "distinct_bound": f"a bound from at most {CALLS} different samples",
        "leave-one-out": f"score functions of {CALLS} samples, each with the others as baseline",
        "reinmax": "one sample, temperature 1.3",
        LONGER: "the same, with four times as many steps",
        "reinmax, 8 calls": "eight samples, temperature 1.3",
        "straight-through": "straight-through Gumbel-softmax, one sample, temperature 1",
        "gumbel-softmax": "one relaxed sample, temperature 0.5",
        FSQ: "finite scalar quantization behind BatchNorm, an autoencoder without posterior",
    }
    rates, judge = (1e-3, 3e-3), "validation"
    columns: ClassVar = {
        "log_likelihood": Column("log p(x)"),
        "elbo": Column("ELBO"),
        "reconstruction": Column("reconstruction"),
        "usage": Column("usage", ".1%"),
        "calls": Column("calls", ".1f", with_spread=False),
        "ms": Column("ms per step", ".1f", with_spread=False),
    }
    left_out: ClassVar = {
        ("32 x 32", LONGER): "56 s a model",
        ("32 x 32", "reinmax, 8 calls"): "52 s a model",
    }
    fewer_seeds: ClassVar = {("8 x 4", LONGER): 1, **{("32 x 32", row): 2 for row in rows}}
    n_steps, n_tuning_steps, batch_size, hidden, n_samples, n_images = 1000, 250, 100, 256, 256, 200

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        if options.is_quick:
            self.n_steps, self.n_tuning_steps, self.hidden, self.n_samples, self.n_images = 3, 3, 8, 4, 4

    @functools.cached_property
    def images(self) -> Mapping[str, Tensor]:
        """Grey levels from 0 to 1, by split."""
        images = load_images(self.options.data or "fashion-mnist", self.options.data_dir, device=self.device)
        return {name: getattr(images, name).x / (images.n_levels - 1) for name in ("train", "validation", "test")}

    def train(self, trial: Trial, say: Callable[[str], None]) -> Metrics:
        """Train a model; the decoder is called for each atom or sample of an image."""
        torch.manual_seed(trial.seed)
        generator = torch.Generator(self.device).manual_seed(trial.seed)
        n_groups, n_each = map(int, trial.setting.split(" x "))
        images = self.images["train"]
        model = VAE(images.shape[1], sp.Groups(n_groups, n_each), self.hidden, trial.row).to(self.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=trial.rate, fused=True)

        @sp.capture
        def step(x: Tensor) -> tuple[Tensor, Tensor]:
            optimizer.zero_grad()
            scores = model.encoder(x)
            if model.is_quantized:
                loss, calls = -log_bernoulli(model.reconstruct(model.levels(scores)), x), torch.ones(len(x), device=x.device)
            else:
                loss, calls = OBJECTIVES[trial.row](scores, model.structure, model.likelihood(x), generator)
            loss.mean().backward()
            optimizer.step()
            return loss.mean().detach(), calls.float().mean()

        n_steps, seen = self.n_tuning_steps if trial.is_tuning else self.n_steps, []
        n_steps *= 4 if trial.row == LONGER else 1
        begin = clock(self.device)
        for i in range(n_steps):
            chosen = torch.randint(len(images), (self.batch_size,), generator=generator, device=self.device)
            seen.append(torch.stack(step(images[chosen])))
            if i % 100 == 99:
                say(f"step {i + 1} of {n_steps}, loss {seen[-1][0].item():.1f}")
        ms = 1000 * (clock(self.device) - begin) / n_steps
        loss, calls = torch.stack(seen).T
        curve = [part.mean().item() for part in loss.split(50)]
        metrics: Metrics = {"curve": curve, "calls": calls.mean().item(), "ms": ms}
        model.eval()
        sharpness, metrics["validation"] = self.judged(model, generator)
        return metrics if trial.is_tuning else {**metrics, **self.measured(model, trial, sharpness, generator)}

    @torch.no_grad()
    def judged(self, model: VAE, generator: torch.Generator) -> tuple[float, float]:
        """The sharpness of the proposal, and log p(x) of validation images; if quantized, the reconstruction."""
        x, structure = self.images["validation"][: self.n_images], model.structure
        if model.is_quantized:
            return 1.0, log_bernoulli(model.reconstruct(model.codes(x)), x).mean().item()
        if structure.log_count() < LISTED:
            return 1.0, log_likelihood(model.decoder, structure, x).mean().item()
        joint = _joint(structure, model.likelihood(x))
        bounds = {
            factor: importance_bound(factor * model.encoder(x), structure, joint, self.n_samples // 4, generator)
            .mean()
            .item()
            for factor in SHARPNESSES
        }
        best = max(bounds, key=lambda factor: bounds[factor])
        return best, bounds[best]

    @torch.no_grad()
    def measured(self, model: VAE, trial: Trial, sharpness: float, generator: torch.Generator) -> dict[str, float]:
        """The metrics on the first test images; reconstruction and ELBO on ten, usage on fifty times as many."""
        images, structure = self.images["test"], model.structure
        x, more = images[: self.n_images], images[: 10 * self.n_images]
        codes = model.codes(images[: 50 * self.n_images])
        shares = functional.one_hot(codes, structure.n_each).double().mean(0)
        perplexity = torch.special.entr(shares).sum(-1).exp()
        found = {
            "reconstruction": -log_bernoulli(model.reconstruct(codes[: len(more)]), more),
            "usage": perplexity / structure.n_each,
        }
        if not model.is_quantized:
            objective = OBJECTIVES[SPARSE] if trial.row == SPARSE else DENSE_ELBO
            found["elbo"] = -objective(model.encoder(more), structure, model.likelihood(more), generator)[0]
            if structure.log_count() < LISTED:
                found["log_likelihood"] = log_likelihood(model.decoder, structure, x)
            else:
                joint = _joint(structure, model.likelihood(x))
                logits = fitted(sharpness * model.encoder(x), structure, joint, generator)
                found["log_likelihood"] = importance_bound(logits, structure, joint, self.n_samples, generator)
        return {name: value.mean().item() for name, value in found.items()}
