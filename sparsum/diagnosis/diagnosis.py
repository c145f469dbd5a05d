"""The result of a diagnosis, as a table and a plot."""

from __future__ import annotations

import math
import os
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparsum.diagnosis.measurement import Measurement
from sparsum.diagnosis.plot import plot
from sparsum.diagnosis.reference import Reference

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = ("method", "calls", "ms", "variance", "var x calls", "var x ms", "bias", "noise", "distance", "noise", "cosine")
_WIDTH = 100
_BIAS = (
    "bias: of the mean gradient, from the exact one of the method's own distribution. It is 0 for exact sums by "
    "construction, so it does not compare methods that have different distributions."
)
_DISTANCE = (
    "distance, cosine: of the mean gradient, from and with the gradient of the expected loss under the dense distribution, "
    "the same for all methods, {how}. A sparse sum is the gradient of another expectation: its distance is not an error."
)
_UNKNOWN = (
    "distance, cosine: unknown, because the dense distribution was neither enumerated nor sampled: a larger max_terms lets "
    "more assignments be enumerated, and reference_samples of at least 4 lets them be sampled."
)
_NO_BIAS = "-: unknown, because the assignments times examples are more than max_terms, or cannot be enumerated."
_ADVICE = (
    "noise: the largest bias or distance that is due to finitely many draws. The variance is that of one step, and says "
    "nothing about the direction. No column says which method trains the best model: train some of them."
)


@dataclass(frozen=True)
class Diagnosis:
    """Measurements of several estimators on the same batch; ``print`` shows them as a table.

    Args:
        rows: one measurement per estimator, in the given order.
        reference: the gradient that all estimators are compared with; None if it is unknown.
    """

    rows: tuple[Measurement, ...]
    reference: Reference | None = None

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
        notes = [f"{row.name}: {row.reason}" for row in self.rows if row.reason]
        if len(notes) < len(self.rows):
            is_unknown = any(math.isnan(row.bias) for row in self.rows if not row.reason)
            notes += [_BIAS, *[_NO_BIAS] * is_unknown, self._about_the_reference(), _ADVICE]
        text += [textwrap.fill(note, _WIDTH, subsequent_indent="    ") for note in notes]
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

    def _about_the_reference(self) -> str:
        """What the common reference is, and how well it is known."""
        if self.reference is None:
            return _UNKNOWN
        if not self.reference.n_samples:
            return _DISTANCE.format(how="summed over all assignments")
        error = f"a relative standard error of {self.reference.relative_error:.2g}"
        return _DISTANCE.format(how=f"estimated from {self.reference.n_samples} samples per example with {error}")


def _mark(row: Measurement) -> str:
    return "*" if row.is_biased else "?" if row.is_doubtful else " "


def _cells(row: Measurement) -> tuple[str, ...]:
    """A row of the table as text."""
    products = row.variance_times_calls, row.variance_times_milliseconds
    return (
        row.name,
        f"{row.calls:.4g}",
        f"{row.milliseconds:.2f}",
        f"{row.variance:.3g}",
        *(f"{product:.3g}" for product in products),
        "- " if math.isnan(row.bias) else f"{row.bias:.3f}{_mark(row)}",
        *("-" if math.isnan(number) else f"{number:.3f}" for number in (row.noise, row.distance, row.distance_noise)),
        "-" if math.isnan(row.cosine) else f"{row.cosine:.3f}",
    )
