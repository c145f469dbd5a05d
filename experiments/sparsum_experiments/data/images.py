"""Images with labels, split into training, validation and test data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from sparsum_experiments.data.digits import DIGITS, DIGITS_SHAPE, N_DIGITS_LEVELS, split_digits
from sparsum_experiments.data.locate import read
from sparsum_experiments.data.permutation import fixed_permutation
from sparsum_experiments.data.sources import SOURCES, Source, SourceFile

#: How many images are held out for validation, and how many of the others are labelled, unless one says otherwise.
N_VALIDATION = {DIGITS: 300, "mnist": 10_000, "fashion-mnist": 10_000}
N_LABELLED = {DIGITS: 100, "mnist": 5_000, "fashion-mnist": 5_000}


@dataclass(frozen=True, eq=False)
class Split:
    """Some images with their labels.

    Args:
        x: grey levels.
        y: classes, 0 to 9.
    """

    x: Tensor  # shape: (n, n_pixels), uint8
    y: Tensor  # shape: (n,), int64

    def __len__(self) -> int:
        return len(self.y)

    def to(self, device: torch.device | str) -> Split:
        """The same on a device."""
        return Split(self.x.to(device), self.y.to(device))


@dataclass(frozen=True, eq=False)
class Images:
    """A data set of images.

    Args:
        name: of the data set.
        shape: height and width of an image, whose pixels stand row after row.
        n_levels: how many grey levels there are.
        train: what is trained on.
        validation: what models are chosen by; none of it is in ``train``.
        test: what is reported.
        is_labelled: for which images of ``train`` a semisupervised model may look at the label.
    """

    name: str
    shape: tuple[int, int]
    n_levels: int
    train: Split
    validation: Split
    test: Split
    is_labelled: Tensor  # shape: (n_train,), bool

    @property
    def n_pixels(self) -> int:
        """Pixels of an image."""
        return self.shape[0] * self.shape[1]

    def to(self, device: torch.device | str) -> Images:
        """The same on a device."""
        splits = {name: getattr(self, name).to(device) for name in ("train", "validation", "test")}
        return replace(self, **splits, is_labelled=self.is_labelled.to(device))


def load_images(
    name: str,
    data_dir: str | PathLike[str],
    *,
    n_validation: int | None = None,
    n_labelled: int | None = None,
    device: torch.device | str = "cpu",
) -> Images:
    """Images with a split that never changes.

    A fixed permutation orders the images that are not for the test. The last ``n_validation`` are held out, and the first
    ``n_labelled`` of the others are labelled: more validation data takes nothing from the labelled ones, and more labelled
    ones include the fewer.

    >>> images = load_images("digits", "data")
    >>> len(images.train), len(images.validation), len(images.test), int(images.is_labelled.sum())
    (1197, 300, 300, 100)

    Args:
        name: ``digits``, which comes with scikit-learn, ``mnist`` or ``fashion-mnist``.
        data_dir: where the files are, or a folder of the data set's name with the files.
        n_validation: how many images are held out; 300 of the digits and 10,000 of the others by default.
        n_labelled: how many are labelled; 100 of the digits and 5,000 of the others by default, or all if they are fewer.
        device: where the tensors shall be.

    Raises:
        FileNotFoundError: if a file is missing; it says where it was looked for and how to get it.
        ValueError: if a file is not the published one, or an argument makes no sense.
    """
    if name == DIGITS:
        rest, test = split_digits()
        (height, width), n_levels = DIGITS_SHAPE, N_DIGITS_LEVELS
    elif name in SOURCES:
        rest, test = _published(SOURCES[name], Path(data_dir))
        (_, height, width), n_levels = SOURCES[name].train[0].shape, 256
    else:
        raise ValueError(f"name is {name!r}, there are images of {', '.join((DIGITS, *SOURCES))}")
    n_train = len(rest[1]) - _count("n_validation", n_validation, N_VALIDATION[name], least=1, most=len(rest[1]) - 1)
    n_labelled = _count("n_labelled", n_labelled, min(N_LABELLED[name], n_train), least=0, most=n_train)
    train, validation = Split(rest[0][:n_train], rest[1][:n_train]), Split(rest[0][n_train:], rest[1][n_train:])
    is_labelled = torch.arange(n_train) < n_labelled
    return Images(name, (height, width), n_levels, train, validation, Split(*test), is_labelled).to(device)


def _published(source: Source, data_dir: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training data in the order of the fixed permutation, and test data."""

    def read_pair(images: SourceFile, labels: SourceFile) -> tuple[Tensor, Tensor]:
        return read(source, images, data_dir).flatten(1), read(source, labels, data_dir).to(torch.int64)

    x, y = read_pair(*source.train)
    order = fixed_permutation(len(y), source.name)
    return (x[order], y[order]), read_pair(*source.test)


def _count(name: str, value: int | None, default: int, *, least: int, most: int) -> int:
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}, it must be a whole number from {least} to {most:,}")
    return value
