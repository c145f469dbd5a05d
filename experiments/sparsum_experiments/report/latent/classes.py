"""The semisupervised VAE: what each class looks like, and what the model makes of test images."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

import pydantic
import torch
from torch import Tensor
from torch.nn import functional

import sparsum as sp
from sparsum_experiments.experiment import AbstractExperiment
from sparsum_experiments.report.latent import view
from sparsum_experiments.report.latent.view import AbstractImagesView, Part, Probability, Raw
from sparsum_experiments.ssvae import N_CLASSES, Model, SemisupervisedVAE

_N_COLUMNS = 12
# Beside one image of each class, those that the model is least sure of, among so many.
_N_UNSURE, _N_SEARCHED = 5, 1000
# At most so many classes of an image are decoded, if they have this probability at least.
_N_DECODED, _LEAST = 3, 0.005


class Reconstruction(Part):
    """What an image is decoded to under a class z."""

    z: Annotated[int, pydantic.Field(ge=0, lt=N_CLASSES, alias="class")]
    image: Raw


class Example(view.ImageExample):
    """A test image, the probabilities of the classes, and its reconstructions under the most probable ones."""

    probabilities: Annotated[list[Probability], pydantic.Field(min_length=N_CLASSES, max_length=N_CLASSES)]
    reconstructions: Annotated[list[Reconstruction], pydantic.Field(max_length=N_CLASSES)]

    @property
    def in_words(self) -> str:
        """The classes that have mass."""
        return ", ".join(f"{z}: {p:.0%}" for z, p in enumerate(self.probabilities) if p >= _LEAST)


class ClassesView(AbstractImagesView):
    """Samples of each class, (N_CLASSES, n_columns) pictures, and test images."""

    kind: ClassVar[str] = "classes"
    title: ClassVar[str] = "What the classes learned"
    n_columns: Annotated[int, pydantic.Field(ge=1, le=64)]
    samples: Raw
    examples: Annotated[list[Example], pydantic.Field(max_length=64)]

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        view.check_size(self.samples, N_CLASSES * self.n_columns * self.n_pixels, "samples")
        for i, example in enumerate(self.examples):
            for image in (example.image, *(each.image for each in example.reconstructions)):
                view.check_size(image, self.n_pixels, f"an image of examples.{i}")
        return self

    def rows(self) -> list[list[bytes]]:
        """The samples of each class."""
        every = [self.samples[i : i + self.n_pixels] for i in range(0, len(self.samples), self.n_pixels)]
        return [every[i : i + self.n_columns] for i in range(0, len(every), self.n_columns)]

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
        unsure = (
            pi.amax(-1).argsort(stable=True)[:_N_UNSURE].tolist()
        )  # those whose most probable class is the least probable
        chosen = [i for i in dict.fromkeys(view.one_of_each_class(images, N_CLASSES) + unsure) if i < len(x)]
        every_example = zip(view.class_names(images, chosen), x[chosen], pi[chosen], strict=True)
        height, width = images.shape
        return cls(
            height=height,
            width=width,
            n_columns=_N_COLUMNS,
            samples=view.grey_bytes(samples),
            examples=[_example(model, *each) for each in every_example],
        )


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


def _example(model: Model, label: str, x: Tensor, pi: Tensor) -> Example:
    best = pi.argsort(descending=True, stable=True)[:_N_DECODED]
    best = best[(pi[best] >= _LEAST) | (best == best[0])]
    one_hot = functional.one_hot(best, N_CLASSES).to(x.dtype)
    mean, _ = model.inference(torch.cat([x.expand(len(best), -1), one_hot], -1)).chunk(2, -1)
    pictures = _decoded(model, mean, best)
    found = [Reconstruction(z=z, image=view.grey_bytes(picture)) for z, picture in zip(best.tolist(), pictures, strict=True)]
    probabilities = [round(p, 6) for p in pi.tolist()]
    return Example(label=label, image=view.grey_bytes(x), probabilities=probabilities, reconstructions=found)
