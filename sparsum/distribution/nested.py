"""Nested dicts, lists and tuples of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def map_tensors(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply a function to the leaves of nested dicts, lists and (named) tuples of the same form."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: map_tensors(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, list | tuple):
        mapped = [map_tensors(function, *parts) for parts in zip(*trees, strict=True)]
        return type(first)(*mapped) if hasattr(first, "_fields") else type(first)(mapped)
    return function(*trees)
