"""A cache of weights that runs with the same settings share, such as warm starts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import filelock
import platformdirs
import torch

from sparsum_experiments.files import read_tensors, write_tensors

# How long a run waits for another one before it prints a message.
_WAIT_SECONDS = 1.0


def cache_folder() -> pathlib.Path | None:
    """The folder $SPARSUM_CACHE, by default sparsum in the user's cache folder; None if the user has no home folder."""
    default = platformdirs.user_cache_path("sparsum", appauthor=False)
    folder = pathlib.Path(os.environ.get("SPARSUM_CACHE") or default)
    return folder / "warm-starts" if folder.is_absolute() or "SPARSUM_CACHE" in os.environ else None


def cached(
    name: str,
    settings: Mapping[str, Any],
    make: Callable[[], dict[str, Any]],
    say: Callable[[str], None],
    device: torch.device,
) -> dict[str, Any]:
    """Read weights from the cache, or compute and, if the cache is writable, store them.

    Args:
        name: the prefix of the file name.
        settings: everything the weights depend on.
        make: computes the weights.
        say: prints a message.
        device: where to load the weights.
    """
    key = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=10).hexdigest()
    folder = cache_folder()
    if folder is None:
        say("the warm start is not cached because there is no home folder; set SPARSUM_CACHE to a folder to cache it")
        return make()
    file = folder / f"{name}-{key}.pt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(file.with_suffix(".lock"), say):
            return _read_or_make(file, settings, make, say, device)
    except PermissionError as error:
        say(f"the warm start is not cached because the cache is not writable ({error}); set SPARSUM_CACHE to another folder")
        return make()


def _read_or_make(
    file: pathlib.Path,
    settings: Mapping[str, Any],
    make: Callable[[], dict[str, Any]],
    say: Callable[[str], None],
    device: torch.device,
) -> dict[str, Any]:
    if file.exists():
        try:
            weights: dict[str, Any] = read_tensors(file, device)["weights"]
            say(f"warm start from {file}")
            return weights
        except (LookupError, ValueError) as error:
            say(f"{error}; recomputing it")
    weights = make()
    write_tensors(file, {"settings": dict(settings), "weights": weights})
    say(f"warm start saved to {file}")
    return weights


@contextlib.contextmanager
def _locked(file: pathlib.Path, say: Callable[[str], None]) -> Iterator[None]:
    """Let one process at a time compute a file; the operating system frees the lock of a process that dies."""
    lock = filelock.FileLock(file, timeout=_WAIT_SECONDS)
    try:
        lock.acquire()
    except filelock.Timeout:
        say("waiting for another run to compute the same warm start ...")
        lock.acquire(timeout=-1)
    try:
        yield
    finally:
        lock.release()
