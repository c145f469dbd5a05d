"""Weights that are computed once and shared by all runs with the same settings, such as warm starts."""

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

# After this long a run says that it waits for another one.
_WAIT_SECONDS = 1.0


def cache_folder() -> pathlib.Path | None:
    """$SPARSUM_CACHE, or sparsum in the user's cache folder; None for a user without a home folder."""
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
    """The weights for some settings: those in the cache, or new ones, which are kept there if it can be written.

    Args:
        name: what they are, the beginning of the file's name.
        settings: all that they depend on.
        make: computes them.
        say: prints a message.
        device: where they are needed.
    """
    key = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=10).hexdigest()
    folder = cache_folder()
    if folder is None:
        say("there is no home folder, so the warm start is not kept: set SPARSUM_CACHE to a folder to keep it")
        return make()
    file = folder / f"{name}-{key}.pt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(file.with_suffix(".lock"), say):
            return _read_or_make(file, settings, make, say, device)
    except PermissionError as error:
        say(f"the cache cannot be written ({error}), so the warm start is not kept: set SPARSUM_CACHE to another folder")
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
            say(f"{error}; it is computed again")
    weights = make()
    write_tensors(file, {"settings": dict(settings), "weights": weights})
    say(f"warm start kept in {file}")
    return weights


@contextlib.contextmanager
def _locked(file: pathlib.Path, say: Callable[[str], None]) -> Iterator[None]:
    """Let one process at a time compute a file; the lock of a process that dies is free again."""
    lock = filelock.FileLock(file, timeout=_WAIT_SECONDS)
    try:
        lock.acquire()
    except filelock.Timeout:
        say("waiting for another run that computes the same warm start ...")
        lock.acquire(timeout=-1)
    try:
        yield
    finally:
        lock.release()
