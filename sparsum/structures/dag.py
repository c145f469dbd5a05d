"""Directed acyclic graphs, prepared for dynamic programs that treat all vertices of a level at once.

The level of a vertex is the length of its longest path to the sink, so that every edge leads to a lower level. A program
goes through the levels up or down, and combines the edges of each vertex: those that leave it, or those that enter it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsum.tensors import tensor_cache

#: A level whose table of edges would be larger than this, and mostly empty, is split by the number of edges of its vertices.
_LARGE = 1024


class Block(NamedTuple):
    """Some vertices of a level, and the edges that leave or enter them."""

    vertices: Tensor  # shape: (n,)
    edges: Tensor  # shape: (n, degree), the number of all edges where a vertex has fewer
    ends: Tensor  # shape: (n, degree), the other ends of the edges


@dataclass(frozen=True)
class Tables:
    """The edges at vertices, in the order in which a program goes through the levels."""

    blocks: tuple[Block, ...]
    edges: Tensor  # shape: (n_slots,), those of all blocks

    @classmethod
    def of(cls, blocks: Iterable[Block]) -> Tables:
        """Concatenate the edges of blocks."""
        blocks = tuple(blocks)
        return cls(blocks, torch.cat([block.edges.flatten() for block in blocks]))

    def on(self, device: torch.device) -> Tables:
        """The tables with their tensors on a device."""
        return Tables(tuple(Block(*(t.to(device) for t in block)) for block in self.blocks), self.edges.to(device))


class Slots(NamedTuple):
    """The tables of the edges that leave vertices, concatenated; the last vertex is the sink, with one slot for no edge."""

    edges: Tensor  # shape: (n_slots,)
    of_edge: Tensor  # shape: (n_edges,), the slot of each edge
    of_vertex: Tensor  # shape: (n_vertices,), the first slot of each vertex
    place: Tensor  # shape: (n_vertices,), where each vertex is among those of all tables

    @classmethod
    def of(cls, blocks: tuple[Block, ...], sink: int, n_edges: int) -> Slots:
        """Concatenate the tables of all vertices but the sink."""
        blocks = (*blocks, Block(*(torch.tensor(value, device="cpu") for value in ([sink], [[n_edges]], [[sink]]))))
        edges = torch.cat([block.edges.flatten() for block in blocks])
        vertices = torch.cat([block.vertices for block in blocks])
        degree = torch.cat([torch.full_like(block.vertices, block.edges.shape[1]) for block in blocks])
        order, of_edge = vertices.argsort(), torch.zeros(n_edges + 1, dtype=torch.int64, device="cpu")
        of_edge[edges] = torch.arange(len(edges), device="cpu")
        return cls(edges, of_edge[:-1].clone(), (degree.cumsum(0) - degree)[order], order)


@dataclass(frozen=True)
class Counts:
    """The numbers of paths, as ints of any size, which are counted when they are needed."""

    leaving: Tables  # on the CPU
    n_vertices: int
    sink: int
    n_edges: int

    @cached_property
    def n_paths(self) -> list[int]:
        """The number of paths from each vertex to the sink."""
        counts = [0] * self.n_vertices
        counts[self.sink] = 1
        for block in self.leaving.blocks:
            for vertex, edges, ends in zip(*(tensor.tolist() for tensor in block), strict=True):
                counts[vertex] = sum(counts[end] for edge, end in zip(edges, ends, strict=True) if edge < self.n_edges)
        return counts

    @cached_property
    def block_sizes(self) -> list[int]:
        """The largest number of paths from a vertex of each block of `leaving`."""
        return [max(self.n_paths[vertex] for vertex in block.vertices.tolist()) for block in self.leaving.blocks]


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph in which every vertex lies on a path from the source to the sink."""

    tails: Tensor  # shape: (n_edges,)
    heads: Tensor  # shape: (n_edges,)
    parts: Tensor | None  # shape: (n_edges,), the part of each edge; None if edges are the parts
    source: int
    sink: int
    n_vertices: int
    longest: int  # the largest number of edges of a path
    leaving: Tables  # in the order of levels, from the sink up
    entering: Tables  # from the source down
    slots: Slots
    counts: Counts

    @classmethod
    def of(
        cls,
        edges: Tensor,  # shape: (n_edges, 2), int64, on the CPU, in topological order; vertices are 0 to n_vertices - 1
        parts: Tensor | None = None,  # shape: (n_edges,)
    ) -> Graph:
        """The graph with the tail of the first edge as its source, and the head of the last edge as its sink."""
        with torch.inference_mode(False):  # tensors created in inference mode cannot be used in autograd
            return cls._of(edges.clone(), None if parts is None else parts.clone())

    @classmethod
    def _of(cls, edges: Tensor, parts: Tensor | None) -> Graph:
        tails, heads = edges.unbind(-1)
        n_vertices = int(edges.max()) + 1
        levels = [0] * n_vertices
        for tail, head in reversed(edges.tolist()):
            levels[tail] = max(levels[tail], levels[head] + 1)
        level = torch.tensor(levels, device="cpu")
        by_level = level.argsort(stable=True).split(level.bincount().tolist())
        out, into = _Incidence.of(tails, heads), _Incidence.of(heads, tails)
        leaving = Tables.of(block for vertices in by_level[1:] for block in out.blocks(vertices))
        entering = Tables.of(block for vertices in by_level[-2::-1] for block in into.blocks(vertices))
        source, sink = int(tails[0]), int(heads[-1])
        slots = Slots.of(leaving.blocks, sink, len(edges))
        counts = Counts(leaving, n_vertices, sink, len(edges))
        return cls(tails, heads, parts, source, sink, n_vertices, levels[source], leaving, entering, slots, counts)

    @property
    def n_edges(self) -> int:
        """The number of edges."""
        return len(self.tails)

    def on(self, device: torch.device) -> Graph:
        """The graph with its tensors on a device."""
        return self if device.type == "cpu" else _moved(self, device)

    def following(
        self,
        edges: Tensor,  # shape: (*,), where the number of edges stands for none
    ) -> Tensor:
        """The vertices that edges lead to, and the sink for none: (*,)."""
        return pad(self.heads, (0, 1), value=self.sink)[edges]

    def contains(
        self,
        edges: Tensor,  # shape: (n, longest), where the number of edges stands for none
        start: Tensor,  # shape: (n,)
    ) -> Tensor:
        """Whether edges form paths from the given vertices to the sink, with none after the sink: (n,)."""
        ends = torch.cat([start.unsqueeze(-1), self.following(edges)], -1)
        tails = pad(self.tails, (0, 1), value=self.sink)[edges]
        return (tails == ends[:, :-1]).all(-1) & (ends[:, -1] == self.sink)


@dataclass(frozen=True)
class _Incidence:
    """The edges at each vertex, by one of their ends."""

    far: Tensor  # shape: (n_edges,), the other ends
    order: Tensor  # shape: (n_edges,), the edges in the order of their vertices
    degree: Tensor  # shape: (n_vertices,)
    start: Tensor  # shape: (n_vertices,), where the edges of each vertex start in this order

    @classmethod
    def of(cls, near: Tensor, far: Tensor) -> _Incidence:
        degree = near.bincount(minlength=int(max(near.max(), far.max())) + 1)
        return cls(far, near.argsort(stable=True), degree, degree.cumsum(0) - degree)

    def blocks(
        self,
        vertices: Tensor,  # shape: (n,)
    ) -> Iterator[Block]:
        """A table of the edges at some vertices; several tables if a single one would be mostly empty."""
        counts = self.degree[vertices]
        groups = [vertices]
        if int(counts.max()) * len(vertices) > max(_LARGE, 4 * int(counts.sum())):
            size = counts.clamp_min(1).log2().ceil()
            groups = [vertices[size == value] for value in size.unique()]
        n_edges = len(self.far)
        for group in groups:
            slot = torch.arange(int(self.degree[group].max()), device="cpu")
            is_there = slot < self.degree[group].unsqueeze(-1)
            found = self.order[torch.where(is_there, self.start[group].unsqueeze(-1) + slot, 0)]
            yield Block(group, torch.where(is_there, found, n_edges), self.far[found])


@tensor_cache
def _moved(graph: Graph, device: torch.device) -> Graph:
    return dataclasses.replace(
        graph,
        tails=graph.tails.to(device),
        heads=graph.heads.to(device),
        parts=None if graph.parts is None else graph.parts.to(device),
        leaving=graph.leaving.on(device),
        entering=graph.entering.on(device),
        slots=Slots(*(tensor.to(device) for tensor in graph.slots)),
    )
