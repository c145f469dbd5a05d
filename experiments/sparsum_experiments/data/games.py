"""Signal games: features of images by concept, the files that they are stored in, and drawing games."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsum_experiments.data.images import Movable, load_images
from sparsum_experiments.data.sources import DIGITS, SOURCES, BadFile, digest, find_folder, read_regular, refuse_bomb
from sparsum_experiments.errors import UsageError

#: The two files of a signal game.
FILES = ("train.npz", "test.npz")
# How many images a game has.
_N_IMAGES, _N_IMAGES_OF_DIGITS = 16, 8
# One in this many images of each concept is held out of the training file for validation.
_HELD_OUT = 10
# Random numbers so large that their remainders are as good as uniform.
_LARGE = 1 << 62


@dataclass(frozen=True, eq=False)
class Features(Movable):
    """Features of images, sorted by concept.

    >>> features = Features.from_unsorted(torch.tensor([[0.0, 2.0], [3.0, 4.0], [1.0, 0.0]]), torch.tensor([4, 1, 4]))
    >>> features.x
    tensor([[0.6000, 0.8000],
            [0.0000, 1.0000],
            [1.0000, 0.0000]])
    >>> features.concept, features.first, features.count
    (tensor([1, 4, 4]), tensor([0, 1]), tensor([1, 2]))
    """

    x: Tensor  # shape: (n, d), float32, of norm 1
    concept: Tensor  # shape: (n,), int64, sorted
    first: Tensor  # shape: (n_concepts,), int64: the first image of each concept that occurs
    count: Tensor  # shape: (n_concepts,), int64: how many images it has

    @classmethod
    def from_unsorted(
        cls,
        x: Tensor,  # shape: (n, d), float32, finite, no row all zero
        concept: Tensor,  # shape: (n,), int64
    ) -> Features:
        """Features in any order and of any norm."""
        concept, order = concept.sort(stable=True)
        _, count = concept.unique_consecutive(return_counts=True)
        x = x[order]
        # By the largest entry first: the squares of very large or small ones do not fit into float32.
        for norm in (torch.inf, 2):
            x /= torch.linalg.vector_norm(x, norm, dim=1, keepdim=True)  # in place: x may fill much of the memory
        return cls(x, concept, count.cumsum(0) - count, count)

    def __len__(self) -> int:
        return len(self.concept)

    @property
    def n_concepts(self) -> int:
        """How many concepts occur."""
        return len(self.first)


@dataclass(frozen=True, eq=False)
class Games(Movable):
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


def load_games(
    name_or_folder: str | PathLike[str], data_dir: str | PathLike[str], *, device: torch.device | str = "cpu"
) -> Games:
    """The images of signal games, with a split that never changes: ``digits``, or a folder, also in ``data_dir``.

    The ``digits`` are ten concepts, with 8 images to a game; their features are their pixels, and they are split as for
    `load_images`. A folder holds ``train.npz`` and ``test.npz``, each with

    - ``x``, the features of its images (n, d), or ``codes`` (n, d) and ``scale``, () or (d,), whose product they are;
    - ``y`` (n,), integers that say which concept an image shows;
    - optionally ``names``, the names of the concepts, indexed by these numbers or in their order;

    and has 16 images to a game. The last tenth of each concept's training images is held out for validation.

    >>> games = load_games("digits", "data")
    >>> games.train.x.shape, games.train.n_concepts, games.n_images
    (torch.Size([1197, 64]), 10, 8)
    """
    if name_or_folder == DIGITS:
        images = load_images(DIGITS, "")
        splits = (images.train, images.validation, images.test)
        train, validation, test = (Features.from_unsorted(split.x / 16, split.y) for split in splits)
        games = Games(DIGITS, train, validation, test, tuple("0123456789"), _N_IMAGES_OF_DIGITS, images.digests)
    else:
        name, known = fspath(name_or_folder), (DIGITS, *game_folders(Path(data_dir)))
        if name in SOURCES and name not in known:
            raise UsageError(f"--data {name}: it has no features for the signal game, which takes digits or a folder")
        games = _from_folder(find_folder(name, Path(data_dir), known))
    for split, features in (("train", games.train), ("validation", games.validation), ("test", games.test)):
        if features.n_concepts < games.n_images:
            found = f"{games.name} has {features.n_concepts} in its {split} data"
            raise ValueError(f"a game has images of {games.n_images} concepts, and {found}")
    return games.to(device)


def game_folders(data_dir: Path) -> dict[str, Path]:
    """The folders in ``data_dir`` with the files of a signal game, by name."""
    folders = sorted(path.parent for path in data_dir.glob(f"*/{FILES[0]}"))
    return {folder.name: folder for folder in folders if all((folder / file).is_file() for file in FILES)}


def _from_folder(folder: Path) -> Games:
    if folder.resolve().name == DIGITS:
        raise ValueError(f"{folder} is named {DIGITS}, like the data set of scikit-learn: rename the folder")
    train, test = (read_npz(folder / file) for file in FILES)
    if train.x.shape[1] != test.x.shape[1]:
        raise ValueError(f"{folder}: {FILES[0]} has {train.x.shape[1]} features per image, {FILES[1]} {test.x.shape[1]}")
    # Renumbered from 0 over both files: either may lack a concept.
    numbers, concept = torch.cat([train.y, test.y]).unique(return_inverse=True)
    concept, test_concept = concept.split([len(train.y), len(test.y)])
    is_held_out = held_out(concept)
    return Games(
        name=folder.resolve().name,
        train=Features.from_unsorted(train.x[~is_held_out], concept[~is_held_out]),
        validation=Features.from_unsorted(train.x[is_held_out], concept[is_held_out]),
        test=Features.from_unsorted(test.x, test_concept),
        names=_names_of(folder, train.names, test.names, numbers.tolist()),
        n_images=_N_IMAGES,
        digests={FILES[0]: train.digest, FILES[1]: test.digest},
    )


def held_out(concept: Tensor) -> Tensor:  # shape: (n,), int64, to (n,), bool
    """Which images are for validation: the last tenth of each concept, at least one, but never the only one."""
    order = concept.argsort(stable=True)
    count = concept.bincount()
    n_left = count.cumsum(0)[concept[order]] - torch.arange(len(concept))  # of the same concept, this one included
    n_held_out = torch.where(count > 1, (count / _HELD_OUT).round().clamp_min(1), 0)
    return torch.empty(len(concept), dtype=torch.bool).index_copy_(0, order, n_left <= n_held_out[concept[order]])


def _names_of(folder: Path, train: tuple[str, ...], test: tuple[str, ...], numbers: list[int]) -> tuple[str, ...]:
    """The names of the concepts with these sorted numbers."""
    if train and test and train != test:
        raise ValueError(f"{folder}: {FILES[0]} and {FILES[1]} have different names, so that y may mean different things")
    names = train or test or tuple(map(str, numbers))
    if (train or test) and numbers[0] >= 0 and numbers[-1] < len(names):
        return tuple(names[number] for number in numbers)
    if len(names) != len(numbers):
        raise ValueError(
            f"{folder}: there are {len(names)} names for {len(numbers)} concepts, {numbers[0]} to {numbers[-1]}"
        )
    return names


class _Arrays(NamedTuple):
    """The content of a file: features, concepts by any numbers, their names if it has any, and a digest of its bytes."""

    x: Tensor  # shape: (n, d), float32, finite, no row all zero
    y: Tensor  # shape: (n,), int64
    names: tuple[str, ...]
    digest: str

    def __str__(self) -> str:
        return f"{len(self.x):,} images of {len(self.y.unique())} concepts, {self.x.shape[1]:,} features"


def read_npz(path: Path) -> _Arrays:
    """Read features; nothing is unpickled, and no more is uncompressed than the arrays announce."""
    if not path.exists():
        needed = (
            f"the signal game needs {' and '.join(FILES)} in one folder, which `sparsum data features` makes from images"
        )
        raise FileNotFoundError(f"{path} is missing: {needed}")
    content = read_regular(path)
    arrays = _arrays(path, content)
    x, names = _features(path, arrays), _names(path, arrays)
    y = torch.from_numpy(_get(path, arrays, "y", "iu", "integers of shape (n,)", 1).astype(np.int64))
    if len(x) != len(y):
        raise BadFile(path, f"has features of {len(x):,} images and the concepts (y) of {len(y):,}")
    return _Arrays(x, y, names, digest(content))


def _arrays(path: Path, content: bytes) -> dict[str, Any]:
    """All arrays that have a meaning here."""
    if not zipfile.is_zipfile(io.BytesIO(content)):
        if content.startswith(b"PK"):
            raise BadFile(path, "ends in the middle of its content", state="truncated")
        raise BadFile(path, "is not an .npz file")
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        refuse_bomb(path, sum(info.file_size for info in archive.infolist()), len(content))
        wanted = ("x" if "x" in members else "codes", "scale", "y", "names")
        return {key: _array(path, archive, key, members[key]) for key in members if key in wanted}
    except (BadFile, MemoryError):
        raise
    except Exception as error:  # zipfile, its decompressors and numpy raise almost anything for a damaged file
        raise BadFile(path, f"is corrupted ({error})") from None


def _array(path: Path, archive: zipfile.ZipFile, key: str, info: zipfile.ZipInfo) -> Any:
    if info.flag_bits & 1:
        raise BadFile(path, f"{key} is encrypted; save it without a password")
    with archive.open(info) as member:
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, _, dtype = read_header[np.lib.format.read_magic(member)](member)
        n_announced, n_bytes = math.prod(shape) * dtype.itemsize, info.file_size - member.tell()
    if dtype.hasobject:
        reason = f"{key} holds Python objects, which are not loaded, since they may run any code"
        raise BadFile(path, f"{reason}; save it as an array of {'strings' if key == 'names' else 'numbers'}")
    if n_announced != n_bytes or min(shape, default=0) < 0 or dtype.itemsize == 0:
        raise BadFile(path, f"{key} announces {n_announced:,} bytes, shape {shape}, and has {n_bytes:,}")
    with archive.open(info) as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _get(path: Path, arrays: Mapping[str, Any], key: str, kinds: str, expected: str, *n_dims: int) -> Any:
    if key not in arrays:
        raise BadFile(path, f"has no {key}, but {', '.join(arrays) or 'nothing else that is used'}")
    array = arrays[key]
    if array.dtype.kind not in kinds or array.ndim not in n_dims or not array.size:
        raise BadFile(path, f"{key} is {array.dtype} of shape {array.shape}, expected {expected}")
    return array


def _features(path: Path, arrays: Mapping[str, Any]) -> Tensor:
    is_coded = "codes" in arrays
    x = _get(path, arrays, "codes" if is_coded else "x", "fiu", "numbers of shape (n, d)", 2)
    with np.errstate(over="ignore"):  # what does not fit into float32 is found below
        x = x.astype(np.float32, copy=False)
        if is_coded:
            scale = _get(path, arrays, "scale", "fiu", "one number, or one for each feature", 0, 1)
            if scale.shape not in ((), x.shape[1:]):
                raise BadFile(path, f"scale has {len(scale)} numbers for {x.shape[1]} features")
            x *= scale.astype(np.float32)
    features, no_direction = torch.from_numpy(x), "are all zero, so that they have no direction"
    for is_bad, what in ((~features.isfinite().all(1), "are not finite"), ((features == 0).all(1), no_direction)):
        if is_bad.any():
            rows = is_bad.nonzero().flatten().tolist()
            shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
            raise BadFile(path, f"the features of {len(rows):,} image{'s' * (len(rows) > 1)} {what} (rows {shown})")
    return features


def _names(path: Path, arrays: Mapping[str, Any]) -> tuple[str, ...]:
    if "names" not in arrays:
        return ()
    try:
        names = tuple(map(str, _get(path, arrays, "names", "U", "strings, one for each concept", 1)))
        "".join(names).encode()
    except (UnicodeError, SystemError):  # the latter is raised by numpy
        raise BadFile(path, "names has characters that are not Unicode") from None
    return names


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
