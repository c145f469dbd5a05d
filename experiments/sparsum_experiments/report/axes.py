"""What figures are of: rows of lines and marks, and the axes on which they have a place."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparsum_experiments.report.summary import Statistic

if TYPE_CHECKING:
    from pandas import DataFrame, Series

# The first epochs and rare spikes are outside the frame if they would take more than half of the picture.
_BEGINNING, _RARE, _MIN_LENGTH = 0.1, 1, 20
# The part of an axis that stays free at each end.
_MARGIN = 0.05
# Larger numbers, or smaller ones on a logarithmic axis, are as good as infinite.
_LIMIT = 1e100


def line(method: str, style: int, x: Any, y: Any, low: Any = math.nan, high: Any = math.nan) -> DataFrame:
    """The rows of a line and the band around it; NaN leaves a gap. A style is the same in all figures of a section."""
    import pandas  # here and below, so that commands that draw nothing start faster

    columns = {"x": x, "y": y, "low": low, "high": high, "left": math.nan, "right": math.nan}
    return pandas.DataFrame(columns, dtype=float).assign(method=method, style=style, is_mark=False)


def mark(method: str, style: int, x: Statistic, y: Statistic) -> DataFrame:
    """The row of a mark and its error bars."""
    x_error, y_error = (math.nan if each.error is None else each.error for each in (x, y))
    row = line(method, style, [x.mean], [y.mean], y.mean - y_error, y.mean + y_error)
    return row.assign(left=x.mean - x_error, right=x.mean + x_error, is_mark=True)


def scaled(values: Any, is_logarithmic: bool) -> Any:
    """A series or a frame on the scale of an axis; NaN for values that have no place there, not even outside the frame."""
    shown = values.where((values.abs() < _LIMIT) & ((values > 1 / _LIMIT) | (not is_logarithmic)))
    return np.log10(shown) if is_logarithmic else shown


class Axis(NamedTuple):
    """An axis of a figure; ends are logarithms to base 10 where it is logarithmic."""

    low: float
    high: float
    is_logarithmic: bool
    is_cut: bool = False  # whether some values are outside
    is_empty: bool = False

    @property
    def ends(self) -> dict[str, Any]:
        """For a script that finds places."""
        return {"low": self.low, "high": self.high, "is_logarithmic": self.is_logarithmic}

    @property
    def domain(self) -> list[float]:
        """The values at its ends."""
        return [10**self.low, 10**self.high] if self.is_logarithmic else [self.low, self.high]

    def part(self, values: Series) -> Series:
        """Where values are: 0 at the lower end and 1 at the upper end."""
        return (scaled(values, self.is_logarithmic) - self.low) / (self.high - self.low)

    def ticks(self, label: str) -> list[float]:
        """Where Vega chooses badly: epochs are integers, and logarithmic axes have 1, 2 and 5 times powers of ten."""
        if label == "epoch" and self.high - self.low <= 6:
            return [float(i) for i in range(math.ceil(self.low), math.floor(self.high) + 1)]
        if not self.is_logarithmic:
            return []
        decades = range(math.floor(self.low), math.ceil(self.high) + 1)
        for digits in ((1, 2, 5), (1,)):
            ticks = [digit * 10.0**decade for decade in decades for digit in digits]
            shown = [tick for tick in ticks if self.low <= math.log10(tick) <= self.high]
            if len(shown) <= 10:
                break
        return shown[:: math.ceil(len(shown) / 10)] if shown else self.domain


def axis_of(data: DataFrame, columns: list[str], is_logarithmic: bool, *, is_free: bool) -> Axis:
    """The axis of some columns: all values are inside, but an axis that is free may cut long beginnings and rare spikes."""
    values = scaled(data[columns], is_logarithmic)
    every = _known(values)
    if not len(every):
        return Axis(0, 1, is_logarithmic, is_empty=True)
    low, high, is_cut = every.min(), every.max(), False
    of_method = data[~data.is_mark].groupby("style")
    length = of_method.x.transform("size")
    is_late = (length <= _MIN_LENGTH) | (of_method.cumcount() >= np.ceil(_BEGINNING * length))
    rest = _known(values.loc[is_late.index[is_late]])
    if is_free and len(rest) >= _MIN_LENGTH:
        first, last = np.percentile(rest, [_RARE, 100 - _RARE])
        if first < last:
            rest = rest[(rest >= 2 * first - last) & (rest <= 2 * last - first)]
        usual = np.concatenate([rest, _known(values[data.is_mark])])
        is_cut = bool(2 * np.ptp(usual) < high - low)
        low, high = (usual.min(), usual.max()) if is_cut else (low, high)
    margin = _MARGIN * (high - low) * is_free
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # a single value is in the middle
        margin = _MARGIN * abs(high) or 0.5
    return Axis(float(low - margin), float(high + margin), is_logarithmic, is_cut)


def _known(values: DataFrame) -> np.ndarray:
    flat = np.asarray(values, dtype=float).ravel()
    return np.asarray(flat[~np.isnan(flat)])
