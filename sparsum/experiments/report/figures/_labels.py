"""Places of the names beside lines and marks, so that none covers another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# About what a sign of the style sheet's font takes.
_SIGN_WIDTH, HEIGHT = 6.7, 14.0
_MAX_SIGNS = 20


class Label(NamedTuple):
    """A text, where it stands, and which of its ends is there."""

    text: str
    x: float
    y: float
    anchor: str

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom."""
        width = _SIGN_WIDTH * len(self.text)
        left = {"start": self.x, "middle": self.x - width / 2, "end": self.x - width}[self.anchor]
        return left, self.y - 11, left + width, self.y + 3


def shortened(name: str) -> str:
    """A name that fits beside a plot.

    >>> shortened("sparse"), shortened("a very long name of a method")
    ('sparse', 'a very long name of…')
    """
    return name if len(name) <= _MAX_SIGNS else f"{name[: _MAX_SIGNS - 1]}…"


def spread(places: Sequence[float], low: float, high: float) -> list[float]:
    """Places one below the other, each as near to its own as the others let it.

    >>> spread([50.0, 50.0, 90.0], 0.0, 100.0)
    [50.0, 64.0, 90.0]
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    found = [0.0] * len(places)
    edge = low
    for i in order:
        found[i] = max(places[i], edge)
        edge = found[i] + HEIGHT
    edge = high
    for i in reversed(order):
        found[i] = min(found[i], edge)
        edge = found[i] - HEIGHT
    return found


def beside(names: Sequence[str], places: Sequence[tuple[float, float]], width: float, height: float) -> list[Label]:
    """Names beside marks, each on the side where it covers least; all stay within the picture."""
    found: list[Label] = []
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in places]
    for name, (x, y) in zip(names, places, strict=True):
        choices = [
            Label(shortened(name), x + 9 * right, y + 4 + shift, "start" if right > 0 else "end")
            for shift in (0, -11, 11, -22, 22, -33, 33, -44, 44)
            for right in (1, -1)
        ]
        best = min(choices, key=lambda label: _covered(label.box, taken, width, height))
        found.append(best)
        taken.append(best.box)
    return found


def _covered(
    box: tuple[float, float, float, float], taken: Sequence[tuple[float, float, float, float]], width: float, height: float
) -> float:
    """The area that a box shares with others, and much for what is outside of the picture."""
    left, top, right, bottom = box
    shared = 0.0
    for a, b, c, d in taken:
        shared += max(0.0, min(right, c) - max(left, a)) * max(0.0, min(bottom, d) - max(top, b))
    outside = max(0.0, -left) + max(0.0, right - width) + max(0.0, -top) + max(0.0, bottom - height)
    return shared + 1000 * outside
