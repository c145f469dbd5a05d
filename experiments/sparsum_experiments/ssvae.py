"""Experiment one: a semisupervised VAE whose discrete latent variable is the class of a digit.

The model is p(z) p(h) p(x | z, h), with z uniform over ten classes and h Gaussian; the posterior is pi(z | x) q(h | x, z).
The loss of unlabelled images is an expectation over z.
"""

from __future__ import annotations

import functools
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

import sparsum as sp
from sparsum_experiments.data import Images, Split, load_images
from sparsum_experiments.errors import DivergedError
from sparsum_experiments.experiment import CATEGORICAL, AbstractExperiment, Step
from sparsum_experiments.models.cache import cached
from sparsum_experiments.models.layers import adam, perceptron
from sparsum_experiments.options import EPOCHS, MAX_SIZE, CommonArgs, option
from sparsum_experiments.seeds import generator_for, with_seed

N_CLASSES = 10
_EVALUATED_AT_ONCE = {"cpu": 500, "cuda": 5000}
# The warm start: its learning rate, the networks that it trains, and a version to increase when its computation changes.
_WARM_LR = 1e-3
_WARM_NETWORKS = ("classifier", "inference", "generative")
_WARM_VERSION = 2
# Options that the warm start does not use; of the method it uses the classification loss.
_NOT_WARM = {"method", "data", "data_dir", "epochs", "seed", "lr", "temperature_decay", "temperature_every", "device"}
_NOT_WARM |= {"devices", "nodes", "precision", "warm_epochs", "k"}


class Args(CommonArgs):
    """The options of this experiment."""

    epochs: int = option(200, "Passes over the unlabelled images, the labelled ones cycling.", **EPOCHS)
    warm_epochs: int | None = option(
        None, "Passes over the labelled images before the main training. [100; digits 10]", ge=0, changes_cost=False
    )
    warm_seed: int = option(0, "Seed of the warm start, which all seeds share.", changes_cost=False)
    weight_decay: float = option(1e-5, "Weight decay of Adam.", ge=0, changes_cost=False)
    k: int = option(1, "Classes that are summed exactly.", ge=1, le=MAX_SIZE, methods=("sum-and-sample",), is_main=True)
    latent: int = option(8, "Size of the Gaussian h.", ge=1, le=MAX_SIZE)


class Model(torch.nn.Module):
    r"""The classifier pi(z | x), the inference network q(h | x, z) and the generative network p(x | z, h).

    Called with a batch of labelled and unlabelled binarised images, it returns the loss of the paper:

    .. math:: -\mathrm{ELBO}(x_l, y_l) + \text{classification loss}
        + \frac{n_u}{n_l} \bigl( \mathbb{E}_\pi[-\mathrm{ELBO}(x_u, z)] - H(\pi) \bigr)
    """

    def __init__(self, args: Args, n_pixels: int, unlabelled_weight: float) -> None:
        super().__init__()
        self.latent, self.unlabelled_weight = args.latent, unlabelled_weight
        self.classifier = perceptron(n_pixels, 256, 256, 256, N_CLASSES)
        self.inference = perceptron(n_pixels + N_CLASSES, 128, 128, 2 * args.latent)
        self.generative = perceptron(args.latent + N_CLASSES, 128, 128, n_pixels)
        self.estimator = CATEGORICAL[args.method](args, n_pixels)
        self.classification_loss = {"sparse": sp.sparsemax_loss, "entmax15": sp.entmax15_loss}.get(
            args.method, functional.cross_entropy
        )

    def negative_elbo(self, x: Tensor, z: Tensor, generator: torch.Generator) -> Tensor:
        """That of (x, z) with one sample of h, without log p(z) and the entropy of pi: (n,).

        The images have shape (n, n_pixels); the classes are indices or (relaxed) vectors.
        """
        z = _as_vectors(z)
        mean, log_std = self.inference(torch.cat([x, z], -1)).chunk(2, -1)
        noise = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device, generator=generator)
        h = mean + log_std.exp() * noise
        logits = self.generative(torch.cat([h, z.to(h.dtype)], -1))
        distortion = functional.binary_cross_entropy_with_logits(logits, x.to(logits.dtype), reduction="none").sum(-1)
        divergence: Tensor = 0.5 * (mean.square() + (2 * log_std).exp() - 1 - 2 * log_std).sum(-1)
        return distortion + divergence

    def both(
        self, x: Tensor, y: Tensor, scores: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, sp.estimators.Estimate]:
        """The negative ELBO, without the terms of z, of labelled images (n,), and the estimate of that of the others.

        The labelled images come first. One pass through the networks evaluates both.
        """
        n, labelled = len(y), list[Tensor]()

        def loss(z: Tensor, row: Tensor) -> Tensor:
            if labelled:  # some estimators evaluate the loss more than once
                return self.negative_elbo(x[n:][row], z, generator)
            every = torch.cat([torch.arange(n, device=x.device), n + row])
            found = self.negative_elbo(x[every], torch.cat([_as_vectors(y), _as_vectors(z)]), generator)
            labelled.append(found[:n])
            return found[n:]

        estimate = self.estimator(scores, sp.OneOf(N_CLASSES), loss, context=x[n:], generator=generator)
        return labelled[0], estimate

    def forward(self, batch: Mapping[str, Tensor], generator: torch.Generator) -> Step:
        """The loss of a step. The first images of x have the labels y; in the warm start, all have."""
        x, y = batch["x"], batch["y"]
        n = len(y)
        scores = self.classifier(x)  # in one call: small matrix products cost little less than large ones
        if len(x) == n:
            negative_elbo, estimate = self.negative_elbo(x, y, generator), None
        else:
            negative_elbo, estimate = self.both(x, y, scores[n:], generator)
        negative_elbo = negative_elbo + math.log(N_CLASSES)
        classification = self.classification_loss(scores[:n], y, reduction="none")
        is_right = scores[:n].argmax(-1) == y
        labelled = (negative_elbo + classification).mean()
        if estimate is None:
            terms = {"classification": classification.detach().mean(), "accuracy": is_right.float().mean()}
            return Step(labelled, terms, torch.ones_like(y))
        entropy = estimate.distribution.entropy()
        unlabelled = (estimate.surrogate - entropy).mean() + math.log(N_CLASSES)
        terms = {
            "elbo": entropy - estimate.value - math.log(N_CLASSES),
            "labelled_elbo": -negative_elbo,
            "classification": classification,
            "entropy": entropy,
            "accuracy": is_right.float(),
        }
        means = torch.stack([values.detach() for values in terms.values()]).mean(-1)  # in one launch
        shown = {"loss": unlabelled.detach()} | dict(zip(terms, means.unbind(), strict=True))
        return Step(labelled + self.unlabelled_weight * unlabelled, shown, estimate.calls)


def _as_vectors(z: Tensor) -> Tensor:
    """Indices as one-hot vectors; (relaxed) vectors unchanged."""
    return z if z.is_floating_point() else functional.one_hot(z, N_CLASSES).float()


class SemisupervisedVAE(AbstractExperiment):
    """The first experiment of the paper."""

    name: ClassVar[str] = "ssvae"
    methods: ClassVar[tuple[str, ...]] = tuple(CATEGORICAL)
    criterion: ClassVar[str] = "elbo"
    judges: ClassVar[Mapping[str, int]] = {"accuracy": 1}
    args_class: ClassVar[type[CommonArgs]] = Args
    args: Args

    def __init__(self, args: Args, device: torch.device, images: Images | None = None) -> None:
        self.args, self.device = args, device
        self.images = load_images(args.data, args.data_dir, device=device) if images is None else images.to(device)
        self.data_files = self.images.digests
        train = self.images.train
        self.labelled = self.images.is_labelled.nonzero().squeeze(-1)
        self.unlabelled = (~self.images.is_labelled).nonzero().squeeze(-1)
        self.n_steps = len(self.unlabelled) // args.batch_size
        if not self.n_steps:
            raise ValueError(
                f"--batch-size must be at most {len(self.unlabelled)}, the unlabelled images, got {args.batch_size}"
            )
        self.n_calls_per_step = args.batch_size
        weight = len(self.unlabelled) / len(self.labelled)
        self.model: Model = with_seed(lambda: Model(args, train.x.shape[1], weight), args.seed, "weights").to(device)

    def start(self, say: Callable[[str], None]) -> None:
        """The warm start: train on the labelled images only, or load the cached weights."""
        n_epochs = self.args.warm_epochs
        if n_epochs is None:
            n_epochs = 10 if self.images.name == "digits" else 100
        if n_epochs == 0:
            return
        digest = hashlib.blake2b(self.images.train.x[self.labelled].cpu().numpy().tobytes(), digest_size=10)
        settings = self.args.model_dump(exclude=_NOT_WARM) | {  # everything that the weights depend on
            "version": _WARM_VERSION,
            "data": [self.images.name, len(self.labelled), digest.hexdigest()],
            "loss": self.model.classification_loss.__name__,
            "epochs": n_epochs,
            "device": self.device.type,
        }
        weights = cached("ssvae", settings, lambda: self._warm_weights(n_epochs, say), say, self.device)
        for name in _WARM_NETWORKS:
            getattr(self.model, name).load_state_dict(weights[name])

    def _warm_weights(self, n_epochs: int, say: Callable[[str], None]) -> dict[str, Any]:
        """Train on the labelled images; of all seeds, the weights depend on ``warm_seed`` only."""
        args = self.args.replace(seed=self.args.warm_seed)
        n_pixels, weight = self.images.train.x.shape[1], self.model.unlabelled_weight
        model = with_seed(lambda: Model(args, n_pixels, weight), args.warm_seed, "warm", "weights").to(self.device)
        optimiser = adam(model, _WARM_LR, args.weight_decay)
        shown_at = time.monotonic()
        for epoch in range(n_epochs):
            generator = generator_for(self.device, args.warm_seed, "warm", epoch)
            order = torch.randperm(len(self.labelled), generator=generator, device=self.device)
            parts = self.labelled[order].split(args.batch_size)
            # All are binarised before the first step: the noise of an epoch has this order.
            images = [self.binarised(self.images.train.x[part], generator) for part in parts]
            for x, part in zip(images, parts, strict=True):
                step = model({"x": x, "y": self.images.train.y[part]}, generator)
                optimiser.zero_grad(set_to_none=True)
                step.objective.backward()
                optimiser.step()
            if time.monotonic() - shown_at > 5:
                shown_at = time.monotonic()
                say(f"warm start: epoch {epoch + 1}/{n_epochs}, accuracy on labelled images {step.terms['accuracy']:.2f}")
        if not torch.isfinite(step.objective):
            raise DivergedError(f"the warm start diverged: its loss became {step.objective.item()}")
        return {name: getattr(model, name).state_dict() for name in _WARM_NETWORKS}

    def start_epoch(self, generator: torch.Generator) -> Tensor:
        """The indices of labelled images, which cycle, and of unlabelled images, both in random order: (2, n)."""
        n = self.n_steps * self.args.batch_size
        order = torch.randperm(len(self.unlabelled), generator=generator, device=self.device)[:n]
        keys = torch.rand(-(-n // len(self.labelled)), len(self.labelled), generator=generator, device=self.device)
        return torch.stack([self.labelled[keys.argsort(-1).reshape(-1)[:n]], self.unlabelled[order]])

    def batch(self, order: Tensor, i: int, generator: torch.Generator) -> Mapping[str, Tensor]:
        """The images of step i, with a new random binarisation."""
        chosen = order[:, i * self.args.batch_size : (i + 1) * self.args.batch_size]
        x = self.binarised(self.images.train.x[chosen.reshape(-1)], generator)
        return {"x": x, "y": self.images.train.y[chosen[0]]}

    def binarised(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Sample binary pixels with the grey levels as probabilities: uint8 (n, n_pixels) -> float."""
        noise = torch.rand(x.shape, generator=generator, device=self.device)
        return (noise * (self.images.n_levels - 1) < x).float()

    def measures(self, generator: torch.Generator, split: str, limit: int | None) -> Iterator[Mapping[str, Tensor]]:
        """The accuracy of the most probable class, and the ELBO without labels, by an exact sum over z.

        The sum is under the method's own posterior, over all classes with nonzero probability.
        """
        part: Split = getattr(self.images, split)
        exact = self.model.estimator if isinstance(self.model.estimator, sp.estimators.Sparse) else sp.estimators.Dense()
        n_each = _EVALUATED_AT_ONCE[self.device.type]
        for grey, y in zip(part.x[:limit].split(n_each), part.y[:limit].split(n_each), strict=True):
            x = self.binarised(grey, generator)
            scores = self.model.classifier(x)
            loss = functools.partial(self._loss, x, generator)
            estimate = exact(scores, sp.OneOf(N_CLASSES), loss, generator=generator)
            entropy, accuracy = estimate.distribution.entropy(), (scores.argmax(-1) == y).double()
            elbo = -(estimate.value - entropy) - math.log(N_CLASSES)
            yield {"elbo": elbo, "accuracy": accuracy, "entropy": entropy, "calls": estimate.calls}

    def usage(self, generator: torch.Generator, split: str, limit: int | None) -> dict[str, float]:
        """``used_classes``: the number of classes that are the most probable one of some image."""
        grey = getattr(self.images, split).x[:limit].split(_EVALUATED_AT_ONCE[self.device.type])
        best = [self.model.classifier(self.binarised(part, generator)).argmax(-1) for part in grey]
        return {"used_classes": float(len(torch.cat(best).unique()))}

    def _loss(self, x: Tensor, generator: torch.Generator, z: Tensor, row: Tensor) -> Tensor:
        return self.model.negative_elbo(x[row], z, generator)
