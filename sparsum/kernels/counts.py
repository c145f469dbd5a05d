r"""Log-sums over bit vectors with a limited number of ones, and their gradients, in one launch: one program per row.

The formulas are those of `sparsum.structures.counts`. A program chooses a threshold, at which bits are independent with
probabilities :math:`\sigma(t_i - \theta)`, and steps through the bits with the distribution of the number of ones so far in
registers. For the gradient it stores all of these, and steps back with the expected weight given the number of ones so far:

.. math:: \mu_i = \frac{p_i}{w_0(0)} \sum_c P_{<i}(c) \, w_{i+1}(c + 1), \quad
    w_i(c) = (1 - p_i) \, w_{i+1}(c) + p_i \, w_{i+1}(c + 1)

All terms are positive, so nothing cancels. If zeros are counted instead, both states of a bit are exchanged.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sparsum.kernels.launch import next_power_of_2, unwrapped

#: The maximum number of bits: a program keeps the scores of a row in registers.
MOST_BITS = 4096
#: The largest number of ones, or of zeros where there are fewer: a program keeps one number for each count in registers.
MOST_COUNTED = 511
#: The maximum memory for the distributions of one launch.
MOST_BYTES = 1 << 28
# The threshold is found by halving an interval that starts this far below the pivot, where bits above are almost certain.
_GAP, _N_HALVINGS = tl.constexpr(40.0), tl.constexpr(16)


@triton.jit
def _odds(odds, n, i, COUNTS_ZEROS: tl.constexpr):
    """The probabilities that a bit is not counted, and that it is."""
    one, zero = tl.load(odds + i), tl.load(odds + n + i)
    return (one, zero) if COUNTS_ZEROS else (zero, one)


@triton.jit(do_not_specialize=["n", "most"])
def sum_up(
    scores, pivots, odds, prefixes, totals, means, n, most,
    EXACTLY: tl.constexpr, COUNTS_ZEROS: tl.constexpr, WITH_MEANS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The log-sum of a row and, if asked for, its gradient; the pivot is the score of the last bit that may be 1."""
    row = tl.program_id(0).to(tl.int64)
    bit, count = tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    is_bit = bit < n
    scores, odds, means = scores + row * n, odds + row * 2 * n, means + row * n
    prefixes += row * n * WIDTH
    # The threshold is relative to the pivot: rounding of large scores would separate it from those that are equal to it.
    score, pivot = tl.load(scores + bit, mask=is_bit, other=float("-inf")), tl.load(pivots + row)
    high = tl.log((n - most).to(tl.float32))
    low = high * 0 - _GAP
    for _ in range(_N_HALVINGS):
        middle = (low + high) / 2
        # In float32, because any threshold gives the same sum; a good one only avoids underflow.
        is_low = tl.sum(tl.sigmoid((score - pivot - middle).to(tl.float32)), 0) > most
        low, high = tl.where(is_low, middle, low), tl.where(is_low, high, middle)
    offset = ((low + high) / 2).to(tl.float64)
    if not EXACTLY:
        is_positive = pivot + offset > 0
        pivot, offset = tl.where(is_positive, pivot, 0.0), tl.where(is_positive, offset, 0.0)
    logit, threshold = score - pivot - offset, pivot + offset
    one, zero, is_base = 1 / (1 + tl.exp(-logit)), 1 / (1 + tl.exp(logit)), logit > 0
    tl.store(odds + bit, one, mask=is_bit)
    tl.store(odds + n + bit, zero, mask=is_bit)
    terms = tl.where(is_base, score, 0.0) - tl.log(tl.maximum(one, zero))
    total = tl.sum(tl.where(is_bit, terms, 0.0), 0) + threshold * (most - tl.sum(is_base.to(tl.int32), 0))
    if EXACTLY:
        weights = tl.where(count == (n - most if COUNTS_ZEROS else most), 1.0, 0.0).to(tl.float64)
    else:
        weights = tl.where(count > most, 0.0, tl.exp(threshold * tl.minimum(count - most, 0)))
    tl.debug_barrier()
    counts = tl.where(count == 0, 1.0, 0.0).to(tl.float64)
    before, after = tl.maximum(count - 1, 0), tl.minimum(count + 1, WIDTH - 1)
    i = 0
    while i < n:  # a range of n steps is not for the interpreter of Triton 3.5
        if WITH_MEANS:
            tl.store(prefixes + i * WIDTH + count, counts)
        stays, moves = _odds(odds, n, i, COUNTS_ZEROS)
        counts = stays * counts + moves * tl.where(count == 0, 0.0, tl.gather(counts, before, 0))
        i += 1
    reached = tl.sum(counts * weights, 0)
    tl.store(totals + row, total + tl.log(reached))
    if WITH_MEANS:
        weights = weights / reached
        tl.debug_barrier()
        counts = tl.load(prefixes + (n - 1) * WIDTH + count)
        while i > 0:
            i -= 1
            earlier = tl.load(prefixes + tl.maximum(i - 1, 0) * WIDTH + count)  # ahead of its use, which would wait for it
            stays, moves = _odds(odds, n, i, COUNTS_ZEROS)
            moved = tl.where(count == WIDTH - 1, 0.0, tl.gather(weights, after, 0))
            # A bit that is 1 is counted, unless zeros are.
            mean = stays * tl.sum(counts * weights, 0) if COUNTS_ZEROS else moves * tl.sum(counts * moved, 0)
            tl.store(means + i, mean)
            weights = stays * weights + moves * moved
            counts = earlier


def log_sums(
    scores: Tensor,  # shape: (n_rows, n), float64, without -inf
    most: int,  # neither 0 nor n
    *,
    exactly: bool,
    with_means: bool,
) -> tuple[Tensor, Tensor]:
    """The log-sum of each row, (n_rows,), and its gradient, (n_rows, n), which is empty unless asked for."""
    n_rows, n = scores.shape
    counts_zeros = exactly and 2 * most > n
    block, width = next_power_of_2(n), next_power_of_2((n - most if counts_zeros else most) + 1)
    n_together = max(1, min(n_rows, MOST_BYTES // (8 * n * width)))
    odds = scores.new_empty(n_together, 2, n)
    prefixes = scores.new_empty((n_together, n, width) if with_means else (0,))
    totals, means = scores.new_empty(n_rows), scores.new_empty((n_rows, n) if with_means else (0,))
    scores, pivots = scores.contiguous(), scores.sort(dim=-1, descending=True).values[:, most - 1].contiguous()
    for first in range(0, n_rows, n_together):
        some = slice(first, first + n_together)
        unwrapped(sum_up)[(min(n_together, n_rows - first),)](
            *(scores[some], pivots[some], odds, prefixes, totals[some], means[some], n, most),
            EXACTLY=exactly,
            COUNTS_ZEROS=counts_zeros,
            WITH_MEANS=with_means,
            BLOCK=block,
            WIDTH=width,
            num_warps=max(1, min(8, max(block // 1024, width // 64))),
        )
    return totals, means
