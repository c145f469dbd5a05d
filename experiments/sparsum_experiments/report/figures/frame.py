"""The two axes of a figure, and what is within them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from sparsum_experiments.report.figures.figure import Figure, Series
from sparsum_experiments.report.figures.scale import Scale, can_show

WIDTH, HEIGHT = 660, 380
LEFT, TOP = 66, 14
# Beside lines there are names, beside points there is only room for half of one.
_RIGHT_OF_LINES, _RIGHT_OF_POINTS, _BOTTOM = 512, 640, 328
# The beginning of training and rare spikes are left outside where they would take more than half of the picture.
_BEGINNING, _RARE, _MIN_LENGTH = 0.1, 0.01, 20
# Of so few epochs each has a number.
_MAX_EPOCHS_NAMED = 5
_Pair = tuple[float, float]


@dataclass(frozen=True)
class Frame:
    """The axes of a figure.

    Args:
        x: from left to right.
        y: from bottom to top.
        note: what a reader has to know of them; empty if nothing.
        is_of_epochs: whether x counts epochs, which are whole.
    """

    x: Scale
    y: Scale
    note: str
    is_of_epochs: bool

    @classmethod
    def of(cls, figure: Figure) -> Self | None:
        """The axes that show all of a figure, or all but its beginning and spikes; None if there is nothing to show."""
        lines, points = _on_lines(figure.series, 0.0), _on_points(figure.series)
        pairs = _shown(figure, lines + points)
        if not pairs:
            return None
        most = _without_spikes(_shown(figure, _on_lines(figure.series, _BEGINNING))) + _shown(figure, points)
        (x, y), (most_x, most_y) = (_scales(figure, some) for some in (pairs, most or pairs))
        is_cut = _is_small(most_y, y) or (figure.has_points and _is_small(most_x, x))
        is_of_epochs = figure.x_label == "epoch"
        if is_cut:  # all epochs are shown, though not all values
            x, y = x if is_of_epochs else most_x, most_y
        note = "Some values, of the first epochs or of spikes, are outside of the frame." if is_cut else ""
        return cls(x, y, note, is_of_epochs)

    @property
    def rectangle(self) -> dict[str, float]:
        """What the axes enclose, a little wider: a line along the edge is not cut."""
        return {
            "x": LEFT - 2,
            "y": TOP - 2,
            "width": self.x.end - LEFT + 4,
            "height": self.y.start - TOP + 4,
        }

    def place(self, x: float, y: float) -> tuple[float, float] | None:
        """Where a pair of values is; None if it is nowhere."""
        return (self.x.at(x), self.y.at(y)) if self.x.can_show(x) and self.y.can_show(y) else None

    def holds(self, x: float, y: float) -> bool:
        """Whether a place is within the axes."""
        return LEFT - 1 <= x <= self.x.end + 1 and TOP - 1 <= y <= self.y.start + 1

    def point(self, series: Series) -> tuple[float, float] | None:
        """Where the point of a method is."""
        return self.place(series.point.x.mean, series.point.y.mean) if series.point else None

    def errors(self, series: Series) -> list[tuple[float, float] | None]:
        """Where the bars of a point end: left, right, below and above; at the point itself where an error is not known."""
        if series.point is None:
            return []
        x, y = series.point.x, series.point.y
        across, along = x.error or 0.0, y.error or 0.0
        ends = [(x.mean - across, y.mean), (x.mean + across, y.mean), (x.mean, y.mean - along), (x.mean, y.mean + along)]
        return [self.place(*end) for end in ends]

    def box(self, series: Series) -> tuple[float, float, float, float] | None:
        """What a mark takes, its bars included: left, top, right and bottom."""
        place = self.point(series)
        if place is None:
            return None
        places = [place, *filter(None, self.errors(series))]
        xs, ys = zip(*places, strict=True)
        return min(*xs, place[0] - 6), min(*ys, place[1] - 6), max(*xs, place[0] + 6), max(*ys, place[1] + 6)

    def end(self, series: Series) -> tuple[float, float] | None:
        """Where a line ends, within the axes."""
        places = [place for place in map(self.place, series.x, series.y) if place]
        return (places[-1][0], min(max(places[-1][1], TOP), self.y.start)) if places else None

    def x_ticks(self) -> list[float]:
        """Round values, whole ones of epochs."""
        ticks = self.x.ticks()
        if not self.is_of_epochs:
            return ticks
        if self.x.high - self.x.low <= _MAX_EPOCHS_NAMED:
            return [float(i) for i in range(math.ceil(self.x.low), math.floor(self.x.high) + 1)]
        return sorted({float(max(1, round(tick))) for tick in ticks if round(tick) <= self.x.high})


def _shown(figure: Figure, pairs: Sequence[_Pair]) -> list[_Pair]:
    """The pairs that have a place."""
    return [
        (x, y)
        for x, y in pairs
        if can_show(x, is_logarithmic=figure.x_is_logarithmic) and can_show(y, is_logarithmic=figure.y_is_logarithmic)
    ]


def _without_spikes(pairs: Sequence[_Pair]) -> list[_Pair]:
    """The pairs but those few whose values are far from nearly all others."""
    if len(pairs) < _MIN_LENGTH:
        return list(pairs)
    values = sorted(y for _, y in pairs)
    n_rare = math.ceil(_RARE * len(values))
    low, high = values[n_rare], values[-1 - n_rare]
    if low == high:  # all that there is to see
        return list(pairs)
    return [(x, y) for x, y in pairs if 2 * low - high <= y <= 2 * high - low]


def _is_small(part: Scale, whole: Scale) -> bool:
    return 2 * (part.high - part.low) < whole.high - whole.low


def _scales(figure: Figure, pairs: Sequence[tuple[float, float]]) -> tuple[Scale, Scale]:
    right = _RIGHT_OF_POINTS if figure.has_points else _RIGHT_OF_LINES
    xs, ys = zip(*pairs, strict=True)
    return (
        Scale(xs, LEFT, right, is_logarithmic=figure.x_is_logarithmic, has_margin=figure.has_points),
        Scale(ys, _BOTTOM, TOP, is_logarithmic=figure.y_is_logarithmic),
    )


def _on_lines(series: Sequence[Series], beginning: float) -> list[_Pair]:
    """Lines and edges of bands; long ones without a part at their beginning."""
    found: list[_Pair] = []
    for each in series:
        skipped = math.ceil(beginning * len(each.x)) if len(each.x) > _MIN_LENGTH else 0
        for values in filter(None, (each.y, each.low, each.high)):
            found += list(zip(each.x, values, strict=True))[skipped:]
    return found


def _on_points(series: Sequence[Series]) -> list[_Pair]:
    """Points, and the ends of the bars of their errors."""
    found: list[_Pair] = []
    for point in filter(None, (each.point for each in series)):
        x, y = point.x, point.y
        found += [(x.mean + i * (x.error or 0), y.mean + j * (y.error or 0)) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    return found
