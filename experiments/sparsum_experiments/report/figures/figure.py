"""Figures before they are drawn: what is plotted, and on which axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from sparsum_experiments.report.summary import Statistic

Direction = Literal["x", "y"]
# The first epochs and rare spikes are outside the frame if they would take more than half of the picture.
_BEGINNING, _RARE, _MIN_LENGTH = 0.1, 1, 20
# The part of an axis that stays free at each end.
_MARGIN = 0.05
# Larger numbers, or smaller ones on a logarithmic axis, are as good as infinite.
_LIMIT = 1e100


@dataclass(frozen=True)
class Point:
    """A mark in the plane, with the errors of both coordinates."""

    x: Statistic
    y: Statistic


@dataclass(frozen=True)
class Series:
    """The measurements of one method: a line, or a point with the path that leads to it.

    Args:
        name: the method.
        style: which colour, dashes and mark it has: the same in all figures of a section.
        x: the x values of the line.
        y: its values, as many; NaN leaves a gap.
        low: the lower edge of the band around the line, as many; empty if there is none.
        high: the upper edge.
        point: the mark; None if the series is a line.
    """

    name: str
    style: int
    x: Sequence[float] = ()
    y: Sequence[float] = ()
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    point: Point | None = None

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """The mark, or the points of the line."""
        return [(self.point.x.mean, self.point.y.mean)] if self.point else list(zip(self.x, self.y, strict=True))

    def along(self, direction: Direction, skipped: float = 0.0) -> list[float]:
        """The values of the line and its band along an axis, without a part at the beginning of a long line."""
        lists = [self.x] if direction == "x" else [self.y, self.low, self.high]
        first = math.ceil(skipped * len(self.x)) if len(self.x) > _MIN_LENGTH else 0
        return [value for values in lists for value in values[first:]]

    def ends(self, direction: Direction) -> list[float]:
        """The mark along an axis, between the ends of its error bar; empty for a line."""
        if self.point is None:
            return []
        found: Statistic = getattr(self.point, direction)
        error = found.error or 0.0
        return [found.mean - error, found.mean, found.mean + error]


class Axis(NamedTuple):
    """An axis of a figure; ends are logarithms to base 10 where it is logarithmic."""

    low: float
    high: float
    is_logarithmic: bool

    @property
    def domain(self) -> list[float]:
        """The values at its ends."""
        return [10**self.low, 10**self.high] if self.is_logarithmic else [self.low, self.high]

    def shows(self, value: float) -> bool:
        """Whether a value has a place on the axis, within the frame or outside."""
        return abs(value) < _LIMIT and (value > 1 / _LIMIT or not self.is_logarithmic)

    def part(self, value: float) -> float:
        """Where a value is: 0 at the lower end and 1 at the upper end."""
        return ((math.log10(value) if self.is_logarithmic else value) - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Figure:
    """A picture and its caption.

    Args:
        title: what it shows.
        note: how to read it.
        x_label: of the horizontal axis.
        y_label: of the vertical axis.
        series: one for each method, either all with points or none.
        logarithmic: the axes on which equal ratios are equal distances.
        edges: what bands reach around medians; empty if they are standard errors around means.
    """

    title: str
    note: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    logarithmic: str = ""
    edges: str = ""

    @property
    def has_points(self) -> bool:
        """Whether each method is a point, and not a line."""
        return any(series.point for series in self.series)

    def axes(self) -> tuple[Axis, Axis, bool] | None:
        """Both axes, and whether some values are outside them; None if there is nothing to draw."""
        x, y = self._axis("x"), self._axis("y")
        return (x[0], y[0], x[1] or y[1]) if x and y else None

    def _axis(self, direction: Direction) -> tuple[Axis, bool] | None:
        is_logarithmic = direction in self.logarithmic
        marks = _scaled((end for each in self.series for end in each.ends(direction)), is_logarithmic)
        lines, rest = (
            _scaled((value for each in self.series for value in each.along(direction, part)), is_logarithmic)
            for part in (0.0, _BEGINNING)
        )
        if not len(lines) + len(marks):
            return None
        low, high = _ends(np.concatenate([lines, marks]))
        is_cut, is_free = False, direction == "y" or self.has_points  # all epochs are shown
        if is_free and len(rest) >= _MIN_LENGTH:
            usual = _ends(np.concatenate([_without_spikes(rest), marks]))
            is_cut = 2 * (usual[1] - usual[0]) < high - low
            low, high = usual if is_cut else (low, high)
        margin = _MARGIN * (high - low) * is_free
        if high - low <= 1e-9 * max(abs(low), abs(high)):  # a single value is in the middle
            margin = _MARGIN * abs(high) or 0.5
        return Axis(low - margin, high + margin, is_logarithmic), is_cut


def _scaled(values: Iterable[float], is_logarithmic: bool) -> np.ndarray:
    """The values that can be shown, on the scale of an axis."""
    axis = Axis(0, 1, is_logarithmic)
    found = np.array([value for value in values if axis.shows(value)], dtype=float)
    return np.log10(found) if is_logarithmic else found


def _ends(values: np.ndarray) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def _without_spikes(values: np.ndarray) -> np.ndarray:
    """The values but those few that are far from nearly all others."""
    low, high = np.percentile(values, [_RARE, 100 - _RARE])
    return values[(values >= 2 * low - high) & (values <= 2 * high - low)] if low < high else values
