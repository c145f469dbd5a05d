r"""Sparse distributions over categories whose scores are sharded across processes.

Each process of a group holds the scores of some categories, for the same rows: (\*batch, n_local), where n_local may differ
between processes and may be 0. The mappings return the probabilities of the local categories, which sum to 1 over the group.
Local entries that cannot be in the support are discarded at once. Each Newton step then sums over the few that remain, and
all-reduces two numbers per row. Whether to stop is decided on reduced values, so that all processes take the same number of
steps.

Losses are replicated: every process computes the same value from all-reduced expectations, and calls backward on it. The
gradient with respect to the local scores is then that of a single process. First derivatives only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparsum.distribution.expectation import expect
from sparsum.distribution.loss import Loss, map_tensors
from sparsum.segments import Packed, Segments
from sparsum.simplex.arguments import check_scores, compute_dtype
from sparsum.simplex.blocks import block_peaks, entries_above, reads_in_blocks

__all__ = ["ShardedDistribution", "all_reduce_sum", "entmax", "entmax15", "sparsemap", "sparsemax"]

# Newton's method needs about 6 steps; the cap only ends oscillations due to rounding.
_MAX_STEPS = 64
# The excess of a sum over 1, and the step, below which a row is solved, in float64.
_TOLERANCE = 1e-14


def sparsemax(local_scores: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """`sparsum.sparsemax` over scores that are sharded in the last dimension.

    Args:
        local_scores: the scores of the categories of this process, (*batch, n_local), with the same batch in all processes.
        group: the processes that share the categories; by default all.

    Returns:
        The probabilities of the local categories, with the shape and dtype of ``local_scores``. Infinities, fully masked
        rows and NaN as for `sparsum.sparsemax`, for the entire row in all processes.

    Raises:
        RuntimeError: if torch.distributed is not initialized.
        TypeError: if ``local_scores`` does not have a floating-point dtype.
        ValueError: in all processes, if their numbers of rows, dtypes or values of alpha differ; in a process that ``group``
            does not contain.
    """
    return entmax(local_scores, 2.0, group)


def entmax15(local_scores: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """`sparsum.entmax15` over scores that are sharded in the last dimension; arguments as for `sparsemax`."""
    return entmax(local_scores, 1.5, group)


def entmax(local_scores: Tensor, alpha: float, group: dist.ProcessGroup | None = None) -> Tensor:
    """`sparsum.entmax` over scores that are sharded in the last dimension, for a number ``alpha`` above 1 and up to 2."""
    rows = _rows_of(local_scores, alpha, group)
    probs, flat, _, total = _Solve.apply(rows, float(alpha), group)
    rest = (0 * total).unsqueeze(-1).expand(rows.shape).reshape(-1)  # NaN if the row contains a NaN in any process
    dense: Tensor = rest.index_copy(0, flat, probs).view(local_scores.shape).to(local_scores.dtype)
    return dense


def sparsemap(local_scores: Tensor, group: dist.ProcessGroup | None = None, *, alpha: float = 2.0) -> ShardedDistribution:
    """The sparse distribution over all categories of a group, of which each process holds its own atoms.

    Args:
        local_scores: the scores of the categories of this process, (*batch, n_local), with the same batch in all processes.
        group: the processes that share the categories; by default all.
        alpha: the mapping: 2 for sparsemax, 1.5 for 1.5-entmax, or any number in between and down to 1, exclusive.

    Raises:
        RuntimeError, TypeError: as for `sparsemax`.
        ValueError: as for `sparsemax`; in all processes, if a row contains NaN or is fully masked.
    """
    rows = _rows_of(local_scores, alpha, group)
    probs, flat, row, total = _Solve.apply(rows, float(alpha), group)
    is_bad = ~(total > 0)
    if bool(is_bad.any()):
        bad = is_bad.nonzero().squeeze(-1).tolist()
        raise ValueError(
            "local_scores must contain no NaN and allow a category in every row, over the group; "
            f"not so in {len(bad)} row(s): {bad[:5]}"
        )
    offset = _offset(rows.shape[1], rows.device, group)
    is_positive = probs.detach() > 0
    atoms = (flat - row * rows.shape[1] + offset)[is_positive]
    kept = Segments.from_row(row[is_positive], len(rows))
    return ShardedDistribution(atoms, probs[is_positive].to(local_scores.dtype), kept, local_scores.shape[:-1], group)


@dataclass(frozen=True)
class ShardedDistribution:
    """The atoms of a sparse distribution that belong to this process; a row may have none here.

    Args:
        atoms: the categories, numbered over the group in the order of its processes, (n_atoms,).
        probs: their probabilities, (n_atoms,), which sum to 1 per row over the group.
        segments: the rows of the atoms.
        batch_shape: the shape of the batch.
        group: the processes that share the categories.
    """

    atoms: Tensor
    probs: Tensor
    segments: Segments
    batch_shape: torch.Size
    group: dist.ProcessGroup | None

    @property
    def row(self) -> Tensor:
        """The row of each local atom, (n_atoms,)."""
        return self.segments.row

    def expect(self, loss: Loss, *, chunk_size: int | None = None) -> Any:
        """The expected loss of each row: every process evaluates its own atoms, and the sums are all-reduced.

        Arguments and result as for `sparsum.SparseDistribution.expect`. A process without atoms calls the loss with empty
        tensors, so that all processes take part in the sum.
        """
        local = expect(loss, self.atoms, self.probs, self.segments, self.batch_shape, chunk_size, ())
        return map_tensors(lambda value: all_reduce_sum(value, self.group), local)

    def entropy(self) -> Tensor:
        """The Shannon entropy of each row, over the group."""
        return all_reduce_sum(self.segments.sum(-self.probs * self.probs.log()), self.group).view(self.batch_shape)


def all_reduce_sum(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Sum over the processes of a group, in a loss that all of them compute: a term has the gradient of the sum."""
    result: Tensor = _AllReduceSum.apply(x, group)
    return result


class _AllReduceSum(torch.autograd.Function):
    """Each process calls backward on the same loss, so the gradient needs no second reduction."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Solve(torch.autograd.Function):
    """Probabilities, positions and rows of the local candidates of rows (n_rows, n_local), and the sum of each row.

    The sum over the group is 1 up to rounding, 0 for a fully masked row, and NaN for a row with a NaN.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float, group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        packed, probs, total = _solve(x, alpha, group)
        ctx.alpha, ctx.group, ctx.shape = alpha, group, x.shape
        ctx.save_for_backward(probs, packed.flat, packed.row)
        ctx.mark_non_differentiable(packed.flat, packed.row, total)
        return probs, packed.flat, packed.row, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, None, None]:
        probs, flat, row = ctx.saved_tensors
        segments = Segments.from_row(row, ctx.shape[0])
        weights = torch.where(probs == 0, 0.0, probs.pow(2 - ctx.alpha))
        total, weight = _reduced(segments.sum(weights * grad), segments.sum(weights), ctx.group)
        mean = total / torch.where(weight == 0, 1.0, weight)
        result = grad.new_zeros(ctx.shape[0] * ctx.shape[1])
        return result.index_copy_(0, flat, weights * (grad - segments.spread(mean))).view(ctx.shape), None, None


def _solve(x: Tensor, alpha: float, group: dist.ProcessGroup | None) -> tuple[Packed, Tensor, Tensor]:
    r"""Solve rows with Newton steps from below, on :math:`p = \max(1 + z - s, 0)^{1/a}` with z = a x and a maximum of 0."""
    a = alpha - 1
    packed, candidates = _candidates(x, a, group)
    z, segments = a * candidates.double(), packed.segments
    threshold = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for _ in range(_MAX_STEPS):
        d = 1 + (z - segments.spread(threshold))
        probs = d.clamp_min(0.0).pow(1 / a)
        slopes = torch.where(d > 0, probs / d, 0 * probs)
        total, slope = _reduced(segments.sum(probs), segments.sum(slopes), group)
        step = -torch.expm1(-a * total.log()) * total / slope
        step = torch.where(total == 0, 0.0, step)  # a fully masked row has no candidates
        if not bool(((total - 1).abs() > _TOLERANCE).logical_and(step.abs() > _TOLERANCE).any()):
            break
        threshold = threshold + step
    # Apply the last step to the probabilities, to first order.
    probs = (probs - slopes * segments.spread(step / a)).clamp(0.0, 1.0)
    return packed, probs.to(x.dtype), total.to(x.dtype)


def _candidates(x: Tensor, a: float, group: dist.ProcessGroup | None) -> tuple[Packed, Tensor]:
    """The local entries less than 1 / a below the maximum of their row over the group, and their scores relative to it.

    NaN cannot be compared across processes: it counts as a candidate, so that it enters the sums.
    """
    local = block_peaks(x) if reads_in_blocks(x) else x
    is_regular = local.numel() > 0 and math.isfinite(local.amax(-1).sum().item())
    peak = x.new_full((len(x), 1), -torch.inf)
    if x.shape[1]:
        peak = (local if is_regular else torch.where(x.isnan(), -torch.inf, x)).amax(-1, keepdim=True)
    dist.all_reduce(peak, dist.ReduceOp.MAX, group=group)
    packed = None
    if is_regular and local is not x and bool(peak.isfinite().all()):
        packed = entries_above(x.contiguous(), local, peak, torch.full_like(peak, -1 / a))
    if packed is not None:
        return packed, x.reshape(-1)[packed.flat] - peak.squeeze(-1)[packed.row]
    shifted = torch.where(x == peak, 0.0, x - peak)  # entries of +inf share the mass
    packed = Packed.of((~(a * shifted <= -1) & (peak != -torch.inf)) | x.isnan())
    return packed, packed.take(shifted)


def _reduced(first: Tensor, second: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Two sums over the group in one collective."""
    sums = torch.stack([first, second])
    dist.all_reduce(sums, group=group)
    return sums


def _rows_of(local_scores: Tensor, alpha: float, group: dist.ProcessGroup | None) -> Tensor:
    """Check arguments, also across processes, and flatten the batch, in at least float32."""
    check_scores(local_scores, "local_scores")
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)):
        raise TypeError(f"alpha must be a number, got {type(alpha).__name__}")
    if not 1 < alpha <= 2:
        raise ValueError(f"alpha must be above 1 and at most 2 for sharded scores, got {alpha}")
    if not dist.is_initialized():
        raise RuntimeError("torch.distributed is not initialized; call torch.distributed.init_process_group first")
    if dist.get_rank(group) < 0:
        raise ValueError("group must contain this process")
    n_rows = local_scores.shape[:-1].numel()
    # Before any reduction over the rows, which would hang or mix up rows if these differed.
    own = (n_rows, torch.finfo(local_scores.dtype).eps, alpha)
    limits = torch.tensor([*own, *(-value for value in own)], dtype=torch.float64, device=local_scores.device)
    dist.all_reduce(limits, dist.ReduceOp.MAX, group=group)
    most, least = limits[:3].tolist(), (-limits[3:]).tolist()
    if most[0] != least[0]:
        raise ValueError(
            f"local_scores must have the same batch in all processes of the group, got {n_rows} rows here and between "
            f"{least[0]:.0f} and {most[0]:.0f} in the group"
        )
    if most[1] != least[1]:
        raise ValueError(
            f"local_scores must have the same dtype in all processes of the group, got {local_scores.dtype} here and "
            "another one elsewhere"
        )
    if most[2] != least[2]:
        raise ValueError(
            f"alpha must be the same in all processes of the group, got {alpha} here and between {least[2]} and {most[2]} "
            "in the group"
        )
    return local_scores.reshape(n_rows, local_scores.shape[-1]).to(compute_dtype(local_scores))


def _offset(n_local: int, device: torch.device, group: dist.ProcessGroup | None) -> int:
    """The number of categories of the processes before this one."""
    sizes = torch.zeros(dist.get_world_size(group), dtype=torch.int64, device=device)
    rank = dist.get_rank(group)
    sizes[rank] = n_local
    dist.all_reduce(sizes, group=group)
    return int(sizes[:rank].sum())
