"""The measurement of one estimator."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Measurement of one estimator on a batch; unknown numbers are NaN.

    Args:
        name: the name of the estimator.
        calls: the number of loss evaluations per example.
        milliseconds: the median time of a call with its backward pass, for the whole batch.
        variance: the trace of the covariance of the gradient with respect to the scores, divided by the number of examples.
        bias: the distance of the mean gradient from the exact one of the estimator's own distribution, relative to the norm
            of the exact one; the contribution of the noise of finitely many draws to its square is subtracted.
        noise: the largest bias that can be due to noise alone, in the same unit: four standard errors of its square.
        distance: the distance of the mean gradient from the common reference, the gradient of the expected loss under the
            dense distribution, relative to the norm of the reference; the contribution of noise is subtracted.
        distance_noise: the largest distance that can be due to the noise of the draws and of the reference.
        cosine: the cosine of the angle between the mean gradient and the reference, from -1 to 1.
        is_unbiased: whether the estimator declares to be unbiased.
        is_biased: whether the bias exceeds noise and rounding, for an estimator declared biased.
        is_doubtful: the same for an estimator declared unbiased. Use more draws to decide: if the important assignments are
            rare, a few draws may contain none of them, and then neither the bias nor its noise is reliable.
        reason: why the estimator was not measured; empty if it was.
    """

    name: str
    calls: float = math.nan
    milliseconds: float = math.nan
    variance: float = math.nan
    bias: float = math.nan
    noise: float = math.nan
    distance: float = math.nan
    distance_noise: float = math.nan
    cosine: float = math.nan
    is_unbiased: bool = True
    is_biased: bool = False
    is_doubtful: bool = False
    reason: str = ""

    @property
    def variance_times_calls(self) -> float:
        """The cost of one unit of precision in calls of the loss: averaging more samples reduces the variance."""
        return self.variance * self.calls

    @property
    def variance_times_milliseconds(self) -> float:
        """The cost of one unit of precision in time."""
        return self.variance * self.milliseconds
