r"""Sums over the spanning trees of a graph, by eliminating one node after another.

A node i points to node j with weight :math:`w_{ij}`. Eliminating node k redirects edges into k to the nodes k points to,

.. math:: w'_{ij} = w_{ij} + w_{ik} w_{kj} / d_k, \quad d_k = \sum_j w_{kj},

and divides the sum over all trees by :math:`d_k`. This is Gaussian elimination on the matrix of the matrix-tree theorem, but
without subtractions. It therefore stays accurate where nodes almost form a closed cycle, and works with log-weights.
Undoing it node by node draws a tree.

References:
    - Structured prediction models via the matrix-tree theorem (Koo, Globerson, Carreras & Collins, 2007), the sums,
      https://aclanthology.org/D07-1015
    - Regenerative analysis and steady state distributions for Markov chains (Grassmann, Taksar & Heyman, 1985), the
      elimination without subtractions, https://doi.org/10.1287/opre.33.5.1107
    - Efficient sampling of dependency structures (Zmigrod, Vieira & Cotterell, 2021), on other ways to draw trees,
      https://arxiv.org/abs/2109.06521
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.structures.log_space import draw, finite, forbidden


def log_sum_of_trees(
    weights: Tensor,  # shape: (n_graphs, n, n), logarithms; the diagonal is ignored
    root: Tensor,  # shape: (n_graphs, n), logarithms
) -> Tensor:
    r"""Log of the sum over roots r, and over trees T in which all nodes point towards r: (n_graphs,).

    .. math:: \log \sum_r \rho_r \sum_T \prod_{(i, j) \in T} w_{ij}

    >>> weights = torch.tensor([[[0.0, 2.0], [3.0, 0.0]]])
    >>> log_sum_of_trees(weights.log(), torch.tensor([[1.0, 10.0]]).log()).exp()  # 1 * 3 + 10 * 2
    tensor([23.])
    """
    while weights.shape[1] > 1:
        to_last = weights[:, :-1, -1]
        weights, _, total = _without_last(weights)
        # Multiply by the total instead of dividing: a node without outgoing edges may still be the root.
        root = _log_add(root[:, :-1] + total, to_last + root[:, -1:])
    return root[:, 0]


def draw_trees(
    weights: Tensor,  # shape: (n_graphs, n, n), logarithms; the diagonal is ignored
    root: Tensor,  # shape: (n_graphs, n), logarithms
    n_draws: int,
    generator: torch.Generator | None,
) -> Tensor:
    r"""Draw roots and trees in proportion to the terms of `log_sum_of_trees`, as heads: (n_graphs, n_draws, n).

    The root is its own head. Eliminating all nodes takes :math:`O(n^3)` once; undoing it, :math:`O(n^2 \log n)` per draw.

    After the elimination of k, an edge from i to j stands for an edge that was there before, :math:`w_{ij}`, or for the path
    through k, :math:`w_{ik} p_{kj}` with :math:`p_{kj} = w_{kj} / d_k`. Draw which one, for each edge of a tree without k.
    Let S be the nodes whose edges lead through k, and C those that still reach the root if these edges are removed. Summed
    over where the edges of S end, the trees without k have a weight proportional to :math:`\sum_{j \in C} p_{kj}`. So let
    all of S point to k, and k to a node of C drawn from :math:`p_k`. If k is drawn as the root, the previous root points
    to k as well.
    """
    n_graphs, n, _ = weights.shape
    graph = _Eliminated.of(weights, root)
    #: For each node, its head, and the node through which its edge will lead; n if it is an edge of the whole graph.
    heads, via = (torch.zeros(n_graphs, n_draws, n, dtype=torch.int64, device=weights.device) for _ in range(2))
    top = heads[..., :1]
    for k in range(1, n):
        uniform = torch.rand(n_graphs, n_draws, k + 3, dtype=torch.float64, device=weights.device, generator=generator)
        is_top = uniform[..., :1] < graph.becomes_root[:, k].unsqueeze(1).expand(-1, n_draws, -1).gather(-1, top)
        node = torch.arange(k, device=weights.device)
        is_through = torch.where(node == top, is_top, via[..., :k] == k)
        is_cut = _has_above(is_through, heads[..., :k]) & ~is_top
        probs = graph.onward[:, k, :k].unsqueeze(1).masked_fill(is_cut, -torch.inf).softmax(-1)
        head = draw(probs.flatten(0, 1), uniform[..., 1:2].flatten(0, 1).contiguous()).view(n_graphs, n_draws, 1)
        through = graph.draw_into(k, uniform[..., 3:])
        via[..., :k] = torch.where(is_through, through, via[..., :k])
        via[..., k] = graph.draw_from(k, head, uniform[..., 2:3])
        heads[..., :k] = torch.where(is_through, k, heads[..., :k])
        heads[..., k : k + 1] = torch.where(is_top, k, head)
        top = torch.where(is_top, k, top)
    return heads


@dataclass(frozen=True)
class _Eliminated:
    """What each step of the elimination replaced: row or column k holds the weights when k was the last node."""

    original: Tensor  # shape: (n_graphs, n, n), log-weights
    into: Tensor  # shape: (n_graphs, n, n), of edges from i to k, for i < k
    onward: Tensor  # shape: (n_graphs, n, n), log-probabilities of the edges from k to j, for j < k
    becomes_root: Tensor  # shape: (n_graphs, n, n), the probability of root k, given that i is the root without k

    @classmethod
    def of(cls, weights: Tensor, root: Tensor) -> _Eliminated:
        """Eliminate all nodes but the first."""
        original = weights
        into, onward, becomes_root = (torch.zeros_like(weights) for _ in range(3))
        for k in range(weights.shape[1] - 1, 0, -1):
            into[:, :k, k] = to_last = weights[:, :-1, -1]
            weights, onward[:, k, :k], total = _without_last(weights)
            stays, moves = root[:, :-1] + total, to_last + root[:, -1:]
            becomes_root[:, k, :k] = (moves - stays).sigmoid()
            root = torch.logaddexp(stays, moves)
        return cls(original, into, onward, becomes_root)

    def draw_into(
        self,
        k: int,
        uniform: Tensor,  # shape: (n_graphs, n_draws, k)
    ) -> Tensor:
        """The next node through which edges from 0, ..., k - 1 to k lead, or n if there is none: (n_graphs, n_draws, k)."""
        terms = self.into[:, :k, k + 1 :] + self.onward[:, k + 1 :, k].unsqueeze(1)
        probs = torch.cat([terms, self.original[:, :k, k : k + 1]], -1).softmax(-1)
        drawn = draw(probs.flatten(0, 1), uniform.transpose(1, 2).flatten(0, 1).contiguous()) + (k + 1)
        return drawn.view(len(uniform), k, uniform.shape[1]).transpose(1, 2)

    def draw_from(
        self,
        k: int,
        head: Tensor,  # shape: (n_graphs, n_draws, 1)
        uniform: Tensor,  # shape: (n_graphs, n_draws, 1)
    ) -> Tensor:
        """The next node through which edges from k lead, or n if there is none: (n_graphs, n_draws)."""
        (n_graphs, n_draws, _), n = head.shape, self.into.shape[1]
        later = self.onward[:, k + 1 :].gather(2, head.transpose(1, 2).expand(-1, n - k - 1, -1)).transpose(1, 2)
        direct = self.original[:, k].unsqueeze(1).expand(-1, n_draws, -1).gather(2, head)
        probs = torch.cat([self.into[:, k, k + 1 :].unsqueeze(1) + later, direct], -1).softmax(-1)
        return (draw(probs.flatten(0, 1), uniform.flatten(0, 1).contiguous()) + (k + 1)).view(n_graphs, n_draws)


def _has_above(
    is_marked: Tensor,  # shape: (*lead, n)
    heads: Tensor,  # shape: (*lead, n)
) -> Tensor:
    """Whether each node, or one on its path to the root, is marked: (*lead, n)."""
    for _ in range(heads.shape[-1].bit_length()):  # doubles the distance each time
        is_marked = is_marked | is_marked.gather(-1, heads)
        heads = heads.gather(-1, heads)
    return is_marked


def is_tree(
    heads: Tensor,  # shape: (m, n), int64; a node that is its own head is a root
) -> Tensor:
    """Whether every node has a path to a root: (m,).

    >>> is_tree(torch.tensor([[0, 0, 1], [1, 0, 2]]))
    tensor([ True, False])
    """
    above = heads
    for _ in range(heads.shape[1].bit_length()):  # doubles the distance each time
        above = above.gather(1, above)
    return (heads.gather(1, above) == above).all(-1)


def _without_last(
    weights: Tensor,  # shape: (n_graphs, n, n)
) -> tuple[Tensor, Tensor, Tensor]:
    """Eliminate the last node; returns the graph, the node's outgoing log-probabilities, and its total, (n_graphs, 1)."""
    last = weights[:, -1, :-1]
    # Not `last - total`: these must be valid probabilities even if all edges are forbidden; which ones does not matter.
    onward = last.log_softmax(-1)
    others = _log_add(weights[:, :-1, :-1], weights[:, :-1, -1:] + onward.unsqueeze(1))
    return others, onward, last.logsumexp(-1, keepdim=True)


def _log_add(a: Tensor, b: Tensor) -> Tensor:
    """Like `torch.logaddexp`, whose second derivative is NaN if one argument is negligible compared to the other."""
    if not (a.requires_grad or b.requires_grad):
        return torch.logaddexp(a, b)
    return torch.stack([a, b]).logsumexp(0)


def log_sum_of_heads(
    scores: Tensor,  # shape: (n_rows, n, n), of heads, the root on the diagonal
    *,
    single_root: bool,
) -> Tensor:
    """Log of the sum over all dependency trees: (n_rows,), float64."""
    return log_sum_of_trees(*_graph(scores, single_root=single_root))


def sample_heads(
    scores: Tensor,  # shape: (n_rows, n, n), of heads, the root on the diagonal
    n: int,
    generator: torch.Generator | None,
    *,
    single_root: bool,
) -> Tensor:
    """Draw n independent dependency trees per row: (n, n_rows, n_words)."""
    heads = draw_trees(*_graph(scores, single_root=single_root), n, generator).transpose(0, 1)
    if single_root:
        return heads
    heads = heads[..., 1:] - 1
    return torch.where(heads < 0, torch.arange(heads.shape[-1], device=heads.device), heads)


def _graph(
    scores: Tensor,  # shape: (n_rows, n, n), the root on the diagonal
    *,
    single_root: bool,
) -> tuple[Tensor, Tensor]:
    """Log-weights of edges and roots; without a single root, the root is a node of its own, and word m is node m + 1."""
    choices = finite(scores.double())
    at_root = choices.diagonal(dim1=-2, dim2=-1)
    if single_root:
        return choices, at_root
    is_loop = torch.eye(choices.shape[-1], dtype=torch.bool, device=choices.device)
    never = forbidden(choices.dtype)
    words = torch.cat([at_root.unsqueeze(-1), choices.masked_fill(is_loop, never)], -1)
    weights = torch.nn.functional.pad(words, (0, 0, 1, 0), value=never)
    root = torch.nn.functional.pad(weights.new_zeros(len(weights), 1), (0, weights.shape[-1] - 1), value=never)
    return weights, root
