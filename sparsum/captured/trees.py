"""Nested containers of tensors: the arguments and the results of a step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from torch import Tensor


def leaves(tree: Any) -> Iterator[Any]:
    """What nested dicts, lists and tuples contain, in order.

    >>> list(leaves({"a": [1, 2], "b": (3,)}))
    [1, 2, 3]
    """
    if isinstance(tree, dict):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from leaves(value)
    else:
        yield tree


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Nested containers of the same types with each leaf replaced.

    >>> map_leaves(lambda leaf: leaf + 1, {"a": [1, 2], "b": (3,)})
    {'a': [2, 3], 'b': (4,)}
    """
    if isinstance(tree, dict):
        mapped = copy.copy(tree)  # keeps what a subclass has besides its entries
        for key, value in tree.items():  # not by update, which adds in a Counter
            mapped[key] = map_leaves(function, value)
        return mapped
    if isinstance(tree, list | tuple):
        parts = [map_leaves(function, value) for value in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return function(tree)


def form_of(tree: Any) -> Hashable:
    """What must be equal for two trees to run the same operations: containers, tensors up to their values, other values.

    Raises a TypeError if a leaf is neither a tensor nor hashable.
    """
    if isinstance(tree, Tensor):
        return (Tensor, tree.shape, tree.stride(), tree.dtype, tree.device)
    if isinstance(tree, dict):
        return (type(tree), tuple(tree), tuple(map(form_of, tree.values())))
    if isinstance(tree, list | tuple):
        return (type(tree), tuple(map(form_of, tree)))
    hash(tree)
    return (type(tree), tree)
