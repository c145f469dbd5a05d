"""Streaming mean, variance and bias of vectors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# To estimate the noise of the bias, keep at most this many numbers, but at least this many vectors.
_MOST_NUMBERS, _LEAST_VECTORS = 2**24, 8

# A deviation of at most this many standard errors counts as noise.
_N_ERRORS = 4


class Moments:
    """The mean m of n vectors, and quantities derived from their covariance C."""

    def __init__(self) -> None:
        self.count, self.mean, self._squares = 0, torch.zeros(()), 0.0
        self._kept: list[Tensor] = []

    def add(
        self,
        vector: Tensor,  # shape: (n_numbers,)
    ) -> None:
        """Add a vector, by Welford's method, for which equal vectors have a variance of exactly 0."""
        self.count += 1
        before = vector - self.mean
        self.mean = vector if self.count == 1 else self.mean + before / self.count
        if self.count > 1:
            self._squares += float(before @ (vector - self.mean))
        if len(self._kept) < max(_LEAST_VECTORS, _MOST_NUMBERS // max(len(vector), 1)):
            self._kept.append(vector)

    @property
    def variance(self) -> float:
        """The trace of C."""
        return self._squares / (self.count - 1)

    def squared_bias(
        self,
        truth: Tensor,  # shape: (n_numbers,)
    ) -> tuple[float, float]:
        r"""An unbiased estimate of the squared distance of the expectation from the truth, and its standard error at 0.

        .. math:: |m - g|^2 - \mathrm{tr}(C) / n, \quad \sqrt{2 \, \mathrm{tr}(C^2) / (n (n - 1))}

        since :math:`\mathbb{E} |m - g|^2 = |\mathrm{bias}|^2 + \mathrm{tr}(C) / n`. The estimate may be negative.
        """
        centred = torch.stack(self._kept) - self.mean
        products = (centred @ centred.T).square()  # off the diagonal their expectation is tr(C^2)
        n_pairs = len(products) * (len(products) - 1)
        trace = float(products.sum() - products.diagonal().sum()) / n_pairs
        square = float((self.mean - truth).square().sum()) - self.variance / self.count
        return square, math.sqrt(max(2 * trace, 0.0) / (self.count * (self.count - 1)))


def relative_bias(
    moments: Moments,
    truth: Tensor | None,  # shape: (n_numbers,)
) -> tuple[float, float]:
    """The norm of the bias and the largest due to noise, relative to the norm of the truth; NaN if unknown."""
    if truth is None:
        return math.nan, math.nan
    square, error = moments.squared_bias(truth)
    bias, noise, norm = math.sqrt(max(square, 0.0)), math.sqrt(_N_ERRORS * error), float(truth.norm())
    if norm == 0:  # the relative bias is undefined
        return (math.inf if bias > 0 else 0.0), (math.inf if noise > 0 else 0.0)
    return bias / norm, noise / norm
