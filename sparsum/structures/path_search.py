"""The best paths of a graph, and samples of paths, level by level."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsum.structures.dag import Graph
from sparsum.structures.log_space import finite
from sparsum.structures.path_sums import tables, transitions
from sparsum.tensors import first_k


def best_paths(
    scores: Tensor,  # shape: (n_rows, n_edges), float64, without -inf
    graph: Graph,
    starts: Tensor,  # shape: (n_rows,)
    k: int,
) -> Tensor:
    """The k best paths from a vertex to the sink, best first: (n_rows, min(k, number of paths), longest).

    They are edges, and the number of edges after the sink. If fewer paths start at a row's vertex than at the source, the
    last one is repeated.
    """
    n_rows = len(scores)
    k = min(k, graph.n_paths[graph.source])
    values = scores.new_full((n_rows, graph.n_vertices, k), -torch.inf)
    values[:, graph.sink, 0] = 0.0
    choices = torch.full(values.shape, graph.n_edges * k, dtype=torch.int64, device=scores.device)  # edge * k + rank
    blocks = zip(graph.leaving, graph.block_sizes, tables(scores, graph.leaving, -torch.inf), strict=True)
    for block, n_paths, terms in blocks:
        ways = values.index_select(1, block.ends.flatten()).unflatten(1, block.ends.shape) + terms.unsqueeze(-1)
        value, slot = first_k(ways.flatten(2), min(k, n_paths), 2)
        edges = block.edges.expand(n_rows, -1, -1).gather(2, slot // k)
        missing = (0, k - value.shape[-1])
        values.index_copy_(1, block.vertices, pad(value, missing, value=-torch.inf))
        choices.index_copy_(1, block.vertices, pad(edges * k + slot % k, missing))
    row = torch.arange(n_rows, device=scores.device)
    n_found = (values[row, starts] > -torch.inf).sum(-1, keepdim=True).clamp_min(1)
    rank = torch.minimum(torch.arange(k, device=scores.device), n_found - 1)
    vertex, found, flat = starts.unsqueeze(-1).expand_as(rank), [], choices.flatten(1)
    for _ in range(graph.longest):
        choice = flat.gather(1, vertex * k + rank)
        found.append(choice // k)
        vertex, rank = graph.following(found[-1]), choice % k
    return torch.stack(found, -1)


def sample_paths(
    scores: Tensor,  # shape: (n_rows, n_edges), float64
    graph: Graph,
    starts: Tensor,  # shape: (n_rows,)
    n: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Draw n independent paths per row, edge by edge: (n, n_rows, longest), with the number of edges after the sink."""
    probs = transitions(finite(scores), graph)[1]
    order = graph.tails.argsort(stable=True)
    ends = pad(probs.index_select(1, order).cumsum(1), (1, 0))  # the edges of a vertex take a total of 1
    vertices = torch.arange(graph.n_vertices, device=scores.device)
    first, last = (torch.searchsorted(graph.tails[order], vertices, right=right) for right in (False, True))
    order = pad(order, (0, 1), value=graph.n_edges)
    vertex, found = starts.unsqueeze(-1).expand(-1, n), []
    for _ in range(graph.longest):
        uniform = torch.rand(len(scores), n, dtype=torch.float64, device=scores.device, generator=generator)
        low, high = ends.gather(1, first[vertex]), ends.gather(1, last[vertex])
        # A sum that rounds up to the end would fall beyond the last edge with mass.
        target = torch.minimum(low + uniform * (high - low), torch.nextafter(high, low))
        place = torch.searchsorted(ends[:, 1:].contiguous(), target, right=True)
        place = torch.minimum(torch.maximum(place, first[vertex]), last[vertex] - 1)
        found.append(torch.where(vertex == graph.sink, graph.n_edges, order[place.clamp_min(0)]))
        vertex = graph.following(found[-1])
    return torch.stack(found, -1).transpose(0, 1)
