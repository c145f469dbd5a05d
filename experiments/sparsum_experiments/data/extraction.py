"""Making the files of a signal game from a folder of images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsum_experiments.data.npz import FILES
from sparsum_experiments.data.permutation import fixed_permutation
from sparsum_experiments.data.pictures import is_picture, read_picture


class _Picture(NamedTuple):
    path: Path
    concept: int
    is_test: bool


def make_features(
    folder: str | PathLike[str],
    network: Callable[[Tensor], Tensor],
    out: str | PathLike[str],
    *,
    size: int = 224,
    batch_size: int = 64,
    test_fraction: float = 1 / 3,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Path, Path]:
    """Write ``train.npz`` and ``test.npz`` for `load_games`: what a network makes of images.

    Images are cut to a square around their middle, scaled to ``size`` and given as red, green and blue from 0 to 1; a
    network that wants them otherwise, say with the mean subtracted, does that itself. On the command line it is
    ``sparsum data features FOLDER OUT --network module:function``.

    Args:
        folder: one sub-folder for each concept, named like it, with its images at any depth.
        network: from (n, 3, size, size), float32 on ``device``, to features (n, d); a module is put in evaluation mode.
        out: the folder for the two files, which are replaced if they are there.
        size: height and width that the network gets.
        batch_size: how many images it gets at a time.
        test_fraction: the part of each concept's images, at least one, that a fixed permutation puts into ``test.npz``.
        device: where the network is.
        progress: called with the number of images done and that of all.

    Returns:
        The two files.

    Raises:
        ImportError: without Pillow, which reads the images.
        FileNotFoundError: if there is no such folder.
        ValueError: if it has no concepts, too few images, an image that cannot be read; if the network gives no features.
    """
    if size < 1 or batch_size < 1:
        raise ValueError(f"size is {size} and batch_size {batch_size}, both must be at least 1")
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction is {test_fraction}, it must be between 0 and 1")
    concepts, pictures = _list(Path(folder), test_fraction)
    batches: list[Tensor] = []
    with torch.no_grad(), _evaluating(network):
        for some in _batches(pictures, batch_size):
            images = torch.stack([read_picture(picture.path, size) for picture in some])
            batches.append(_checked(network(images.to(device)), some, batches))
            if progress is not None:
                progress(sum(map(len, batches)), len(pictures))
    return _save(Path(out), torch.cat(batches).numpy(), pictures, concepts)


def _list(folder: Path, test_fraction: float) -> tuple[list[str], list[_Picture]]:
    """The names of the concepts and all their images."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    concepts = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not concepts:
        raise ValueError(f"{folder} has no sub-folders, wanted is one for each concept")
    pictures = []
    for concept, name in enumerate(concepts):
        paths = sorted(path for path in (folder / name).rglob("*") if is_picture(path))
        if len(paths) < 2:
            raise ValueError(f"{folder / name} has {len(paths)} images, at least 2 are needed: for training and for test")
        n_test = min(max(1, round(test_fraction * len(paths))), len(paths) - 1)
        tests = set(fixed_permutation(len(paths), "features", name)[:n_test].tolist())
        pictures += [_Picture(path, concept, i in tests) for i, path in enumerate(paths)]
    return concepts, pictures


def _batches(pictures: Sequence[_Picture], size: int) -> Iterator[Sequence[_Picture]]:
    return (pictures[start : start + size] for start in range(0, len(pictures), size))


@contextmanager
def _evaluating(network: object) -> Iterator[None]:
    """A module in evaluation mode for a while, and then as it was; other functions stay as they are."""
    modules = list(network.modules()) if isinstance(network, torch.nn.Module) else []
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


def _checked(
    features: Tensor,
    pictures: Sequence[_Picture],
    earlier: Sequence[Tensor],
) -> Tensor:  # shape: (n, d), float32, on the CPU
    """What a network gave, if it is one vector for each image, as long as the earlier ones."""
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != len(pictures):
        found = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"network gave {found} for {len(pictures)} images, wanted is a tensor ({len(pictures)}, d)")
    if earlier and features.shape[1] != earlier[0].shape[1]:
        raise ValueError(f"network gave {features.shape[1]} features, and {earlier[0].shape[1]} before")
    features = features.float().cpu()
    is_bad = ~features.isfinite().all(1) | (features == 0).all(1)
    if is_bad.any():
        picture = pictures[int(is_bad.nonzero()[0, 0])]
        raise ValueError(f"network gave features that are not finite, or all zero, for {picture.path}")
    return features


def _save(out: Path, x: np.ndarray, pictures: Sequence[_Picture], concepts: Sequence[str]) -> tuple[Path, Path]:
    y = np.array([picture.concept for picture in pictures])
    is_test = np.array([picture.is_test for picture in pictures])
    out.mkdir(parents=True, exist_ok=True)
    paths = out / FILES[0], out / FILES[1]
    parts = [path.with_name(f"{path.name}.part") for path in paths]
    try:
        for part, chosen in zip(parts, (~is_test, is_test), strict=True):
            with part.open("wb") as file:
                np.savez(file, x=x[chosen], y=y[chosen], names=np.array(concepts))
                file.flush()
                os.fsync(file.fileno())
        # Both are complete before either gets its name.
        for part, path in zip(parts, paths, strict=True):
            os.replace(part, path)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    return paths
