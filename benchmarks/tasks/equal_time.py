"""Quality against time: a signal game and a VAE of bits, whose decoder costs 1, 10 or 100 times as much.

Every method trains for the same CPU seconds, so that cheap steps are many. A decoder of cost c is really computed c times,
forward and backward, and its results, which are all the same, are averaged: a step does the same for a model at every cost,
and only its time changes. The numbers of steps differ between machines, and with them the metrics.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import torch
from sparsum_experiments.data import Images, Split, load_images
from sparsum_experiments.models.importance import Sampling, from_samples, proposal
from torch import Tensor
from torch.nn import functional

import sparsum as sp
from benchmarks.tasks.task import AbstractTask, Column, Metrics, Options, Trial, clock
from sparsum import estimators as es

#: CPU seconds of training, by the cost of the decoder. Tuning takes half.
SECONDS = {1: 3.0, 10: 6.0, 100: 15.0}
#: When the curves are measured, as shares of the time.
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
HIDDEN, BATCH = 128, 32
N_SYMBOLS, N_IMAGES, N_FEATURES, ENTROPY = 128, 16, 32, 0.1  # of the game
N_BITS, N_UNITS = 32, 64  # of the VAE
N_SAMPLES, SHARPNESS = 100, (0.5, 1.0, 2.0, 4.0, 8.0)  # of the bound that is measured

ESTIMATORS: dict[str, Callable[[sp.AbstractStructure], es.AbstractEstimator]] = {
    "sparse": lambda structure: es.Sparse() if isinstance(structure, sp.OneOf) else es.SparseMAP(),
    "top-k": lambda _: es.TopK(4),
    "dense": lambda _: es.Dense(),
    "self-critic": lambda _: es.SelfCritic(),
    "leave-one-out": lambda _: es.LeaveOneOut(4),
    "disarm": lambda _: es.Disarm(),
    "straight-through": lambda _: es.StraightThrough(),
    "gumbel-softmax": lambda _: es.GumbelSoftmax(0.5),
}
Loss = Callable[[Tensor, Tensor], Tensor]


class Repeated(torch.nn.Module):
    """A network that is evaluated several times; returns the mean of the results."""

    def __init__(self, network: torch.nn.Module, times: int) -> None:
        super().__init__()
        self.network, self.times = network, times

    def forward(self, x: Tensor) -> Tensor:
        """The network's result, at ``times`` the cost, also of the gradient."""
        total: Tensor = self.network(x)
        for _ in range(self.times - 1):
            total = total + self.network(x)
        return total / self.times


class Model(torch.nn.Module, ABC):
    """An encoder of images to scores, and a decoder that makes a loss of each assignment."""

    structure: ClassVar[sp.AbstractStructure]
    entropy: ClassVar[float]  # weight of the entropy in the objective
    log_count: ClassVar[float]  # minus the logarithm of the prior
    sizes: ClassVar[Mapping[str, int]]  # how many examples of a split are measured
    decoder: Repeated

    def __init__(self, n_pixels: int, *, is_sparse: bool) -> None:
        super().__init__()
        (n_scores,) = self.structure.score_shape
        layers = [torch.nn.Linear(n_pixels, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, n_scores)]
        self.encoder = torch.nn.Sequential(*layers, *[sp.nn.ScoreNorm(n_scores)] * is_sparse)

    @staticmethod
    @abstractmethod
    def draw(split: Tensor, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A batch: what the encoder sees, (n, n_pixels), and what the decoder needs."""

    @abstractmethod
    def loss(self, seen: Tensor, rest: Tensor) -> Loss:
        """The loss of assignments, for the rows of a batch."""

    @abstractmethod
    def measure(self, seen: Tensor, rest: Tensor) -> float:
        """The metric of a batch; larger is better."""


class Game(Model):
    """The sender sees one of 16 images and sends a symbol; the receiver compares it with each image and picks one."""

    structure, entropy, log_count = sp.OneOf(N_SYMBOLS), ENTROPY, math.log(N_SYMBOLS)
    sizes: ClassVar = {"validation": 1000, "test": 4000}

    def __init__(self, n_pixels: int, cost: int, *, is_sparse: bool) -> None:
        super().__init__(n_pixels, is_sparse=is_sparse)
        self.image = torch.nn.Linear(n_pixels, N_FEATURES)
        self.symbol = torch.nn.Parameter(torch.randn(N_SYMBOLS, N_FEATURES))
        hidden = torch.nn.Linear(N_FEATURES, N_FEATURES)
        self.decoder = Repeated(
            torch.nn.Sequential(torch.nn.ReLU(), hidden, torch.nn.ReLU(), torch.nn.Linear(N_FEATURES, 1)), cost
        )

    @staticmethod
    def draw(split: Tensor, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Games; the first image is the sender's, since the receiver does not see their order."""
        images = split[torch.randint(len(split), (n, N_IMAGES), generator=generator, device=split.device)]
        return images[:, 0], images

    def answer(self, images: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """Symbols and their games -> logits of the images, (n, 16)."""
        embedded = self.image(images)
        return lambda z, row: self.decoder(embedded[row] * sp.embed(z, self.symbol).unsqueeze(1)).squeeze(-1)

    def loss(self, seen: Tensor, rest: Tensor) -> Loss:
        """Minus the log-probability of the sender's image."""
        answer = self.answer(rest)
        return lambda z, row: -answer(z, row).log_softmax(-1)[:, 0]

    def measure(self, seen: Tensor, rest: Tensor) -> float:
        """The share of games, in percent, in which the most probable symbol leads to the right image."""
        logits = self.answer(rest)(self.encoder(seen).argmax(-1), torch.arange(len(seen), device=seen.device))
        return 100 * (logits.argmax(-1) == 0).double().mean().item()


class BitsVAE(Model):
    """A VAE of binary images with 32 bits and a uniform prior."""

    structure, entropy, log_count = sp.Bits(N_BITS), 1.0, N_BITS * math.log(2)
    sizes: ClassVar = {"validation": 250, "test": 1000}

    def __init__(self, n_pixels: int, cost: int, *, is_sparse: bool) -> None:
        super().__init__(n_pixels, is_sparse=is_sparse)
        layers = torch.nn.Linear(N_BITS, N_UNITS), torch.nn.ReLU(), torch.nn.Linear(N_UNITS, n_pixels)
        self.decoder = Repeated(torch.nn.Sequential(*layers), cost)

    @staticmethod
    def draw(split: Tensor, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images with pixels of 0 and 1."""
        x = (split[torch.randint(len(split), (n,), generator=generator, device=split.device)] > 0.5).to(split.dtype)
        return x, x

    def loss(self, seen: Tensor, rest: Tensor) -> Loss:
        """Minus the log-likelihood of the pixels."""
        bce = functools.partial(functional.binary_cross_entropy_with_logits, reduction="none")
        return lambda z, row: bce(self.decoder(z), rest[row]).sum(-1)

    def measure(self, seen: Tensor, rest: Tensor) -> float:
        """The bound of 100 samples in nats; the sharpness of the proposal is that which is best on a tenth of the images."""
        scores, loss = self.encoder(seen), self.loss(seen, rest)

        def bound(n: int, sharpness: float) -> float:
            sampling = Sampling(N_SAMPLES, torch.Generator(seen.device).manual_seed(0), 2**16)
            log_joint: Loss = lambda z, row: -loss(z, row) - self.log_count  # noqa: E731
            return from_samples(log_joint, proposal(scores[:n], sharpness), sampling).value.mean().item()

        return bound(len(seen), max(SHARPNESS, key=functools.partial(bound, len(seen) // 10)))


MODELS = {"game": Game, "bits": BitsVAE}


class EqualTime(AbstractTask):
    """Methods that train for the same time, with decoders of three costs."""

    name, about = "equal-time", "quality at equal CPU time, with decoders that cost 1, 10 and 100 times as much"
    settings = tuple(f"{kind}, {cost}x" for kind in MODELS for cost in SECONDS)
    rows: ClassVar = {
        "sparse": "the exact sum over the symbols of sparsemax, or the bits of SparseMAP, behind ScoreNorm",
        "top-k": "the exact sum over the 4 best bit vectors, behind ScoreNorm",
        "dense": "the exact sum over all symbols of softmax",
        "distinct-bound": "a bound from 4 different samples",
        "self-critic": "REINFORCE with a second sample as baseline",
        "leave-one-out": "REINFORCE with 4 samples that are each other's baseline",
        "disarm": "two antithetic samples",
        "straight-through": "straight-through Gumbel-softmax, temperature 1",
        "gumbel-softmax": "temperature 0.5",
    }
    rates = (1e-3, 5e-3)
    judge = "validation"
    columns: ClassVar = {
        "test": Column("test: success (%), bound (nats)"),
        "quarter": Column("validation, a quarter of the time"),
        "validation": Column("validation"),
        "seconds": Column("CPU seconds", ".1f", with_spread=False),
        "steps": Column("steps", ".0f", with_spread=False),
        "ms": Column("ms per step", ".1f", with_spread=False),
        "calls": Column("calls per example", ".1f", with_spread=False),
    }
    left_out: ClassVar = {
        **{(f"game, {cost}x", "top-k"): "the support of the exact sum has about 4 symbols" for cost in SECONDS},
        **{(f"game, {cost}x", "distinct-bound"): "another objective than the game's expected loss" for cost in SECONDS},
        **{(f"game, {cost}x", "disarm"): "for bits" for cost in SECONDS},
        **{(f"bits, {cost}x", "dense"): "the sum has 2^32 terms" for cost in SECONDS},
    }

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        images = load_images(options.data or "mnist", options.data_dir, device=self.device)
        self.splits = {name: small(images, getattr(images, name)) for name in ("train", "validation", "test")}

    def train(self, trial: Trial, say: Callable[[str], None]) -> Metrics:
        """Train for the time of the setting, and measure at times."""
        kind, _, cost = trial.setting.partition(", ")
        times = int(cost.removesuffix("x"))
        seconds = SECONDS[times] / (1 + trial.is_tuning)
        next(self.steps(trial, kind, 1))  # what torch prepares once is not a matter of time
        torch.manual_seed(trial.seed)
        curve: dict[str, list[float]] = {"at_seconds": [], "at_calls": [], "success_or_bound": []}
        spent, calls, n = 0.0, 0.0, 0
        steps = self.steps(trial, kind, times)
        shares = list(SHARES)
        begin = clock(self.device)
        for n, (model, n_calls) in enumerate(steps, start=1):
            spent += clock(self.device) - begin
            calls += n_calls
            if spent >= shares[0] * seconds or (self.options.is_quick and n == 2):
                measured = self.measure(model, "validation")
                for name, value in zip(curve, (spent, calls, measured), strict=True):
                    curve[name].append(value)
                say(f"{spent:.1f} of {seconds:g} s, {measured:.2f}")
                while shares and spent >= shares[0] * seconds:
                    del shares[0]
                if not shares or self.options.is_quick:
                    break
            begin = clock(self.device)
        values = curve["success_or_bound"]
        quarter = next((v for v, s in zip(values, curve["at_seconds"], strict=True) if s >= seconds / 4), values[-1])
        found: Metrics = {"validation": values[-1], "quarter": quarter, "test": self.measure(model, "test")}
        return found | {"seconds": spent, "steps": n, "ms": 1000 * spent / n, "calls": calls / n, **curve}

    def steps(self, trial: Trial, kind: str, cost: int) -> Iterator[tuple[Model, float]]:
        """Take steps for ever; yields the model and the calls per example."""
        torch.manual_seed(trial.seed)
        generator = torch.Generator(self.device).manual_seed(trial.seed)
        train = self.splits["train"]
        model = MODELS[kind](train.shape[1], cost, is_sparse=trial.row in {"sparse", "top-k"}).to(self.device)
        structure = model.structure
        estimator = ESTIMATORS[trial.row](structure).to(self.device) if trial.row in ESTIMATORS else None
        optimizer = torch.optim.Adam(model.parameters(), lr=trial.rate, fused=True)

        @sp.capture
        def step(seen: Tensor, rest: Tensor) -> Tensor:
            optimizer.zero_grad()
            scores, loss = model.encoder(seen), model.loss(seen, rest)
            if estimator is None:
                bound = es.distinct_bound(
                    scores, structure, lambda z, row: -loss(z, row) - model.log_count, 4, generator=generator
                )
                objective, calls = -bound.surrogate, bound.calls
            else:
                estimate = estimator(scores, structure, loss, generator=generator)
                objective = estimate.surrogate - model.entropy * estimate.distribution.entropy()
                calls = estimate.calls
            objective.mean().backward()
            optimizer.step()
            return calls.double().mean()

        n = 4 if self.options.is_quick else BATCH
        while True:
            yield model, step(*model.draw(train, n, generator)).item()

    @torch.no_grad()
    def measure(self, model: Model, split: str) -> float:
        """The metric on the same examples for all; the decoder is evaluated once, since its results are the same."""
        generator = torch.Generator(self.device).manual_seed(0)
        times, model.decoder.times = model.decoder.times, 1
        model.eval()
        n = 20 if self.options.is_quick else model.sizes[split]
        value = model.measure(*model.draw(self.splits[split], n, generator))
        model.train()
        model.decoder.times = times
        return value


def small(images: Images, split: Split) -> Tensor:
    """Values from 0 to 1; images of more than 16 rows with every 2 x 2 pixels averaged: (n, n_pixels)."""
    x = split.x.float() / (images.n_levels - 1)
    if images.shape[0] <= 16:
        return x
    return functional.avg_pool2d(x.unflatten(-1, images.shape).unsqueeze(1), 2).flatten(1)
