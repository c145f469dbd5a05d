"""The likelihood of images with categorical pixels, with its derivatives, in one launch: logits never leave the registers.

A program is one warp. It walks over some pixels of an image, two at a time, each of which half of its lanes share out: every
lane keeps its rows of the linear map, and what it adds up for their derivative, in registers. Per pixel and level this takes
one exponential and, with all derivatives, about twenty multiplications and additions, so that arithmetic is what it waits
for and not the memory. Tuples hold what a lane has of each kind, so that its own levels are summed without any exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from sparsum.kernels._launch import unwrapped

# ruff: noqa: N806
# mypy: disable-error-code="assignment,misc,var-annotated"

#: The largest map that a program holds.
MOST_LEVELS, MOST_RANK = 1024, 8
# Enough programs for all processors of a GPU; fewer of them write fewer partial sums. A program has at least some pixels to
# work on, since loading the map costs as much as a few pixels.
_N_PROGRAMS, _LEAST_PIXELS = 5000, 24
_LEVELS_PER_WARP = 256
_MOST_FOR_TWO = 6 * 256
# A product of so many sums of up to MOST_LEVELS powers of two, none above 1, is a number of float32.
_MOST_FACTORS = 12

# Exponentials are powers of two on a GPU: the map is scaled once, when it is loaded.
_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _maximum(parts, N: tl.constexpr):
    """The largest of N tensors, entry by entry."""
    result = parts[0]
    for j in tl.static_range(1, N):
        result = tl.maximum(result, parts[j])
    return result


@triton.jit
def _sum(parts, N: tl.constexpr):
    """The sum of N tensors."""
    result = parts[0]
    for j in tl.static_range(1, N):
        result += parts[j]
    return result


@triton.jit
def _seen(features, weight, bias, x, first, n_each, n_levels, RANK: tl.constexpr, SPAN: tl.constexpr):
    """The sum of the logits of the observed levels, a pixel to each lane."""
    total = tl.zeros([SPAN], tl.float64)
    done = 0
    while done < n_each:
        pixel = done + tl.arange(0, SPAN)
        inside = pixel < n_each
        pixel += first
        observed = tl.load(x + pixel, mask=inside, other=0).to(tl.int32)
        is_known = inside & (observed < n_levels)
        # The same operations as for all levels, so that what is certain has a log-likelihood of exactly 0.
        logit = tl.load(bias + observed, mask=is_known, other=float("nan")) * _LOG2_E
        for r in tl.static_range(RANK):
            some = tl.load(features + pixel * RANK + r, mask=inside, other=0.0)
            logit += some * (tl.load(weight + observed * RANK + r, mask=is_known, other=0.0) * _LOG2_E)
        total += tl.where(inside, logit, 0.0).to(tl.float64)
        done += SPAN
    return tl.sum(total, 0)


@triton.jit(do_not_specialize=["n_pixels", "n_each"])
def _evaluate(
    features, weight, bias, x, values, by_features, by_map, n_pixels, n_levels, n_each,
    RANK: tl.constexpr, LEVELS: tl.constexpr, LANES: tl.constexpr, PIXELS: tl.constexpr, GROUP: tl.constexpr,
    NEEDS_FEATURES: tl.constexpr, NEEDS_MAP: tl.constexpr,
):  # fmt: skip
    """The pixels from part * n_each of one image: their summed log-likelihood, and its derivatives."""
    image, part, n_parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    features += image * n_pixels * RANK
    by_features += image * n_pixels * RANK
    x += image * n_pixels
    EACH: tl.constexpr = LEVELS // LANES
    lane = tl.arange(0, LANES)[None, :]
    offsets, rows, sums = (), (), ()
    for j in tl.static_range(EACH):
        level = lane + j * LANES
        is_level = level < n_levels
        offsets = offsets + (tl.load(bias + level, mask=is_level, other=-float("inf")) * _LOG2_E,)
        for r in tl.static_range(RANK):
            rows = rows + (tl.load(weight + level * RANK + r, mask=is_level, other=0.0) * _LOG2_E,)
        if NEEDS_MAP:
            for _r in tl.static_range(RANK + 1):
                sums = sums + (tl.zeros([PIXELS, LANES], tl.float32),)
    first, end = part * n_each, part * n_each + n_each
    value = tl.zeros([PIXELS], tl.float64)
    while first < end:
        # The logarithm of a product, which costs less than the sum of logarithms, of few enough factors up to n_levels.
        product = tl.full([PIXELS], 1.0, tl.float32)
        for _ in range(GROUP):
            pixel = first + tl.arange(0, PIXELS)
            some = ()
            for r in tl.static_range(RANK):
                some = some + (tl.load(features + pixel * RANK + r)[:, None],)
            logits = ()
            for j in tl.static_range(EACH):
                logit = offsets[j]
                for r in tl.static_range(RANK):
                    logit = logit + some[r] * rows[j * RANK + r]
                logits = logits + (logit,)
            peak = tl.max(_maximum(logits, EACH), 1)
            exps = ()
            for j in tl.static_range(EACH):
                exps = exps + (tl.exp2(logits[j] - peak[:, None]),)
            total = tl.sum(_sum(exps, EACH), 1)
            value -= peak.to(tl.float64)
            product *= total
            if NEEDS_FEATURES or NEEDS_MAP:
                # Both derivatives are minus the surplus over the total, in products with the map and with the features.
                observed = tl.load(x + pixel).to(tl.int32)[:, None] - lane
                factor = -1.0 / total
                surplus = ()
                for j in tl.static_range(EACH):
                    surplus = surplus + (exps[j] - tl.where(observed == j * LANES, total[:, None], 0.0),)
            if NEEDS_FEATURES:
                for r in tl.static_range(RANK):
                    slope = surplus[0] * rows[r]
                    for j in tl.static_range(1, EACH):
                        slope += surplus[j] * rows[j * RANK + r]
                    tl.store(by_features + pixel * RANK + r, tl.sum(slope, 1) * (factor * _LN_2))
            if NEEDS_MAP:
                new = ()
                for j in tl.static_range(EACH):
                    for r in tl.static_range(RANK):
                        new = new + (sums[j * (RANK + 1) + r] + surplus[j] * (some[r] * factor[:, None]),)
                    new = new + (sums[j * (RANK + 1) + RANK] + surplus[j] * factor[:, None],)
                sums = new
            first += PIXELS
        value -= tl.log2(product).to(tl.float64)
    seen = _seen(features, weight, bias, x, part * n_each, n_each, n_levels, RANK, 64)
    tl.store(values + image * n_parts + part, ((tl.sum(value, 0) + seen) * _LN_2).to(tl.float32))
    if NEEDS_MAP:
        by_map += (image * n_parts + part) * (RANK + 1) * n_levels
        for j in tl.static_range(EACH):
            level = tl.arange(0, LANES) + j * LANES
            for r in tl.static_range(RANK + 1):
                tl.store(by_map + r * n_levels + level, tl.sum(sums[j * (RANK + 1) + r], 0), mask=level < n_levels)


def evaluate(
    features: Tensor,  # shape: (n, n_pixels, rank), float32
    weight: Tensor,  # shape: (n_levels, rank), float32
    bias: Tensor,  # shape: (n_levels,), float32
    x: Tensor,  # shape: (n, n_pixels), integers
    needs_features: bool,
    needs_map: bool,
    *,
    wrap: Callable[[Any], Any] = unwrapped,
) -> tuple[Tensor, Tensor, Tensor]:
    """The log-likelihood of parts of the images, and its derivatives in features and map; empty where not needed.

    Returns:
        Values of shape (n, n_parts), their derivatives in the features, (n, n_pixels, rank), and in weight and, in the last
        place, bias, (n * n_parts, rank + 1, n_levels).
    """
    (n, n_pixels, rank), n_levels = features.shape, len(bias)
    n_parts = _n_parts(n, n_pixels)
    values = features.new_empty(n, n_parts)
    by_features = features.new_empty(features.shape if needs_features else (0,))
    by_map = features.new_empty((n * n_parts, rank + 1, n_levels) if needs_map else (0,))
    if n == 0 or n_pixels == 0:
        return values.zero_(), by_features, by_map.zero_()
    n_each, n_padded = n_pixels // n_parts, max(32, triton.next_power_of_2(n_levels))
    n_warps = max(1, n_padded // _LEVELS_PER_WARP)
    # Two pixels to a warp, if registers permit it: what is summed over lanes takes half the exchanges.
    n_together = 2 if n_each % 2 == 0 and (rank + 1) * n_padded <= _MOST_FOR_TWO else 1
    wrap(_evaluate)[(n, n_parts)](
        *(features.contiguous(), weight.contiguous(), bias.contiguous(), x.contiguous(), values, by_features, by_map),
        *(n_pixels, n_levels, n_each),
        RANK=rank,
        LEVELS=n_padded,
        LANES=32 * n_warps // n_together,
        PIXELS=n_together,
        GROUP=_largest_divisor(n_each // n_together, _MOST_FACTORS),
        NEEDS_FEATURES=needs_features,
        NEEDS_MAP=needs_map,
        num_warps=n_warps,
    )
    return values, by_features, by_map


@triton_op("sparsum::pixel_log_likelihood", mutates_args={})
def traced(
    features: Tensor, weight: Tensor, bias: Tensor, x: Tensor, needs_features: bool, needs_map: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As `evaluate`, for a graph."""
    return evaluate(features, weight, bias, x, needs_features, needs_map, wrap=wrap_triton)


def _n_parts(n: int, n_pixels: int) -> int:
    """Into how many equal parts the pixels of an image are divided."""
    return _largest_divisor(n_pixels, min(-(-_N_PROGRAMS // max(n, 1)), n_pixels // _LEAST_PIXELS))


def _largest_divisor(number: int, most: int) -> int:
    return next((divisor for divisor in range(most, 1, -1) if number % divisor == 0), 1)


def takes(features: Tensor, weight: Tensor) -> bool:
    """Whether the map is small enough to stay in registers, in single precision."""
    return features.dtype == torch.float32 and weight.shape[0] <= MOST_LEVELS and weight.shape[1] <= MOST_RANK
