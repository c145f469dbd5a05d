r"""Sums over the spanning trees of a graph, by eliminating one node after another.

A node i points to node j with weight :math:`w_{ij}`. Eliminating node k redirects edges into k to the nodes k points to,

.. math:: w'_{ij} = w_{ij} + w_{ik} w_{kj} / d_k, \quad d_k = \sum_j w_{kj},

and divides the sum over all trees by :math:`d_k`. This is Gaussian elimination on the matrix of the matrix-tree theorem, but
without subtractions. It therefore stays accurate where nodes almost form a closed cycle, and works with log-weights.

References:
    - Structured prediction models via the matrix-tree theorem (Koo, Globerson, Carreras & Collins, 2007), the sums,
      https://aclanthology.org/D07-1015
    - Regenerative analysis and steady state distributions for Markov chains (Grassmann, Taksar & Heyman, 1985), the
      elimination without subtractions, https://doi.org/10.1287/opre.33.5.1107
    - Unbiased and efficient sampling of dependency trees (Stanojević, 2022), on drawing the root first,
      https://arxiv.org/abs/2205.12621
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.structures.log_space import FORBIDDEN, draw, finite

#: Rounding may leave up to this probability for an edge that no tree uses.
ROUNDING = 1e-13


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


def draw_heads(
    weights: Tensor,  # shape: (n_graphs, n, n), logarithms; all trees point to node 0
    uniform: Tensor,  # shape: (n_graphs, n - 1), float64
) -> Tensor:
    """Draw one tree for each graph, as the nodes that 1, 2, ... point to: (n_graphs, n - 1).

    Samples node by node: given the previous nodes, node i points to j with probability proportional to its weight times the
    probability that a random walk from j reaches node 0 before i. Then i and j are merged, which removes one node.
    """
    n_graphs, n, _ = weights.shape
    original = weights
    owner = torch.arange(n, device=weights.device).repeat(n_graphs, 1)  # the node that each was merged into
    heads = []
    for i in range(1, n):
        place = (owner - i + 1).clamp_min(0)  # in the remaining graph, of nodes 0, i, i + 1, ...
        probs = (original[:, i] + _log_reach(weights).gather(1, place)).softmax(-1)
        head = draw(probs, uniform[:, i - 1 : i])
        heads.append(head)
        weights = _merged(weights, place.gather(1, head))
        owner = torch.where(owner == i, owner.gather(1, head), owner)
    return torch.cat(heads, 1) if heads else owner[:, 1:]


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


def _log_reach(
    weights: Tensor,  # shape: (n_graphs, n, n)
) -> Tensor:
    """Log-probability that a random walk from each node reaches node 0 before node 1: (n_graphs, n)."""
    steps = []
    while weights.shape[1] > 2:
        weights, onward, _ = _without_last(weights)
        steps.append(onward)
    reach = torch.stack([torch.zeros_like(weights[:, 0, 0]), torch.full_like(weights[:, 0, 0], FORBIDDEN)], -1)
    for onward in reversed(steps):
        reach = torch.cat([reach, (onward + reach).logsumexp(-1, keepdim=True)], -1)
    return reach


def _merged(
    weights: Tensor,  # shape: (n_graphs, n, n)
    place: Tensor,  # shape: (n_graphs, 1)
) -> Tensor:
    """Merge node 1 into the node at ``place``, redirecting edges into node 1: (n_graphs, n - 1, n - 1)."""
    kept = torch.cat([weights[:, :1], weights[:, 2:]], 1)
    is_target = (torch.arange(weights.shape[-1], device=weights.device) == place).unsqueeze(1)
    kept = torch.where(is_target, torch.logaddexp(kept, kept[:, :, 1:2]), kept)
    return torch.cat([kept[:, :, :1], kept[:, :, 2:]], 2)


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
    choices = finite(scores.double())
    if single_root:
        return log_sum_of_trees(choices, choices.diagonal(dim1=-2, dim2=-1))
    root = choices.new_full((len(choices), choices.shape[-1] + 1), FORBIDDEN)
    root[:, 0] = 0.0
    return log_sum_of_trees(_with_root_node(choices), root)


def sample_heads(
    scores: Tensor,  # shape: (n_rows, n, n), of heads, the root on the diagonal
    n: int,
    generator: torch.Generator | None,
    *,
    single_root: bool,
) -> Tensor:
    """Draw n independent dependency trees per row: (n, n_rows, n_words).

    With a single root, the root is drawn first. Then the heads are drawn word by word, given those of the previous words.
    """
    n_rows, n_words, _ = scores.shape
    uniform = torch.rand((n_rows, n, n_words + 1), dtype=torch.float64, device=scores.device, generator=generator)
    choices = finite(scores.double()).repeat_interleave(n, 0)
    if single_root:
        probs = _root_probabilities(scores)
        root = draw(torch.where(probs > ROUNDING, probs, 0.0), uniform[:, :, 0])
        choices = _with_root(choices, root.flatten())
    heads = draw_heads(_with_root_node(choices), uniform[:, :, 1:].flatten(0, 1)) - 1
    word = torch.arange(n_words, device=heads.device)
    return torch.where(heads < 0, word, heads).reshape(n_rows, n, n_words).transpose(0, 1)


def _root_probabilities(scores: Tensor) -> Tensor:
    """The probability that each word is the single root, as the derivative of the log-sum: (n_rows, n)."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = scores.detach().double().clone().requires_grad_()
        (edges,) = torch.autograd.grad(log_sum_of_heads(leaf, single_root=True).sum(), leaf)
    return edges.diagonal(dim1=-2, dim2=-1)


def _with_root_node(
    choices: Tensor,  # shape: (n_rows, n, n), the root on the diagonal
) -> Tensor:
    """The graph with the root as node 0, and word m as node m + 1: (n_rows, n + 1, n + 1)."""
    root = choices.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    is_loop = torch.eye(choices.shape[-1], dtype=torch.bool, device=choices.device)
    graph = torch.cat([root, choices.masked_fill(is_loop, FORBIDDEN)], -1)
    return torch.nn.functional.pad(graph, (0, 0, 1, 0), value=FORBIDDEN)


def _with_root(
    choices: Tensor,  # shape: (n_rows, n, n), the root on the diagonal
    root: Tensor,  # shape: (n_rows,)
) -> Tensor:
    """Restrict the scores to trees in which only the given word is attached to the root: (n_rows, n, n)."""
    n = choices.shape[-1]
    is_loop = torch.eye(n, dtype=torch.bool, device=choices.device)
    is_root = (torch.arange(n, device=root.device) == root.unsqueeze(-1)).unsqueeze(-1)
    return torch.where(is_root == is_loop, choices, FORBIDDEN)
