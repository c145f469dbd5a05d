"""Means over examples that come in chunks."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


class Totals:
    """Sums of the values of each example, and of their squares, kept on their device."""

    def __init__(self) -> None:
        self.n = 0
        self._sums: dict[str, Tensor] = {}

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Take in a chunk: one number for each example and name, all of shape (n,)."""
        self.n += len(next(iter(values.values())))
        for name, value in values.items():
            value = value.detach().double()
            both = torch.stack([value.sum(), value.square().sum()])
            self._sums[name] = self._sums[name] + both if name in self._sums else both

    def means(self) -> dict[str, float]:
        """The mean of each."""
        return {name: sums[0].item() / self.n for name, sums in self._sums.items()}

    def means_and_errors(self) -> dict[str, float]:
        """The mean of each, and the standard error of the mean under its name with ``_se``."""
        found: dict[str, float] = {}
        for name, sums in self._sums.items():
            total, squares = sums.tolist()
            mean = total / self.n
            spread = max(squares / self.n - mean**2, 0.0) / max(self.n - 1, 1)
            found |= {name: mean, f"{name}_se": math.sqrt(spread)}
        return found
