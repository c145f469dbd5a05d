"""Errors that commands turn into messages."""

from __future__ import annotations

import pathlib


class UsageError(ValueError):
    """An option that does not exist or has a wrong value; the message is for whoever typed it."""


class DivergedError(RuntimeError):
    """A loss, a score or a weight became NaN or infinite."""


class Stopped(RuntimeError):
    """A run was asked to stop and has saved its state in the folder ``path``."""

    def __init__(self, message: str, path: pathlib.Path) -> None:
        super().__init__(message)
        self.path = path

    def __reduce__(self) -> tuple[type[Stopped], tuple[str, pathlib.Path]]:
        return type(self), (str(self), self.path)


class LostRankError(RuntimeError):
    """Another process of the same run ended or failed."""
