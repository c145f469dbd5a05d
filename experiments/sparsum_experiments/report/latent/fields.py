"""What others wrote as JSON, checked as it is read."""

from __future__ import annotations

import base64
import binascii
import math
from typing import Any

import numpy as np


class Fields:
    """Names and values, each asked for with what it has to be.

    Args:
        content: what the JSON held.
        where: where it stands in the file, for messages.

    Raises:
        ValueError: here and in all methods, if something is missing or wrong; it says what and where.
    """

    def __init__(self, content: Any, where: str = "the view") -> None:
        if not isinstance(content, dict):
            raise ValueError(f"{where} holds no names and values")
        self._content: dict[str, Any] = content
        self._where = where

    def whole(self, name: str, least: int, most: int) -> int:
        """A whole number within bounds."""
        value = self._content.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(name, f"a whole number from {least} to {most}")
        return value

    def number(self, name: str, least: float, most: float) -> float:
        """A finite number within bounds."""
        return self._number(name, self._content.get(name), least, most)

    def numbers(self, name: str, n: int, least: float, most: float) -> list[float]:
        """As many finite numbers."""
        return [self._number(name, value, least, most) for value in self._list(name, n, n)]

    def text(self, name: str, longest: int = 300) -> str:
        """A text that is not too long."""
        value = self._content.get(name)
        if not isinstance(value, str) or len(value) > longest:
            raise self._wrong(name, f"a text of at most {longest} letters")
        return value

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self._content.get(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def parts(self, name: str, least: int, most: int) -> list[Fields]:
        """A list of names and values."""
        found = self._list(name, least, most)
        return [Fields(value, f"{name} {i} of {self._where}") for i, value in enumerate(found)]

    def part(self, name: str) -> Fields:
        """Names and values within these."""
        return Fields(self._content.get(name), f"{name} of {self._where}")

    def mapping(self, name: str) -> dict[str, Any]:
        """Names and values that are not known beforehand, and not checked."""
        value = self._content.get(name)
        if not isinstance(value, dict):
            raise self._wrong(name, "names and values")
        return value

    def raw(self, name: str, size: int) -> bytes:
        """So many bytes."""
        value = self._content.get(name)
        try:
            found = base64.b64decode(value, validate=True) if isinstance(value, str) else None
        except (binascii.Error, ValueError):
            found = None
        if found is None or len(found) != size:
            raise self._wrong(name, f"{size} bytes in base64")
        return found

    def halves(self, name: str, n: int) -> bytes:
        """So many finite numbers in half precision."""
        found = self.raw(name, 2 * n)
        if not np.isfinite(np.frombuffer(found, "<f2")).all():
            raise self._wrong(name, "finite numbers")
        return found

    def _list(self, name: str, least: int, most: int) -> list[Any]:
        value = self._content.get(name)
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise self._wrong(name, f"a list of {least} to {most}" if least < most else f"a list of {least}")
        return value

    def _number(self, name: str, value: Any, least: float, most: float) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # The bounds come first: a whole number may be too large for a float.
        if not is_number or not least <= value <= most or not math.isfinite(value):
            raise self._wrong(name, f"a number from {least} to {most}")
        return float(value)

    def _wrong(self, name: str, wanted: str) -> ValueError:
        state = "has no" if name not in self._content else "has a wrong"
        return ValueError(f"{self._where} {state} {name!r}, which has to be {wanted}")
