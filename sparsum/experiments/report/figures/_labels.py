"""Places of the names beside lines and marks, so that none covers another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# About what a sign of the style sheet's font takes.
_SIGN_WIDTH, HEIGHT = 6.7, 14.0
_MAX_SIGNS = 20
#: Left, top, right and bottom.
Box = tuple[float, float, float, float]


class Label(NamedTuple):
    """A text, where it stands, and which of its ends is there."""

    text: str
    x: float
    y: float
    anchor: str

    @property
    def box(self) -> Box:
        """What it takes."""
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


def beside(names: Sequence[str], boxes: Sequence[Box], width: float, height: float) -> list[Label]:
    """Names beside marks, each on the side where it covers least; all stay within the picture.

    Args:
        names: of the marks.
        boxes: what each mark takes, with the bars of its errors.
        width: of the picture.
        height: of the part where names may be.
    """
    found: list[Label] = []
    taken = list(boxes)
    for name, box in zip(names, boxes, strict=True):
        best = min(_choices(shortened(name), box), key=lambda label: _covered(label.box, taken, width, height))
        found.append(best)
        taken.append(best.box)
    return found


def _choices(text: str, box: Box) -> list[Label]:
    """Right and left of a mark, then above and below, then farther away."""
    left, top, right, bottom = box
    middle = (top + bottom) / 2 + 4
    choices = [Label(text, right + 3, middle, "start"), Label(text, left - 3, middle, "end")]
    for shift in range(0, 5 * int(HEIGHT), int(HEIGHT) // 2):
        for y in (top - 5 - shift, bottom + 12 + shift):
            choices += [
                Label(text, (left + right) / 2 + x, y, anchor) for x, anchor in ((0, "middle"), (6, "start"), (-6, "end"))
            ]
    return choices


def _covered(box: Box, taken: Sequence[Box], width: float, height: float) -> float:
    """The area that a box shares with others, and much for what is outside of the picture."""
    left, top, right, bottom = box
    shared = 0.0
    for a, b, c, d in taken:
        shared += max(0.0, min(right, c) - max(left, a)) * max(0.0, min(bottom, d) - max(top, b))
    outside = max(0.0, -left) + max(0.0, right - width) + max(0.0, -top) + max(0.0, bottom - height)
    return shared + 1000 * outside
