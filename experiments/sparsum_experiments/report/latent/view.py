"""What all views have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import torch

from sparsum_experiments.data import Images
from sparsum_experiments.experiment import AbstractExperiment
from sparsum_experiments.report.html import Markup
from sparsum_experiments.report.latent.fields import Fields

#: The largest sizes that are read from a file: pixels along a side, images, and assignments of an image.
MAX_SIDE, MAX_EXAMPLES, MAX_ATOMS = 256, 64, 64

_CLASSES = {
    "fashion-mnist": (
        "T-shirt",
        "trousers",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    )
}


class AbstractView(ABC):
    """What one latent variable learned: plain numbers, bytes and texts, which need neither the model nor the data."""

    #: What it shows, as a heading.
    title: ClassVar[str]

    @classmethod
    @abstractmethod
    def of(cls, experiment: AbstractExperiment, generator: torch.Generator) -> Self:
        """The view of a trained model; gradients are off, and all noise comes from the generator."""

    @classmethod
    @abstractmethod
    def from_json(cls, fields: Fields) -> Self:
        """What `to_json` gave, checked."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """For a file."""

    @abstractmethod
    def markup(self) -> Markup:
        """For a page."""


def one_of_each_class(images: Images, n: int) -> list[int]:
    """Places of n test images: the first of each class, then the first of all others."""
    y = images.test.y.tolist()
    first = list({label: y.index(label) for label in sorted(set(y))}.values())
    others = [i for i in range(len(y)) if i not in set(first)]
    return (first + others)[:n]


def class_name(images: Images, label: int) -> str:
    """What is on an image, for people."""
    known = _CLASSES.get(images.name)
    return known[label] if known else f"digit {label}"
