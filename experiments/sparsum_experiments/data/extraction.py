"""Computing the files of a signal game from a folder of images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sparsum_experiments.data.games import FILES
from sparsum_experiments.data.images import fixed_permutation
from sparsum_experiments.files import printable

_ENDINGS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})


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
    """Write ``train.npz`` and ``test.npz`` for `load_games`: the features that a network computes from images.

    The folder has one sub-folder for each concept, named like it, with its images at any depth. A fixed permutation puts
    ``test_fraction`` of each concept's images, at least one, into ``test.npz``.

    Images are cropped to a square around their centre, scaled to ``size`` and passed as red, green and blue from 0 to 1; a
    network that expects anything else, such as a subtracted mean, does that itself. It maps (n, 3, size, size), float32 on
    ``device``, to features (n, d); a module is put in evaluation mode.
    """
    if size < 1 or batch_size < 1:
        raise ValueError(f"size is {size} and batch_size {batch_size}, both must be at least 1")
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction is {test_fraction}, it must be between 0 and 1")
    concepts, paths, y, is_test = _list(Path(folder), test_fraction)
    batches: list[Tensor] = []
    with torch.no_grad(), _evaluating(network):
        for start in range(0, len(paths), batch_size):
            some = paths[start : start + batch_size]
            images = torch.stack([_read_picture(path, size) for path in some])
            batches.append(_checked(network(images.to(device)), some, batches))
            if progress is not None:
                progress(start + len(some), len(paths))
    x = torch.cat(batches).numpy()
    return _save(Path(out), [(x[some], y[some], np.array(concepts)) for some in (~is_test, is_test)])


def _list(folder: Path, test_fraction: float) -> tuple[list[str], list[Path], np.ndarray, np.ndarray]:
    """The names of the concepts; the path of each image, its concept and whether it is for the test."""
    if not folder.is_dir():
        raise FileNotFoundError(f"the folder {folder} does not exist")
    concepts = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not concepts:
        raise ValueError(f"{folder} has no sub-folders, expected one for each concept")
    paths, y, is_test = [], [], []
    for concept, name in enumerate(concepts):
        if printable(name) != name:
            raise ValueError(f"{folder} has a sub-folder {name!a}, whose name cannot be printed: rename it")
        found = sorted(path for path in (folder / name).rglob("*") if _is_picture(path))
        if len(found) < 2:
            raise ValueError(f"{folder / name} has {len(found)} image(s), expected at least 2: for training and the test")
        n_test = min(max(1, round(test_fraction * len(found))), len(found) - 1)
        paths += found
        y += [concept] * len(found)
        is_test += (fixed_permutation(len(found), "features", name).argsort() < n_test).tolist()
    return concepts, paths, np.array(y), np.array(is_test)


def _is_picture(path: Path) -> bool:
    """Whether a path is that of an image, by its ending; other files, and hidden ones, are ignored."""
    return path.suffix.lower() in _ENDINGS and not path.name.startswith(".") and path.is_file()


def _read_picture(path: Path, size: int) -> Tensor:  # shape: (3, size, size), float32
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError("images are read with Pillow, which is not installed: `pip install pillow`") from error
    try:
        with Image.open(path) as image:
            fitted = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BICUBIC)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # what Pillow raises for bad files
        raise ValueError(f"{path} cannot be read as an image ({error})") from None
    return torch.from_numpy(np.array(fitted)).permute(2, 0, 1) / 255


@contextmanager
def _evaluating(network: object) -> Iterator[None]:
    """Put a module in evaluation mode, and back afterwards; other functions are left alone."""
    modes = {module: module.training for module in network.modules()} if isinstance(network, torch.nn.Module) else {}
    try:
        for module in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _checked(features: Tensor, paths: Sequence[Path], earlier: Sequence[Tensor]) -> Tensor:
    """What a network returned, on the CPU, if it is one usable vector for each image, as long as the earlier ones."""
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != len(paths):
        found = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"network returned {found} for {len(paths)} images, expected a tensor ({len(paths)}, d)")
    if earlier and features.shape[1] != earlier[0].shape[1]:
        raise ValueError(f"network returned {features.shape[1]} features, and {earlier[0].shape[1]} before")
    features = features.float().cpu()
    is_bad = ~features.isfinite().all(1) | (features == 0).all(1)
    if is_bad.any():
        path = paths[int(is_bad.nonzero()[0, 0])]
        raise ValueError(f"network returned features that are not finite, or all zero, for {path}")
    return features


def _save(out: Path, contents: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> tuple[Path, Path]:
    parts = [out / f"{name}.part" for name in FILES]
    try:
        out.mkdir(parents=True, exist_ok=True)
        for part, (x, y, names) in zip(parts, contents, strict=True):
            with part.open("wb") as file:
                np.savez(file, x=x, y=y, names=names)
                file.flush()
                os.fsync(file.fileno())
        train, test = (part.replace(part.with_suffix("")) for part in parts)  # both are complete before either gets its name
    except OSError as error:
        raise OSError(f"{out}: {' and '.join(FILES)} could not be written ({error.strerror or error})") from error
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    return train, test
