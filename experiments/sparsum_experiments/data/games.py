"""The images that signal games are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path

import torch
from torch import Tensor

from sparsum_experiments.data.digits import DIGITS
from sparsum_experiments.data.features import Features
from sparsum_experiments.data.images import Split, load_images
from sparsum_experiments.data.npz import FILES, Arrays, find_folder, read_npz

#: How many images a game has.
N_IMAGES, N_IMAGES_OF_DIGITS = 16, 8

#: One image in so many of each concept is held out of the training file for validation.
_HELD_OUT = 10


@dataclass(frozen=True, eq=False)
class Games:
    """What signal games are made of.

    Args:
        name: of the data set.
        train: images that are trained on.
        validation: images that models are chosen by; none of them is in ``train``.
        test: images that are reported on.
        names: what each concept is called.
        n_images: how many images a game has, each of another concept.
    """

    name: str
    train: Features
    validation: Features
    test: Features
    names: tuple[str, ...]
    n_images: int

    @property
    def n_features(self) -> int:
        """Features of an image."""
        return self.train.x.shape[1]

    def to(self, device: torch.device | str) -> Games:
        """The same on a device."""
        splits = {name: getattr(self, name).to(device) for name in ("train", "validation", "test")}
        return replace(self, **splits)


def load_games(
    name_or_folder: str | PathLike[str],
    data_dir: str | PathLike[str],
    *,
    device: torch.device | str = "cpu",
) -> Games:
    """The images of signal games, with a split that never changes.

    The ``digits`` are ten concepts, with 8 images to a game; their features are their pixels, and they are split as for
    `load_images`. A folder holds ``train.npz`` and ``test.npz``, each with

    - ``x``, the features of its images (n, d), or ``codes`` (n, d) and ``scale``, () or (d,), whose product they are;
    - ``y`` (n,), whole numbers that say which concept is on an image;
    - optionally ``names``, what the concepts are called, either by these numbers or in their order;

    and has 16 images to a game. The last tenth of each concept's training images is held out for validation.

    >>> games = load_games("digits", "data")
    >>> games.train.x.shape, games.train.n_concepts, games.n_images
    (torch.Size([1197, 64]), 10, 8)

    Args:
        name_or_folder: ``digits``, a folder, or the name of a folder in ``data_dir``.
        data_dir: the folder of all data.
        device: where the tensors shall be.

    Raises:
        FileNotFoundError: if a folder or file is missing.
        ValueError: if a file makes no sense, or there are too few concepts.
    """
    if name_or_folder == DIGITS:
        games = _digits()
    else:
        folder = find_folder(fspath(name_or_folder), Path(data_dir))
        games = _from_files(folder, read_npz(folder / FILES[0]), read_npz(folder / FILES[1]))
    for split in ("train", "validation", "test"):
        features: Features = getattr(games, split)
        if features.n_concepts < games.n_images:
            raise ValueError(
                f"a game has images of {games.n_images} concepts, "
                f"and {games.name} has {features.n_concepts} in its {split} data"
            )
    return games.to(device)


def _digits() -> Games:
    def features(split: Split) -> Features:
        return Features.from_unsorted(split.x / 16, split.y)

    images = load_images(DIGITS, "")
    return Games(
        name=DIGITS,
        train=features(images.train),
        validation=features(images.validation),
        test=features(images.test),
        names=tuple(map(str, range(10))),
        n_images=N_IMAGES_OF_DIGITS,
    )


def _from_files(folder: Path, train: Arrays, test: Arrays) -> Games:
    if train.x.shape[1] != test.x.shape[1]:
        raise ValueError(f"{folder}: {FILES[0]} has {train.x.shape[1]} features to an image, {FILES[1]} {test.x.shape[1]}")
    # Numbered anew from 0, over both files: either may lack a concept.
    numbers, concept = torch.cat([train.y, test.y]).unique(return_inverse=True)
    names = _names(folder, train.names, test.names, numbers)
    concept, test_concept = concept.split([len(train.y), len(test.y)])
    isheld_out = held_out(concept)
    return Games(
        name=folder.resolve().name,
        train=Features.from_unsorted(train.x[~isheld_out], concept[~isheld_out]),
        validation=Features.from_unsorted(train.x[isheld_out], concept[isheld_out]),
        test=Features.from_unsorted(test.x, test_concept),
        names=names,
        n_images=N_IMAGES,
    )


def held_out(
    concept: Tensor,  # shape: (n,), int64
) -> Tensor:  # shape: (n,), bool
    """Which images are for validation: the last tenth of each concept, at least one, but never the only one."""
    order = concept.argsort(stable=True)
    count = concept.bincount()
    n_left = count.cumsum(0)[concept[order]] - torch.arange(len(concept))  # of the same concept, this one included
    nheld_out = torch.where(count > 1, (count / _HELD_OUT).round().clamp_min(1), 0)
    isheld_out = torch.empty(len(concept), dtype=torch.bool)
    isheld_out[order] = n_left <= nheld_out[concept[order]]
    return isheld_out


def _names(
    folder: Path,
    train: tuple[str, ...],
    test: tuple[str, ...],
    numbers: Tensor,  # shape: (n_concepts,), int64, sorted
) -> tuple[str, ...]:
    if train and test and train != test:
        raise ValueError(f"{folder}: {FILES[0]} and {FILES[1]} have different names, so that y may mean different things")
    names = train or test
    if not names:
        return tuple(map(str, numbers.tolist()))
    if numbers[0] >= 0 and numbers[-1] < len(names):
        return tuple(names[number] for number in numbers.tolist())
    if len(names) == len(numbers):
        return names
    raise ValueError(f"{folder}: there are {len(names)} names for {len(numbers)} concepts, {numbers[0]} to {numbers[-1]}")
