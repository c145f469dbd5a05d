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
import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from torch import Tensor

from sparsum_experiments.data.sources import N_CLASSES, SOURCES, BadFile, SourceFile, open_regular, refuse_bomb

_GZIP = b"\x1f\x8b"
_UNSIGNED_BYTES = 8
_CHUNK = 1 << 20


class Idx(NamedTuple):
    """The content of a file."""

    array: Tensor  # shape: (n,) or (n, height, width), uint8
    md5: str  # of all uncompressed bytes, as published
    digest: str  # of the same, as stored with runs


def digest(content: bytes | bytearray) -> str:
    """What data is recognised by when a run is resumed or evaluated."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def read_idx(path: Path, n_dims: int, *, published: SourceFile | None = None, opened: BinaryIO | None = None) -> Idx:
    """Read images (3 dimensions) or labels (1), compressed or not; at most what the header announces is uncompressed.

    Args:
        path: the file.
        n_dims: of the array in it.
        published: the file that it must be.
        opened: where its content comes from, if not from ``path``.

    Raises:
        BadFile: if it is anything else.
        OSError: if it cannot be read.
    """
    try:
        with opened or open_regular(path) as raw:
            content, shape = _read(path, raw, n_dims, published)
    except EOFError:
        raise BadFile(path, "ends in the middle of its compressed content", state="truncated") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise BadFile(path, f"cannot be uncompressed ({error})") from None
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    array = torch.frombuffer(content, dtype=torch.uint8, offset=len(content) - math.prod(shape)).view(shape)
    if n_dims == 1 and (largest := int(array.max())) >= N_CLASSES:
        raise BadFile(path, f"holds the label {largest}, labels are 0 to {N_CLASSES - 1}")
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if published is not None and md5 != published.md5:
        raise BadFile(path, _other_content(md5, published))
    return Idx(array, md5, digest(content))


def _read(path: Path, raw: BinaryIO, n_dims: int, published: SourceFile | None) -> tuple[bytearray, tuple[int, ...]]:
    """The uncompressed content, and the shape of the array at its end."""
    # Recognised by content and not by name: some servers and browsers uncompress what they send or save.
    is_compressed = raw.read(len(_GZIP)) == _GZIP
    n_compressed = raw.seek(0, os.SEEK_END)
    raw.seek(0)
    stream = gzip.GzipFile(fileobj=raw) if is_compressed else raw
    content = bytearray(stream.read(4 + 4 * n_dims))
    shape = _shape(path, content, n_dims)
    if published is not None and shape != published.shape:
        raise BadFile(path, f"holds {_times(shape)} entries, not {_times(published.shape)}")
    n_bytes = len(content) + math.prod(shape)
    refuse_bomb(path, n_bytes, n_compressed if is_compressed else n_bytes)
    while len(content) <= n_bytes and (chunk := stream.read(min(_CHUNK, n_bytes + 1 - len(content)))):
        content += chunk
    if len(content) < n_bytes:
        raise BadFile(path, f"has {len(content):,} of the {n_bytes:,} bytes that it announces", state="truncated")
    if len(content) > n_bytes:
        raise BadFile(path, f"has more than the {n_bytes:,} bytes that it announces")
    return content, shape


def _shape(path: Path, header: bytearray, n_dims: int) -> tuple[int, ...]:
    magic = bytes([0, 0, _UNSIGNED_BYTES, n_dims])
    if not header.startswith(magic[: len(header)]):
        kind = f"begins with the bytes {header[:4].hex(' ')}, not {magic.hex(' ')}"
        raise BadFile(path, f"{kind}: it is not an IDX file of {'labels' if n_dims == 1 else 'images'}")
    if len(header) < 4 + 4 * n_dims:
        raise BadFile(path, f"has {len(header)} bytes, its header alone takes {4 + 4 * n_dims}", state="truncated")
    shape = struct.unpack_from(f">{n_dims}I", header, 4)
    if 0 in shape:
        raise BadFile(path, f"holds no entries, but {_times(shape)}")
    return shape


def _other_content(md5: str, published: SourceFile) -> str:
    # All these data sets use the same file names, so that files easily end up in the wrong folder.
    for source in SOURCES.values():
        for other in source.files:
            if other.md5 == md5:
                return f"is {source.name}'s {other.name}"
    return f"has other content than the published file (md5 {md5}, not {published.md5})"


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{size:,}" for size in shape)
