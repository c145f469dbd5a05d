r"""The mean of SparseMAP over chains, by Newton's method on the dual.

The mean vectors of sequences are flows: tags u and transitions v that are not negative and satisfy

.. math:: \sum_b v_i(a, b) = u_i(a), \quad \sum_a v_{i-1}(a, b) = u_i(b), \quad \sum_a u_0(a) = 1.

With a multiplier for each equation, :math:`\alpha_i(a)`, :math:`\beta_i(b)` and :math:`\beta_0`, the optimum for the linear
terms s of tags and t of transitions is

.. math:: u_i = [s_i + \alpha_i + \beta_i]_+ / w, \quad v_i(a, b) = [t_i(a, b) - \alpha_i(a) - \beta_{i+1}(b)]_+ / w,

where the multipliers minimise a convex function that is quadratic where the same parts are positive. Its gradient is the
error of the equations. Newton's method ends after finitely many steps, since a step that does not change the positive parts
reaches the optimum. The Hessian couples :math:`\alpha_i` with :math:`\beta_i` and :math:`\beta_{i+1}` alone: eliminating
all :math:`\alpha` leaves a block tridiagonal matrix.

References:
    - On the efficient computation of a generalized Jacobian of the projector over the Birkhoff polytope (Li, Sun & Toh,
      2020), the same method for doubly stochastic matrices, https://arxiv.org/abs/1702.05934
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum import kernels

#: The largest error of the equations, in probability, of a solution.
_TOLERANCE = 1e-12
#: Rows that take more steps are left to the active set.
MAX_STEPS = 200
#: The Hessian of a step is regularised by this times the largest error, but at least by the other.
_RIDGE, _LEAST_RIDGE = 1e-4, 1e-13
#: Values further below the best of their position do not count for the start.
_FAR = 100.0
#: A step is short enough if the slope at its end is at most this fraction of that at its start.
_OVERSHOOT, _MAX_CUTS = 0.7, 12


def _are_few_tags(_linear: Tensor, _weight: Tensor, shape: tuple[int, int], _lengths: Tensor) -> bool:
    """At most `MOST_TAGS` tags."""
    from sparsum.kernels.flows import MOST_TAGS

    return shape[1] <= MOST_TAGS


def _in_one_launch(linear: Tensor, weight: Tensor, shape: tuple[int, int], lengths: Tensor) -> tuple[Tensor, Tensor]:
    from sparsum.kernels.flows import newton

    start = torch.cat([_centred(part).flatten(1) for part in _split(linear, shape)], -1)
    return newton(start, 1 / weight, shape, lengths.contiguous(), MAX_STEPS)


@kernels.operation("flow_mean", kernel=_in_one_launch, takes=_are_few_tags)
def flow_mean(
    linear: Tensor,  # shape: (n_rows, n_parts), of all tags and then all transitions; -inf for forbidden parts and padding
    weight: Tensor,  # shape: (n_parts,)
    shape: tuple[int, int],  # the length, and the number of tags
    lengths: Tensor,  # shape: (n_rows,)
) -> tuple[Tensor, Tensor]:
    """The mean of each row, (n_rows, n_parts), and its number of steps; a row without a solution has NaN."""
    rows = _Rows(linear, weight, shape, lengths)
    mean, steps = torch.full_like(linear, torch.nan), torch.full_like(lengths, MAX_STEPS)
    for n_steps in range(MAX_STEPS):
        is_done = rows.measure()
        if bool(is_done.any()):
            done = rows.ids[is_done]
            mean[done], steps[done] = rows.parts[is_done], n_steps
            rows.keep((~is_done).nonzero().squeeze(-1))
        if not len(rows.ids):
            break
        rows.step()
    return mean, steps


class _Rows:
    """The multipliers of some rows, and Newton's steps."""

    def __init__(self, linear: Tensor, weight: Tensor, shape: tuple[int, int], lengths: Tensor) -> None:
        self.shape, self.inverse = shape, 1 / weight
        #: The linear term plus the multipliers of each part, whose positive entries are w times the mean.
        self.values = torch.cat([_centred(part).flatten(1) for part in _split(linear, shape)], -1)
        self.ids = torch.arange(len(linear), device=linear.device)
        self.error = torch.full_like(linear[:, 0], torch.inf)
        places = torch.arange(shape[0], device=linear.device)
        #: Which positions have a next one, and so an alpha: (n_rows, length, 1).
        self.has_next = (places < lengths.unsqueeze(-1) - 1).unsqueeze(-1)

    def keep(self, rows: Tensor) -> None:
        """Remove all other rows."""
        for name in ("values", "parts", "ids", "has_next", "after", "before", "error"):
            setattr(self, name, getattr(self, name)[rows])

    def measure(self) -> Tensor:
        """Compute the parts and the errors of the equations of alpha and beta; returns which rows are done."""
        self.parts = self.values.clamp_min(0) * self.inverse
        tags, transitions = _split(self.parts, self.shape)
        self.after = (tags - _padded(transitions.sum(-1), last=1)) * self.has_next
        self.before = _collapsed(tags - _padded(transitions.sum(-2), first=1))
        self.before[:, 0, 0] -= 1
        last, self.error = self.error, torch.cat([self.after, self.before], 1).abs().flatten(1).amax(-1)
        # The mean is off by a multiple of the error, which grows with the length: continue down to rounding.
        return (self.error <= _TOLERANCE) & (self.error >= last / 2)

    def step(self) -> None:
        """Move the multipliers along Newton's direction."""
        after, before = self._direction()
        slope = (self.after * after).sum((1, 2)) + (self.before[:, 1:] * before[:, 1:]).sum((1, 2))
        slope += self.before[:, 0, 0] * before[:, 0, 0]
        transitions = -after[:, :-1].unsqueeze(-1) - before[:, 1:].unsqueeze(-2)
        change = torch.cat([(after + before).flatten(1), transitions.flatten(1)], -1)
        self.values = torch.addcmul(self.values, self._length(change, slope, before[:, 0, 0]).unsqueeze(-1), change)

    def _direction(self) -> tuple[Tensor, Tensor]:
        """The changes of alpha and beta: (n_rows, length, n_tags) each; beta_0 is repeated for all tags."""
        ridge = (_RIDGE * self.error.clamp_max(1)).clamp_min(_LEAST_RIDGE)[:, None, None]
        p, q = _split((self.values > 0) * self.inverse, self.shape)
        # The Hessian has `diagonal` for alpha, `coupling` for alpha_i with beta_i, and q for alpha_i with beta_{i+1}.
        coupling = p * self.has_next
        diagonal = torch.where(self.has_next, p + _padded(q.sum(-1), last=1) + ridge, 1.0)
        ratio, scaled = coupling / diagonal, self.after / diagonal
        blocks = torch.diag_embed(_collapsed(p + _padded(q.sum(-2), first=1) - coupling * ratio) + ridge)
        blocks[:, 0, 1:, 1:].diagonal(dim1=-2, dim2=-1).fill_(1)
        blocks[:, 1:] -= q.mT @ (q / diagonal[:, :-1].unsqueeze(-1))
        links = _collapsed(-ratio[:, :-1].unsqueeze(-1) * q)
        right = _collapsed(coupling * scaled) - self.before
        right[:, 1:] += (q * scaled[:, :-1].unsqueeze(-1)).sum(-2)
        before = solve_chain(blocks, links, right)
        before[:, 0] = before[:, 0, :1]
        moved = _padded((q * before[:, 1:].unsqueeze(-2)).sum(-1), last=1) / diagonal
        return -(scaled + ratio * before + moved) * self.has_next, before

    def _length(self, change: Tensor, slope: Tensor, normaliser: Tensor) -> Tensor:
        """The length of the step of each row, at most 1, by regula falsi on the slope, which increases: (n_rows,)."""
        weighted = (change * self.inverse).unsqueeze(-1)

        def slope_at(length: Tensor) -> Tensor:
            positive = torch.addcmul(self.values, length.unsqueeze(-1), change).clamp_min_(0)
            return torch.bmm(positive.unsqueeze(1), weighted)[:, 0, 0] - normaliser

        low, high = torch.zeros_like(slope), torch.ones_like(slope)
        most, at_low, at_high = -_OVERSHOOT * slope, slope, slope_at(high)
        length, now = high, at_high
        for _ in range(_MAX_CUTS):
            is_long = now > most
            if not bool(is_long.any()):
                break
            share = (-at_low / (at_high - at_low)).clamp(0.05, 0.95)
            length = torch.where(is_long, low + share * (high - low), length)
            now = torch.where(is_long, slope_at(length), now)
            is_high = now > 0
            high, at_high = torch.where(is_high, length, high), torch.where(is_high, now, at_high)
            low, at_low = torch.where(is_high, low, length), torch.where(is_high, at_low, now)
        return length


def solve_chain(
    blocks: Tensor,  # shape: (n_rows, length, n, n), the diagonal
    links: Tensor,  # shape: (n_rows, length - 1, n, n), above the diagonal
    right: Tensor,  # shape: (n_rows, length, n)
) -> Tensor:
    """Solve symmetric positive definite block tridiagonal systems, by block Cholesky: (n_rows, length, n)."""
    lowers, sides, halves = [], [], []
    block, column = blocks[:, 0], right[:, 0].unsqueeze(-1)
    for i in range(links.shape[1]):
        lower, _ = torch.linalg.cholesky_ex(block)
        side, half = torch.linalg.solve_triangular(lower, torch.cat([links[:, i], column], -1), upper=False).split(
            [links.shape[-1], 1], -1
        )
        block = torch.baddbmm(blocks[:, i + 1], side.mT, side, alpha=-1)
        column = torch.baddbmm(right[:, i + 1].unsqueeze(-1), side.mT, half, alpha=-1)
        lowers.append(lower)
        sides.append(side)
        halves.append(half)
    solved = [torch.cholesky_solve(column, torch.linalg.cholesky_ex(block)[0])]
    while lowers:
        column = torch.baddbmm(halves.pop(), sides.pop(), solved[-1], alpha=-1)
        solved.append(torch.linalg.solve_triangular(lowers.pop().mT, column, upper=True))
    return torch.cat(solved[::-1], -1).mT


def _split(flat: Tensor, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Tags, (n_rows, length, n_tags), and transitions, (n_rows, length - 1, n_tags, n_tags)."""
    length, n = shape
    tags, transitions = flat.split([length * n, (length - 1) * n * n], -1)
    return tags.unflatten(-1, (length, n)), transitions.reshape(len(flat), length - 1, n, n)


def _centred(
    values: Tensor,  # shape: (n_rows, length, *parts)
) -> Tensor:
    """Less the mean of each position: a constant does not change the optimum, and many positive values are a good start.

    Values that are far below the best of their position do not count: they would lose the others in rounding errors.
    """
    if not values.numel():
        return values
    flat = values.flatten(2)
    peak = flat.amax(-1, keepdim=True)
    peak = torch.where(peak == -torch.inf, 0.0, peak)
    return (flat - torch.maximum(flat, peak - _FAR).mean(-1, keepdim=True)).view_as(values)


def _padded(values: Tensor, first: int = 0, last: int = 0) -> Tensor:
    """With zeros for the first or last position: (n_rows, length - 1, n_tags) -> (n_rows, length, n_tags)."""
    return torch.nn.functional.pad(values, (0, 0, first, last))


def _collapsed(values: Tensor) -> Tensor:
    """With the sum over all tags in the place of tag 0 at the first position: beta_0 is one number for all tags."""
    first = torch.zeros_like(values[:, :1])
    first[:, :, 0] = values[:, :1].sum(2)
    return torch.cat([first, values[:, 1:]], 1)
