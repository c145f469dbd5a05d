"""Whether what a run is told are values of the right kind; a file may say anything."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from typing import Any

#: The range of how many of something a model may have: more would not fit into memory, whatever a file says.
SIZE = (1, 2**16)

_WORDS = {int: "a whole number", float: "a number", str: "text"}


def check_kinds(told: object) -> None:
    """Raise a ValueError unless each argument is of the kind that its class says, and numbers are finite."""
    for name, hint in typing.get_type_hints(type(told)).items():
        kinds = typing.get_args(hint) or (hint,)
        value = getattr(told, name)
        if not any(_is_of_kind(value, kind) for kind in kinds):
            wanted = " or ".join(_WORDS.get(kind, "None") for kind in kinds)
            raise ValueError(f"{as_option(name)} must be {wanted}, got {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{as_option(name)} must be a finite number, got {value}")


def as_option(name: str) -> str:
    """How an argument is typed.

    >>> as_option("batch_size")
    '--batch-size'
    """
    return f"--{name.replace('_', '-')}"


def _is_of_kind(value: Any, kind: type) -> bool:
    """Whether a value can stand where its class says a kind: an int can for a float, a bool for none of them."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def check_ranges(told: object, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Raise a ValueError unless the arguments that are told lie between two numbers, both of which are in."""
    for name, (least, most) in ranges.items():
        value = getattr(told, name)
        if value is not None and value < least:
            raise ValueError(f"{as_option(name)} must be at least {least:g}, got {value}")
        if value is not None and value > most:
            raise ValueError(f"{as_option(name)} must be at most {most:g}, got {value}")
