"""Knapsacks: sets of items that are not too heavy together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.arguments import check_int
from sparsum.structures.dag import Graph
from sparsum.structures.walks import AbstractBitWalks
from sparsum.tensors import tensor_cache

#: Larger graphs would take gigabytes for a batch.
_MOST_EDGES = 2**22


@dataclass(frozen=True)
class Knapsack(AbstractBitWalks):
    r"""Sets of items with integer weights of at most ``most`` in total, as bit vectors.

    .. math:: a_z^\top t = z^\top t, \quad z \in \{0, 1\}^n, \; w^\top z \le \text{most}

    Scores have shape (*batch, n), one for each item. Atoms are 0/1 vectors in the dtype of the scores, (n_atoms, n).

    >>> Knapsack((3, 4, 2), most=6).argmax(torch.tensor([1.0, 1.2, 0.5]))  # items of weights 4 and 2
    tensor([0., 1., 1.])

    The paths of a graph, as in `sparsum.Paths`: a vertex is an item and the weight so far, so that the cost grows with
    n * most, divided by what all weights have in common. For weights of 1, use `sparsum.Budget`.

    Args:
        weights: the weight of each item, ints of at least 0.
        most: the largest total weight, at least 0.

    Raises:
        TypeError: if ``weights`` is not a tuple or a list of ints, or ``most`` is not an int.
        ValueError: if there are no weights, if one is negative, if every item alone is too heavy, or if the graph would be
            too large.

    References:
        - Knapsack problems (Kellerer, Pferschy & Pisinger, 2004), chapter 2.3, https://doi.org/10.1007/978-3-540-24777-7
    """

    weights: Sequence[int]
    most: int

    def __post_init__(self) -> None:
        if not isinstance(self.weights, (list, tuple)):
            raise TypeError(f"weights must be a tuple or a list of ints, got {type(self.weights).__name__}")
        weights = tuple(check_int(f"weights[{i}]", weight, least=0) for i, weight in enumerate(self.weights))
        check_int("most", self.most, least=0)
        if not weights:
            raise ValueError("weights must have at least one item, got none")
        if min(weights) > self.most:
            raise ValueError(f"weights must have an item of at most {self.most}, got none: the lightest has {min(weights)}")
        object.__setattr__(self, "weights", weights)  # so that equal ones are equal, and can be hashed
        n_edges, n_steps = 2 * len(weights) * (self.most // _unit(weights) + 1), self.most // _unit(weights)
        if n_edges > _MOST_EDGES:
            raise ValueError(
                f"most must be smaller for {len(weights)} items, got {self.most}, which is {n_steps} steps of "
                f"{_unit(weights)}: the graph may have up to {n_edges} edges, more than {_MOST_EDGES}; round the weights"
            )

    @property
    def score_shape(self) -> tuple[int]:
        """(n,)."""
        return (len(self.weights),)

    @property
    def graph(self) -> Graph:
        """Vertices are items and the weight of those before; of two edges, one takes the item."""
        return _graph(tuple(self.weights), self.most)

    def contains(
        self,
        atoms: Tensor,  # shape: (n_atoms, n)
    ) -> Tensor:
        """Whether atoms are bits whose weights are not too large: (n_atoms,)."""
        most = self.most // _unit(tuple(self.weights))
        steps = torch.tensor(_steps(tuple(self.weights), most), device=atoms.device)
        return ((atoms == 0) | (atoms == 1)).all(-1) & ((atoms.long() * steps).sum(-1) <= most)


def _unit(weights: tuple[int, ...]) -> int:
    """What all weights are multiples of."""
    return math.gcd(*weights) or 1


def _steps(weights: tuple[int, ...], most: int) -> list[int]:
    """The weights in units, which may be any ints; what is too heavy is cut off, so that int64 holds their sum."""
    return [min(weight // _unit(weights), most + 1) for weight in weights]


@tensor_cache
def _graph(weights: tuple[int, ...], most: int) -> Graph:
    """The graph, whose edges have items as parts, or the number of items."""
    unit, n = _unit(weights), len(weights)
    most //= unit
    steps = _steps(weights, most)
    edges, parts = [], []
    vertices, n_vertices, left = {0: 0}, 1, sum(steps)  # the vertex of each weight so far
    for item, step in enumerate(steps):
        left -= step
        following: dict[int, int] = {}
        for used, vertex in vertices.items():
            for total, part in ((used, n), (used + step, item)):
                if total > most:
                    continue
                # All items that follow fit: it does not matter by how much.
                known = total if item < n - 1 and total + left > most else -1
                if known not in following:
                    following[known] = n_vertices
                    n_vertices += 1
                edges.append((vertex, following[known]))
                parts.append(part)
        vertices = following
    return Graph.of(torch.tensor(edges, device="cpu"), torch.tensor(parts, device="cpu"))
