"""The settings of a grid: all of them, or some that are drawn."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sparsum_experiments.errors import UsageError
from sparsum_experiments.options import as_flag
from sparsum_experiments.seeds import seed_for

# Drawn numbers have so many digits: more would only make the names of folders longer.
_DIGITS = 3
# How many draws in a row may repeat earlier ones before there are taken to be no others.
_MAX_REPEATED = 1000


class Range(NamedTuple):
    """All numbers between two, the ends included."""

    low: float
    high: float

    def draw(self, chance: random.Random) -> float:
        """A number that is uniform in the logarithm where all are positive, else uniform; whole between whole numbers."""
        low, high = (math.log(self.low), math.log(self.high)) if self.low > 0 else (self.low, self.high)
        drawn = chance.uniform(low, high)
        number = math.exp(drawn) if self.low > 0 else drawn
        number = (
            round(number) if isinstance(self.low, int) and isinstance(self.high, int) else float(f"{number:.{_DIGITS}g}")
        )
        return min(max(number, self.low), self.high)


Values = Sequence[Any] | Range


def every_setting(grid: Mapping[str, Values]) -> list[dict[str, Any]]:
    """All combinations of the values of a grid.

    >>> every_setting({"k": [1, 2], "lr": [0.1]})
    [{'k': 1, 'lr': 0.1}, {'k': 2, 'lr': 0.1}]
    """
    for name in [name for name, values in grid.items() if isinstance(values, Range)]:
        raise UsageError(f"--grid {as_flag(name)[2:]} is a range, from which --search N draws; list values to try them all")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def drawn_settings(grid: Mapping[str, Values], n: int) -> list[dict[str, Any]]:
    """``n`` different settings, or all if there are fewer.

    The values of an option depend on its name alone, so that methods are tried with the same ones, and a longer search
    begins with the settings of a shorter one.

    >>> drawn_settings({"lr": [0.1, 0.2, 0.3]}, 2) == drawn_settings({"lr": [0.1, 0.2, 0.3]}, 3)[:2]
    True
    """
    chances = {name: random.Random(seed_for(0, "search", name)) for name in grid}
    found: list[dict[str, Any]] = []
    n_repeated = 0
    while len(found) < n and n_repeated < _MAX_REPEATED:
        setting = {name: _draw(values, chances[name]) for name, values in grid.items()}
        is_new = setting not in found
        found += [setting] * is_new
        n_repeated = 0 if is_new else n_repeated + 1
    return found


def _draw(values: Values, chance: random.Random) -> Any:
    return values.draw(chance) if isinstance(values, Range) else chance.choice(values)
