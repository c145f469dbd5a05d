"""What was measured of one estimator."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one estimator does on a batch; numbers that are not known are NaN.

    Args:
        name: of the estimator.
        calls: evaluations of the loss per example.
        milliseconds: median time of a call with its backward pass, for the whole batch.
        variance: trace of the covariance of the gradient with respect to the scores, divided by the number of examples.
        bias: distance of the mean gradient from the exact one, relative to the norm of the exact one; what the noise of
            finitely many draws adds to its square is subtracted.
        noise: the largest bias that noise alone would feign, in the same unit: four standard errors of its square.
        is_unbiased: what it declares.
        is_biased: whether the bias is more than noise and rounding, for an estimator that declares to be biased.
        is_doubtful: the same for one that declares not to be. More draws tell: where the assignments that matter are rare,
            few draws may see none of them, and then neither the bias nor its noise can be told.
        reason: why nothing was measured; empty if something was.
    """

    name: str
    calls: float = math.nan
    milliseconds: float = math.nan
    variance: float = math.nan
    bias: float = math.nan
    noise: float = math.nan
    is_unbiased: bool = True
    is_biased: bool = False
    is_doubtful: bool = False
    reason: str = ""

    @property
    def variance_times_calls(self) -> float:
        """What one unit of precision costs in calls of the loss: samples are averaged, so that calls buy precision."""
        return self.variance * self.calls

    @property
    def variance_times_milliseconds(self) -> float:
        """What one unit of precision costs in time."""
        return self.variance * self.milliseconds
