"""Inputs of properties: scores of many kinds, in any dtype, with ties, infinities and numbers of any size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from hypothesis import strategies as st
from torch import Tensor

T = TypeVar("T")

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WIDE = (torch.float64, torch.float32)

Maker = Callable[[Tensor, torch.Generator], Tensor]


def _uniform(t: Tensor, generator: torch.Generator, low: float, high: float) -> Tensor:
    """One number for each row."""
    return low + (high - low) * torch.rand(len(t), 1, dtype=t.dtype, generator=generator)


def _chosen(t: Tensor, generator: torch.Generator, share: float) -> Tensor:
    return torch.rand(t.shape, dtype=t.dtype, generator=generator) < share


def _duplicated(t: Tensor, generator: torch.Generator) -> Tensor:
    place = torch.randint(max(t.shape[1], 1), t.shape, generator=generator)
    return t.gather(1, place) if t.numel() else t


KINDS: dict[str, Maker] = {
    "normal": lambda t, generator: t,
    "integers": lambda t, generator: (2 * t).round(),
    "halves": lambda t, generator: (2 * t).round() / 2,
    "equal": lambda t, generator: t[:, :1].expand_as(t).clone(),
    "zeros": lambda t, generator: torch.zeros_like(t),
    "any size": lambda t, generator: t * 10 ** _uniform(t, generator, -30, 30),
    "all sizes": lambda t, generator: t * 10 ** (60 * torch.rand(t.shape, dtype=t.dtype, generator=generator) - 30),
    "large": lambda t, generator: 1e30 * t,
    "large integers": lambda t, generator: 1e30 * t.round(),
    "small": lambda t, generator: 1e-30 * t,
    "denormal": lambda t, generator: 1e-40 * t,
    "smallest": lambda t, generator: 5e-324 * t.round(),
    "duplicates": _duplicated,
    "offset": lambda t, generator: t + 10 ** _uniform(t, generator, 0, 10),
    "nearly tied": lambda t, generator: t.round() + 1e-9 * t,
    "one is large": lambda t, generator: torch.where(_chosen(t, generator, 1 / max(t.shape[1], 1)), 1e20 * t, t),
    "some are low": lambda t, generator: torch.where(_chosen(t, generator, 0.3), -1e30, t),
    "signed zeros": lambda t, generator: torch.copysign(torch.zeros_like(t), t),
}


class Draw:
    """What a property draws its case from; failing cases are shrunk by hypothesis."""

    def __init__(self, data: Any) -> None:
        self._draw = data.draw

    def integer(self, least: int, most: int) -> int:
        """An integer in a range."""
        found: int = self._draw(st.integers(least, most))
        return found

    def choice(self, values: Sequence[T]) -> T:
        """One of several values; small cases have the first ones."""
        return values[self.integer(0, len(values) - 1)]

    def flag(self) -> bool:
        """Yes or no."""
        return bool(self.integer(0, 1))

    def generator(self) -> torch.Generator:
        """Randomness for what need not be shrunk."""
        return torch.Generator().manual_seed(self.integer(0, 2**31))

    def floats(self, shape: Sequence[int], width: int = 64) -> Tensor:
        """Finite numbers, each of which hypothesis chooses."""
        n = math.prod(shape)
        numbers = st.floats(allow_nan=False, allow_infinity=False, width=32 if width == 32 else 64)
        found = self._draw(st.lists(numbers, min_size=n, max_size=n))
        return torch.tensor(found, dtype=torch.float64).reshape(*shape)

    def kind(self) -> str:
        """A kind of scores, "mixed" or "floats"."""
        return self.choice([*KINDS, "mixed", "floats"])

    def table(
        self,
        n_rows: int,
        n: int,
        dtype: torch.dtype,
        *,
        most: float | None = None,
    ) -> Tensor:
        """Rows of finite scores of some kind, (n_rows, n); at most ``most`` in size, by default the largest number."""
        kind, generator = self.kind(), self.generator()
        normal = torch.randn(n_rows, n, dtype=torch.float64, generator=generator)
        if kind == "floats" and n_rows * n <= 12:
            found = self.floats((n_rows, n), width=32 if dtype != torch.float64 else 64)
        elif kind in KINDS:
            found = KINDS[kind](normal, generator)
        else:
            which = torch.randint(len(KINDS), (n_rows, 1), generator=generator)
            each = torch.stack([make(normal, generator) for make in KINDS.values()])
            found = each.gather(0, which.expand(1, n_rows, n) if n_rows else which.new_zeros(1, 0, n))[0]
        limit = torch.finfo(dtype).max if most is None else min(most, torch.finfo(dtype).max)
        return found.clamp(-limit, limit).to(dtype)

    def laid_out(self, x: Tensor) -> Tensor:
        """The same values, perhaps with gaps or in another order in memory."""
        way = self.choice(["contiguous", "transposed", "gaps"])
        if way == "transposed" and x.ndim > 1:
            return x.transpose(0, -1).contiguous().transpose(0, -1)
        if way == "gaps" and x.ndim:
            return torch.stack([x, x], -1)[..., 0]
        return x


def replaced(x: Tensor, row: int, value: float, column: int = 0) -> Tensor:
    """The same rows, with one entry replaced."""
    changed = x.clone()
    changed[row, column] = value
    return changed
