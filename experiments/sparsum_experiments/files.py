"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import pathlib
import re
import tempfile
import zipfile
from typing import Any

import torch

# What is written here comes nowhere near these, and what is beyond them would fail later: in a recursion, or as a float.
_MAX_DEPTH, _MAX_DIGITS = 50, 100


def write_bytes(path: pathlib.Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash at any moment, finds the old content or the new one, and nothing else.

    Raises:
        OSError: if it cannot be written; it names this file, and not the one that the content goes to at first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _write_and_rename(path, content)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def printable(text: str) -> str:
    r"""Text whose control characters are escaped, so that a terminal does not act on them.

    >>> printable("a\x1b[2J b\x9b\n")
    'a\\x1b[2J b\\x9b\n'
    """
    return re.sub(r"[^\n\t -~\xa0-\ud7ff\ue000-\U0010ffff]", lambda found: ascii(found[0])[1:-1], text)


def _write_and_rename(path: pathlib.Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
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
    """Read what `write_tensors` wrote; nothing else is unpickled.

    Raises:
        ValueError: if it is something else, with the name of the file.
    """
    if _is_cut_short(path):
        raise ValueError(f"{path} is empty or cut short")
    try:
        content = torch.load(path, map_location=device, weights_only=True)
    except (OSError, torch.cuda.OutOfMemoryError):
        raise
    # What torch says of such a file tells how to run the code in it, which nobody should.
    except Exception as error:
        raise ValueError(f"{path} is no checkpoint of sparsum, or damaged; nothing in it was run") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is no checkpoint that can be read: it holds a {type(content).__name__}")
    return content


def _is_cut_short(path: pathlib.Path) -> bool:
    """Whether a file is empty, or begins as `write_tensors` does, a ZIP archive, and lacks the end of one."""
    with path.open("rb") as file:
        begin = file.read(2)
    return not begin or (begin == b"PK" and not zipfile.is_zipfile(path))


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
        found.append(parse_json(line, f"line {number} of {path}"))
    return found


def read_json(path: pathlib.Path, *, finite: bool = False) -> Any:
    """What a JSON file holds; `parse_json` says what is refused."""
    return parse_json(path.read_bytes(), str(path), finite=finite)


def parse_json(text: bytes, where: str, *, finite: bool = False) -> Any:
    """What a text of JSON holds.

    Args:
        text: in UTF-8.
        where: what it is, for messages.
        finite: whether to refuse NaN and infinities, which Python writes and no standard knows.

    Raises:
        ValueError: if it is no JSON, nested too deeply, or holds a number or a text that Python cannot go on with.
    """
    try:
        constant = _no_number if finite else float
        content = json.loads(text.decode(), parse_int=_whole, parse_float=_real, parse_constant=constant)
        _check(content, _MAX_DEPTH)
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{where} is no JSON: {error}") from error
    return content


def _check(content: Any, depth: int) -> None:
    """Refuse texts that cannot be written again, and values within too many others."""
    if isinstance(content, str):
        content.encode()  # half of a pair of surrogates is no sign
    if not isinstance(content, dict | list):
        return
    if depth == 0:
        raise RecursionError
    for each in content:
        _check(each, depth - 1)
    for each in content.values() if isinstance(content, dict) else ():
        _check(each, depth - 1)


def _whole(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits is too large")
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:20]} is too large a number")
    return value


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")
