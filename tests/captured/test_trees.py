"""Nested containers."""

from __future__ import annotations

import collections
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch

from sparsum.captured.trees import form_of, leaves, map_leaves


class Pair(NamedTuple):
    first: Any
    second: Any


TREES: list[Any] = [
    3,
    [],
    {},
    (1, [2, {"a": 3}]),
    Pair(1, {"b": [2]}),
    OrderedDict(b=1, a=(2,)),
    {"x": None, "y": ()},
]


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_leaves_and_mapping_agree(tree: Any) -> None:
    same = map_leaves(lambda leaf: leaf, tree)
    assert same == tree
    assert type(same) is type(tree)
    assert list(leaves(map_leaves(lambda leaf: (leaf,), tree))) == list(leaves(tree))
    counted = iter(range(100))
    assert list(leaves(map_leaves(lambda _: next(counted), tree))) == list(range(len(list(leaves(tree)))))


def test_counters_are_not_added_up() -> None:
    assert map_leaves(lambda leaf: leaf, collections.Counter(a=2)) == {"a": 2}


def test_forms() -> None:
    x = torch.zeros(2, 3)
    assert form_of({"x": x, "n": 1}) == form_of({"x": x + 1, "n": 1})
    different = [x, x.T, x.long(), x[:1], x.T.clone(), [x], (x,), {"x": x}, {"y": x}, Pair(x, x), (x, x), 1, 1.0, True, None]
    assert len({form_of(each) for each in different}) == len(different) - 1  # x.T.clone() keeps the strides of x.T
    with pytest.raises(TypeError):
        form_of([x, bytearray()])
