r"""Packed support of sparsemax and 1.5-entmax, without dense probabilities for long rows or on a GPU.

With :math:`d = \max(z - \tau, 0)` for :math:`z = (\alpha - 1) x`, the derivative of the threshold :math:`\tau` is the mean
change of :math:`z` over the support, with equal weights for sparsemax and weights :math:`d` for 1.5-entmax.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sparsum import kernels
from sparsum.kernels import is_transformed
from sparsum.segments import OnBad, Packed, Segments, read_sizes
from sparsum.simplex import dispatch
from sparsum.simplex.arguments import compute_dtype
from sparsum.simplex.autograd import is_plain
from sparsum.simplex.blocks import block_peaks, reads_in_blocks, solve_long, support
from sparsum.simplex.dispatch import EXPONENTS
from sparsum.simplex.solve import solve

# Smaller than any sum of weights, and a normal number in float32 as well.
_TINY = 1.2e-38


def packed_entmax(
    x: Tensor,  # shape: (n_rows, n)
    alpha: float,
    *,
    on_bad: OnBad,
) -> tuple[Packed, Tensor]:
    """The support of each row and its probabilities, twice differentiable, in the dtype of ``x``; alpha is 1.5 or 2.

    A row of only -inf, or with a NaN, has no entries: ``on_bad`` is called with these rows, if any.
    """
    if _find.serves(x, alpha, on_bad):
        probs, flat, row, lengths = _OnGPU.apply(x, alpha, on_bad)
        return Packed(flat, Segments.of_kernel(row, lengths)), probs
    with torch.no_grad():
        packed, value = _find(x.detach(), alpha, on_bad)  # no_grad does not stop forward-mode tangents
    if is_plain(x, alpha):
        return packed, value.to(x.dtype)
    chosen = x.reshape(-1).index_select(0, packed.flat).to(value.dtype)
    change = torch.where(chosen.isfinite(), chosen - chosen.detach(), 0.0)
    # The value without gradient, plus a term of value 0 with the correct derivatives.
    grown = _grow_linear(change, packed.segments) if alpha == 2 else _grow_squared(change, value, packed.segments)
    return packed, (value + grown).to(x.dtype)


def _grow_linear(change: Tensor, segments: Segments) -> Tensor:
    """Sparsemax: on the support, probabilities change by the change of the scores minus its mean."""
    return change - segments.spread(segments.sum(change) / segments.lengths.clamp_min(1))


def _grow_squared(change: Tensor, value: Tensor, segments: Segments) -> Tensor:
    """1.5-entmax: distances change by half the change of the scores minus its mean, weighted by the midpoint distances.

    Midpoint weights make the second derivative correct as well.
    """
    change, distance = change / 2, value.sqrt()
    halfway = distance + (change - segments.spread(_mean(change, distance, segments))) / 2
    moved = change - segments.spread(_mean(change, halfway, segments))
    return moved * (2 * distance + moved)


def _mean(values: Tensor, weights: Tensor, segments: Segments) -> Tensor:
    return segments.sum(weights * values) / segments.sum(weights).clamp_min(_TINY)


def _are_few(x: Tensor, alpha: float, _on_bad: OnBad) -> bool:
    """At most `MOST_ROWS` rows; no transform or forward-mode differentiation."""
    from sparsum.kernels.segments import MOST_ROWS

    # Each row sums the lengths of all previous rows: with more rows, dense probabilities are faster.
    return not is_transformed() and dispatch.has_kernel(x, alpha) and alpha in EXPONENTS and len(x) <= MOST_ROWS


def _find_by_kernels(x: Tensor, alpha: float, on_bad: OnBad) -> tuple[Packed, Tensor]:
    """Three launches; the host reads the size of the support between the second and the third."""
    from sparsum.kernels import segments, simplex_packed

    rows = x.unsqueeze(1)
    found = simplex_packed.support(rows, EXPONENTS[alpha])
    lengths = found[1]
    n_entries, n_empty = read_sizes(segments.tally(lengths), most=x.numel())
    if n_empty:
        on_bad(lengths == 0)
    flat, probs, row = simplex_packed.pack(rows, found, n_entries, EXPONENTS[alpha])
    return Packed(flat, Segments.of_kernel(row, lengths)), probs


@kernels.operation("packed_entmax", kernel=_find_by_kernels, takes=_are_few)
def _find(x: Tensor, alpha: float, on_bad: OnBad) -> tuple[Packed, Tensor]:
    """The support and its probabilities, in at least float32."""
    scores = x.to(compute_dtype(x))
    if reads_in_blocks(scores) and scores.numel() > 0:
        peaks = block_peaks(scores)
        is_regular = math.isfinite(peaks.amax(-1).sum().item())
        found = solve_long(scores.contiguous(), peaks, EXPONENTS[alpha]) if is_regular else None
        if found is not None:
            candidates, probs = found
            is_support = probs > 0
            return candidates.select(is_support), probs[is_support]
    probs = solve(scores, alpha, None)
    packed = support(probs, on_bad=on_bad)
    return packed, packed.take(probs)


class _OnGPU(torch.autograd.Function):
    """Probabilities, positions, rows and lengths of the support, computed by kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float, on_bad: OnBad) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        packed, probs = _find(x, alpha, on_bad)
        flat, row, lengths = packed.flat, packed.segments.row, packed.segments.lengths
        probs = probs.to(x.dtype)
        ctx.alpha, ctx.n, ctx.is_padded = alpha, x.shape[-1], packed.segments.is_padded
        ctx.save_for_backward(probs, flat, row, lengths)
        ctx.mark_non_differentiable(flat, row, lengths)
        ctx.set_materialize_grads(False)
        return probs, flat, row, lengths

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, None, None]:
        if grad is None:
            return None, None, None
        probs, flat, row, lengths = ctx.saved_tensors
        packed = Packed(flat, Segments(row, lengths, ctx.is_padded))
        return _pull(grad, probs, packed, ctx.n, ctx.alpha), None, None


def _pull_by_kernel(grad: Tensor, probs: Tensor, packed: Packed, n: int, alpha: float) -> Tensor:
    from sparsum.kernels import simplex_packed

    return simplex_packed.pull(grad.contiguous(), packed.flat, probs, packed.segments.lengths, n, EXPONENTS[alpha])


@kernels.operation("packed_entmax_backward", kernel=_pull_by_kernel, takes=kernels.is_undifferentiated)
def _pull(
    grad: Tensor,  # shape: (n_entries,)
    probs: Tensor,  # shape: (n_entries,)
    packed: Packed,
    n: int,
    alpha: float,
) -> Tensor:
    """The gradient with respect to the scores, (n_rows, n), given that of the packed probabilities; differentiable."""
    entries = _pulled(grad, probs, packed.segments, alpha)
    return grad.new_zeros(packed.segments.n_rows * n).index_add(0, packed.flat, entries).view(-1, n)


def _pulled(grad: Tensor, probs: Tensor, segments: Segments, alpha: float) -> Tensor:
    """The gradient on the support."""
    is_support = probs.detach() > 0
    weights = is_support.to(probs.dtype)
    if alpha == 1.5:
        weights = torch.where(is_support, torch.where(is_support, probs, 1.0).sqrt(), 0.0)
    return weights * (grad - segments.spread(_mean(grad, weights, segments)))
