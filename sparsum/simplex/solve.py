"""Map scores to probabilities for rows of arbitrary values, without gradient; shared by all mappings."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sparsum import kernels
from sparsum.simplex import dispatch
from sparsum.simplex.any_alpha import solve_any_alpha
from sparsum.simplex.arguments import has_values
from sparsum.simplex.blocks import block_peaks, reads_in_blocks, solve_long
from sparsum.simplex.dispatch import EXPONENTS
from sparsum.simplex.thresholds import solve_short, solve_traceable


@kernels.operation("entmax", kernel=dispatch.solve_by_kernel, takes=dispatch.has_kernel, is_traceable=True)
def solve(x: Tensor, alpha: float | Tensor, mask: Tensor | None) -> Tensor:
    """Probabilities of the rows of ``x`` (*batch, n), n > 0, in its dtype; ``alpha`` is a number or of shape (*batch, 1).

    A row of only -inf returns zeros; entries of +inf share the mass of their row; a NaN makes its row NaN. The mask has as
    many dimensions as ``x`` and broadcasts to its shape.
    """
    return solve_plainly(x if mask is None else x.masked_fill(~mask, -torch.inf), alpha)


def solve_plainly(x: Tensor, alpha: float | Tensor, *, traceable: bool = False) -> Tensor:
    """`solve` in plain torch; if ``traceable``, control flow does not depend on values, as a graph requires."""
    traceable = traceable or not has_values(x)
    if x.ndim != 2:
        alpha = alpha.reshape(-1, 1) if isinstance(alpha, Tensor) else alpha
        return solve_plainly(x.reshape(-1, x.shape[-1]), alpha, traceable=traceable).view(x.shape)
    if not traceable and x.numel() == 0:
        return torch.empty_like(x)
    in_blocks = not traceable and isinstance(alpha, float) and alpha in EXPONENTS and reads_in_blocks(x)
    peaks = block_peaks(x) if in_blocks else x
    peak = peaks.amax(-1, keepdim=True)
    # A single number shows whether all maxima are finite. If their sum overflows, the general path below is correct too.
    if not traceable and not x.is_cuda and math.isfinite(peak.sum().item()):
        return _solve_regular(x, peak, alpha, peaks if in_blocks else None)
    # Rows without a finite maximum are solved as rows of zeros, then overwritten.
    is_regular = peak.isfinite()
    tame, tame_peak = torch.where(is_regular, x, 0.0), torch.where(is_regular, peak, 0.0)
    probs = _solve_regular(tame, tame_peak, alpha, None, traceable=traceable)
    return torch.where(is_regular, probs, _solve_irregular(x, peak))


def _solve_regular(
    rows: Tensor, peak: Tensor, alpha: float | Tensor, peaks: Tensor | None, *, traceable: bool = False
) -> Tensor:
    """Solve rows with a finite maximum."""
    if isinstance(alpha, Tensor):
        if torch.compiler.is_compiling() and not torch.compiler.is_exporting() and rows.device.type == "cpu":
            solved: Tensor = _solve_in_graph(rows - peak, alpha)
            return solved
        # A GPU takes a fixed number of steps, as in an exported program, to avoid host-device synchronizations.
        return solve_any_alpha(rows - peak, alpha, traceable=traceable or rows.is_cuda)
    if alpha == 1.0:
        return torch.softmax(rows, -1)
    exponent = EXPONENTS.get(alpha)
    if exponent is None:
        alphas = torch.full_like(peak, alpha, dtype=torch.float64)
        return _solve_regular(rows, peak, alphas, None, traceable=traceable)
    if peaks is not None:
        found = solve_long(rows.contiguous(), peaks, exponent)
        if found is not None:
            packed, probs = found
            return rows.new_zeros(rows.numel()).index_copy_(0, packed.flat, probs).view(rows.shape)
    return (solve_traceable if traceable else solve_short)(rows - peak, exponent)


@torch.library.custom_op("sparsum::solve_any_alpha", mutates_args=())
def _solve_in_graph(shifted: Tensor, alpha: Tensor) -> Tensor:
    """`solve_any_alpha` as one node of a compiled graph: faster to compile and to run than a fixed number of steps."""
    return solve_any_alpha(shifted, alpha, traceable=False)


@_solve_in_graph.register_fake
def _(shifted: Tensor, _alpha: Tensor) -> Tensor:
    return torch.empty_like(shifted, memory_format=torch.contiguous_format)


@_solve_in_graph.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
    """Rows are independent: the mapped dimension is one more batch dimension."""
    moved = (
        tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(inputs, in_dims, strict=True)
    )
    return _solve_in_graph(*moved), 0


def _solve_irregular(rows: Tensor, peak: Tensor) -> Tensor:
    """Solve rows whose maximum is +inf (entries of +inf share the mass), -inf (fully masked) or NaN."""
    is_infinite = (rows == torch.inf).to(rows.dtype)
    shares = is_infinite / is_infinite.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(peak.isnan(), torch.nan, shares)
