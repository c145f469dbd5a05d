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

    @property
    def noise(self) -> float:
        r"""The standard error of the squared distance of the mean from its expectation.

        .. math:: \sqrt{2 \, \mathrm{tr}(C^2) / (n (n - 1))}
        """
        centred = torch.stack(self._kept) - self.mean
        products = (centred @ centred.T).square()  # off the diagonal their expectation is tr(C^2)
        n_pairs = len(products) * (len(products) - 1)
        trace = float(products.sum() - products.diagonal().sum()) / n_pairs
        return math.sqrt(max(2 * trace, 0.0) / (self.count * (self.count - 1)))

    def squared_distance(
        self,
        other: Tensor,  # shape: (n_numbers,)
        error: float = 0.0,
    ) -> float:
        r"""An unbiased estimate of the squared distance of the expectation from another vector; it may be negative.

        .. math:: |m - g|^2 - \mathrm{tr}(C) / n

        since :math:`\mathbb{E} |m - g|^2 = |\mathrm{bias}|^2 + \mathrm{tr}(C) / n`.

        Args:
            other: the other vector, or an unbiased estimate of it.
            error: the expected squared error of this estimate.
        """
        return float((self.mean - other).square().sum()) - self.variance / self.count - error

    def cosine(
        self,
        other: Tensor,  # shape: (n_numbers,)
        norm: float,
    ) -> float:
        """The cosine of the angle between the expectation and another vector of given norm; NaN if one of them is 0."""
        square = self.squared_distance(torch.zeros_like(other))
        if not (square > 0 and norm > 0):  # also where they are NaN
            return math.nan
        cosine = float(self.mean @ other) / (math.sqrt(square) * norm)
        return cosine if math.isnan(cosine) else max(-1.0, min(1.0, cosine))


def relative(square: float, error: float, norm: float) -> tuple[float, float]:
    """A distance and the largest due to noise, relative to a norm, from its square and the standard error of this."""
    distance, noise = math.sqrt(max(square, 0.0)), math.sqrt(_N_ERRORS * error)
    if norm == 0:  # the relative distance is undefined
        return (math.inf if distance > 0 else 0.0), (math.inf if noise > 0 else 0.0)
    return distance / norm, noise / norm
