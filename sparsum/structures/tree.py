"""Dependency trees."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.arguments import check_int
from sparsum.structures.cuts import common_sets, cuts, violated_sets
from sparsum.structures.pulling import Facets
from sparsum.structures.sized import AbstractSized
from sparsum.structures.spanning import is_tree, log_sum_of_heads, sample_heads


@dataclass(frozen=True)
class Tree(AbstractSized):
    r"""Non-projective dependency trees: each of ``n`` words modifies another word or the root, without cycles.

    .. math:: a_z^\top t = \sum_m t_{m, z_m}, \quad z_m \text{ the head of } m, \text{ or } m \text{ itself for the root}

    Scores have shape (*batch, n, n), with modifiers in rows, heads in columns, and the root on the diagonal. Atoms are int64
    tensors of heads, of shape (n_atoms, n); a word that is attached to the root is its own head.

    >>> scores = torch.tensor([[0.0, 2.0, 0.0], [3.0, 1.5, 0.0], [0.0, 0.5, 0.0]])
    >>> Tree(3).argmax(scores)  # the best heads of words 0 and 1 are each other: a cycle, so word 1 takes the root
    tensor([1, 1, 1])
    >>> Tree(3, single_root=True).topk(scores, k=2)
    tensor([[1, 1, 1],
            [0, 0, 1]])

    The Chu-Liu/Edmonds algorithm finds the best tree, one matrix at a time and on the CPU, regardless of the device of the
    scores; for 10 words it takes about a tenth of a millisecond. The k best trees take about k * n times as long.

    Args:
        n: the number of words, at least 1.
        single_root: whether exactly one word is attached to the root, instead of at least one.
        lengths: the number of words of each example, an int64 tensor in the shape of the batch; by default all examples have
            n words. `log_count` counts the trees over n words.

    Raises:
        TypeError: if ``n`` is not an int, or ``lengths`` is not an int64 tensor or a list of ints.
        ValueError: if n is less than 1, or ``lengths`` are not from 1 to n.

    References:
        - Non-projective dependency parsing using spanning tree algorithms (McDonald, Pereira, Ribarov & Hajič, 2005),
          section 2.2.1, https://aclanthology.org/H05-1066
        - Please mind the root: decoding arborescences for dependency parsing (Zmigrod, Vieira & Cotterell, 2020), on the
          single root, https://arxiv.org/abs/2010.02550
    """

    n: int
    single_root: bool = False

    def __post_init__(self) -> None:
        check_int("n", self.n, least=1)
        super().__post_init__()

    @property
    def score_shape(self) -> tuple[int, int]:
        """(n, n)."""
        return self.n, self.n

    def log_count(self) -> float:
        """Log of (n + 1) ** (n - 1), or of n ** (n - 1) with a single root (Cayley's formula)."""
        return (self.n - 1) * math.log(self.n if self.single_root else self.n + 1)

    def contains(
        self,
        atoms: Tensor,  # shape: (n_atoms, n)
    ) -> Tensor:
        """Whether heads form a tree, with exactly one root if ``single_root``, and are 0 for padding: (n_atoms,)."""
        heads = atoms.long().clamp(0, self.n - 1)
        word = torch.arange(self.n, device=heads.device)
        is_root = heads == word
        if self.lengths is not None:
            is_padding = self._is_padding(len(heads))
            heads, is_root = torch.where(is_padding, word, heads), is_root & ~is_padding
        is_right = self._is_in_range(atoms) & is_tree(heads)
        return is_right & (is_root.sum(-1) == 1) if self.single_root else is_right

    def log_partition(
        self,
        scores: Tensor,  # shape: (n_rows, n, n)
    ) -> Tensor:
        """Log of the sum over all trees, by elimination: (n_rows,)."""
        return log_sum_of_heads(scores, single_root=self.single_root)

    def sample(
        self,
        scores: Tensor,  # shape: (n_rows, n, n)
        n: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Draw n independent trees per row: (n, n_rows, n_words)."""
        return sample_heads(scores, n, generator, single_root=self.single_root)

    def facets(self, device: torch.device) -> Facets:
        """Every set of words has a head outside of it; all sets, or only some if there are many."""
        return cuts(common_sets(self.n, device), self.lengths)

    def violated(
        self,
        points: Tensor,  # shape: (n_rows, n, n)
    ) -> Facets:
        """Further sets, by minimum cuts, one matrix at a time and on the CPU."""
        return cuts(violated_sets(points), self.lengths)

    def _best(
        self,
        rows: Tensor,  # shape: (n_rows, n, n)
    ) -> Tensor:
        lengths = [self.n] * len(rows) if self.lengths is None else self.lengths.tolist()
        atoms = []
        for matrix, length in zip(rows.double().tolist(), lengths, strict=True):
            heads = _best_heads([scores[:length] for scores in matrix[:length]], single_root=self.single_root)
            atoms.append(heads + [0] * (self.n - length))
        return torch.tensor(atoms, dtype=torch.int64, device=rows.device).reshape(len(rows), self.n)


def _best_heads(scores: list[list[float]], *, single_root: bool) -> list[int]:
    """The heads of the best tree for one matrix, or of some tree if all are forbidden."""
    root = [scores[m][m] for m in range(len(scores))]
    edges = [[*row[:m], -math.inf, *row[m + 1 :]] for m, row in enumerate(scores)]
    heads = _arborescence(edges, root, single_root=single_root)
    if heads is not None and not (single_root and sum(head == m for m, head in enumerate(heads)) > 1):
        return heads
    return [max(m - 1, 0) for m in range(len(scores))]


def _arborescence(edges: list[list[float]], root: list[float], *, single_root: bool) -> list[int] | None:
    """The best arborescence, or None if there is none.

    With a single root, an edge to the root is only taken if a node has no other edge. This is equivalent to a penalty on
    these edges that outweighs all scores, and gives the smallest possible number of them. The penalty is not actually added,
    which avoids rounding errors.
    """
    heads, values = [], []
    for m, row in enumerate(edges):
        value, head = max(row), -1
        if (value == -math.inf) if single_root else (root[m] >= value):
            value, head = root[m], m
        if value == -math.inf:
            return None
        heads.append(row.index(value) if head < 0 else head)
        values.append(value)
    cycle = _cycle(heads)
    if not cycle:
        return heads
    # Contract the cycle to one node, the last. Entering the cycle at v replaces the edge of the cycle at v.
    inside = set(cycle)
    outside = [m for m in range(len(edges)) if m not in inside]
    leave = [_first_best(cycle, [edges[m][v] for v in cycle]) for m in outside]
    enter = [_first_best(cycle, [edges[v][h] - values[v] for v in cycle]) for h in outside]
    from_root = _first_best(cycle, [root[v] - values[v] for v in cycle])
    smaller = [[*(edges[m][h] for h in outside), edges[m][v]] for m, v in zip(outside, leave, strict=True)]
    smaller.append([*(edges[v][h] - values[v] for h, v in zip(outside, enter, strict=True)), -math.inf])
    smaller_root = [*(root[m] for m in outside), root[from_root] - values[from_root]]
    found = _arborescence(smaller, smaller_root, single_root=single_root)
    if found is None:
        return None
    for i, m in enumerate(outside):
        heads[m] = m if found[i] == i else leave[i] if found[i] == len(outside) else outside[found[i]]
    if found[-1] == len(outside):
        heads[from_root] = from_root
    else:
        heads[enter[found[-1]]] = outside[found[-1]]
    return heads


def _first_best(nodes: list[int], values: list[float]) -> int:
    """The node with the largest value, the first one on ties."""
    return nodes[values.index(max(values))]


def _cycle(heads: list[int]) -> list[int]:
    """The nodes of some cycle, or an empty list if there is none; a node that is its own head is a root."""
    seen: dict[int, int] = {}  # maps a node to the start of the walk that first visited it
    for start in range(len(heads)):
        node = start
        while node not in seen:
            seen[node] = start
            node = heads[node]
        if seen[node] == start and heads[node] != node:
            cycle = [node]
            while heads[cycle[-1]] != node:
                cycle.append(heads[cycle[-1]])
            return cycle
    return []
