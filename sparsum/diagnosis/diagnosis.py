"""The result of a diagnosis, as a table and a plot."""

from __future__ import annotations

import math
import os
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparsum.diagnosis.measurement import Measurement
from sparsum.diagnosis.plot import plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = ("method", "calls", "ms", "variance", "var x calls", "var x ms", "bias", "noise")
_WIDTH = 100


@dataclass(frozen=True)
class Diagnosis:
    """Measurements of several estimators on the same batch; ``print`` shows them as a table.

    Args:
        rows: one measurement per estimator, in the given order.
    """

    rows: tuple[Measurement, ...]

    def __getitem__(self, name: str) -> Measurement:
        """The measurement of one estimator, by name."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"unknown estimator {name!r}; available: {', '.join(row.name for row in self.rows)}")

    def __str__(self) -> str:
        lines = [_COLUMNS, *(_cells(row) for row in self.rows if not row.reason)]
        first, *others = ([len(cell) for cell in column] for column in zip(*lines, strict=True))
        form = f"{{:<{max(first)}}}" + "".join(f"  {{:>{max(lengths)}}}" for lengths in others)
        text = [form.format(*line) for line in lines]
        if any(row.is_biased for row in self.rows):
            text.append("* biased: the bias is larger than the noise of the draws")
        if any(row.is_doubtful for row in self.rows):
            text.append("? larger than the noise of the draws, but declared unbiased: use more draws, or fix the estimator")
        for row in self.rows:
            if row.reason:
                text.append(textwrap.fill(f"{row.name}: {row.reason}", _WIDTH, subsequent_indent="    "))
        return "\n".join(line.rstrip() for line in text)

    def plot(self, path: str | os.PathLike[str] | None = None, ax: Axes | None = None) -> Axes:
        """Plot the variance against the calls, both on logarithmic axes, with one point per estimator.

        Unbiased estimators are filled points, biased ones hollow points. Exact sums, whose variance is 0, are triangles at
        the bottom. Requires matplotlib, but neither a display nor pyplot's global state.

        Args:
            path: the file to write, e.g. ``"variance.png"``; by default none.
            ax: the axes to draw on; by default those of a new figure.

        Returns:
            The axes; ``ax.figure`` is the figure.

        Raises:
            ImportError: if matplotlib is not installed.
        """
        return plot(self.rows, path, ax)


def _mark(row: Measurement) -> str:
    return "*" if row.is_biased else "?" if row.is_doubtful else " "


def _cells(row: Measurement) -> tuple[str, ...]:
    """A row of the table as text."""
    products = row.variance_times_calls, row.variance_times_milliseconds
    is_known = not math.isnan(row.bias)
    return (
        row.name,
        f"{row.calls:.4g}",
        f"{row.milliseconds:.2f}",
        f"{row.variance:.3g}",
        *(f"{product:.3g}" for product in products),
        f"{row.bias:.3f}{_mark(row)}" if is_known else "- ",
        f"{row.noise:.3f}" if is_known else "-",
    )
