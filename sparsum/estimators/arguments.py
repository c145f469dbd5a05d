"""Checks of the arguments of estimators."""

from __future__ import annotations

import sys


def check_number(
    name: str, value: float, *, least: float | None = None, above: float | None = None, is_whole: bool = False
) -> None:
    """Raise a TypeError or ValueError unless an argument is a number in its range."""
    if isinstance(value, bool) or not isinstance(value, int if is_whole else int | float):
        raise TypeError(f"{name} must be {'an int' if is_whole else 'a number'}, got {type(value).__name__}")
    # A count may be an int that no float holds; what is computed with may not.
    is_finite = is_whole or abs(value) <= sys.float_info.max
    if above is not None and not (value > above and is_finite):
        raise ValueError(f"{name} must be finite and larger than {above}, got {value}")
    if not is_finite:
        raise ValueError(f"{name} must be finite, got {value}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_samples(samples: int, least: int = 1) -> int:
    """The number of samples, if it is large enough."""
    check_number("samples", samples, least=least, is_whole=True)
    return samples


def check_chunk_size(chunk_size: int | None) -> int | None:
    """The size of chunks, if it is None or a positive int."""
    if chunk_size is not None:
        check_number("chunk_size", chunk_size, least=1, is_whole=True)
    return chunk_size
