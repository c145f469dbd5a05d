"""Files that are written whole or not at all, and read with care: anybody may have written them."""

from __future__ import annotations

import contextlib
import glob
import io
import json
import os
import pathlib
import platform
import secrets
import stat
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import pydantic_core

if TYPE_CHECKING:
    import torch

# The end of the names of files that are being written, and what stands for this machine in them: folders may be shared.
_TEMPORARY = ".tmp"
_HERE = f"{zlib.crc32(platform.node().encode()):08x}"
# No file of text that is written here comes near it.
_MAX_BYTES = 2**28


def printable(text: str) -> str:
    r"""Text without control characters, which could command a terminal; line ends and tabs stay.

    >>> printable("a\x1b[31mb\n")
    'a\\x1b[31mb\n'
    """
    return "".join(sign if sign.isprintable() or sign in "\n\t" else repr(sign)[1:-1] for sign in text)


def write_bytes(path: pathlib.Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash at any moment, finds the old content or the new one, and nothing else."""
    temporary = path.with_name(f".{path.name}.{_HERE}-{os.getpid()}-{secrets.token_hex(4)}{_TEMPORARY}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:  # with the permissions that the umask gives
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    with contextlib.suppress(OSError):
        for left in path.parent.glob(f".{glob.escape(path.name)}.{_HERE}-*-*{_TEMPORARY}"):
            if not _is_running(left.name.split("-")[-2]):
                left.unlink()  # of a writer that was killed


def _is_running(process: str) -> bool:
    """Whether a process of this machine may still be there."""
    try:
        os.kill(int(process), 0)
    except (OverflowError, ProcessLookupError, ValueError):
        return False
    except OSError:  # it is somebody else's
        return True
    return True


def remove_temporaries(folder: pathlib.Path) -> None:
    """Remove what writers that were killed left in or below a folder; no other process may be writing there."""
    for file in folder.rglob(f".*{_TEMPORARY}"):
        file.unlink(missing_ok=True)


def write_json(path: pathlib.Path, content: Any) -> None:
    """Write a JSON file."""
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def append_line(path: pathlib.Path, content: Any) -> None:
    """Append a line of JSON, and wait until it is on the disk."""
    with path.open("ab") as file:
        file.write((json.dumps(content, allow_nan=False) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


def read_bytes(path: pathlib.Path, max_bytes: int = _MAX_BYTES) -> bytes:
    """The content of a regular file: a device or a pipe could be read forever."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} is not a regular file")
    if status.st_size > max_bytes:
        raise ValueError(f"{path} has {status.st_size:,} bytes; more than {max_bytes:,} are not read")
    return path.read_bytes()


def read_json(path: pathlib.Path) -> Any:
    """The content of a JSON file."""
    return parse_json(read_bytes(path), str(path))


def parse_json(text: bytes, where: str) -> Any:
    """The content of JSON text in UTF-8; ``where`` is its name in messages."""
    try:
        return pydantic_core.from_json(text, cache_strings="keys")
    except ValueError as error:  # nested too deeply, numbers too long and half a surrogate pair included
        raise ValueError(f"{where} is not valid JSON: {error}") from error


def write_tensors(path: pathlib.Path, content: dict[str, Any]) -> None:
    """Write a file of tensors, numbers, strings and containers of them."""
    import torch

    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_bytes(path, buffer.getvalue())


def read_tensors(path: pathlib.Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read what `write_tensors` wrote, with its checksums; nothing else is unpickled."""
    import torch

    content = read_bytes(path, max_bytes=2**40)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            # torch stores without compression: whatever is compressed could unpack to any size.
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()) or archive.testzip():
                raise zipfile.BadZipFile
        found = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    except torch.OutOfMemoryError:
        raise
    # torch's own message about such a file explains how to run the code in it, which nobody should.
    except Exception as error:
        what = "is empty" if not content else "is corrupted or not a sparsum checkpoint; no code in it was executed"
        raise ValueError(f"{path} {what}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} is not a sparsum checkpoint: it holds a {type(found).__name__}")
    return found
