"""Places of the names beside lines and marks, so that none covers another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# About what a sign of the style sheet's font takes.
_SIGN_WIDTH, HEIGHT = 6.7, 14.0
_MAX_SIGNS = 20
# A name that is farther from its mark has a line to it.
_NEAR = 8.0
# How far to the side a name stands that has such a line.
_AWAY = 18.0
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


def beside(names: Sequence[str], boxes: Sequence[Box], room: Box) -> list[Label]:
    """Names beside marks, each on the side where it covers least; all stay within their room.

    Args:
        names: of the marks.
        boxes: what each mark takes, with the bars of its errors.
        room: where names may be.
    """
    found: list[Label] = []
    taken = list(boxes)
    for name, box in zip(names, boxes, strict=True):
        best = min(_choices(shortened(name), box), key=lambda label: _covered(label.box, taken, room))
        found.append(best)
        taken.append(best.box)
    return found


def _choices(text: str, box: Box) -> list[Label]:
    """Right and left of a mark, then above and below, then farther away, where a line leads to it."""
    left, top, right, bottom = box
    middle = (top + bottom) / 2 + 4
    choices = [Label(text, right + 3, middle, "start"), Label(text, left - 3, middle, "end")]
    for shift in range(0, 5 * int(HEIGHT), int(HEIGHT) // 2):
        for y in (top - 5 - shift, bottom + 12 + shift):
            choices += [
                Label(text, (left + right) / 2 + x, y, anchor) for x, anchor in ((0, "middle"), (6, "start"), (-6, "end"))
            ]
        for y in (middle + shift, middle - shift):
            choices += [Label(text, right + _AWAY, y, "start"), Label(text, left - _AWAY, y, "end")]
    return choices


def leader(label: Label, box: Box) -> tuple[float, float] | None:
    """Where a line from a mark to its name ends; None where the name is so near that it needs none.

    >>> leader(Label("a", 10.0, 40.0, "middle"), (4.0, 80.0, 16.0, 92.0))
    (10.0, 43.0)
    """
    left, top, right, bottom = label.box
    if max(top - box[3], box[1] - bottom, left - box[2], box[0] - right) < _NEAR:
        return None
    middle = (box[0] + box[2]) / 2
    if left > box[2] or right < box[0]:
        return (left - 1 if left > box[2] else right + 1), (top + bottom) / 2
    return min(max(middle, left), right), bottom if bottom < box[1] else top


def _covered(box: Box, taken: Sequence[Box], room: Box) -> float:
    """The area that a box shares with others, and much for what is outside of the room."""
    left, top, right, bottom = box
    shared = 0.0
    for a, b, c, d in taken:
        shared += max(0.0, min(right, c) - max(left, a)) * max(0.0, min(bottom, d) - max(top, b))
    outside = max(0.0, room[0] - left) + max(0.0, right - room[2]) + max(0.0, room[1] - top) + max(0.0, bottom - room[3])
    return shared + 1000 * outside
