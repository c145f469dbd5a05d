"""Measure the gradients of one estimator over many draws."""

from __future__ import annotations

import copy
import math
import statistics

import torch
from torch import Tensor

from sparsum.diagnosis.case import Case, Progress
from sparsum.diagnosis.exact import Exact
from sparsum.diagnosis.measurement import Measurement
from sparsum.diagnosis.moments import Moments, relative
from sparsum.diagnosis.reference import Reference
from sparsum.estimators import AbstractEstimator, Anneal

# An exact sum is the same in every draw: this many draws are enough to time it.
_ENOUGH_OF_A_SUM = 10


def measure(
    name: str,
    estimator: AbstractEstimator,
    case: Case,
    exact: Exact,
    reference: Reference | None,
    *,
    draws: int,
    warm_up: int,
    seed: int,
) -> Measurement:
    """Measure a copy of an estimator, or report why this is not possible."""
    try:
        return _measure(name, copy.deepcopy(estimator).train(), case, exact, reference, draws, warm_up, seed)
    except Exception as error:  # continue with the other estimators
        notes = getattr(error, "__notes__", ())
        return Measurement(name=name, reason=" ".join([f"{type(error).__name__}: {error}", *notes]))


def _measure(
    name: str,
    estimator: AbstractEstimator,
    case: Case,
    exact: Exact,
    reference: Reference | None,
    draws: int,
    warm_up: int,
    seed: int,
) -> Measurement:
    generator = torch.Generator(case.device).manual_seed(seed)
    if estimator.state_dict():
        steps = [(module, module.step.clone()) for module in estimator.modules() if isinstance(module, Anneal)]
        _warm_up(name, estimator, case, warm_up, generator, exact.progress)
        for module, step in steps:  # the warm-up must not change temperatures
            module.step.copy_(step)
    buffers = [(buffer, buffer.clone()) for buffer in estimator.buffers()]
    truth = _truth(estimator, case, exact, generator)
    moments, calls, seconds = Moments(), list[float](), list[float]()
    at_first = generator.get_state()
    for draw in range(draws):
        # Every draw belongs to the same training step, with fixed baselines and temperatures.
        for buffer, value in buffers:
            buffer.copy_(value)
        estimate, gradient, took = case.step(estimator, generator)
        moments.add(gradient)
        calls.append(estimate.calls.float().mean().item())
        seconds.append(took)
        exact.progress(name, draw + 1, draws)
        is_sum = moments.count >= 2 and moments.variance == 0 and torch.equal(generator.get_state(), at_first)
        if is_sum and moments.count >= _ENOUGH_OF_A_SUM:
            break
    bias, noise = _bias(moments, truth)
    distance, distance_noise, cosine = _distance(moments, reference)
    rounding = math.sqrt(torch.finfo(case.leaves[0].dtype).eps)
    return Measurement(
        name=name,
        calls=statistics.mean(calls),
        milliseconds=1e3 * statistics.median(seconds),
        variance=moments.variance / case.n_rows,
        bias=bias,
        noise=noise,
        distance=distance,
        distance_noise=distance_noise,
        cosine=cosine,
        is_unbiased=estimator.is_unbiased,
        is_biased=bias > max(noise, rounding) and not estimator.is_unbiased,
        is_doubtful=bias > max(noise, rounding) and estimator.is_unbiased,
    )


def _bias(moments: Moments, truth: Tensor | None) -> tuple[float, float]:
    """The norm of the bias and the largest due to noise, relative to the norm of the truth; NaN if unknown."""
    if truth is None:
        return math.nan, math.nan
    return relative(moments.squared_distance(truth), moments.noise, float(truth.norm()))


def _distance(moments: Moments, reference: Reference | None) -> tuple[float, float, float]:
    """The distance from the reference, the largest due to noise, and the cosine of the angle; NaN if unknown."""
    if reference is None:
        return math.nan, math.nan, math.nan
    square = moments.squared_distance(reference.gradient, reference.error)
    # At most, since the two means are independent.
    distance, noise = relative(square, moments.noise + reference.noise, reference.norm)
    return distance, noise, moments.cosine(reference.gradient, reference.norm)


def _truth(estimator: AbstractEstimator, case: Case, exact: Exact, generator: torch.Generator) -> Tensor | None:
    """The exact gradient, or None if unknown; uses a separate call, since the graph of an estimate can be used once."""
    estimate = case.call(estimator, generator)
    try:
        return exact.gradient(estimate)
    except Exception:
        if estimator.needs_relaxed_loss:  # the loss may not accept atoms
            return None
        raise


def _warm_up(
    name: str, estimator: AbstractEstimator, case: Case, steps: int, generator: torch.Generator, progress: Progress
) -> None:
    """Train only the estimator: update its baselines and its parameters."""
    parameters = [parameter for parameter in estimator.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(parameters) if parameters else None
    for step in range(steps):
        surrogate = case.call(estimator, generator).surrogate
        if optimiser is not None:
            gradients = torch.autograd.grad(surrogate.mean(), parameters, retain_graph=True, allow_unused=True)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimiser.step()
        progress(f"{name}, warm-up", step + 1, steps)
