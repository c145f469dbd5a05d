"""The folder of a sweep: one sweep at a time, and errors where it has no room left."""

from __future__ import annotations

import contextlib
import errno
import pathlib
from collections.abc import Iterator

import filelock

from sparsum_experiments.errors import UsageError

_LOCK = ".sweep.lock"


@contextlib.contextmanager
def sole_sweep(folder: pathlib.Path) -> Iterator[None]:
    """Keep other sweeps out of a folder; the lock of a sweep that dies is free again.

    Two sweeps would wait for each other's runs, and each would show and retry what the other is making.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(folder / _LOCK, timeout=0):
            yield
    except filelock.Timeout:
        raise UsageError(f"another sweep is running in {folder}; wait for it, or give another --out") from None


@contextlib.contextmanager
def full_disk_explained(folder: pathlib.Path) -> Iterator[None]:
    """Say what to do where the sweep itself cannot write; its runs say so in their logs."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        what = "what the runs have saved is kept; free some space, then run the same command again"
        raise OSError(f"{error.filename or folder}: the disk is full; {what}") from error
