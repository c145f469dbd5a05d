r"""Cuts of trees: every set of words has at least one head outside of it.

The mean vectors of trees are the :math:`\mu \ge 0` with :math:`\sum_h \mu_{mh} = 1` for each word m, and for each set S of
words :math:`\sum_{m \in S} (\mu_{mm} + \sum_{h \notin S} \mu_{mh}) \ge 1` (Edmonds, 1967). Those over trees with a single
root are the face with equality for the set of all words.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from sparsum.structures.pulling import Facets
from sparsum.tensors import tensor_cache

#: Up to this number of words, all sets are listed; beyond, only small ones, and others are found when they are needed.
_FEW_WORDS, _SMALL, _MANY_WORDS = 10, 3, 20
#: A flow augments along paths of at least this width.
_NARROW = 1e-13


def cuts(
    sets: Tensor,  # shape: (n_sets, n), float64, 1 for the words of each set
    lengths: Tensor | None,  # shape: (n_rows,)
) -> Facets:
    """The inequalities of sets of words; words beyond a row's length count as if the root were their head."""
    n = sets.shape[-1]
    is_inside = sets.unsqueeze(-1) * sets.unsqueeze(-2) * (1 - torch.eye(n, dtype=sets.dtype, device=sets.device))
    normals = (sets.unsqueeze(-1) - is_inside).flatten(1)
    levels = sets.new_ones(1, len(sets))
    if lengths is not None:
        is_padding = torch.arange(n, device=sets.device) >= lengths.to(sets.device).unsqueeze(-1)
        levels = levels - is_padding.to(sets.dtype) @ sets.T
    return Facets(normals, levels)


@tensor_cache
def common_sets(n: int, device: torch.device) -> Tensor:
    """All sets of two words or more, or, if there are too many, the small ones and the first k words: (n_sets, n)."""
    words = range(n)
    largest = n if n <= _FEW_WORDS else _SMALL if n <= _MANY_WORDS else 2
    sets = [chosen for size in range(2, largest + 1) for chosen in itertools.combinations(words, size)]
    sets += [tuple(range(size)) for size in range(largest + 1, n + 1)] + [(0,)] * (n == 1)
    table = torch.zeros(len(sets), n, dtype=torch.float64, device="cpu")
    for row, chosen in zip(table, sets, strict=True):
        row[list(chosen)] = 1
    return table.to(device)


def violated_sets(
    points: Tensor,  # shape: (n_rows, n, n)
) -> Tensor:
    """For each row and word, a set that contains the word and is cut the least, if it is cut by less than 1: (n_sets, n).

    The capacity of an edge is its entry: the least cut is a minimum cut between the root and the word.
    """
    found = {
        chosen for matrix in points.cpu().tolist() for word in range(len(matrix)) if (chosen := _least_cut(matrix, word))
    }
    table = torch.zeros(len(found), points.shape[-1], dtype=torch.float64, device="cpu")
    for row, chosen in zip(table, sorted(found), strict=True):
        row[list(chosen)] = 1
    return table.to(points.device)


def _least_cut(matrix: list[list[float]], word: int) -> tuple[int, ...] | None:
    """The words that are cut off from the root by a minimum cut, or None if at least 1 can flow; `matrix[m][h]` from h to m.

    Augments along shortest paths, from the word backwards to the root.
    """
    rest = [list(row) for row in matrix]
    flow = 0.0
    while flow < 1 - 1e-9:
        after, queue, end = {word: word}, [word], -1
        for m in queue:
            if m < len(rest) and rest[m][m] > _NARROW:
                end = m
                break
            new = [h for h, width in enumerate(rest[m]) if h != m and width > _NARROW and h not in after]
            after.update(dict.fromkeys(new, m))
            queue += new
        if end < 0:
            return tuple(sorted(after))
        path = [end]
        while path[-1] != word:
            path.append(after[path[-1]])
        width = min(rest[end][end], *(rest[m][h] for h, m in itertools.pairwise(path)), 1 - flow)
        rest[end][end] -= width
        for h, m in itertools.pairwise(path):
            rest[m][h] -= width
            rest[h][m] += width
        flow += width
    return None
