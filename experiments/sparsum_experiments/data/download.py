"""Downloading one file in as many attempts as it takes."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

#: Called with the bytes so far and their total, None where the server does not say.
Progress = Callable[[int, int | None], None]

_CHUNK = 1 << 16
_TIMEOUT = 30.0  # seconds without a byte


class TransferFailed(Exception):
    """A transfer that did not succeed, which another server or another attempt may do."""


def download(url: str, part: Path, progress: Progress) -> bool:
    """Bring a file to ``part``, going on where an earlier attempt stopped if the server can.

    Whatever ends it, what has arrived stays in ``part``.

    Returns:
        Whether the file begins with what an earlier attempt left.

    Raises:
        TransferFailed: if the file did not arrive in full.
    """
    n_kept = part.stat().st_size if part.exists() else 0
    try:
        response = _open(url, n_kept)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and n_kept:
            return True  # nothing is left to fetch: whether the file is right is for the checksum to say
        raise TransferFailed(f"the server answered {error.code} {error.reason}") from None
    with response:
        n_kept = _first_byte(response, n_kept)
        length = response.headers.get("Content-Length", "")
        total = n_kept + int(length) if length.isdigit() else None
        part.parent.mkdir(parents=True, exist_ok=True)
        n_bytes = _write(response, part, n_kept, total, progress)
    if total is not None and n_bytes < total:
        raise TransferFailed(f"the connection ended after {n_bytes:,} of {total:,} bytes")
    return n_kept > 0


def _open(url: str, n_kept: int) -> Any:
    request = urllib.request.Request(url, headers={"Range": f"bytes={n_kept}-"} if n_kept else {})
    try:
        return urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise TransferFailed(f"no connection ({getattr(error, 'reason', error)})") from None


def _first_byte(response: Any, n_kept: int) -> int:
    """Which byte of the file comes first in an answer: 0 from a server that ignores what was asked."""
    if response.status != HTTPStatus.PARTIAL_CONTENT:
        return 0
    extent = response.headers.get("Content-Range", "")
    if not extent.startswith(f"bytes {n_kept}-"):
        raise TransferFailed(f"the server was asked for the bytes from {n_kept:,} and sent {extent or 'others'!r}")
    return n_kept


def _write(response: Any, part: Path, n_kept: int, total: int | None, progress: Progress) -> int:
    """Append what arrives to the first ``n_kept`` bytes; gives how many there are then."""
    n_bytes = n_kept
    progress(n_bytes, total)
    with part.open("ab" if n_kept else "wb") as file:
        for chunk in _chunks(response):
            n_bytes += file.write(chunk)
            progress(n_bytes, total)
        file.flush()
        os.fsync(file.fileno())  # its renaming must not reach the disk before its content
    return n_bytes


def _chunks(response: Any) -> Iterator[bytes]:
    # The errors of the network alone: a full disk is no reason to try another server.
    while True:
        try:
            chunk = response.read1(_CHUNK)  # what is there, so that little is lost when it ends
        except (OSError, http.client.HTTPException) as error:
            raise TransferFailed(f"the connection broke ({error})") from None
        if not chunk:
            return
        yield chunk
