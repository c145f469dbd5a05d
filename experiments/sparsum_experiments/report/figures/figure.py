"""What is drawn, before it has a place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparsum_experiments.report.summary import Statistic


@dataclass(frozen=True)
class Point:
    """A place in a plane, with the errors of both coordinates."""

    x: Statistic
    y: Statistic


@dataclass(frozen=True)
class Series:
    """What one method measured: a line, or a point, to which a line may lead.

    Args:
        name: the method.
        style: which colour, dashes and mark it has: the same in all figures of a section.
        x: the places of the line; what is no finite number leaves a gap.
        y: its values, as many.
        low: the lower edge of the band around the line, as many; empty if there is none.
        high: the upper edge.
        point: what is marked; None where the line is all.
    """

    name: str
    style: int
    x: Sequence[float] = ()
    y: Sequence[float] = ()
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    point: Point | None = None


@dataclass(frozen=True)
class Figure:
    """A picture and what has to be said of it.

    Args:
        title: what it shows.
        note: how to read it.
        x_label: of the horizontal axis.
        y_label: of the vertical axis.
        series: one for each method, either all with points or none.
        x_is_logarithmic: whether equal ratios are equal distances from left to right.
        y_is_logarithmic: the same from bottom to top.
        edges: what bands reach around medians; empty where they are standard errors around means.
    """

    title: str
    note: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_is_logarithmic: bool = False
    y_is_logarithmic: bool = False
    edges: str = ""

    @property
    def has_points(self) -> bool:
        """Whether each method is a point, and not a line."""
        return any(series.point for series in self.series)
