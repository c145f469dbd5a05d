"""Pulling for the paths of a graph: flows along its edges are split into paths, continuously. See docs/pulling.md.

The flows of distributions over paths are those that are not negative and are conserved at every vertex, so that a face is a
set of edges without flow. If the probabilities of the parts determine those of the edges, both polytopes are the same up to
an affine map, and what is a continuous split of one is a continuous split of the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsum.structures import chart
from sparsum.structures.dag import Graph
from sparsum.structures.path_search import best_paths
from sparsum.structures.pulling import NEGLIGIBLE, ZERO, Decomposition, direction

#: The largest number of entries of the matrix from which flows are computed.
_MOST_ENTRIES = 2**22


@dataclass(frozen=True, eq=False)
class FlowMap:
    """The flow of each edge as an affine function of the probabilities of the parts."""

    weights: Tensor  # shape: (n_edges, n_parts), float64
    offset: Tensor  # shape: (n_edges,)

    @classmethod
    def of(cls, graph: Graph, parts: Tensor, n_parts: int) -> FlowMap | None:
        """By least squares, on the CPU; None if the parts do not determine the flows, or if the matrix would be too large.

        The flows f are those with A f = b, where A has a row for each part, the sum of its edges, and one for each vertex
        but the sink, what leaves it minus what enters it: 1 at the source, 0 elsewhere.
        """
        n_edges, n_rows = graph.n_edges, n_parts + 1 + graph.n_vertices
        if n_edges * n_rows > _MOST_ENTRIES:
            return None
        matrix = torch.zeros(n_rows, n_edges, dtype=torch.float64, device="cpu")
        edge = torch.arange(n_edges, device="cpu")
        matrix[parts, edge] = 1.0
        matrix[n_parts + 1 + graph.tails, edge] += 1.0
        matrix[n_parts + 1 + graph.heads, edge] -= 1.0
        matrix[n_parts] = 0.0  # edges without a part
        if int(torch.linalg.matrix_rank(matrix)) < n_edges:
            return None
        inverse = torch.linalg.pinv(matrix)
        source, sink = n_parts + 1 + graph.source, n_parts + 1 + graph.sink
        return cls(inverse[:, :n_parts], inverse[:, source] - inverse[:, sink])

    def flows(
        self,
        mean: Tensor,  # shape: (n_rows, n_parts)
    ) -> Tensor:
        """The flow of each edge: (n_rows, n_edges)."""
        return mean @ self.weights.to(mean.device).T + self.offset.to(mean.device)


def pull_paths(
    flows: Tensor,  # shape: (n_rows, n_edges), float64
    graph: Graph,
    starts: Tensor,  # shape: (n_rows,)
) -> Decomposition:
    """Split flows into paths: take the best one for a fixed direction as often as it fits, then the best of the rest."""
    left = torch.where(flows > ZERO, flows, 0.0)
    ids, mass = torch.arange(len(flows), device=flows.device), flows.new_ones(len(flows))
    order = direction(graph.n_edges, flows.device)
    taken: list[tuple[Tensor, Tensor, Tensor]] = []  # paths, their weights, and their rows
    while len(ids) or not taken:  # without rows, one step determines the shape of paths
        scores = chart.bounded(torch.where(left > 0, order, -torch.inf))
        paths = best_paths(scores, graph, starts[ids], 1).squeeze(1)
        step = pad(left, (0, 1), value=torch.inf).gather(1, paths).amin(-1)
        used = torch.zeros_like(pad(left, (0, 1))).scatter_(1, paths, 1.0)[:, :-1]
        taken.append((paths, step, ids))
        mass = mass - step
        left = torch.addcmul(left, step.unsqueeze(-1), used, value=-1)
        left = torch.where(left > ZERO, left, 0.0)
        is_left = ((mass > NEGLIGIBLE) & (step > 0)).nonzero().squeeze(-1)
        ids, mass, left = ids[is_left], mass[is_left], left[is_left]
    found, weights, row = (torch.cat(tensors) for tensors in zip(*taken, strict=True))
    return Decomposition.of(found, weights, row, len(flows))
