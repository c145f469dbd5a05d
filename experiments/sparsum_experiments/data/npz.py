"""Reading the files of a signal game."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsum_experiments.data.bad_file import BadFile

#: The two files of a signal game.
FILES = ("train.npz", "test.npz")


class Arrays(NamedTuple):
    """The content of a file.

    Args:
        x: features, finite and no row all zero.
        y: concepts, numbered in any way.
        names: of the concepts; empty where the file has none.
    """

    x: Tensor  # shape: (n, d), float32
    y: Tensor  # shape: (n,), int64
    names: tuple[str, ...]


def find_folder(name_or_folder: str, data_dir: Path) -> Path:
    """A folder by its path, or by its name in ``data_dir``."""
    candidates = (Path(name_or_folder), data_dir / name_or_folder)
    for folder in candidates:
        if folder.is_dir():
            return folder
    places = " and no folder ".join(map(str, candidates))
    raise FileNotFoundError(f"{name_or_folder!r} is not the name of a data set, and there is no folder {places}")


def read_npz(path: Path) -> Arrays:
    """The features, concepts and names in a file.

    Raises:
        FileNotFoundError: if there is none.
        BadFile: if its content makes no sense.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: the signal game needs {' and '.join(FILES)} in one folder, "
            "which `sparsum data features` makes from images"
        )
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            is_cut = file.read(2) == b"PK"
        reason = "ends in the middle of its content" if is_cut else "is not an .npz file"
        raise BadFile(path, reason, state="truncated" if is_cut else "wrong")
    with np.load(path, allow_pickle=False) as archive:
        x, y, names = _features(path, archive), _concepts(path, archive), _names(path, archive)
    if len(x) != len(y):
        raise BadFile(path, f"has features of {len(x):,} images and the concepts (y) of {len(y):,}")
    return Arrays(x, y, names)


def _array(path: Path, archive: Any, key: str) -> Any:
    try:
        return archive[key]
    except KeyError:
        raise BadFile(path, f"has no {key}, but {', '.join(archive.files) or 'nothing'}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise BadFile(path, f"is damaged: {key} cannot be read ({error})") from None
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise BadFile(path, f"is damaged: {key} cannot be read ({error})") from None
        reason = f"{key} holds Python objects, which are not loaded, since they may run any code; save it as an array"
        raise BadFile(path, f"{reason} of {'strings' if key == 'names' else 'numbers'}") from None


def _features(
    path: Path,
    archive: Any,
) -> Tensor:  # shape: (n, d), float32
    x = _array(path, archive, "codes" if "x" not in archive.files and "codes" in archive.files else "x")
    if x.ndim != 2 or 0 in x.shape or x.dtype.kind not in "fiu":
        raise BadFile(path, f"its features are {_describe(x)}, wanted are numbers of shape (n, d)")
    with np.errstate(over="ignore"):  # what does not fit into float32 is found below
        x = x.astype(np.float32, copy=False)
        if "x" not in archive.files:
            x *= _scale(path, archive, x.shape[1])
    features = torch.from_numpy(x)
    _refuse(path, ~features.isfinite().all(1), "are not finite")
    _refuse(path, (features == 0).all(1), "are all zero, so that they have no direction")
    return features


def _scale(path: Path, archive: Any, n_features: int) -> Any:
    scale = _array(path, archive, "scale")
    if scale.shape not in ((), (n_features,)) or scale.dtype.kind not in "fiu":
        raise BadFile(path, f"scale is {_describe(scale)}, wanted is one number, or one for each of {n_features} features")
    return scale.astype(np.float32)


def _concepts(
    path: Path,
    archive: Any,
) -> Tensor:  # shape: (n,), int64
    y = _array(path, archive, "y")
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise BadFile(path, f"y is {_describe(y)}, wanted are whole numbers of shape (n,)")
    return torch.from_numpy(y.astype(np.int64))


def _names(path: Path, archive: Any) -> tuple[str, ...]:
    if "names" not in archive.files:
        return ()
    names = _array(path, archive, "names")
    if names.ndim != 1 or names.dtype.kind != "U":
        raise BadFile(path, f"names is {_describe(names)}, wanted are strings, one for each concept")
    return tuple(map(str, names))


def _refuse(
    path: Path,
    is_bad: Tensor,  # shape: (n,), bool
    what: str,
) -> None:
    if is_bad.any():
        rows = is_bad.nonzero().flatten().tolist()
        shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
        raise BadFile(path, f"the features of {len(rows):,} images {what} (rows {shown})")


def _describe(array: Any) -> str:
    return f"{array.dtype} of shape {tuple(array.shape)}"
