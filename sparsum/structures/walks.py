"""Base class of the structures whose assignments are the paths of a graph."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsum.arguments import check_int
from sparsum.structures import chart
from sparsum.structures.abstract import AbstractStructure
from sparsum.structures.dag import Graph
from sparsum.structures.flow_pulling import pull_paths
from sparsum.structures.path_search import best_paths, sample_paths
from sparsum.structures.path_sums import log_sum_of_paths
from sparsum.structures.pulling import Decomposition
from sparsum.structures.scores import BoundScores, Scores, flatten


class AbstractWalks(AbstractStructure):
    """Paths of a graph, one for each assignment, whose edges may have parts; a path does not use a part twice.

    A path is a tensor of edges, (n, longest), in which the number of edges stands for none. Subclasses define the graph, the
    parts of its edges, and the atoms of paths; with them, everything else works.
    """

    @property
    @abstractmethod
    def score_shape(self) -> tuple[int, ...]:
        """The shape of one example's scores."""

    @property
    @abstractmethod
    def graph(self) -> Graph:
        """The graph, on the CPU, with the part of each edge, and the number of parts for none; the same object each time."""

    @abstractmethod
    def path_atoms(
        self,
        paths: Tensor,  # shape: (n, longest)
        dtype: torch.dtype,
    ) -> Tensor:
        """The atoms of paths: (n, *event_shape)."""

    @property
    def n_parts(self) -> int:
        """The number of parts."""
        return math.prod(self.score_shape)

    @property
    def most_parts(self) -> int:
        """The length of the longest path."""
        return self.graph.longest

    def starts(self, n_rows: int, device: torch.device) -> Tensor:
        """The vertex at which the paths of each row start, by default the source: (n_rows,)."""
        return torch.full((n_rows,), self.graph.source, device=device)

    def log_count(self) -> float:
        """Log of the number of paths."""
        return math.log(self.graph.counts.n_paths[self.graph.source])

    def argmax(
        self,
        scores: Tensor,  # shape: (*batch, *score_shape)
    ) -> Tensor:
        """The best assignment; it has a score of -inf if every assignment is forbidden: (*batch, *event_shape)."""
        self.check_scores(scores)
        return self._best(self._bind(scores), 1).squeeze(len(scores.shape) - self.score_ndim)

    def topk(
        self,
        scores: Tensor,  # shape: (*batch, *score_shape)
        k: int,
    ) -> Tensor:
        """The k best assignments, best first: (*batch, min(k, number of assignments), *event_shape).

        If fewer assignments are allowed, atoms with a score of -inf fill the rest. An example that has too few assignments
        because of its size repeats its last atom instead; `kbest` returns which atoms are allowed.
        """
        check_int("k", k, least=1)
        self.check_scores(scores)
        return self._best(self._bind(scores), k)

    @torch.no_grad()
    def _best(self, bound: BoundScores, k: int) -> Tensor:
        structure: Any = bound.structure
        graph = structure.graph.on(bound.device)
        scores = chart.bounded(structure.edge_scores(bound.flat))
        paths = best_paths(scores, graph, structure.starts(bound.n_rows, bound.device), k)
        atoms = structure.path_atoms(paths.flatten(0, 1), bound.dtype)
        return bound.shaped(atoms.unflatten(0, paths.shape[:2]))

    def log_partition(
        self,
        scores: Tensor,  # shape: (n_rows, *score_shape)
    ) -> Tensor:
        """Log of the sum over all paths, twice differentiable: (n_rows,)."""
        starts = self.starts(len(scores), scores.device)
        return log_sum_of_paths(self.edge_scores(scores.flatten(1)).double(), self.graph.on(scores.device), starts)

    def sample(
        self,
        scores: Tensor,  # shape: (n_rows, *score_shape)
        n: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Draw n independent paths per row, edge by edge: (n, n_rows, *event_shape)."""
        graph, starts = self.graph.on(scores.device), self.starts(len(scores), scores.device)
        paths = sample_paths(self.edge_scores(scores.flatten(1)).double(), graph, starts, n, generator)
        atoms = self.path_atoms(paths.flatten(0, 1), scores.dtype)
        return atoms.reshape(*paths.shape[:2], *atoms.shape[1:])

    def flows(
        self,
        mean: Tensor,  # shape: (n_rows, n_parts), float64
    ) -> Tensor:
        """Optional: the probability of each edge, where mean vectors determine them: (n_rows, n_edges)."""
        raise NotImplementedError(f"{self!r} does not define flows: its mean vectors may not determine them")

    @property
    def can_pull(self) -> bool:
        """Whether mean vectors determine the flows along edges."""
        return type(self).flows is not AbstractWalks.flows

    def pull(
        self,
        mean: Scores,  # shape: (n_rows, *score_shape), float64
    ) -> Decomposition:
        """Split mean vectors into paths, continuously."""
        flat = flatten(mean)
        split = pull_paths(self.flows(flat), self.graph.on(flat.device), self.starts(len(flat), flat.device))
        return dataclasses.replace(split, atoms=self.path_atoms(split.atoms, flat.dtype))

    def edge_scores(
        self,
        flat: Tensor,  # shape: (n_rows, n_parts)
    ) -> Tensor:
        """The score of each edge, 0 without a part; differentiable: (n_rows, n_edges)."""
        parts = self.graph.on(flat.device).parts
        return flat if parts is None else columns(pad(flat, (0, 1)), parts)

    def path_parts(
        self,
        paths: Tensor,  # shape: (n, longest)
    ) -> Tensor:
        """The parts of the edges of paths, and the number of parts for none: (n, longest)."""
        parts = self.graph.on(paths.device).parts
        return paths if parts is None else pad(parts, (0, 1), value=self.n_parts)[paths]


class AbstractBitWalks(AbstractWalks):
    """Paths whose atoms are bit vectors, one bit for each part."""

    def path_atoms(
        self,
        paths: Tensor,  # shape: (n, longest)
        dtype: torch.dtype,
    ) -> Tensor:
        """Ones for the parts of the edges: (n, n_parts)."""
        bits = torch.zeros(len(paths), self.n_parts + 1, dtype=dtype, device=paths.device)
        return bits.scatter_(1, self.path_parts(paths), 1.0)[:, :-1]


def columns(
    table: Tensor,  # shape: (n_rows, n)
    index: Tensor,  # shape: (m,)
) -> Tensor:
    """Gather columns: indexing has a deterministic gradient on a GPU, `index_select` is fast on a CPU: (n_rows, m)."""
    return table[:, index] if table.is_cuda else table.index_select(1, index)
