"""Paths of a directed acyclic graph."""

from __future__ import annotations

import graphlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sparsum.structures.compact import AbstractCompact
from sparsum.structures.dag import Graph
from sparsum.structures.flow_pulling import FlowMap
from sparsum.structures.walks import AbstractWalks


class Paths(AbstractCompact, AbstractWalks):
    r"""The paths of a directed acyclic graph from its source to its sink, with a score for each edge.

    .. math:: a_z^\top t = \sum_{e \in z} t_{p(e)}, \quad p(e) \text{ the part of edge } e

    The source is the tail of the first edge, the sink the head of the last one. Scores have shape (*batch, n_parts): without
    ``parts``, one for each edge. Atoms are int64 edge indices in the order of the path, padded with -1: (n_atoms, longest).
    Different paths are different assignments, even if they have the same parts.

    >>> import sparsum as sp
    >>> diamond = Paths([(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)])  # 0 -> 1 -> 3, 0 -> 2 -> 3, and 0 -> 3
    >>> scores = torch.tensor([0.3, 0.1, 0.4, 0.5, 0.2])
    >>> diamond.topk(scores, 3)
    tensor([[ 0,  2],
            [ 1,  3],
            [ 4, -1]])
    >>> sp.Gibbs(scores, diamond).mean  # the probability of each edge
    tensor([0.3982, 0.3603, 0.3982, 0.3603, 0.2415])

    All rows share the graph; a score of -inf removes edges from a row. Best paths, sums and samples treat all vertices of a
    level at once, on the device of the scores: the number of steps is the length of the longest path. `sparsum.Gibbs` is
    exact, with two derivatives.

    Where the probabilities of the parts determine those of the edges, as they do without ``parts``, SparseMAP has the solver
    `sparsum.solvers.Pulled` by default, else `sparsum.solvers.ActiveSet`.

    Args:
        edges: the tail and the head of each edge, an int64 tensor of shape (n_edges, 2) or a list of pairs, in topological
            order: every edge into a vertex stands before all edges out of it. Vertices are any non-negative numbers. Several
            edges may join the same vertices.
        parts: the part of each edge, an int64 tensor or a list of ints; -1 for an edge without a score. A path must not use
            a part twice.

    Raises:
        TypeError: if ``edges`` or ``parts`` are not of ints.
        ValueError: if there are no edges, if they have a cycle or are not in topological order, if a vertex cannot be
            reached from the source or does not lead to the sink, or if a path uses a part twice.
    """

    def __init__(
        self,
        edges: Tensor | Sequence[Sequence[int]],  # shape: (n_edges, 2)
        parts: Tensor | Sequence[int] | None = None,  # shape: (n_edges,)
    ) -> None:
        self.edges = _as_ints("edges", edges)
        pairs = _compact(self.edges)
        given = None if parts is None else _checked_parts(_as_ints("parts", parts), pairs)
        self._n_parts = len(pairs) if given is None else int(given.max()) + 1
        # Edges without a part get the number of parts.
        self._graph = Graph.of(pairs, None if given is None else torch.where(given < 0, self._n_parts, given))
        self.is_fixed_size = _is_fixed_size(self._graph, self._n_parts)

    def __repr__(self) -> str:
        return f"Paths({self._graph.n_edges} edges, {self._n_parts} parts)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Paths):
            return NotImplemented
        ours, theirs = (s.path_parts(torch.arange(s._graph.n_edges, device="cpu")) for s in (self, other))
        return torch.equal(self.edges, other.edges) and torch.equal(ours, theirs)

    def __hash__(self) -> int:
        return hash((Paths, self.edges.shape, self._n_parts))

    @property
    def score_shape(self) -> tuple[int]:
        """(n_parts,)."""
        return (self._n_parts,)

    @property
    def graph(self) -> Graph:
        """The graph, with vertices numbered from 0."""
        return self._graph

    def path_atoms(
        self,
        paths: Tensor,  # shape: (n, longest)
        dtype: torch.dtype,
    ) -> Tensor:
        """Edges, and -1 for none: (n, longest)."""
        return torch.where(paths == self._graph.n_edges, -1, paths)

    def parts(
        self,
        atoms: Tensor,  # shape: (n_atoms, longest)
    ) -> Tensor:
        """The parts of the edges of each path, and the number of parts for none: (n_atoms, longest)."""
        return self.path_parts(self._edges(atoms))

    def contains(
        self,
        atoms: Tensor,  # shape: (n_atoms, longest)
    ) -> Tensor:
        """Whether atoms are edges from the source to the sink, one after the other, and -1 then: (n_atoms,)."""
        is_edge = (atoms == atoms.long()) & (atoms >= -1) & (atoms < self._graph.n_edges)
        edges = self._edges(torch.where(is_edge, atoms, -1))
        return is_edge.all(-1) & self._graph.on(atoms.device).contains(edges, self.starts(len(atoms), atoms.device))

    @property
    def can_pull(self) -> bool:
        """Whether the probabilities of the parts determine those of the edges."""
        return self._graph.parts is None or self._flow_map is not None

    def flows(
        self,
        mean: Tensor,  # shape: (n_rows, n_parts)
    ) -> Tensor:
        """The probabilities of edges, a linear function of those of parts: (n_rows, n_edges)."""
        return mean if self._flow_map is None else self._flow_map.flows(mean)

    @cached_property
    def _flow_map(self) -> FlowMap | None:
        return None if self._graph.parts is None else FlowMap.of(self._graph, self._graph.parts, self._n_parts)

    def _edges(self, atoms: Tensor) -> Tensor:
        return torch.where(atoms < 0, self._graph.n_edges, atoms.long())


def _as_ints(name: str, values: Any) -> Tensor:
    """An int64 tensor on the CPU, regardless of the default device."""
    try:
        tensor = torch.as_tensor(values, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must be an int64 tensor or a list of ints, got {values!r}"[:300]) from error
    if tensor.dtype != torch.int64 and tensor.numel():
        raise TypeError(f"{name} must be an int64 tensor or a list of ints, got {tensor.dtype}")
    return tensor.long().clone()


def _compact(edges: Tensor) -> Tensor:
    """Check edges, and number their vertices from 0."""
    if edges.ndim != 2 or edges.shape[1] != 2 or not len(edges):
        raise ValueError(f"edges must have shape (n_edges, 2), with at least one edge, got {tuple(edges.shape)}")
    if int(edges.min()) < 0:
        raise ValueError(f"edges must have vertices of at least 0, got {int(edges.min())}")
    pairs = [(tail, head) for tail, head in edges.tolist()]
    left: dict[int, int] = {}  # which edge is the first to leave a vertex
    for number, (tail, head) in enumerate(pairs):
        left.setdefault(tail, number)
        if head in left:
            raise ValueError(_why_not_sorted(pairs, number, left[head]))
    source, sink = pairs[0][0], pairs[-1][1]
    if unreachable := left.keys() - {head for _, head in pairs} - {source}:
        vertex = min(unreachable)
        raise ValueError(
            f"edges must not leave vertex {vertex}, which no edge enters: the source is the first tail, {source}"
        )
    if ends := {head for _, head in pairs} - left.keys() - {sink}:
        vertex = min(ends)
        raise ValueError(f"edges must not end in vertex {vertex}, which no edge leaves: the sink is the last head, {sink}")
    numbered: Tensor = edges.unique(return_inverse=True)[1]
    return numbered


def _why_not_sorted(pairs: list[tuple[int, int]], number: int, before: int) -> str:
    sorter: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter()
    for tail, head in pairs:
        sorter.add(head, tail)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        return f"edges must not have a cycle, got {' -> '.join(map(str, error.args[1]))}"
    vertex = pairs[number][1]
    return (
        f"edges must be in topological order: edge {number}, {pairs[number]}, enters vertex {vertex}, which edge {before}, "
        f"{pairs[before]}, has left before"
    )


def _checked_parts(parts: Tensor, edges: Tensor) -> Tensor:
    """Check the parts of edges."""
    if parts.shape != (len(edges),):
        raise ValueError(f"parts must have one entry for each edge, ({len(edges)},), got shape {tuple(parts.shape)}")
    if int(parts.min()) < -1 or int(parts.max()) < 0:
        low, high = int(parts.min()), int(parts.max())
        raise ValueError(f"parts must be at least 0, at least one of them, or -1 for none, got {low} to {high}")
    seen = [0] * (int(edges.max()) + 1)  # the parts of all paths to each vertex, as the bits of an int
    for number, ((tail, head), part) in enumerate(zip(edges.tolist(), parts.tolist(), strict=True)):
        if part >= 0 and seen[tail] >> part & 1:
            raise ValueError(f"parts must not be used twice by a path, got part {part} again at edge {number}")
        seen[head] |= seen[tail] | (1 << part if part >= 0 else 0)
    return parts


def _is_fixed_size(graph: Graph, n_parts: int) -> bool:
    """Whether all paths have the same number of parts."""
    counts: dict[int, int] = {graph.source: 0}
    sizes = [1] * graph.n_edges if graph.parts is None else (graph.parts < n_parts).tolist()
    edges = zip(graph.tails.tolist(), graph.heads.tolist(), sizes, strict=True)
    return all(counts.setdefault(head, counts[tail] + size) == counts[tail] + size for tail, head, size in edges)
