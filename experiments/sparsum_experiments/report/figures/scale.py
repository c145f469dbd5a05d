"""From values to places in a picture, along one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

# The part of a range that is left free at each end.
_MARGIN = 0.05
# What is larger, or nearer to zero on a logarithmic scale, is as good as infinite.
_LIMIT = 1e100


class Scale:
    """An axis.

    Args:
        values: what it has to reach; at least one can be shown.
        start: where the axis begins in the picture.
        end: where it ends.
        is_logarithmic: whether equal ratios are equal distances.
        has_margin: whether the outermost values stay away from the frame.
    """

    def __init__(
        self, values: Sequence[float], start: float, end: float, *, is_logarithmic: bool = False, has_margin: bool = True
    ) -> None:
        self.start, self.end, self.is_logarithmic = start, end, is_logarithmic
        scaled = [self._scaled(value) for value in values]
        low, high = min(scaled), max(scaled)
        margin = _MARGIN * (high - low) if has_margin else 0.0
        if high - low <= 1e-9 * max(abs(low), abs(high)):  # a single value stands in the middle
            margin = 0.05 * abs(high) or 0.5
        self.low, self.high = low - margin, high + margin

    def can_show(self, value: float) -> bool:
        """Whether a value has a place on the axis, within the frame or not."""
        return can_show(value, is_logarithmic=self.is_logarithmic)

    def at(self, value: float) -> float:
        """Where a value is."""
        return self.start + (self._scaled(value) - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, n: int = 6) -> list[float]:
        """Some round values within the frame."""
        if not self.is_logarithmic:
            return _round_ticks(self.low, self.high, n)
        decades = range(math.floor(self.low), math.ceil(self.high) + 1)
        for digits in ((1, 2, 5), (1,)):
            ticks = [digit * 10.0**decade for decade in decades for digit in digits]
            shown = [tick for tick in ticks if self.low <= math.log10(tick) <= self.high]
            if len(shown) <= 2 * n:
                break
        return shown[:: math.ceil(len(shown) / (2 * n))] if shown else []

    def told(self) -> dict[str, Any]:
        """What a script needs to find values by their places."""
        return {
            "low": self.low,
            "high": self.high,
            "start": self.start,
            "end": self.end,
            "isLogarithmic": self.is_logarithmic,
        }

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.is_logarithmic else value


def can_show(value: float, *, is_logarithmic: bool = False) -> bool:
    """Whether a value is finite, even with the margin around it, and positive where it has to be.

    >>> can_show(0.0), can_show(0.0, is_logarithmic=True)
    (True, False)
    """
    return abs(value) < _LIMIT and (value > 1 / _LIMIT or not is_logarithmic)


def _round_ticks(low: float, high: float, n: int) -> list[float]:
    """About n multiples of 1, 2 or 5 times a power of ten between two numbers."""
    step = 10.0 ** math.floor(math.log10((high - low) / n))
    step *= next(factor for factor in (1, 2, 5, 10, 20) if (high - low) / (step * factor) <= n)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
