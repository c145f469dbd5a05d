"""The semisupervised VAE: what each class looks like, and what the model makes of test images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional

import sparsum as sp
from sparsum_experiments.experiment import AbstractExperiment
from sparsum_experiments.report.html import Markup, element
from sparsum_experiments.report.latent.encode import base64_text, grey_bytes, png_address
from sparsum_experiments.report.latent.fields import Fields
from sparsum_experiments.report.latent.view import MAX_EXAMPLES, MAX_SIDE, AbstractView, class_name, one_of_each_class
from sparsum_experiments.ssvae import N_CLASSES, Model, SemisupervisedVAE

_N_COLUMNS = 12
# Beside one image of each class, those that the model is least sure of, among so many.
_N_UNSURE, _N_SEARCHED = 5, 1000
# At most so many classes of an image are decoded, if they have this probability at least.
_N_DECODED, _LEAST = 3, 0.005


@dataclass(frozen=True)
class Example:
    """A test image, the probabilities of the classes, and its reconstructions under the most probable ones."""

    label: str
    image: bytes
    probabilities: list[float]
    reconstructions: dict[int, bytes]


@dataclass(frozen=True)
class ClassesView(AbstractView):
    """Samples of each class, (N_CLASSES, n_columns) pictures, and test images."""

    title: ClassVar[str] = "What the classes learned"
    height: int
    width: int
    n_columns: int
    samples: bytes
    examples: list[Example]

    @classmethod
    def of(cls, experiment: AbstractExperiment, generator: torch.Generator) -> Self:
        """Samples by a few h, the same for all classes; test images as the model sees them, binarised."""
        assert isinstance(experiment, SemisupervisedVAE)
        images, model = experiment.images, experiment.model
        h = torch.randn(_N_COLUMNS, model.latent, generator=generator, device=experiment.device)
        every = torch.arange(N_CLASSES, device=experiment.device).repeat_interleave(_N_COLUMNS)
        samples = _decoded(model, h.repeat(N_CLASSES, 1), every)
        x = experiment.binarised(images.test.x[:_N_SEARCHED], generator)
        pi = _posterior(model, x, generator)
        chosen = _chosen(one_of_each_class(images, N_CLASSES), pi, len(x))
        labels = [class_name(images, label) for label in images.test.y[chosen].tolist()]
        examples = [_example(model, *each) for each in zip(labels, x[chosen], pi[chosen], strict=True)]
        return cls(*images.shape, _N_COLUMNS, grey_bytes(samples), examples)

    @classmethod
    def from_json(cls, fields: Fields) -> Self:
        """Read and check."""
        height, width = fields.whole("height", 1, MAX_SIDE), fields.whole("width", 1, MAX_SIDE)
        n_columns, size = fields.whole("n_columns", 1, MAX_EXAMPLES), height * width
        examples = []
        for part in fields.parts("examples", 0, MAX_EXAMPLES):
            probabilities = part.numbers("probabilities", N_CLASSES, 0, 1)
            decoded = part.parts("reconstructions", 0, N_CLASSES)
            found = {each.whole("class", 0, N_CLASSES - 1): each.raw("image", size) for each in decoded}
            examples.append(Example(part.text("label"), part.raw("image", size), probabilities, found))
        return cls(height, width, n_columns, fields.raw("samples", N_CLASSES * n_columns * size), examples)

    def to_json(self) -> dict[str, Any]:
        """Pictures in base64, a byte for each pixel."""
        return {
            "height": self.height,
            "width": self.width,
            "n_columns": self.n_columns,
            "samples": base64_text(self.samples),
            "examples": [
                {
                    "label": example.label,
                    "image": base64_text(example.image),
                    "probabilities": example.probabilities,
                    "reconstructions": [
                        {"class": z, "image": base64_text(picture)} for z, picture in example.reconstructions.items()
                    ],
                }
                for example in self.examples
            ],
        }

    def markup(self) -> Markup:
        """A row of samples for each class, and a card for each test image."""
        about_samples = "Mean images of each class z, a row each; the Gaussian h is the same in all rows of a column."
        about_examples = (
            "Test images as the model sees them, binarised: one of each class, then those it is least sure of. "
            "Bars: the probability of each class. Right of them: reconstructions under the most probable classes."
        )
        rows = [self._row(z) for z in range(N_CLASSES)]
        cards = [self._card(example) for example in self.examples]
        return element(
            "div",
            element("p", about_samples, class_="soft"),
            element("div", *rows, class_="latent-rows"),
            element("p", about_examples, class_="soft"),
            element("div", *cards, class_="latent-cards"),
            class_="latent-classes",
        )

    def _row(self, z: int) -> Markup:
        """The samples of a class side by side, which are one picture for whoever cannot see them."""
        size = self.height * self.width
        first = z * self.n_columns
        pictures = [self.samples[i * size : (i + 1) * size] for i in range(first, first + self.n_columns)]
        shown = [element("img", src=png_address(picture, self.height, self.width), alt="") for picture in pictures]
        label = element("span", str(z), class_="latent-label")
        row = element("div", *shown, class_="latent-row", role="img", aria_label=f"{self.n_columns} samples of class {z}")
        return element("div", label, row, class_="latent-row")

    def _card(self, example: Example) -> Markup:
        original = self._picture(example.image, f"test image, {example.label}", example.label)
        decoded = [
            self._picture(picture, f"reconstruction as class {z}", f"z = {z}")
            for z, picture in example.reconstructions.items()
        ]
        return element("div", original, _bars(example.probabilities), *decoded, class_="latent-card")

    def _picture(self, grey: bytes, alt: str, caption: str) -> Markup:
        image = element("img", src=png_address(grey, self.height, self.width), alt=alt)
        return element("figure", image, element("figcaption", caption))


def _bars(probabilities: list[float]) -> Markup:
    """Ten small bars with the classes below them."""
    told = ", ".join(f"{z}: {p:.0%}" for z, p in enumerate(probabilities) if p >= _LEAST)
    parts = []
    for z, p in enumerate(probabilities):
        parts.append(element("rect", x=8 * z + 1, y=40 - 38 * p, width=6, height=38 * p))
        parts.append(element("text", str(z), x=8 * z + 4, y=50, text_anchor="middle"))
    parts.append(element("path", d="M0 40.5h80"))
    drawn = element("svg", *parts, viewBox="0 0 80 54", role="img", aria_label=f"probabilities of classes, {told}")
    return element("figure", drawn, element("figcaption", "π(z | x)"), class_="latent-bars")


def _decoded(model: Model, h: Tensor, z: Tensor) -> Tensor:
    """The mean images of classes, indices, with their h: (n, n_pixels)."""
    logits: Tensor = model.generative(torch.cat([h, functional.one_hot(z, N_CLASSES).to(h.dtype)], -1))
    return logits.sigmoid()


def _posterior(model: Model, x: Tensor, generator: torch.Generator) -> Tensor:
    """The probabilities of the classes under the method's own posterior: (n, N_CLASSES)."""
    exact = model.estimator if isinstance(model.estimator, sp.estimators.Sparse) else sp.estimators.Dense()

    scores = model.classifier(x)
    # What is asked for is the distribution: the loss does not matter.
    mean = exact(scores, sp.OneOf(N_CLASSES), lambda z, _: scores.new_zeros(len(z)), generator=generator).distribution.mean
    assert isinstance(mean, Tensor)
    return mean


def _chosen(first: list[int], pi: Tensor, n: int) -> list[int]:
    """The places of one image of each class, and of those whose most probable class is the least probable."""
    unsure = pi.amax(-1).argsort(stable=True)[:_N_UNSURE].tolist()
    return [i for i in dict.fromkeys(first + unsure) if i < n]


def _example(model: Model, label: str, x: Tensor, pi: Tensor) -> Example:
    best = pi.argsort(descending=True, stable=True)[:_N_DECODED]
    best = best[(pi[best] >= _LEAST) | (best == best[0])]
    one_hot = functional.one_hot(best, N_CLASSES).to(x.dtype)
    mean, _ = model.inference(torch.cat([x.expand(len(best), -1), one_hot], -1)).chunk(2, -1)
    pictures = _decoded(model, mean, best)
    found = {z: grey_bytes(picture) for z, picture in zip(best.tolist(), pictures, strict=True)}
    return Example(label, grey_bytes(x), [round(p, 6) for p in pi.tolist()], found)
