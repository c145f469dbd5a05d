r"""Sums over the paths of a graph, and their derivatives, level by level.

.. math::
    b_v = \log \sum_{e : v \to w} \exp(t_e + b_w), \quad p_e = \exp(t_e + b_w - b_v), \quad
    m_w = \sum_{e : v \to w} m_v p_e, \quad \mu_e = m_v p_e

From the sink up, b is the log-sum over all paths from a vertex, and p the probability of each of its edges. From the source
down, m is the probability of a vertex, and the derivative :math:`\mu` of the log-sum is that of an edge. Derivatives are
written out instead of left to autograd: they take one pass, not a graph of many nodes for each level.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparsum.structures.dag import Block, Graph, Tables
from sparsum.structures.log_space import finite, infinite


def log_sum_of_paths(
    scores: Tensor,  # shape: (n_rows, n_edges), float64
    graph: Graph,
    starts: Tensor,  # shape: (n_rows,)
) -> Tensor:
    """Log of the sum over paths from a vertex to the sink, -inf if all are forbidden; twice differentiable: (n_rows,)."""
    total: Tensor = _LogSum.apply(finite(scores), graph, starts)[0]
    return infinite(total)


def transitions(
    scores: Tensor,  # shape: (n_rows, n_edges), finite
    graph: Graph,
) -> tuple[Tensor, Tensor]:
    """The log-sum from each vertex, (n_rows, n_vertices), and the probability of each edge there, (n_rows, n_edges)."""
    n_rows = len(scores)
    values = scores.new_zeros(n_rows, graph.n_vertices)
    log_probs = []
    for block, terms in tables(scores, graph.leaving, -torch.inf):
        ways = terms + _gather(values, block.ends)
        log_probs.append(ways.log_softmax(-1))
        # The larger of the two is the same entry, so that nothing cancels.
        values.index_copy_(1, block.vertices, ways.amax(-1) - log_probs[-1].amax(-1))
    joined = torch.cat([each.flatten(1) for each in log_probs], 1)
    return values, joined.index_select(1, graph.slots.of_edge).exp()


class _LogSum(torch.autograd.Function):
    """The log-sum from a vertex, and the probabilities of edges, which are not differentiable."""

    @staticmethod
    def forward(scores: Tensor, graph: Graph, starts: Tensor) -> tuple[Tensor, Tensor]:
        values, probs = transitions(scores.detach(), graph)
        return values.gather(1, starts.unsqueeze(-1)).squeeze(-1), probs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Graph, Tensor], output: tuple[Tensor, Tensor]) -> None:
        scores, ctx.graph, starts = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(scores, starts, output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        scores, starts, probs = ctx.saved_tensors
        marginals: Tensor = _Marginals.apply(scores, probs, ctx.graph, starts)
        return gradient.unsqueeze(-1) * marginals, None, None


class _Marginals(torch.autograd.Function):
    """The probability of each edge, as a function of the scores."""

    @staticmethod
    def forward(scores: Tensor, probs: Tensor, graph: Graph, starts: Tensor) -> Tensor:
        return _masses(probs, graph, starts).index_select(1, graph.tails) * probs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Graph, Tensor], output: Tensor) -> None:
        _, probs, ctx.graph, starts = inputs
        ctx.save_for_backward(probs, starts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """The Hessian of the log-sum is symmetric: multiply by it, as the derivative in the direction of the gradient."""
        probs, starts = ctx.saved_tensors
        return _derivative(gradient, probs, ctx.graph, starts), None, None, None


def _masses(probs: Tensor, graph: Graph, starts: Tensor) -> Tensor:
    """The probability of each vertex: (n_rows, n_vertices)."""
    masses = _one_hot(probs, graph, starts)
    for block, weights in tables(probs, graph.entering, 0.0):
        inflow = (weights * _gather(masses, block.ends)).sum(-1)
        masses.index_add_(1, block.vertices, inflow)
    return masses


def _derivative(
    direction: Tensor,  # shape: (n_rows, n_edges)
    probs: Tensor,  # shape: (n_rows, n_edges)
    graph: Graph,
    starts: Tensor,
) -> Tensor:
    """The derivative of the marginals if the scores change in a direction: (n_rows, n_edges)."""
    masses, values = _masses(probs, graph, starts), probs.new_zeros(len(probs), graph.n_vertices)
    up = zip(tables(probs, graph.leaving, 0.0), tables(direction, graph.leaving, 0.0), strict=True)
    for (block, weights), (_, changes) in up:
        values.index_copy_(1, block.vertices, (weights * (changes + _gather(values, block.ends))).sum(-1))
    change = probs * (direction + values.index_select(1, graph.heads) - values.index_select(1, graph.tails))
    moved = torch.zeros_like(masses)
    down = zip(tables(probs, graph.entering, 0.0), tables(change, graph.entering, 0.0), strict=True)
    for (block, weights), (_, changes) in down:
        inflow = weights * _gather(moved, block.ends) + changes * _gather(masses, block.ends)
        moved.index_copy_(1, block.vertices, inflow.sum(-1))
    return moved.index_select(1, graph.tails) * probs + masses.index_select(1, graph.tails) * change


def _one_hot(probs: Tensor, graph: Graph, starts: Tensor) -> Tensor:
    """1 at the vertex where each row starts: (n_rows, n_vertices)."""
    return probs.new_zeros(len(probs), graph.n_vertices).scatter_(1, starts.unsqueeze(-1), 1.0)


def tables(values: Tensor, at: Tables, fill: float) -> Iterator[tuple[Block, Tensor]]:
    """Blocks, and the values of their edges, (n_rows, n, degree) each; gathered at once, which takes one launch."""
    found = torch.nn.functional.pad(values, (0, 1), value=fill).index_select(1, at.edges)
    pieces = found.split([block.edges.numel() for block in at.blocks], 1)
    for block, piece in zip(at.blocks, pieces, strict=True):
        yield block, piece.view(len(values), *block.edges.shape)


def _gather(values: Tensor, ends: Tensor) -> Tensor:
    """The values at the ends of edges: (n_rows, n, degree)."""
    return values.index_select(1, ends.flatten()).view(len(values), *ends.shape)
