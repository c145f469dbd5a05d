"""Features of images by concept, and the files that they are stored in."""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsum_experiments.data.idx import digest
from sparsum_experiments.data.sources import BadFile, open_regular, refuse_bomb

#: The two files of a signal game.
FILES = ("train.npz", "test.npz")


@dataclass(frozen=True, eq=False)
class Features:
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
        return cls(_normalise(x[order]), concept, count.cumsum(0) - count, count)

    def __len__(self) -> int:
        return len(self.concept)

    @property
    def n_concepts(self) -> int:
        """How many concepts occur."""
        return len(self.first)

    def to(self, device: torch.device | str) -> Features:
        """The same on a device."""
        return Features(self.x.to(device), self.concept.to(device), self.first.to(device), self.count.to(device))


def _normalise(x: Tensor) -> Tensor:
    """Scale the rows to norm 1, in place, since they may fill much of the memory."""
    # By the largest entry first: the squares of very large or small ones do not fit into float32.
    for order in (torch.inf, 2):
        x /= torch.linalg.vector_norm(x, order, dim=1, keepdim=True)
    return x


class Arrays(NamedTuple):
    """The content of a file: features, concepts by any numbers, their names if it has any, and a digest of its bytes."""

    x: Tensor  # shape: (n, d), float32, finite, no row all zero
    y: Tensor  # shape: (n,), int64
    names: tuple[str, ...]
    digest: str


def read_npz(path: Path) -> Arrays:
    """Read features; nothing is unpickled, and no more is uncompressed than the arrays announce.

    Raises:
        FileNotFoundError: if the file does not exist.
        BadFile: if its content cannot be used.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: the signal game needs {' and '.join(FILES)} in one folder, "
            "which `sparsum data features` makes from images"
        )
    try:
        with open_regular(path) as file:
            n_bytes = os.fstat(file.fileno()).st_size
            refuse_bomb(path, n_bytes, n_bytes)
            content = file.read()
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    arrays = _arrays(path, content)
    x, names = _features(path, arrays), _names(path, arrays)
    y = torch.from_numpy(_get(path, arrays, "y", "iu", "integers of shape (n,)", 1).astype(np.int64))
    if len(x) != len(y):
        raise BadFile(path, f"has features of {len(x):,} images and the concepts (y) of {len(y):,}")
    return Arrays(x, y, names, digest(content))


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
    features = torch.from_numpy(x)
    for is_bad, what in (
        (~features.isfinite().all(1), "are not finite"),
        ((features == 0).all(1), "are all zero, so that they have no direction"),
    ):
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
