"""Log-likelihood of images with categorical pixels, and its derivatives: logits stay in registers.

There are two kernels. Their threads do not communicate, so both are bound by arithmetic. In the first, a thread holds some
pixels and loops over the levels, whose parameters are the same for all threads; it computes the log-likelihood and its
derivative by the features. No maximum is needed: relative to the observed level, the exponentials sum to at least 1, and in
the rare case that the sum gets too large, slower loops take over. In the second, which only the derivative by the map needs,
a thread holds some levels and loops over the pixels, whose normalisers the first kernel has stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op

from sparsum.kernels.launch import unwrapped, wrap_triton

# ruff: noqa: N806
# mypy: disable-error-code="assignment,misc,var-annotated"

#: The largest map for which this is faster than a matrix product.
MOST_LEVELS, MOST_RANK = 1024, 8
# The pixels of a thread share the loads of a level, so a thread has as many as registers permit, without and with
# derivatives, unless that leaves too few warps to occupy the GPU.
PIXELS_PER_THREAD, PIXELS_WITH_SLOPES = 4, 4
LEAST_WARPS = 1500
# Levels whose loads are in flight together; even, since two numbers are loaded at once.
UNROLL = 4
# Levels per warp of the second kernel, and pixels, a power of two, whose loads are in flight together.
LEVELS_PER_WARP, PIXELS_AT_ONCE = 256, 4
# Programs of the second kernel that occupy a GPU; fewer programs write fewer partial sums. Each needs enough pixels to
# amortise loading the map.
N_PROGRAMS, LEAST_PIXELS = 2600, 24

# A GPU computes exponentials as powers of two.
_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)
# Sums below this do not overflow when multiplied by the map.
_MOST_TOTAL = tl.constexpr(1e30)


@triton.jit
def _numbers(pointer, N: tl.constexpr, IN_PAIRS: tl.constexpr):
    """Load N consecutive numbers as scalars; IN_PAIRS halves the loads, for even N and addresses that are multiples of 8."""
    result = ()
    if IN_PAIRS:
        for i in tl.static_range(N // 2):
            pair = tl.load(pointer.to(tl.pointer_type(tl.int64)) + i)
            result = result + (pair.to(tl.int32).to(tl.float32, bitcast=True),)
            result = result + ((pair >> 32).to(tl.int32).to(tl.float32, bitcast=True),)
    else:
        for i in tl.static_range(N):
            result = result + (tl.load(pointer + i),)
    return result


@triton.jit
def _logit(some, rows, offset, FIRST: tl.constexpr, RANK: tl.constexpr):
    """A logit, always by the same operations, so that certain outcomes have a log-likelihood of exactly 0."""
    logit = tl.fma(some[0], rows[FIRST], offset * _LOG2_E)
    for r in tl.static_range(1, RANK):
        logit = tl.fma(some[r], rows[FIRST + r], logit)
    return logit


@triton.jit
def _add(some, weight, bias, shift, total, slopes, RANK: tl.constexpr, LEVELS: tl.constexpr, IN_PAIRS: tl.constexpr):
    """Add some levels to the sum of exponentials and to the sums of their products with the map."""
    rows, offsets = _numbers(weight, LEVELS * RANK, IN_PAIRS), _numbers(bias, LEVELS, IN_PAIRS)
    for j in tl.static_range(LEVELS):
        power = tl.exp2(_logit(some, rows, offsets[j], j * RANK, RANK) - shift)
        total += power
        new = ()
        for r in tl.static_range(len(slopes)):
            new = new + (tl.fma(power, rows[j * RANK + r], slopes[r]),)
        slopes = new
    return total, slopes


@triton.jit
def _all_levels(some, weight, bias, shift, zeros, RANK: tl.constexpr, N_LEVELS: tl.constexpr, UNROLL: tl.constexpr):
    """The sum of exponentials relative to the shift, and the sums, starting at ``zeros``, of their products with the map."""
    total, slopes = tl.zeros_like(shift), zeros
    N_TOGETHER: tl.constexpr = N_LEVELS // UNROLL * UNROLL
    for level in range(0, N_TOGETHER, UNROLL):
        total, slopes = _add(some, weight + level * RANK, bias + level, shift, total, slopes, RANK, UNROLL, True)
    for level in range(N_TOGETHER, N_LEVELS):
        total, slopes = _add(some, weight + level * RANK, bias + level, shift, total, slopes, RANK, 1, False)
    return total, slopes


@triton.jit
def _peak(some, weight, bias, least, RANK: tl.constexpr, N_LEVELS: tl.constexpr):
    """The largest logit of each pixel."""
    peak = least
    for level in range(N_LEVELS):
        rows = _numbers(weight + level * RANK, RANK, False)
        peak = tl.maximum(peak, _logit(some, rows, tl.load(bias + level), 0, RANK))
    return peak


@triton.jit(do_not_specialize=["n"])
def _each_pixel(
    features, weight, bias, x, values, normalisers, by_features, n,
    RANK: tl.constexpr, N_LEVELS: tl.constexpr, PIXELS: tl.constexpr, UNROLL: tl.constexpr,
    NEEDS_FEATURES: tl.constexpr, NEEDS_MAP: tl.constexpr,
):  # fmt: skip
    """The log-likelihood of pixels, its derivative by the features, and the log2 of the normaliser."""
    start = tl.program_id(0).to(tl.int64) * PIXELS
    pixel = tl.arange(0, PIXELS)
    inside = pixel < n - start
    observed = tl.load(x + start + pixel, mask=inside, other=0).to(tl.int32)
    is_known = inside & (observed >= 0) & (observed < N_LEVELS)
    features += start * RANK
    some, rows, zeros = (), (), ()
    for r in tl.static_range(RANK):
        some = some + (tl.load(features + pixel * RANK + r, mask=inside, other=0.0) * _LOG2_E,)
        rows = rows + (tl.load(weight + observed * RANK + r, mask=is_known, other=0.0),)
        if NEEDS_FEATURES:
            zeros = zeros + (tl.zeros([PIXELS], tl.float32),)
    seen = _logit(some, rows, tl.load(bias + observed, mask=is_known, other=float("nan")), 0, RANK)
    shift = seen
    total, slopes = _all_levels(some, weight, bias, shift, zeros, RANK, N_LEVELS, UNROLL)
    is_lost = tl.where(inside, tl.where(total < _MOST_TOTAL, 0, 1), 0)  # also true for NaN
    if tl.max(is_lost, 0) > 0:
        shift = _peak(some, weight, bias, tl.full([PIXELS], -float("inf"), tl.float32), RANK, N_LEVELS)
        total, slopes = _all_levels(some, weight, bias, shift, zeros, RANK, N_LEVELS, 2)
    log_total = tl.log2(total)
    # Exactly minus the logarithm where the shift is the logit of the observed level.
    tl.store(values + start + pixel, tl.where(shift == seen, -log_total, seen - shift - log_total) * _LN_2, mask=inside)
    if NEEDS_MAP:
        tl.store(normalisers + start + pixel, shift + log_total, mask=inside)
    if NEEDS_FEATURES:
        by_features += start * RANK
        for r in tl.static_range(RANK):
            tl.store(by_features + pixel * RANK + r, rows[r] - slopes[r] / total, mask=inside)


@triton.jit(do_not_specialize=["n_pixels", "n_each"])
def _each_level(
    features, weight, bias, x, normalisers, by_map, n_pixels, n_levels, n_each,
    RANK: tl.constexpr, LEVELS: tl.constexpr, STEP: tl.constexpr, IN_PAIRS: tl.constexpr,
):  # fmt: skip
    """The derivative by the map of the log-likelihood of n_each pixels of one image, for some of the levels."""
    image, part, n_parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    level = tl.program_id(2) * LEVELS + tl.arange(0, LEVELS)
    is_level = level < n_levels
    offset = tl.load(bias + level, mask=is_level, other=-float("inf"))
    rows, sums = (), (tl.zeros([LEVELS], tl.float32),)
    for r in tl.static_range(RANK):
        rows = rows + (tl.load(weight + level * RANK + r, mask=is_level, other=0.0),)
        sums = sums + (tl.zeros([LEVELS], tl.float32),)
    first = image * n_pixels + part * n_each
    features, x, normalisers = features + first * RANK, x + first, normalisers + first
    pixel = 0
    while pixel < n_each:
        numbers = _numbers(features + pixel * RANK, STEP * RANK, IN_PAIRS)
        shifts = _numbers(normalisers + pixel, STEP, IN_PAIRS)
        for i in tl.static_range(STEP):
            some = ()
            for r in tl.static_range(RANK):
                some = some + (numbers[i * RANK + r] * _LOG2_E,)
            share = tl.exp2(_logit(some, rows, offset, 0, RANK) - shifts[i])
            share = tl.where(level == tl.load(x + pixel + i).to(tl.int32), share - 1.0, share)
            new = (sums[0] + share,)
            for r in tl.static_range(RANK):
                new = new + (tl.fma(share, numbers[i * RANK + r], sums[r + 1]),)
            sums = new
        pixel += STEP
    by_map += (image * n_parts + part) * (RANK + 1) * n_levels
    tl.store(by_map + RANK * n_levels + level, -sums[0], mask=is_level)
    for r in tl.static_range(RANK):
        tl.store(by_map + r * n_levels + level, -sums[r + 1], mask=is_level)


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
    """The log-likelihood of each pixel, and the derivatives of its sum.

    Returns:
        Values (n, n_pixels); derivatives by the features (n, n_pixels, rank), and by weight and, last, bias for parts of
        the images (n * n_parts, rank + 1, n_levels). Derivatives that are not needed are empty.
    """
    (n, n_pixels, rank), n_levels = features.shape, len(bias)
    values = features.new_empty(n, n_pixels)
    by_features = features.new_empty(features.shape if needs_features else (0,))
    normalisers = features.new_empty((n, n_pixels) if needs_map else (0,))
    n_parts = _n_parts(n, n_pixels, n_levels) if needs_map else 1
    by_map = features.new_empty((n * n_parts, rank + 1, n_levels) if needs_map else (0,))
    if n == 0 or n_pixels == 0:
        return values, by_features, by_map.zero_()
    features, weight, bias, x = features.contiguous(), _even(weight.contiguous()), _even(bias.contiguous()), x.contiguous()
    n_each = 32 * _pixels_per_thread(n * n_pixels, PIXELS_WITH_SLOPES if needs_features else PIXELS_PER_THREAD)
    wrap(_each_pixel)[(triton.cdiv(n * n_pixels, n_each),)](
        *(features, weight, bias, x, values, normalisers, by_features, n * n_pixels),
        RANK=rank,
        N_LEVELS=n_levels,
        PIXELS=n_each,
        UNROLL=UNROLL,
        NEEDS_FEATURES=needs_features,
        NEEDS_MAP=needs_map,
        num_warps=1,
    )
    if needs_map:
        n_together, n_each = _levels_per_warp(n_levels), n_pixels // n_parts
        n_at_once = math.gcd(n_each, PIXELS_AT_ONCE)
        in_pairs = n_at_once % 2 == 0 and _is_even(features)
        wrap(_each_level)[(n, n_parts, triton.cdiv(n_levels, n_together))](
            *(features, weight, bias, x, normalisers, by_map, n_pixels, n_levels, n_each),
            RANK=rank,
            LEVELS=n_together,
            STEP=n_at_once,
            IN_PAIRS=in_pairs,
            num_warps=1,
        )
    return values, by_features, by_map


@triton_op("sparsum::pixel_log_likelihood", mutates_args={})
def traced(
    features: Tensor, weight: Tensor, bias: Tensor, x: Tensor, needs_features: bool, needs_map: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`evaluate` as an operator that can be traced."""
    return evaluate(features, weight, bias, x, needs_features, needs_map, wrap=wrap_triton)


def _even(tensor: Tensor) -> Tensor:
    """The tensor at an address that is a multiple of 8, as all of torch's allocations are."""
    return tensor if _is_even(tensor) else tensor.clone()


def _is_even(tensor: Tensor) -> bool:
    """Whether pairs of numbers can be loaded from the first element on; a traced tensor has no address yet."""
    if torch.compiler.is_compiling():
        return tensor.storage_offset() % 2 == 0
    return tensor.data_ptr() % 8 == 0


def _pixels_per_thread(n: int, most: int) -> int:
    """The largest power of two up to ``most`` that leaves enough warps."""
    while most > 1 and n < 32 * most * LEAST_WARPS:
        most //= 2
    return most


def _levels_per_warp(n_levels: int) -> int:
    n_levels_padded: int = triton.next_power_of_2(n_levels)
    return min(LEVELS_PER_WARP, max(32, n_levels_padded))


def _n_parts(n: int, n_pixels: int, n_levels: int) -> int:
    """The number of equal parts per image; parts have an even number of pixels if the image has."""
    n_others = max(n, 1) * triton.cdiv(n_levels, _levels_per_warp(n_levels))
    most = min(triton.cdiv(N_PROGRAMS, n_others), n_pixels // LEAST_PIXELS)
    return _largest_divisor(n_pixels if n_pixels % 2 else n_pixels // 2, most)


def _largest_divisor(number: int, most: int) -> int:
    return next((divisor for divisor in range(most, 1, -1) if number % divisor == 0), 1)


def takes(features: Tensor, weight: Tensor) -> bool:
    """Whether the kernels support the map: small enough and in single precision."""
    return features.dtype == torch.float32 and weight.shape[0] <= MOST_LEVELS and 1 <= weight.shape[1] <= MOST_RANK
