"""Signal games: the images that they are made of, and drawing them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from sparsum_experiments.data.features import FILES, Arrays, Features, read_npz
from sparsum_experiments.data.images import load_images
from sparsum_experiments.data.sources import DIGITS, find_folder

#: How many images a game has.
N_IMAGES, N_IMAGES_OF_DIGITS = 16, 8

# One in this many images of each concept is held out of the training file for validation.
_HELD_OUT = 10
# Random numbers so large that their remainders are as good as uniform.
_LARGE = 1 << 62


@dataclass(frozen=True, eq=False)
class Games:
    """What signal games are made of; the splits are disjoint."""

    name: str
    train: Features
    validation: Features
    test: Features
    names: tuple[str, ...]  # of the concepts
    n_images: int  # of a game, each of a different concept
    digests: Mapping[str, str] = field(default_factory=dict)  # of the files, by name

    @property
    def n_features(self) -> int:
        """Features of an image."""
        return self.train.x.shape[1]

    def to(self, device: torch.device | str) -> Games:
        """The same on a device."""
        splits = {name: getattr(self, name).to(device) for name in ("train", "validation", "test")}
        return replace(self, **splits)


def load_games(
    name_or_folder: str | PathLike[str], data_dir: str | PathLike[str], *, device: torch.device | str = "cpu"
) -> Games:
    """The images of signal games, with a split that never changes.

    The ``digits`` are ten concepts, with 8 images to a game; their features are their pixels, and they are split as for
    `load_images`. A folder holds ``train.npz`` and ``test.npz``, each with

    - ``x``, the features of its images (n, d), or ``codes`` (n, d) and ``scale``, () or (d,), whose product they are;
    - ``y`` (n,), integers that say which concept an image shows;
    - optionally ``names``, the names of the concepts, indexed by these numbers or in their order;

    and has 16 images to a game. The last tenth of each concept's training images is held out for validation.

    >>> games = load_games("digits", "data")
    >>> games.train.x.shape, games.train.n_concepts, games.n_images
    (torch.Size([1197, 64]), 10, 8)

    Args:
        name_or_folder: ``digits``, a folder, or the name of a folder in ``data_dir``.
        data_dir: the folder of all data.
        device: where the tensors will be.

    Raises:
        UsageError: if there is neither a data set nor a folder of this name.
        FileNotFoundError: if a file is missing.
        ValueError: if a file cannot be used, or there are too few concepts.
    """
    if name_or_folder == DIGITS:
        games = _digits()
    else:
        folder = find_folder(fspath(name_or_folder), Path(data_dir), (DIGITS, *game_folders(Path(data_dir))))
        if folder.resolve().name == DIGITS:
            raise ValueError(f"{folder} is named {DIGITS}, like the data set of scikit-learn: rename the folder")
        games = _from_files(folder, read_npz(folder / FILES[0]), read_npz(folder / FILES[1]))
    for split in ("train", "validation", "test"):
        features: Features = getattr(games, split)
        if features.n_concepts < games.n_images:
            found = f"{games.name} has {features.n_concepts} in its {split} data"
            raise ValueError(f"a game has images of {games.n_images} concepts, and {found}")
    return games.to(device)


def game_folders(data_dir: Path) -> dict[str, Path]:
    """The folders in ``data_dir`` with the files of a signal game, by name."""
    folders = sorted(path.parent for path in data_dir.glob(f"*/{FILES[0]}"))
    return {folder.name: folder for folder in folders if all((folder / file).is_file() for file in FILES)}


def _digits() -> Games:
    images = load_images(DIGITS, "")
    splits = (images.train, images.validation, images.test)
    train, validation, test = (Features.from_unsorted(split.x / 16, split.y) for split in splits)
    return Games(DIGITS, train, validation, test, tuple(map(str, range(10))), N_IMAGES_OF_DIGITS, images.digests)


def _from_files(folder: Path, train: Arrays, test: Arrays) -> Games:
    if train.x.shape[1] != test.x.shape[1]:
        raise ValueError(f"{folder}: {FILES[0]} has {train.x.shape[1]} features per image, {FILES[1]} {test.x.shape[1]}")
    # Renumbered from 0 over both files: either may lack a concept.
    numbers, concept = torch.cat([train.y, test.y]).unique(return_inverse=True)
    names = _names(folder, train.names, test.names, numbers)
    concept, test_concept = concept.split([len(train.y), len(test.y)])
    is_held_out = held_out(concept)
    return Games(
        name=folder.resolve().name,
        train=Features.from_unsorted(train.x[~is_held_out], concept[~is_held_out]),
        validation=Features.from_unsorted(train.x[is_held_out], concept[is_held_out]),
        test=Features.from_unsorted(test.x, test_concept),
        names=names,
        n_images=N_IMAGES,
        digests={FILES[0]: train.digest, FILES[1]: test.digest},
    )


def held_out(concept: Tensor) -> Tensor:  # shape: (n,), int64, to (n,), bool
    """Which images are for validation: the last tenth of each concept, at least one, but never the only one."""
    order = concept.argsort(stable=True)
    count = concept.bincount()
    n_left = count.cumsum(0)[concept[order]] - torch.arange(len(concept))  # of the same concept, this one included
    n_held_out = torch.where(count > 1, (count / _HELD_OUT).round().clamp_min(1), 0)
    is_held_out = torch.empty(len(concept), dtype=torch.bool)
    is_held_out[order] = n_left <= n_held_out[concept[order]]
    return is_held_out


def _names(folder: Path, train: tuple[str, ...], test: tuple[str, ...], numbers: Tensor) -> tuple[str, ...]:
    """The names of the concepts with these sorted numbers."""
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


class Drawn(NamedTuple):
    """A batch of games: the images of each, as rows of ``features.x``, and the position of the one that the sender sees."""

    images: Tensor  # shape: (n_games, n_images), int64
    target: Tensor  # shape: (n_games,), int64


def draw_games(features: Features, n_games: int, n_images: int, generator: torch.Generator) -> Drawn:
    """Draw games of images of different concepts, on the device of the features and without synchronising with it.

    Each game has an ordered choice of ``n_images`` concepts, an image of each, and a target among them, all uniform. A
    concept with few images is as frequent as one with many.

    >>> features = Features.from_unsorted(torch.eye(4), torch.tensor([0, 0, 1, 2]))
    >>> games = draw_games(features, 5, 3, torch.Generator().manual_seed(0))
    >>> features.concept[games.images].sort().values.unique(dim=0)
    tensor([[0, 1, 2]])
    """
    if not 1 <= n_images <= features.n_concepts:
        raise ValueError(f"n_images is {n_images}, it must be from 1 to {features.n_concepts}, the number of concepts")
    if n_games < 0:
        raise ValueError(f"n_games is {n_games}, it must not be negative")
    device = features.x.device
    keys = torch.rand(n_games, features.n_concepts, dtype=torch.float64, device=device, generator=generator)
    concept = keys.topk(n_images).indices  # in the order of their keys, which is uniform too
    numbers = torch.randint(_LARGE, concept.shape, device=device, generator=generator)
    target = torch.randint(n_images, (n_games,), device=device, generator=generator)
    return Drawn(features.first[concept] + numbers % features.count[concept], target)
