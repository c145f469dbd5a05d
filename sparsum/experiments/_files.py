"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import tempfile
from typing import Any

import torch


def write_bytes(path: pathlib.Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash at any moment, finds the old content or the new one, and nothing else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise


def write_json(path: pathlib.Path, content: Any) -> None:
    """Write a JSON file."""
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def write_tensors(path: pathlib.Path, content: dict[str, Any]) -> None:
    """Write a file of tensors, numbers, strings and containers of them."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_bytes(path, buffer.getvalue())


def read_tensors(path: pathlib.Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read what `write_tensors` wrote; nothing else is unpickled."""
    try:
        content = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(
            f"{path} cannot be read: {str(error).splitlines()[0]}; if it is broken, remove it to begin anew"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is no checkpoint that can be read: it holds a {type(content).__name__}")
    return content


def append_line(path: pathlib.Path, content: Any) -> None:
    """Append one line of JSON, and wait until it is on the disk."""
    with path.open("ab") as file:
        file.write((json.dumps(content, allow_nan=False) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """All lines of JSON of a file; a last one that a crash cut short is left out."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    found = []
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last line end was never finished
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"line {number} of {path} is no JSON: {error}") from error
    return found
