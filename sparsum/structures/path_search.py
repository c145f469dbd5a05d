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
    n_rows, n_vertices = len(scores), graph.n_vertices
    sizes = [1] * len(graph.leaving.blocks)  # there is a best path from every vertex: no need to count
    if k > 1:
        k, sizes = min(k, graph.counts.n_paths[graph.source]), graph.counts.block_sizes
    if n_rows == 0:
        return torch.zeros(0, k, graph.longest, dtype=torch.int64, device=scores.device)
    values = scores.new_full((n_rows, n_vertices, k), -torch.inf)
    values[:, graph.sink, 0] = 0.0
    ways = []  # for each vertex of a block, slot * k + rank of its best continuations
    for (block, terms), n_paths in zip(tables(scores, graph.leaving, -torch.inf), sizes, strict=True):
        continued = values.index_select(1, block.ends.flatten()).view(n_rows, *block.ends.shape, k) + terms.unsqueeze(-1)
        value, way = first_k(continued.flatten(2), min(k, n_paths), 2)
        values[..., : value.shape[-1]].index_copy_(1, block.vertices, value)
        ways.append(way if way.shape[-1] == k else pad(way, (0, k - way.shape[-1])))
    ways.append(ways[0].new_zeros(n_rows, 1, k))
    way = torch.cat(ways, 1).index_select(1, graph.slots.place)  # shape: (n_rows, n_vertices, k)
    edges = graph.slots.edges[graph.slots.of_vertex.unsqueeze(-1) + way // k].flatten(1)
    following = graph.following(edges) * k + (way % k).flatten(1)  # vertex * k + rank
    n_found = (values.gather(1, starts.view(-1, 1, 1).expand(-1, 1, k)) > -torch.inf).sum(-1).clamp_min(1)
    rank = torch.minimum(torch.arange(k, device=scores.device), n_found - 1)
    states = [starts.unsqueeze(-1) * k + rank]
    for _ in range(graph.longest - 1):
        states.append(following.gather(1, states[-1]))
    return edges.gather(1, torch.cat(states, 1)).view(n_rows, graph.longest, k).transpose(1, 2)


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
