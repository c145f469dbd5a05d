"""Plot variance against calls with matplotlib, which is imported only here and only when used."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sparsum.diagnosis.measurement import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Sizes of labels, in points.
_LINE_HEIGHT, _LETTER_WIDTH, _GAP = 11.0, 5.5, 10.0


def plot(points: Sequence[Measurement], path: str | os.PathLike[str] | None, ax: Axes | None) -> Axes:
    """Draw the measured points on the given axes or new ones, and write a file if a path is given."""
    if ax is None:
        ax = _new_axes()
    shown = [point for point in points if point.variance >= 0]
    floor = min((point.variance for point in shown if point.variance > 0), default=1.0) / 10
    heights = [max(point.variance, floor) for point in shown]
    ax.set(xscale="log", yscale="log", xlabel="calls of the loss per example", ylabel="variance of the gradient")
    for point, height, colour in zip(shown, heights, _colours(), strict=False):
        face = colour if point.is_unbiased else "none"
        marker = "o" if point.variance > 0 else "v"
        ax.plot([point.calls], [height], marker, color=colour, markerfacecolor=face)
    ax.margins(0.2)
    _label(ax, shown, heights)
    ax.set_title("filled: unbiased, hollow: biased, triangle: a sum, without variance", fontsize="small")
    if path is not None:
        ax.figure.canvas.print_figure(path)
    return ax


def _colours() -> Iterator[str]:
    """The colours of matplotlib's cycle, repeated."""
    return itertools.cycle(f"C{i}" for i in range(10))


def _new_axes() -> Axes:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot needs matplotlib, which is not installed: pip install matplotlib") from error
    return Figure(figsize=(8, 6)).subplots()


def _label(ax: Axes, points: Sequence[Measurement], heights: Sequence[float]) -> None:
    """Write the names to the right of the points, from the lowest up, each above those it would overlap."""
    ax.autoscale_view()  # before reading positions
    places = [
        ax.transData.transform((point.calls, height)) * 72 / ax.figure.dpi
        for point, height in zip(points, heights, strict=True)
    ]
    taken = [(y, x - _GAP / 2, x + _GAP / 2) for x, y in places]  # height, left and right end of each marker and label
    for point, height, colour, (x, y) in sorted(
        zip(points, heights, _colours(), places, strict=False), key=lambda entry: entry[1]
    ):
        left, right, at = x + _GAP, x + _GAP + _LETTER_WIDTH * len(point.name), y
        for other, other_left, other_right in sorted(taken):
            if left < other_right and other_left < right and abs(at - other) < _LINE_HEIGHT:
                at = other + _LINE_HEIGHT
        taken.append((at, left, right))
        ax.annotate(
            point.name,
            (point.calls, height),
            (_GAP, at - y),
            textcoords="offset points",
            color=colour,
            fontsize="small",
            va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "relpos": (0, 0.5)},
        )
