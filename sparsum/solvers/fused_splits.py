"""The splits of `sparsum.solvers.splits` for bits on a GPU: three kernels forward and one backward.

The scores determine which atoms are kept and in which order. Given these, the probabilities are linear in the scores, so
all derivatives are this linear map and its adjoint.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsum import kernels
from sparsum.segments import OnBad, Segments, read_sizes
from sparsum.solvers.abstract import Solution
from sparsum.structures import BitCounts, BoundScores
from sparsum.tensors import apply_function


class Order(NamedTuple):
    """The order in which the probabilities are linear in the scores: see `sparsum.kernels.bits`."""

    words: Tensor
    slots: Tensor
    totals: Tensor
    ends: Tensor

    def positions(self, n_atoms: int) -> Tensor:
        """The packed position of the atom of each gap, or ``n_atoms`` if it is not kept: (n_rows, n + 1)."""
        is_kept = self.slots >= 0
        starts = (self.ends - is_kept.sum(-1)).unsqueeze(-1)
        return torch.where(is_kept, starts + self.slots, n_atoms)


class Kind(NamedTuple):
    """The kind of marginals and of split."""

    is_symmetric: bool
    is_systematic: bool
    is_limited: bool


def is_narrow(
    scores: Tensor,  # shape: (n_rows, n)
    *_: object,
) -> bool:
    """Up to `MOST_BITS` bits; no transform or forward-mode differentiation."""
    from sparsum.kernels.bits import MOST_BITS

    return not kernels.is_transformed() and scores.numel() > 0 and scores.shape[-1] <= MOST_BITS


def split(
    scores: Tensor,  # shape: (n_rows, n)
    bound: BoundScores,
    counts: BitCounts,
    systematic: bool,
) -> Solution:
    """Split the marginals of all rows."""
    kind = Kind(counts.is_symmetric, systematic, not counts.is_free(scores.shape[-1]))
    total = counts.most if kind.is_limited else 0
    probs, atoms, row, found, is_solved = apply_function(Split, scores, total, counts.is_exact, kind, bound.raise_bad)
    lengths, _, zeros = found.unbind()
    packed = Segments.of_kernel(row, lengths)
    return Solution(atoms, probs, packed, is_solved, zeros, zeros.view(torch.float64))


class Split(torch.autograd.Function):
    """Atoms, and their probabilities with derivatives."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, total: int, is_exact: bool, kind: Kind, on_bad: OnBad) -> tuple[Tensor, ...]:
        """Split, and pack the kept atoms."""
        from sparsum.kernels import bits

        words, gaps, slots, totals, counts, is_solved = bits.split(scores, total, *kind, is_exact)
        ends, sizes = bits.tally(counts)
        n_atoms, n_bad_rows = read_sizes(sizes, most=slots.numel())
        if n_bad_rows:
            on_bad(counts[1] > 0)
        atoms, probs, row = bits.pack(words, gaps, slots, ends, n_atoms, scores.dtype)
        ctx.mark_non_differentiable(atoms, row, counts, is_solved)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(words, slots, totals, ends)
        ctx.save_for_forward(words, slots, totals, ends)
        ctx.kind, ctx.n_atoms = kind, n_atoms
        return probs, atoms, row, counts, is_solved

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, None, None, None, None]:
        """The adjoint of the linear map."""
        if grad is None:
            return None, None, None, None, None
        return _pull(grad, Order(*ctx.saved_tensors), ctx.kind), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> tuple[Any, ...]:
        """The linear map."""
        return _push(tangent, Order(*ctx.saved_tensors), ctx.kind, ctx.n_atoms), None, None, None, None


def _push(
    tangent: Tensor,  # shape: (n_rows, n)
    order: Order,
    kind: Kind,
    n_atoms: int,
) -> Tensor:
    """The change of the packed probabilities with the scores, in plain torch: (n_atoms,)."""
    place = order.words[:, 1].long()  # rank of the key, from 1; -1 if interior only by rounding, else 0
    target = tangent.double() / (2 if kind.is_symmetric else 1)
    if kind.is_limited:
        n_interior = order.totals[:, 1:]  # 0 if the budget is loose
        shift = torch.where(place != 0, target, 0.0).sum(-1, keepdim=True) / n_interior.clamp_min(1)
        target = torch.where(n_interior > 0, target - shift, target)
    inner = torch.where(place > 0, target, 0.0)
    keys = torch.where(place > 0, inner.cumsum(-1), 0.0) if kind.is_systematic else -inner
    upper = torch.zeros_like(order.slots, dtype=torch.float64)
    # Marginals that are not fractional have key 0, and are written to the last position.
    upper = upper.scatter(-1, torch.where(place > 0, place - 1, place.shape[-1]), keys)
    gaps = (upper - torch.nn.functional.pad(upper[:, :-1], (1, 0))) / order.totals[:, :1]
    result = torch.zeros(n_atoms + 1, dtype=torch.float64, device=gaps.device)
    return result.scatter(0, order.positions(n_atoms).flatten(), gaps.flatten())[:-1].to(tangent.dtype)


def _pull_by_kernel(grad: Tensor, order: Order, kind: Kind) -> Tensor:
    from sparsum.kernels import bits

    return bits.pull(grad, *order, kind=kind, dtype=grad.dtype)


@kernels.operation("split_bits_backward", kernel=_pull_by_kernel, takes=kernels.is_undifferentiated)
def _pull(
    grad: Tensor,  # shape: (n_atoms,)
    order: Order,
    kind: Kind,
) -> Tensor:
    """The adjoint of `_push`, in plain torch: (n_rows, n)."""
    place = order.words[:, 1].long()
    padded = torch.nn.functional.pad(grad.double(), (0, 1))
    of_gap = padded[order.positions(len(grad))] / order.totals[:, :1]
    of_key = of_gap.gather(-1, (place - 1).clamp_min(0)) - of_gap.gather(-1, place.clamp_min(0))
    of_key = torch.where(place > 0, of_key, 0.0)
    of_target = torch.where(place > 0, of_key.flip(-1).cumsum(-1).flip(-1), 0.0) if kind.is_systematic else -of_key
    if kind.is_limited:
        n_interior = order.totals[:, 1:]
        shift = of_target.sum(-1, keepdim=True) / n_interior.clamp_min(1)
        of_target = torch.where((place != 0) & (n_interior > 0), of_target - shift, of_target)
    return (of_target / (2 if kind.is_symmetric else 1)).to(grad.dtype)
