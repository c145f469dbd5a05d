"""Reading IDX files, the format of MNIST, strictly.

Two zero bytes, a byte for the type of the entries (8: unsigned bytes), a byte for the number of dimensions, each dimension
as a big-endian 32-bit number, then the entries.

References:
    - The MNIST database of handwritten digits (LeCun, Cortes & Burges, 1998), http://yann.lecun.com/exdb/mnist/
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from sparsum_experiments.data.bad_file import BadFile
from sparsum_experiments.data.sources import N_CLASSES, SOURCES, SourceFile

_GZIP = b"\x1f\x8b"
_UNSIGNED_BYTES = 8


def read_idx(
    path: Path,
    file: SourceFile,
) -> Tensor:  # shape: file.shape, uint8
    """The array in a published file, compressed or not.

    Raises:
        BadFile: if it is anything else than that file.
    """
    content = _uncompressed(path)
    start = _check_header(path, content, file.shape)
    array = torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).view(file.shape)
    if file.is_labels and (largest := int(array.max())) >= N_CLASSES:
        raise BadFile(path, f"holds the label {largest}, labels are 0 to {N_CLASSES - 1}")
    _check_sum(path, content, file)
    return array


def _uncompressed(path: Path) -> bytes:
    # Told by the content and not by the name: some servers and browsers unpack what they send or save.
    content = path.read_bytes()
    if not content.startswith(_GZIP):
        return content
    try:
        return gzip.decompress(content)
    except EOFError:
        raise BadFile(path, "ends in the middle of its compressed content", state="truncated") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise BadFile(path, f"cannot be uncompressed ({error})") from None


def _check_header(path: Path, content: bytes, shape: tuple[int, ...]) -> int:
    """Where the entries begin in a file that holds an array of this shape."""
    magic = bytes([0, 0, _UNSIGNED_BYTES, len(shape)])
    start = len(magic) + 4 * len(shape)
    if not content.startswith(magic[: len(content)]):
        raise BadFile(path, f"begins with the bytes {content[:4].hex(' ')}, not {magic.hex(' ')}: it is no such IDX file")
    if len(content) < start:
        raise BadFile(path, f"has {len(content)} bytes, its header alone takes {start}", state="truncated")
    found = struct.unpack_from(f">{len(shape)}I", content, len(magic))
    n_bytes = start + math.prod(found)
    if len(content) < n_bytes:
        raise BadFile(path, f"has {len(content):,} of the {n_bytes:,} bytes that it announces", state="truncated")
    if found != shape or len(content) > n_bytes:
        raise BadFile(path, f"holds {_times(found)} entries in {len(content):,} bytes, not {_times(shape)}")
    return start


def _check_sum(path: Path, content: bytes, file: SourceFile) -> None:
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if md5 == file.md5:
        return
    # All these data sets use the same file names, so that files easily end up in the wrong folder.
    others = [f"{source.name}'s {other.name}" for source in SOURCES.values() for other in source.files if other.md5 == md5]
    raise BadFile(
        path, f"is {others[0]}" if others else f"has other content than the published file (md5 {md5}, not {file.md5})"
    )


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{size:,}" for size in shape)
