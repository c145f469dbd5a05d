"""Kernels of entmax with any alpha per row, for long rows: read once, then only the groups that can hold support.

The method is that of `sparsum.kernels.simplex_groups`. Rows with alpha > 2 are read in every step instead.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparsum.kernels.any_alpha_math import (
    ANY,
    NEAR_1,
    NEAR_2,
    STEEP,
    backward_terms,
    clamped,
    high_of,
    is_careful,
    is_rough,
    load_rates,
    moments,
    narrow,
    rate_of,
    scaled,
    settled,
    smooth_step,
    solve_smooth,
    steep_terms,
    weights_of,
)
from sparsum.kernels.simplex_backward import read_support
from sparsum.kernels.simplex_groups import columns_of, list_groups, load_peaks, read_peaks
from sparsum.kernels.simplex_math import load_scores, make_up, row_offset, units

# Conditions that are known when a kernel is compiled stand alone, since then only one branch is compiled.
# ruff: noqa: N806, SIM102, SIM109
# mypy: disable-error-code="no-untyped-def"


@triton.jit
def _load(
    x, mask, ids, start, n_ids, n, xc, mc, peak, a,
    HAS_MASK: tl.constexpr, GROUP: tl.constexpr, BATCH: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Scaled scores of a batch of the listed groups, -inf outside the row, their columns, and which of them exist."""
    column, is_inside = columns_of(ids, start, n_ids, n, GROUP, BATCH)
    scores = load_scores(x, mask, column * xc, column * mc, is_inside, HAS_MASK, ACC)
    return tl.where(is_inside, scaled(scores, peak, a), -float("inf")), column, is_inside


@triton.jit
def _solve_groups(
    x, mask, ids, n_ids, n, xc, mc, peak, a, bound,
    FINE: tl.constexpr, MASKED: tl.constexpr, HAS_MASK: tl.constexpr, EPS: tl.constexpr,
    GROUP: tl.constexpr, BATCH: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The threshold of a row with alpha <= 2 and the last step, given a lower bound and the groups above it."""
    threshold = bound
    step = bound * 0
    step_number, is_open = 0, n_ids > 0
    while is_open:
        total = tl.zeros([BATCH, GROUP], ACC)
        slope = tl.zeros([BATCH, GROUP], ACC)
        curvature = tl.zeros([BATCH, GROUP], ACC)
        start = 0
        while start < n_ids:
            z, _, _ = _load(x, mask, ids, start, n_ids, n, xc, mc, peak, a, HAS_MASK, GROUP, BATCH, ACC)
            p, q, r = moments(z, threshold, a, FINE, MASKED)
            total += p
            slope += q
            curvature += r
            start += BATCH
        whole = tl.sum(tl.sum(total, 1), 0)
        step = smooth_step(whole, tl.sum(tl.sum(slope, 1), 0), tl.sum(tl.sum(curvature, 1), 0), a, step_number)
        is_open = is_rough(whole, step, threshold, a, step_number, EPS)
        threshold = tl.where(is_open, threshold + step, threshold)
        step_number += 1
    return threshold, step


@triton.jit
def _steep_sums(
    x, mask, ids, n_ids, n, xc, mc, peak, a, threshold,
    HAS_MASK: tl.constexpr, GROUP: tl.constexpr, BATCH: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The sums of the probabilities and of p / d of a row with alpha > 2."""
    total = tl.zeros([BATCH, GROUP], ACC)
    slope = tl.zeros([BATCH, GROUP], ACC)
    start = 0
    while start < n_ids:
        z, _, _ = _load(x, mask, ids, start, n_ids, n, xc, mc, peak, a, HAS_MASK, GROUP, BATCH, ACC)
        probs, slopes = steep_terms(z, threshold, 1 / a)
        total += probs
        slope += slopes
        start += BATCH
    return tl.sum(tl.sum(total, 1), 0), tl.sum(tl.sum(slope, 1), 0)


@triton.jit
def _bracket(
    x, mask, ids, n_ids, n, xc, mc, peak, a,
    HAS_MASK: tl.constexpr, TOLERANCE: tl.constexpr, GROUP: tl.constexpr, BATCH: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """A bracket of the threshold of a row with alpha > 2, and at which share of it the sum is 1."""
    threshold = a * 0 - 1
    low, high = threshold, high_of(a, n)
    step_number, is_open = 0, a > 1
    while is_open:
        total, slope = _steep_sums(x, mask, ids, n_ids, n, xc, mc, peak, a, threshold, HAS_MASK, GROUP, BATCH, ACC)
        threshold, low, high, is_open = narrow(threshold, low, high, total, slope, a, step_number, TOLERANCE)
        step_number += 1
    above, _ = _steep_sums(x, mask, ids, n_ids, n, xc, mc, peak, a, low, HAS_MASK, GROUP, BATCH, ACC)
    below, _ = _steep_sums(x, mask, ids, n_ids, n, xc, mc, peak, a, high, HAS_MASK, GROUP, BATCH, ACC)
    return low, high, (above - 1) / tl.where(above == below, 1.0, above - below)


@triton.jit
def _probabilities(z, a, first, second, share, KIND: tl.constexpr):
    """Probabilities of a block, given the threshold and the last step, or for alpha > 2 the bracket and its share."""
    probs = settled(z, first, second, a)
    if KIND == ANY or KIND == STEEP:
        if a > 1:
            above, _ = steep_terms(z, first, 1 / a)
            below, _ = steep_terms(z, second, 1 / a)
            probs = clamped(above + (below - above) * share)
    return probs


@triton.jit
def _write_groups(
    x, mask, y, ids, n_ids, n, xc, mc, yc, peak, a, first, second, share,
    KIND: tl.constexpr, HAS_MASK: tl.constexpr, IS_HALF: tl.constexpr,
    GROUP: tl.constexpr, BATCH: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Write the probabilities of the listed groups; in half precision, they still sum to 1."""
    dtype = y.dtype.element_ty
    missing = 1.0
    if IS_HALF:
        kept = tl.zeros([BATCH, GROUP], tl.float32)
        start = 0
        while start < n_ids:
            z, _, _ = _load(x, mask, ids, start, n_ids, n, xc, mc, peak, a, HAS_MASK, GROUP, BATCH, ACC)
            kept += _probabilities(z, a, first, second, share, KIND).to(dtype).to(tl.float32)
            start += BATCH
        missing = 1.0 - tl.sum(tl.sum(kept, 1), 0)
    reached = 0.0
    start = 0
    while start < n_ids:
        z, column, is_inside = _load(x, mask, ids, start, n_ids, n, xc, mc, peak, a, HAS_MASK, GROUP, BATCH, ACC)
        probs = _probabilities(z, a, first, second, share, KIND).to(dtype)
        if IS_HALF:
            unit = units(probs, missing)
            of_group = tl.sum(unit, 1)
            before = reached + tl.cumsum(of_group, 0) - of_group
            probs = make_up(probs, unit, before[:, None] + tl.cumsum(unit, 1), missing)
            reached += tl.sum(of_group, 0)
        tl.store(y + column * yc, probs, mask=is_inside)
        start += BATCH


@triton.jit(do_not_specialize=["n_groups", "rate"])
def any_groups_forward(
    x, mask, alphas, y, peaks, ids, rate, n, n_groups, inner, xo, xi, xc, mo, mi, mc, yo, yi, yc, alpha_stride,
    KIND: tl.constexpr, HAS_MASK: tl.constexpr, IS_HALF: tl.constexpr, TOLERANCE: tl.constexpr, EPS: tl.constexpr,
    SLACK: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr, BATCH: tl.constexpr, GROUPS: tl.constexpr,
    IS_DOUBLE: tl.constexpr,
):  # fmt: skip
    """Probabilities of a row; the barriers make the writes of a thread visible to the others."""
    ACC: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    row = tl.program_id(0)
    x += row_offset(row, inner, xo, xi)
    mask += row_offset(row, inner, mo, mi)
    y += row_offset(row, inner, yo, yi)
    peaks += row.to(tl.int64) * n_groups
    ids += row.to(tl.int64) * n_groups
    a = load_rates(alphas, row.to(tl.int64), True, alpha_stride, ACC) if KIND == ANY else rate_of(rate, ACC)
    read_peaks(x, mask, y, peaks, n, xc, mc, yc, 0, n_groups, HAS_MASK, True, GROUP, CHUNK, ACC)
    tl.debug_barrier()
    values = load_peaks(peaks, n_groups, GROUPS)
    peak = tl.max(values, 0)
    z = scaled(values, peak, a)
    # The threshold of the maxima is a lower bound of that of the row; one of -1 keeps all that can have mass.
    threshold, step = solve_smooth(z[None, :], a + tl.zeros([1], ACC), a * 0, 1, EPS, KIND)
    bound = tl.where(a > 1, a * 0, tl.sum(threshold + step, 0) - SLACK * a)  # a sum of one
    n_ids = list_groups(z, peak, bound - 1, ids, n_groups, GROUPS)
    tl.debug_barrier()
    if KIND == ANY:
        if is_careful(a):
            first, second = _solve_groups(
                x, mask, ids, n_ids, n, xc, mc, peak, a, bound, True, True, HAS_MASK, EPS, GROUP, BATCH, ACC
            )
        else:
            first, second = _solve_groups(
                x, mask, ids, n_ids, n, xc, mc, peak, a, bound, False, False, HAS_MASK, EPS, GROUP, BATCH, ACC
            )
    else:
        first, second = _solve_groups(
            x, mask, ids, n_ids, n, xc, mc, peak, a, bound, KIND == NEAR_1, KIND == NEAR_2, HAS_MASK, EPS, GROUP, BATCH, ACC
        )
    share = a * 0
    if KIND == ANY or KIND == STEEP:
        if a > 1:
            first, second, share = _bracket(x, mask, ids, n_ids, n, xc, mc, peak, a, HAS_MASK, TOLERANCE, GROUP, BATCH, ACC)
    _write_groups(
        x, mask, y, ids, n_ids, n, xc, mc, yc, peak, a, first, second, share, KIND, HAS_MASK, IS_HALF, GROUP, BATCH, ACC
    )


@triton.jit
def _load_support(
    probs, grad, ids, start, n_ids, n, pc, gc, GROUP: tl.constexpr, BATCH: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Probabilities and gradients of a batch of the listed groups, their columns, and which of them exist."""
    column, is_inside = columns_of(ids, start, n_ids, n, GROUP, BATCH)
    p = tl.load(probs + column * pc, mask=is_inside, other=0.0).to(ACC)
    g = tl.load(grad + column * gc, mask=is_inside & (p != 0), other=0.0).to(ACC)
    return p, g, column, is_inside


@triton.jit(do_not_specialize=["n_groups", "rate"])
def any_groups_backward(
    probs, grad, alphas, out, alpha_out, ids, rate, n, n_groups, inner, po, pi, pc, go, gi, gc, yo, yi, yc, alpha_stride,
    HAS_ALPHAS: tl.constexpr, WITH_ALPHA: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr, BATCH: tl.constexpr,
    IS_DOUBLE: tl.constexpr,
):  # fmt: skip
    """The Jacobian of a row times ``grad``, and the derivative with respect to its alpha if WITH_ALPHA."""
    ACC: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    row = tl.program_id(0)
    probs += row_offset(row, inner, po, pi)
    grad += row_offset(row, inner, go, gi)
    out += row_offset(row, inner, yo, yi)
    ids += row.to(tl.int64) * n_groups
    a = load_rates(alphas, row.to(tl.int64), True, alpha_stride, ACC) if HAS_ALPHAS else rate_of(rate, ACC)
    n_ids = read_support(probs, out, ids, n, n_groups, pc, yc, GROUP, CHUNK)
    tl.debug_barrier()
    weight = tl.zeros([BATCH, GROUP], ACC)
    weighted = tl.zeros([BATCH, GROUP], ACC)
    change = tl.zeros([BATCH, GROUP], ACC)
    changed = tl.zeros([BATCH, GROUP], ACC)
    start = 0
    while start < n_ids:
        p, g, _, _ = _load_support(probs, grad, ids, start, n_ids, n, pc, gc, GROUP, BATCH, ACC)
        s, sg, c, cg = backward_terms(p, g, a, WITH_ALPHA)
        weight += s
        weighted += sg
        if WITH_ALPHA:
            change += c
            changed += cg
        start += BATCH
    whole = tl.sum(tl.sum(weight, 1), 0)
    mean = tl.sum(tl.sum(weighted, 1), 0) / tl.where(whole == 0, 1.0, whole)
    if WITH_ALPHA:
        tl.store(alpha_out + row, tl.sum(tl.sum(changed, 1), 0) - mean * tl.sum(tl.sum(change, 1), 0))
    start = 0
    while start < n_ids:
        p, g, column, is_inside = _load_support(probs, grad, ids, start, n_ids, n, pc, gc, GROUP, BATCH, ACC)
        s, _ = weights_of(p, a)
        tl.store(out + column * yc, (s * (g - mean)).to(out.dtype.element_ty), mask=is_inside)
        start += BATCH
