"""Tensors that are kept between calls."""

from __future__ import annotations

from unittest import mock

import torch
from torch import Tensor

from sparsum import tensors


def test_what_a_capture_makes_is_not_kept() -> None:
    """A tensor made in a user's own CUDA graph has its values when the graph is replayed, and goes with it."""
    made = list[int]()

    @tensors.tensor_cache
    def numbers(n: int) -> Tensor:
        made.append(n)
        return torch.arange(n)

    kept = numbers(2)
    with mock.patch.object(tensors, "is_capturing", return_value=True):
        assert numbers(2) is kept
        assert numbers(3).tolist() == [0, 1, 2]
        numbers(3)
    assert made == [2, 3, 3]
    assert numbers(3) is numbers(3)
    assert made == [2, 3, 3, 3]
