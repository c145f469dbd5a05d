"""Curves over epochs as SVG that needs nothing but a browser."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sparsum.experiments.report._html import Markup, element

_WIDTH, _HEIGHT = 640, 300
# The frame of the plot within the picture; the legend is to its right.
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 470, 34, 252
_LEGEND_STEP = 17
# Colours are those of the style sheet, and start again with dashes.
N_COLOURS = 8
_DASHES = ("none", "7 4", "2 3")
# Few points are marked, so that a single epoch is seen at all.
_MAX_MARKED = 15


def chart(title: str, y_label: str, lines: Mapping[str, Sequence[float]], *, is_logarithmic: bool = False) -> Markup:
    """Lines over epochs, named in a legend; values that are no finite numbers leave a gap."""
    values = [value for line in lines.values() for value in line if _can_show(value, is_logarithmic)]
    if not values:
        return element("p", f"{title}: nothing to draw")
    frame = _Frame(values, max(map(len, lines.values())), is_logarithmic)
    height = max(_HEIGHT, _TOP + _LEGEND_STEP * (len(lines) + 1))
    drawn = [part for i, line in enumerate(lines.values()) for part in _line(frame, line, i)]
    legend = [part for i, name in enumerate(lines) for part in _legend_entry(name, i)]
    label = element("text", y_label, transform=f"translate(14 {(_TOP + _BOTTOM) / 2}) rotate(-90)", text_anchor="middle")
    below = element("text", "epoch", x=(_LEFT + _RIGHT) / 2, y=_BOTTOM + 38, text_anchor="middle")
    heading = element("text", title, x=_LEFT, y=18, class_="heading")
    parts = [heading, *_axes(frame), label, below, *drawn, *legend]
    return element("svg", *parts, viewBox=f"0 0 {_WIDTH} {height}", role="img", aria_label=title)


class _Frame:
    """From epochs and values to places in the picture.

    Args:
        values: all that will be drawn.
        n_epochs: the length of the longest line.
        is_logarithmic: whether equal ratios are equal distances.
    """

    def __init__(self, values: list[float], n_epochs: int, is_logarithmic: bool) -> None:
        self.n_epochs, self.is_logarithmic = n_epochs, is_logarithmic
        low, high = min(map(self._scaled, values)), max(map(self._scaled, values))
        margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
        self.low, self.high = low - margin, high + margin

    def x(self, epoch: float) -> float:
        """Where an epoch is, counted from 1; a single one is in the middle."""
        part = (epoch - 1) / (self.n_epochs - 1) if self.n_epochs > 1 else 0.5
        return _LEFT + part * (_RIGHT - _LEFT)

    def y(self, value: float) -> float:
        """Where a value is."""
        return _BOTTOM - (self._scaled(value) - self.low) / (self.high - self.low) * (_BOTTOM - _TOP)

    def x_ticks(self) -> list[int]:
        """Some whole epochs."""
        if self.n_epochs == 1:
            return [1]
        return sorted({max(1, round(tick)) for tick in _round_ticks(1, self.n_epochs, 6)})

    def y_ticks(self) -> list[float]:
        """Some round values."""
        if not self.is_logarithmic:
            return _round_ticks(self.low, self.high, 6)
        decades = range(math.floor(self.low), math.ceil(self.high) + 1)
        ticks = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
        return [tick for tick in ticks if self.low <= math.log10(tick) <= self.high]

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.is_logarithmic else value


def _can_show(value: float, is_logarithmic: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not is_logarithmic)


def _round_ticks(low: float, high: float, n: int) -> list[float]:
    """About n multiples of 1, 2 or 5 times a power of ten between two numbers."""
    step = 10.0 ** math.floor(math.log10((high - low) / n))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= n)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _axes(frame: _Frame) -> list[Markup]:
    """The grid with its numbers."""
    parts = []
    for value in frame.y_ticks():
        y = frame.y(value)
        parts.append(element("line", x1=_LEFT, x2=_RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(element("text", f"{value:.6g}", x=_LEFT - 8, y=y + 4, text_anchor="end"))
    for epoch in frame.x_ticks():
        x = frame.x(epoch)
        parts.append(element("line", x1=x, x2=x, y1=_BOTTOM, y2=_BOTTOM + 5, class_="axis"))
        parts.append(element("text", str(epoch), x=x, y=_BOTTOM + 20, text_anchor="middle"))
    return [*parts, element("line", x1=_LEFT, x2=_RIGHT, y1=_BOTTOM, y2=_BOTTOM, class_="axis")]


def _line(frame: _Frame, values: Sequence[float], i: int) -> list[Markup]:
    """A line as one path, begun again after each gap."""
    steps, points, is_begun = [], [], False
    for epoch, value in enumerate(values, start=1):
        if not _can_show(value, frame.is_logarithmic):
            is_begun = False
            continue
        x, y = frame.x(epoch), frame.y(value)
        steps.append(f"{'L' if is_begun else 'M'}{x:.1f} {y:.1f}")
        points.append(element("circle", cx=x, cy=y, r=2.5, class_=f"dot c{i % N_COLOURS}"))
        is_begun = True
    path = element("path", d=" ".join(steps), class_=f"line c{i % N_COLOURS}", stroke_dasharray=_dashes(i))
    return [path, *points] if len(points) <= _MAX_MARKED else [path]


def _legend_entry(name: str, i: int) -> list[Markup]:
    y = _TOP + 8 + _LEGEND_STEP * i
    sample = element("path", d=f"M{_RIGHT + 16} {y}h24", class_=f"line c{i % N_COLOURS}", stroke_dasharray=_dashes(i))
    return [sample, element("text", name, x=_RIGHT + 46, y=y + 4)]


def _dashes(i: int) -> str:
    return _DASHES[i // N_COLOURS % len(_DASHES)]
