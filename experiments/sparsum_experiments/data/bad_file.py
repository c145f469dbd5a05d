"""What is said of a file that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

State = Literal["right", "wrong", "truncated", "missing"]


class BadFile(ValueError):
    """A file that is there and cannot be used.

    Args:
        path: the file.
        reason: what is wrong with it.
        state: "truncated" where its end is missing, "wrong" else.
    """

    def __init__(self, path: Path, reason: str, *, state: State = "wrong") -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason, self.state = path, reason, state
