r"""Sums over bit vectors with a limited number of ones, and samples of them.

For any number :math:`\theta`, let bits be independent with probabilities :math:`\sigma(t_i - \theta)`, and let S be the
number of ones. Then

.. math:: \log \sum_{|z| = k} \exp(z^\top t) = \log P(S = k) + k \theta + \sum_i \log(1 + \exp(t_i - \theta)),

and given S = k, the bits follow the Gibbs distribution. With the :math:`\theta` at which k is the mean of S, the probability
of S = k is not small, whatever the scores are, so the sums need neither logarithms nor subtractions.

The distribution of S is a product of n polynomials, which are multiplied in a balanced tree and cut off after k: O(n k)
operations in O(log n) steps. A sample walks down the tree, and splits the number of ones between the halves of each node.
A kernel takes one bit after the other instead, in a single launch for the sums and their gradient.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from sparsum import kernels
from sparsum.structures.log_space import draw, finite, infinite

# If the scores of the k-th and the next bit differ by more than this, the k best bits are almost certain.
_GAP = 40.0
# The threshold is found in rounds, each of which divides an interval into this many parts.
_N_PARTS, _N_ROUNDS = 16, 4
#: The largest number of terms at a time, which bounds the memory.
MOST_TERMS = 2**24


def log_sum_of_bits(
    scores: Tensor,  # shape: (n_rows, n)
    most: int,
    *,
    exactly: bool,
) -> Tensor:
    """Log of the sum over all bit vectors with at most (or exactly) ``most`` ones: (n_rows,), float64.

    >>> log_sum_of_bits(torch.tensor([[1.0, 2.0, 3.0]]).log(), 2, exactly=True).exp()  # 1 * 2 + 1 * 3 + 2 * 3
    tensor([11.0000], dtype=torch.float64)
    """
    return infinite(_log_sum(finite(scores.double()), most, exactly))


def _are_few_counted(scores: Tensor, most: int, exactly: bool) -> bool:
    """At most `MOST_BITS` bits and `MOST_COUNTED` ones, or zeros, but neither 0 nor n ones; no forward-mode derivatives."""
    from sparsum.kernels.counts import MOST_BITS, MOST_COUNTED

    n = scores.shape[1]
    n_counted = min(most, n - most) if exactly else most
    return 0 < most < n <= MOST_BITS and n_counted <= MOST_COUNTED and not kernels.is_transformed()


def _sum_in_one_launch(scores: Tensor, most: int, exactly: bool) -> Tensor:
    if scores.requires_grad and torch.is_grad_enabled():
        total: Tensor = _LogSum.apply(scores, most, exactly)
        return total
    from sparsum.kernels import counts

    return counts.log_sums(scores, most, exactly=exactly, with_means=False)[0]


@kernels.operation("log_sum_of_bits", kernel=_sum_in_one_launch, takes=_are_few_counted)
def _log_sum(
    scores: Tensor,  # shape: (n_rows, n), float64, without -inf
    most: int,
    exactly: bool,
) -> Tensor:
    """`log_sum_of_bits`, where a very low number represents -inf."""
    bits = _Independent.of(scores, most, exactly=exactly)
    # Relative to any vector b with at most ``most`` ones, so that nothing large cancels.
    base = scores.detach().argsort(dim=-1, descending=True, stable=True).argsort(-1) < most
    if not exactly:
        base = base & (scores.detach() > 0)
    log_odds = softplus(torch.where(base, -bits.logits, bits.logits))
    left_over = bits.threshold.squeeze(-1) * (most - base.sum(-1))
    total = bits.allowed(bits.levels()[-1].squeeze(1)).sum(-1).log()
    return total + left_over + (torch.where(base, scores, 0.0) + log_odds).sum(-1)


class _LogSum(torch.autograd.Function):
    """The kernel, which finds the gradient together with the sums; the twin finds derivatives of the gradient."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, most: int, exactly: bool) -> Tensor:
        """Sum, and save the gradient."""
        from sparsum.kernels import counts

        total, mean = counts.log_sums(scores, most, exactly=exactly, with_means=True)
        ctx.save_for_backward(scores, mean)
        ctx.most, ctx.exactly = most, exactly
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Multiply with the gradient."""
        scores, mean = ctx.saved_tensors
        if torch.is_grad_enabled():
            total = _log_sum.twin(scores, ctx.most, ctx.exactly)
            (mean,) = torch.autograd.grad(total.sum(), scores, create_graph=True)
        return grad.unsqueeze(-1) * mean, None, None


def sample_bits(
    scores: Tensor,  # shape: (n_rows, n_bits)
    n: int,
    generator: torch.Generator | None,
    *,
    most: int,
    exactly: bool,
) -> Tensor:
    """Draw n independent bit vectors per row, in the dtype of the scores: (n, n_rows, n_bits)."""
    n_rows = len(scores)
    bits = _Independent.of(finite(scores.double()), most, exactly=exactly)
    *levels, top = bits.levels()

    def uniform(*size: int) -> Tensor:
        return torch.rand(size, dtype=torch.float64, device=scores.device, generator=generator)

    counts = draw(bits.allowed(top.squeeze(1)), uniform(n_rows, n)).unsqueeze(-1)  # shape: (n_rows, n, n_nodes)
    for nodes in reversed(levels):
        left, right = (half.unsqueeze(1) for half in _halves(nodes))
        here = torch.arange(left.shape[-1], device=scores.device)
        there = counts.unsqueeze(-1) - here  # the number of ones in the right half
        is_possible = (there >= 0) & (there < right.shape[-1])
        other = right.expand(-1, n, -1, -1).gather(-1, there.clamp(0, right.shape[-1] - 1))
        probs = torch.where(is_possible, left * other, 0.0)
        drawn = draw(probs.flatten(0, 2), uniform(counts.numel(), 1)).view_as(counts)
        counts = torch.stack([drawn, counts - drawn], -1).flatten(-2)[..., : nodes.shape[1]]
    ones = counts.transpose(0, 1)
    return (1 - ones if bits.counts_zeros else ones).to(scores.dtype)


@dataclass(frozen=True)
class _Independent:
    """Independent bits which, given the number of ones, follow the Gibbs distribution."""

    logits: Tensor  # shape: (n_rows, n)
    threshold: Tensor  # shape: (n_rows, 1), the scores minus the logits; constant
    most: int
    exactly: bool

    @classmethod
    def of(cls, scores: Tensor, most: int, *, exactly: bool) -> _Independent:
        """Choose the threshold at which the mean number of ones is ``most``, or 0 if it may be less than that."""
        threshold = _threshold(scores.detach(), most)
        if not exactly:
            threshold = threshold.clamp_min(0.0)
        return cls(scores - threshold, threshold, most, exactly)

    @property
    def counts_zeros(self) -> bool:
        """Whether zeros are counted instead of ones, because there are fewer."""
        return self.exactly and 2 * self.most > self.logits.shape[1]

    def levels(self) -> list[Tensor]:
        """The distributions of the counts of single bits, of pairs of neighbours, ..., of all: (n_rows, n_nodes, width)."""
        zero, one = self.logits.neg().sigmoid(), self.logits.sigmoid()
        levels = [torch.stack([one, zero] if self.counts_zeros else [zero, one], -1)]
        most = self.logits.shape[1] - self.most if self.counts_zeros else self.most
        levels[0] = levels[0][..., : most + 1]
        while levels[-1].shape[1] > 1:
            left, right = _halves(levels[-1])
            levels.append(_product(left, right, min(most + 1, 2 * left.shape[-1] - 1)))
        return levels

    def allowed(
        self,
        counts: Tensor,  # shape: (n_rows, most + 1), the distribution of the count of all
    ) -> Tensor:
        """The weights of the counts that are allowed, and 0 for others: (n_rows, most + 1)."""
        number = torch.arange(counts.shape[1], device=counts.device)
        if self.exactly:
            return torch.where(number == counts.shape[1] - 1, counts, 0.0)
        return counts * (self.threshold * (number - self.most)).exp()


def _threshold(
    scores: Tensor,  # shape: (n_rows, n)
    k: int,
) -> Tensor:
    """The threshold at which bits with probabilities sigmoid(scores - threshold) have k ones on average: (n_rows, 1)."""
    n = scores.shape[1]
    if k in (0, n):  # the limits are infinite; any threshold will do that makes the only vector almost certain
        margin = _GAP + math.log(n)
        return scores.amax(-1, keepdim=True) + margin if k == 0 else scores.amin(-1, keepdim=True) - margin
    last, following = scores.sort(dim=-1, descending=True).values[:, k - 1 : k + 1].unbind(1)
    # The k + 1 best bits alone have k ones on average at the lower end; those from the k-th on at most 1 at the upper end.
    low = torch.maximum(following - math.log(k), last - _GAP).unsqueeze(-1)
    high = torch.minimum(last + math.log(n - k), following + _GAP).unsqueeze(-1).maximum(low)
    fractions = torch.linspace(0, 1, _N_PARTS + 1, dtype=scores.dtype, device=scores.device)
    for _ in range(_N_ROUNDS):
        tried = low + (high - low) * fractions[1:-1]  # shape: (n_rows, n_parts - 1)
        mean = (scores.unsqueeze(1) - tried.unsqueeze(-1)).sigmoid().sum(-1)
        n_below = (mean > k).sum(-1, keepdim=True)
        low, high = low + (high - low) * fractions[n_below], low + (high - low) * fractions[n_below + 1]
    return (low + high) / 2


def _halves(
    nodes: Tensor,  # shape: (n_rows, n_nodes, width)
) -> tuple[Tensor, Tensor]:
    """The left and the right one of each pair of neighbours; an odd one gets a neighbour without bits."""
    if nodes.shape[1] % 2:
        nothing = pad(torch.ones_like(nodes[:, :1, :1]), (0, nodes.shape[2] - 1))
        nodes = torch.cat([nodes, nothing], 1)
    return nodes[:, 0::2], nodes[:, 1::2]


class _Product(torch.autograd.Function):
    """The first coefficients of products of polynomials; saves only the factors for backward, which is such a product."""

    generate_vmap_rule = True

    @staticmethod
    def forward(left: Tensor, right: Tensor, n_kept: int) -> Tensor:
        """Multiply."""
        return _multiply(left, right, n_kept)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        """Save the factors."""
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """Correlate the gradient with the other factor."""
        left, right = ctx.saved_tensors
        reverse, n_kept = gradient.flip(-1), gradient.shape[-1]
        to_left, to_right = (_product(reverse, other, n_kept).flip(-1) for other in (right, left))
        return to_left[..., : left.shape[-1]], to_right[..., : right.shape[-1]], None


def _product(left: Tensor, right: Tensor, n_kept: int) -> Tensor:
    product: Tensor = _Product.apply(left, right, n_kept)
    return product


def _multiply(
    left: Tensor,  # shape: (*, n_left)
    right: Tensor,  # shape: (*, n_right)
    n_kept: int,
) -> Tensor:
    r"""The first coefficients of a product of polynomials, :math:`c_j = \sum_i a_{j-i} b_i`: (*, n_kept)."""
    width = right.shape[-1]
    padded = pad(left, (width - 1, n_kept - left.shape[-1]))
    windows = padded.unfold(-1, width, 1)  # shape: (*, n_kept, width)
    factors = right.flip(-1).unsqueeze(-1)
    if windows.numel() <= MOST_TERMS:
        return (windows @ factors).squeeze(-1)
    step = max(1, MOST_TERMS * width // windows.numel())
    parts = zip(windows.split(step, -1), factors.split(step, -2), strict=True)
    total: Tensor = functools.reduce(torch.add, ((part @ factor).squeeze(-1) for part, factor in parts))
    return total
