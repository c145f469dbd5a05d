"""Images with labels, split into training, validation and test data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from sparsum_experiments.data.sources import DIGITS, NAMES, SOURCES, Idx, Source, digest, find_folder, read_file
from sparsum_experiments.seeds import seed_for

# The seed of every split. Another one would make results incomparable with those published for this one.
_SPLIT_SEED = 2020
# Of the digits, by default: a sixth and a tenth, as of other data sets, would be odd numbers.
_N_TEST_DIGITS, _N_VALIDATION_DIGITS, _N_LABELLED_DIGITS = 300, 300, 100


@dataclass(frozen=True, eq=False)
class Movable:
    """A dataclass of tensors, or of other such classes."""

    def to(self, device: torch.device | str) -> Self:
        """The same on a device."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return replace(self, **{name: value.to(device) for name, value in values if isinstance(value, Tensor | Movable)})


@dataclass(frozen=True, eq=False)
class Split(Movable):
    """Some images and their classes, 0 to 9."""

    x: Tensor  # shape: (n, n_pixels), uint8
    y: Tensor  # shape: (n,), int64

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, chosen: slice | Tensor) -> Split:
        return Split(self.x[chosen], self.y[chosen])


@dataclass(frozen=True, eq=False)
class Images(Movable):
    """A data set of images; its splits are disjoint."""

    name: str
    shape: tuple[int, int]  # height and width of an image, whose pixels are stored row by row
    n_levels: int
    train: Split
    validation: Split
    test: Split
    is_labelled: Tensor  # shape: (n_train,), bool; a semisupervised model may see these labels
    digests: Mapping[str, str] = field(default_factory=dict)  # of the uncompressed files, by name

    @property
    def n_pixels(self) -> int:
        """Pixels of an image."""
        return self.shape[0] * self.shape[1]


def load_images(
    name_or_folder: str | PathLike[str],
    data_dir: str | PathLike[str],
    *,
    n_validation: int | None = None,
    max_validation: int | None = None,
    n_labelled: int | None = None,
    device: torch.device | str = "cpu",
) -> Images:
    """Images with a split that never changes: ``digits``, ``mnist``, ``fashion-mnist``, or a folder, also in ``data_dir``.

    A fixed permutation orders the images that are not test data. The last ``n_validation`` are held out, and the first
    ``n_labelled`` of the others are labelled: more validation data leaves the labelled ones as they are, and more labelled
    ones include the fewer. By default a sixth of the images, at most 10,000 or ``max_validation``, is held out, and a tenth
    of the others, at most 5,000, is labelled.

    A folder holds the four files of MNIST by their names, compressed or not. If they are those of a published data set, it
    is that data set; otherwise it is one of your own, named after the folder, with images of any size.

    >>> images = load_images("digits", "data")
    >>> len(images.train), len(images.validation), len(images.test), int(images.is_labelled.sum())
    (1197, 300, 300, 100)
    """
    name = fspath(name_or_folder)
    if name == DIGITS:
        digits, digest_of_all = load_digits()
        digits = digits[fixed_permutation(len(digits), DIGITS)]
        rest, test = digits[:-_N_TEST_DIGITS], digits[-_N_TEST_DIGITS:]
        shape, n_levels, digests = (8, 8), 17, {DIGITS: digest_of_all}
    else:
        name, files = _read_files(name, Path(data_dir))
        x, y, x_test, y_test = (file.array for file in files.values())
        rest, test = Split(x.flatten(1), y.long())[fixed_permutation(len(x), name)], Split(x_test.flatten(1), y_test.long())
        shape, n_levels, digests = (x.shape[1], x.shape[2]), 256, {file: read.digest for file, read in files.items()}
    usual = _N_VALIDATION_DIGITS if name == DIGITS else max(1, min(max_validation or 10_000, len(rest) // 6))
    n_train = len(rest) - _count("n_validation", n_validation, usual, least=1, most=len(rest) - 1)
    usual = min(_N_LABELLED_DIGITS if name == DIGITS else max(1, min(5_000, n_train // 10)), n_train)
    is_labelled = torch.arange(n_train) < _count("n_labelled", n_labelled, usual, least=0, most=n_train)
    return Images(name, shape, n_levels, rest[:n_train], rest[n_train:], test, is_labelled, digests).to(device)


def has_images(folder: Path) -> bool:
    """Whether a folder has any of the files of a data set of images."""
    own = Source.own(folder)
    return any(own.locate(file, folder) for file in own.files)


def load_digits() -> tuple[Split, str]:
    """The 1,797 images with levels 0 to 16, in the order of scikit-learn, and their digest."""
    try:
        from sklearn import datasets
    except ImportError as error:
        message = "the digits come with scikit-learn, which is not installed: `pip install scikit-learn`"
        raise ImportError(message) from error
    x, y = datasets.load_digits(return_X_y=True)
    x, y = x.astype(np.uint8), y.astype(np.int64)
    return Split(torch.from_numpy(x), torch.from_numpy(y)), digest(x.tobytes() + y.tobytes())


def fixed_permutation(n: int, *purpose: str) -> Tensor:  # shape: (n,), int64
    """The permutation of n elements for a purpose, the same with every version of torch and numpy.

    It sorts the raw output of a generator whose stream numpy guarantees, which `torch.randperm` does not.

    >>> fixed_permutation(6, "an example")
    tensor([1, 0, 3, 5, 4, 2])
    """
    keys = np.random.PCG64(seed_for(_SPLIT_SEED, "split", *purpose)).random_raw(n)
    return torch.from_numpy(np.argsort(keys, kind="stable").astype(np.int64))


def _read_files(name: str, data_dir: Path) -> tuple[str, dict[str, Idx]]:
    """The name of a data set and its four files, by name."""
    source = SOURCES.get(name) or Source.own(find_folder(name, data_dir, NAMES))
    files = {file.name: read_file(source, file, data_dir) for file in source.files}
    for published in SOURCES.values():
        if [file.md5 for file in files.values()] == [file.md5 for file in published.files]:
            return published.name, files
    folder = source.packaged_in[0]
    _check_own(folder, [file.array for file in files.values()])
    return folder.resolve().name, files


def _check_own(folder: Path, arrays: Sequence[Tensor]) -> None:
    """Refuse files that do not belong together, and names that would make results look like those of published data."""
    (x, y, x_test, y_test), name = arrays, folder.resolve().name
    if name in NAMES:
        raise ValueError(f"{folder} is named {name} and does not hold the published files of {name}: rename the folder")
    for split, n_images, n_labels in (("train", len(x), len(y)), ("t10k", len(x_test), len(y_test))):
        if n_images != n_labels:
            raise ValueError(f"{folder}: the {split} files have {n_images:,} images and {n_labels:,} labels")
    if x.shape[1:] != x_test.shape[1:]:
        sizes = " and ".join(f"{array.shape[1]} x {array.shape[2]}" for array in (x, x_test))
        raise ValueError(f"{folder}: images for training and test have different sizes, {sizes}")
    if len(x) < 2:
        raise ValueError(f"{folder}: there is 1 image for training and validation, at least 2 are needed")


def _count(name: str, value: int | None, default: int, *, least: int, most: int) -> int:
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}, it must be an integer from {least} to {most:,}")
    return value
