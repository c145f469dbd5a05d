"""Dependency trees, summed by elimination."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from sparsum.gibbs.chain import FORBIDDEN, draw, finite, infinite, take, weighted
from sparsum.gibbs.model import AbstractModel
from sparsum.gibbs.spanning import draw_heads, is_tree, log_sum_of_trees
from sparsum.structures import Tree

# What rounding may leave of an edge that no tree has.
_ROUNDING = 1e-13


class TreeModel(AbstractModel):
    r"""Over dependency trees, in float64.

    Let every word choose its head by itself, :math:`\pi_{mh} \propto \exp t_{mh}`. Given that these choices make a tree, the
    tree has the Gibbs distribution:

    .. math:: p(z) = \frac1S \prod_m \pi_{m, z_m}, \quad \log Z = \log S + \sum_m \log \sum_h \exp t_{mh},

    with S the probability of a tree. The logarithms of these are small however large the scores are.
    """

    def __init__(
        self,
        structure: Tree,
        rows: Tensor,  # shape: (n_rows, n, n)
    ) -> None:
        self.structure, self.rows = structure, rows
        self.choices, self.log_trees, self.log_partition = _sums(rows, single_root=structure.single_root)

    def log_prob(self, atoms: Tensor, row: Tensor) -> Tensor:
        """The log-probability of the heads, given that they make a tree; -inf if they do not."""
        heads, n = atoms.long(), self.structure.n
        place = (row.unsqueeze(-1) * n + torch.arange(n, device=row.device)) * n + heads.clamp(0, n - 1)
        total = take(self.choices, place).sum(-1) - take(self.log_trees, row)
        return torch.where(self._is_tree(heads, row), infinite(total), -torch.inf)

    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """The root if there is one, then word by word, each given the ones before it."""
        n_rows, n_words, _ = self.rows.shape
        shape = (n_rows, n, n_words + 1)
        uniform = torch.rand(shape, dtype=torch.float64, device=self.rows.device, generator=generator)
        with torch.no_grad():
            choices = self.choices.repeat_interleave(n, 0)
            if self.structure.single_root:
                probs = self.mean().diagonal(dim1=-2, dim2=-1)
                root = draw(torch.where(probs > _ROUNDING, probs, 0.0), uniform[:, :, 0])
                choices = _with_root(choices, root.flatten())
            heads = draw_heads(_with_root_node(choices), uniform[:, :, 1:].flatten(0, 1)) - 1
        word = torch.arange(n_words, device=heads.device)
        return torch.where(heads < 0, word, heads).reshape(n_rows, n, n_words).transpose(0, 1)

    def mean(self) -> Tensor:
        """The probability of each edge, 0 for padding."""
        mean = self._edges()
        if self.structure.lengths is None:
            return mean
        return mean.masked_fill(self.structure._is_padding(len(mean)).unsqueeze(-1), 0.0)

    def entropy(self) -> Tensor:
        r""":math:`\log S - \sum_{m, h} \mu_{mh} \log \pi_{mh}`."""
        return self.log_trees - weighted(self.choices, self._edges(), _ROUNDING).sum((-1, -2))

    def is_member(self, atoms: Tensor, row: Tensor) -> Tensor:
        """Whether all are heads of trees, with one root if there must be one, and 0 for padding."""
        heads = atoms.long()
        return (heads == atoms).all() & self._is_tree(heads, row).all()

    def divergence(self, other: Self) -> Tensor:
        r""":math:`\sum_{m, h} \mu_{mh} (\log \pi_{mh} - \log \pi'_{mh}) - \log S + \log S'`."""
        difference = weighted(self.choices - infinite(other.choices), self._edges(), _ROUNDING)
        return difference.sum((-1, -2)) - self.log_trees + other.log_trees

    def _edges(self) -> Tensor:
        """The probability of each edge, the derivative of the log-partition by its score: (n_rows, n, n)."""
        is_differentiable = torch.is_grad_enabled() and self.rows.requires_grad
        with torch.inference_mode(False), torch.enable_grad():
            rows = self.rows.double().clone()
            rows = rows if is_differentiable else rows.detach().requires_grad_()
            *_, log_partition = _sums(rows, single_root=self.structure.single_root)
            (edges,) = torch.autograd.grad(log_partition.sum(), rows, create_graph=is_differentiable)
        # The derivative is a difference of probabilities; rounding may leave it below 0.
        return edges.clamp(0.0, 1.0)

    def _is_tree(
        self,
        heads: Tensor,  # shape: (n, n_words), int64
        row: Tensor,  # shape: (n,)
    ) -> Tensor:
        """Which rows of heads are trees: (n,)."""
        n_words = heads.shape[1]
        inside = heads.clamp(0, n_words - 1)
        is_right = (inside == heads).all(-1) & is_tree(inside)
        if self.structure.single_root:
            is_right = is_right & ((heads == torch.arange(n_words, device=heads.device)).sum(-1) == 1)
        if self.structure.lengths is not None:
            lengths = self.structure.lengths[row].unsqueeze(-1)
            is_padding = torch.arange(n_words, device=heads.device) >= lengths
            is_right = is_right & torch.where(is_padding, heads == 0, heads < lengths).all(-1)
        return is_right


def _sums(
    rows: Tensor,  # shape: (n_rows, n, n)
    *,
    single_root: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""The logarithms of :math:`\pi`, (n_rows, n, n), of S, (n_rows,), and of Z, (n_rows,)."""
    scores = finite(rows.double())
    totals = scores.logsumexp(-1)
    choices = scores.log_softmax(-1)
    if single_root:
        log_trees = log_sum_of_trees(choices, choices.diagonal(dim1=-2, dim2=-1))
    else:
        root = choices.new_full((len(choices), choices.shape[-1] + 1), FORBIDDEN)
        root[:, 0] = 0.0
        log_trees = log_sum_of_trees(_with_root_node(choices), root)
    return choices, log_trees, log_trees + totals.sum(-1)


def _with_root_node(
    choices: Tensor,  # shape: (n_rows, n, n), the root on the diagonal
) -> Tensor:
    """The graph with the root as node 0, and word m as node m + 1: (n_rows, n + 1, n + 1)."""
    root = choices.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    is_loop = torch.eye(choices.shape[-1], dtype=torch.bool, device=choices.device)
    graph = torch.cat([root, choices.masked_fill(is_loop, FORBIDDEN)], -1)
    return functional.pad(graph, (0, 0, 1, 0), value=FORBIDDEN)


def _with_root(
    choices: Tensor,  # shape: (n_rows, n, n), the root on the diagonal
    root: Tensor,  # shape: (n_rows,)
) -> Tensor:
    """The scores that allow trees with this word at the root, and no other: (n_rows, n, n)."""
    n = choices.shape[-1]
    is_loop = torch.eye(n, dtype=torch.bool, device=choices.device)
    is_root = (torch.arange(n, device=root.device) == root.unsqueeze(-1)).unsqueeze(-1)
    return torch.where(is_root == is_loop, choices, FORBIDDEN)
