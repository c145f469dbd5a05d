"""Data sets by name: the published files, where they are looked for, and how files that cannot be trusted are opened."""

from __future__ import annotations

import difflib
import shlex
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from sparsum_experiments.errors import UsageError

#: The data set that comes with scikit-learn.
DIGITS = "digits"
N_CLASSES = 10

#: Files that announce more uncompressed bytes, in all or for each compressed one, are refused before they are read.
MAX_BYTES, MAX_RATIO = 8 << 30, 250
_SMALL = 64 << 20  # whatever the ratio

State = Literal["right", "wrong", "truncated", "missing"]


class BadFile(ValueError):
    """A file that exists and cannot be used, for a reason; "truncated" if its end is missing, otherwise "wrong"."""

    def __init__(self, path: Path, reason: str, *, state: State = "wrong") -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason, self.state = path, reason, state


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading, or raise `BadFile`: reading a FIFO or a device might never end, or never begin."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise BadFile(path, "is a folder, not a file" if stat.S_ISDIR(mode) else "is a FIFO, socket or device, not a file")
    return path.open("rb")


def refuse_bomb(path: Path, n_bytes: int, n_compressed: int) -> None:
    """Refuse a file by the size it announces, before it is uncompressed."""
    if n_bytes > MAX_BYTES:
        raise BadFile(path, f"announces {n_bytes:,} bytes of content, more than the maximum of {MAX_BYTES:,}")
    if n_bytes > max(_SMALL, MAX_RATIO * n_compressed):
        reason = f"announces {n_bytes:,} bytes in {n_compressed:,} compressed ones, more than {MAX_RATIO} times as many"
        raise BadFile(path, f"{reason}; if that is right, store it uncompressed")


@dataclass(frozen=True)
class SourceFile:
    """One IDX file."""

    name: str  # without .gz
    shape: tuple[int, ...]
    md5: str  # of its uncompressed content, since mirrors and packages compress differently
    n_bytes: int  # as published, compressed


@dataclass(frozen=True)
class Source:
    """A published data set."""

    name: str  # on the command line, and of its folder
    mirrors: tuple[str, ...]  # the addresses below which the files are
    files: tuple[SourceFile, ...]  # in the order of `IDX_FILES`
    packaged_in: tuple[Path, ...] = ()  # folders where a package of the system puts them

    def home(self, data_dir: Path) -> Path:
        """The folder for downloads. It is searched first, so that a download replaces whatever was wrong."""
        return data_dir / self.name

    def folders(self, data_dir: Path) -> tuple[Path, ...]:
        """The folders that are searched, in this order."""
        return self.home(data_dir), data_dir, *self.packaged_in

    def locate(self, file: SourceFile, data_dir: Path) -> Path | None:
        """The first file of this name, compressed or not."""
        found = (locate_idx(folder, file.name) for folder in self.folders(data_dir))
        return next((path for path in found if path), None)

    def remedy(self, data_dir: Path) -> str:
        """The command that downloads the files."""
        return f"`sparsum data get {self.name} --data-dir {shlex.quote(str(data_dir))}`"


#: What the four files of every data set of images are called, and how many dimensions their arrays have.
IDX_FILES = {
    "train-images-idx3-ubyte": 3,
    "train-labels-idx1-ubyte": 1,
    "t10k-images-idx3-ubyte": 3,
    "t10k-labels-idx1-ubyte": 1,
}


def _files(*published: tuple[str, int]) -> tuple[SourceFile, ...]:
    shapes = ((60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,))
    return tuple(SourceFile(name, shape, *file) for name, shape, file in zip(IDX_FILES, shapes, published, strict=True))


SOURCES = {
    "mnist": Source(
        name="mnist",
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        files=_files(
            ("6bbc9ace898e44ae57da46a324031adb", 9_912_422),
            ("a25bea736e30d166cdddb491f175f624", 28_881),
            ("2646ac647ad5339dbf082846283269ea", 1_648_877),
            ("27ae3e4e09519cfbb04c329615203637", 4_542),
        ),
    ),
    "fashion-mnist": Source(
        name="fashion-mnist",
        mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        files=_files(
            ("f4a8712d7a061bf5bd6d2ca38dc4d50a", 26_421_880),
            ("9018921c3c673c538a1fc5bad174d6f9", 29_515),
            ("8181f5470baa50b63fa0f6fddb340f0a", 4_422_102),
            ("15d484375f8d13e6eb1aabb0c3f46965", 5_148),
        ),
        packaged_in=(Path("/usr/share/datasets/fashion-mnist"),),  # Debian's dataset-fashion-mnist
    ),
}


def locate_idx(folder: Path, name: str) -> Path | None:
    """A file in a folder, compressed or not. It may be anything, also a FIFO: `open_regular` refuses that."""
    return next((path for end in (".gz", "") if (path := folder / f"{name}{end}").exists()), None)


def find_folder(name_or_folder: str, data_dir: Path, known: Iterable[str], option: str = "--data ") -> Path:
    """A folder by its path, or by its name in ``data_dir``; a `UsageError` if it does not exist."""
    for folder in (Path(name_or_folder), data_dir / name_or_folder):
        if name_or_folder and folder.is_dir():
            return folder
    raise unknown(name_or_folder, known, f"{option}{name_or_folder or repr('')}: no such data set or folder")


def unknown(name: str, known: Iterable[str], message: str) -> UsageError:
    """The error for an unknown name, which suggests the closest one."""
    known = list(known)
    close = difflib.get_close_matches(name, known, 1)
    return UsageError(f"{message}{f'; did you mean {close[0]!r}?' if close else '.'} Known: {', '.join(known)}")
