"""Weights that are computed once and shared by all runs with the same settings, such as warm starts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import filelock
import platformdirs
import torch

from sparsum_experiments.files import read_tensors, write_tensors

# How long a run waits for another one before it prints a message.
_WAIT_SECONDS = 1.0
_NOT_KEPT = "the warm start is not kept: set SPARSUM_CACHE to a folder that can be written"


def cache_folder() -> pathlib.Path | None:
    """$SPARSUM_CACHE, or sparsum in the user's cache folder; None for a user without a home folder."""
    try:
        folder = os.environ.get("SPARSUM_CACHE") or platformdirs.user_cache_path("sparsum", appauthor=False)
    except RuntimeError:
        return None
    return pathlib.Path(folder) / "warm-starts"


def cached(
    name: str,
    settings: Mapping[str, Any],
    make: Callable[[], dict[str, Any]],
    say: Callable[[str], None],
    device: torch.device,
) -> dict[str, Any]:
    """The weights for some settings: those in the cache, or new ones, which are kept there if it can be written.

    ``name`` is the beginning of the file's name; the settings are all that the weights depend on.
    """
    key = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=10).hexdigest()
    folder = cache_folder()
    if folder is None:
        say(f"{_NOT_KEPT} (there is no home folder)")
        return make()
    file = folder / f"{name}-{key}.pt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = file.with_suffix(".lock")
        lock.touch()
    except OSError as error:
        say(f"{_NOT_KEPT} ({error})")
        return make()
    with _locked(lock, say):
        if file.exists():
            try:
                weights: dict[str, Any] = read_tensors(file, device)["weights"]
                say(f"warm start from {file}")
                return weights
            except (LookupError, ValueError) as error:
                say(f"{error}; recomputing it")
        weights = make()
        try:
            write_tensors(file, {"settings": dict(settings), "weights": weights})
            say(f"warm start saved to {file}")
        except OSError as error:
            say(f"{_NOT_KEPT} ({error})")
        return weights


def _locked(file: pathlib.Path, say: Callable[[str], None]) -> contextlib.AbstractContextManager[object]:
    """Let one process at a time compute a file; the lock of a process that dies is free again."""
    lock = filelock.FileLock(file)
    try:
        return lock.acquire(timeout=_WAIT_SECONDS)
    except filelock.Timeout:
        say("waiting for another run that computes the same warm start ...")
        return lock.acquire(timeout=-1)
