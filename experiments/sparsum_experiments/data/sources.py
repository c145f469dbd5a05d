"""Data sets of images in IDX files: the published ones, where they are looked for, and reading them strictly.

An IDX file, the format of MNIST, has two zero bytes, a byte for the type of the entries (8: unsigned bytes), a byte for the
number of dimensions, each dimension as a big-endian 32-bit number, then the entries.

References:
    - The MNIST database of handwritten digits (LeCun, Cortes & Burges, 1998), http://yann.lecun.com/exdb/mnist/
"""

from __future__ import annotations

import difflib
import gzip
import hashlib
import io
import math
import shlex
import stat
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sparsum_experiments.errors import UsageError

#: The data set that comes with scikit-learn.
DIGITS = "digits"
#: Files that announce more uncompressed bytes, in all or for each compressed one, are refused before they are read.
MAX_BYTES, MAX_RATIO = 8 << 30, 250
_SMALL = 64 << 20  # whatever the ratio
_GZIP, _UNSIGNED_BYTES, _MAX_LABEL = b"\x1f\x8b", 8, 9

State = Literal["right", "wrong", "truncated", "missing"]


class BadFile(ValueError):
    """A file that exists and cannot be used, for a reason; "truncated" if its end is missing, otherwise "wrong"."""

    def __init__(self, path: Path, reason: str, *, state: State = "wrong") -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason, self.state = path, reason, state


def read_regular(path: Path) -> bytes:
    """The content of a file. FIFOs and devices are refused: reading one might never end, or never begin."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise BadFile(path, "is a folder, not a file")
        if not stat.S_ISREG(status.st_mode):
            raise BadFile(path, "is a FIFO, socket or device, not a file")
        refuse_bomb(path, status.st_size, status.st_size)
        return path.read_bytes()
    except OSError as error:  # errors of reading do not name the file
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def refuse_bomb(path: Path, n_bytes: int, n_compressed: int) -> None:
    """Refuse a file by the size it announces, before it is uncompressed."""
    if n_bytes > MAX_BYTES:
        raise BadFile(path, f"announces {n_bytes:,} bytes of content, more than the maximum of {MAX_BYTES:,}")
    if n_bytes > max(_SMALL, MAX_RATIO * n_compressed):
        reason = f"announces {n_bytes:,} bytes in {n_compressed:,} compressed ones, more than {MAX_RATIO} times as many"
        raise BadFile(path, f"{reason}; if that is right, store it uncompressed")


@dataclass(frozen=True)
class SourceFile:
    """One IDX file. Only its name and the number of its dimensions are known in a data set of one's own."""

    name: str  # without .gz
    shape: tuple[int, ...]
    md5: str = ""  # of its uncompressed content, since mirrors and packages compress differently
    n_bytes: int = 0  # as published, compressed


@dataclass(frozen=True)
class Source:
    """A data set of images in IDX files: a published one, or one's own, which has no mirrors."""

    name: str  # on the command line, and of its folder
    mirrors: tuple[str, ...]  # the addresses below which the files are
    files: tuple[SourceFile, ...]  # images and labels for training, then for the test
    packaged_in: tuple[Path, ...] = ()  # folders where a package of the system puts them

    @classmethod
    def own(cls, folder: Path) -> Source:
        """A folder with files of these names."""
        files = (SourceFile(file.name, (0,) * len(file.shape)) for file in SOURCES["mnist"].files)
        return cls(folder.name, (), tuple(files), (folder,))

    def folders(self, data_dir: Path) -> tuple[Path, ...]:
        """The folders to search. The first is for downloads, so that a download replaces whatever was wrong."""
        return (data_dir / self.name, data_dir, *self.packaged_in) if self.mirrors else self.packaged_in

    def locate(self, file: SourceFile, data_dir: Path) -> Path | None:
        """The first file of this name, compressed or not. It may be anything: `read_regular` refuses a FIFO."""
        places = (folder / f"{file.name}{end}" for folder in self.folders(data_dir) for end in (".gz", ""))
        return next((path for path in places if path.exists()), None)

    def remedy(self, data_dir: Path) -> str:
        """The command that downloads the files."""
        return f"`sparsum data get {self.name} --data-dir {shlex.quote(str(data_dir))}`"


def _files(*published: tuple[str, int]) -> tuple[SourceFile, ...]:
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    shapes = ((60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,))
    return tuple(SourceFile(name, shape, *file) for name, shape, file in zip(names, shapes, published, strict=True))


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
#: Data sets of images that are known by name.
NAMES = (DIGITS, *SOURCES)


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


class Idx(NamedTuple):
    """The content of a file."""

    array: Tensor  # shape: (n,) or (n, height, width), uint8
    md5: str  # of all uncompressed bytes, as published
    digest: str  # of the same, as stored with runs

    def __str__(self) -> str:
        return f"{len(self.array):,} {_kind(self.array.ndim)}"


def digest(content: bytes | bytearray) -> str:
    """What data is recognised by when a run is resumed or evaluated."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def read_file(source: Source, file: SourceFile, data_dir: Path) -> Idx:
    """Read a file of a data set, wherever it is; errors say how to get the right one."""
    path, is_published = source.locate(file, data_dir), bool(source.mirrors)
    if path is None:
        places, wanted = " and ".join(map(str, source.folders(data_dir))), ", ".join(file.name for file in source.files)
        if is_published:
            reason = f"{file.name}.gz of {source.name} is not in {places}: {source.remedy(data_dir)} downloads it"
        else:
            reason = f"{places} has no {file.name}: a data set of images needs the IDX files {wanted}, or each with .gz"
        raise FileNotFoundError(reason)
    try:
        return parse_idx(path, read_regular(path), file)
    except BadFile as error:
        remedy = f"; {source.remedy(data_dir)} downloads the right one" if is_published else ""
        raise BadFile(path, f"{error.reason}{remedy}", state=error.state) from None


def parse_idx(path: Path, raw: bytes, file: SourceFile) -> Idx:
    """Parse images (3 dimensions) or labels (1), compressed or not; at most what the header announces is uncompressed."""
    # Recognised by content and not by name: some servers and browsers uncompress what they send or save.
    is_compressed = raw.startswith(_GZIP)
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) if is_compressed else io.BytesIO(raw) as stream:
            header = stream.read(4 + 4 * len(file.shape))
            shape = _shape(path, header, file)
            n_bytes = len(header) + math.prod(shape)
            refuse_bomb(path, n_bytes, len(raw) if is_compressed else n_bytes)
            content = bytearray(header + stream.read(n_bytes + 1 - len(header)))
    except EOFError:
        raise BadFile(path, "ends in the middle of its compressed content", state="truncated") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise BadFile(path, f"cannot be uncompressed ({error})") from None
    if len(content) < n_bytes:
        raise BadFile(path, f"has {len(content):,} of the {n_bytes:,} bytes that it announces", state="truncated")
    if len(content) > n_bytes:
        raise BadFile(path, f"has more than the {n_bytes:,} bytes that it announces")
    array = torch.frombuffer(content, dtype=torch.uint8, offset=len(header)).view(shape)
    if array.ndim == 1 and (largest := int(array.max())) > _MAX_LABEL:
        raise BadFile(path, f"holds the label {largest}, labels are 0 to {_MAX_LABEL}")
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if file.md5 not in {"", md5}:
        # All these data sets use the same file names, so that files easily end up in the wrong folder.
        others = {other.md5: f"is {source.name}'s {other.name}" for source in SOURCES.values() for other in source.files}
        raise BadFile(path, others.get(md5, f"has other content than the published file (md5 {md5}, not {file.md5})"))
    return Idx(array, md5, digest(content))


def _shape(path: Path, header: bytes, file: SourceFile) -> tuple[int, ...]:
    n_dims = len(file.shape)
    magic = bytes([0, 0, _UNSIGNED_BYTES, n_dims])
    if not header.startswith(magic[: len(header)]):
        begins = f"begins with the bytes {header[:4].hex(' ')}, not {magic.hex(' ')}"
        raise BadFile(path, f"{begins}: it is not an IDX file of {_kind(n_dims)}")
    if len(header) < 4 + 4 * n_dims:
        raise BadFile(path, f"has {len(header)} bytes, its header alone takes {4 + 4 * n_dims}", state="truncated")
    shape = struct.unpack_from(f">{n_dims}I", header, 4)
    found, wanted = (" x ".join(f"{size:,}" for size in sizes) for sizes in (shape, file.shape))
    if 0 in shape:
        raise BadFile(path, f"holds no entries, but {found}")
    if file.md5 and shape != file.shape:
        raise BadFile(path, f"holds {found} entries, not {wanted}")
    return shape


def _kind(n_dims: int) -> str:
    return "labels" if n_dims == 1 else "images"
