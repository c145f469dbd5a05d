r"""Cuts of trees: every set of words has at least one head outside of it.

The mean vectors of trees are the :math:`\mu \ge 0` with :math:`\sum_h \mu_{mh} = 1` for each word m, and for each set S of
words :math:`\sum_{m \in S} (\mu_{mm} + \sum_{h \notin S} \mu_{mh}) \ge 1` (Edmonds, 1967). Those over trees with a single
root are the face with equality for the set of all words.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from sparsum.structures.pulling import Facets, Violated
from sparsum.tensors import tensor_cache

#: Up to this number of words, all sets are listed; beyond, only pairs, and others are found when they are needed.
_FEW_WORDS = 10
#: A flow augments along paths of at least this width, and is 1 up to the other.
_NARROW, _VIOLATED = 1e-13, 1e-9


def cuts(
    sets: Tensor,  # shape: (n_sets, n), float64, 1 for the words of each set
    lengths: Tensor | None,  # shape: (n_rows,)
) -> tuple[Tensor, Tensor]:
    """The normals and levels of sets of words; words beyond a row's length count as if the root were their head."""
    n = sets.shape[-1]
    is_inside = sets.unsqueeze(-1) * sets.unsqueeze(-2) * (1 - torch.eye(n, dtype=sets.dtype, device=sets.device))
    normals = (sets.unsqueeze(-1) - is_inside).flatten(1)
    levels = sets.new_ones(1, len(sets))
    if lengths is not None:
        is_padding = torch.arange(n, device=sets.device) >= lengths.to(sets.device).unsqueeze(-1)
        levels = levels - is_padding.to(sets.dtype) @ sets.T
    return normals, levels


def common_cuts(n: int, lengths: Tensor | None, device: torch.device) -> Facets:
    """All sets of two words or more, or, if there are too many, the pairs and the first k words for each k."""
    return Facets(*cuts(_common_sets(n, device), lengths), is_complete=n <= _FEW_WORDS)


@tensor_cache
def _common_sets(n: int, device: torch.device) -> Tensor:
    largest = n if n <= _FEW_WORDS else 2
    sets = [chosen for size in range(2, largest + 1) for chosen in itertools.combinations(range(n), size)]
    sets += [tuple(range(size)) for size in range(largest + 1, n + 1)]
    return _as_table(sets, n).to(device)


def _as_table(sets: list[tuple[int, ...]], n: int) -> Tensor:
    table = torch.zeros(len(sets), n, dtype=torch.float64, device="cpu")
    for row, chosen in zip(table, sets, strict=True):
        row[list(chosen)] = 1
    return table


def violated_cuts(
    points: Tensor,  # shape: (n_rows, n, n)
    lengths: Tensor | None,  # shape: (n_rows,)
) -> Violated:
    """For each row and word, the set that contains the word and is cut the least, if this is by less than 1.

    The capacity of an edge is its entry: the least cut is a minimum cut between the root and the word.
    """
    n = points.shape[-1]
    most = [n] * len(points) if lengths is None else lengths.tolist()
    found = []
    for row, (matrix, length) in enumerate(zip(points.cpu().tolist(), most, strict=True)):
        edges = [{h: width for h, width in enumerate(heads) if width > _NARROW} for heads in matrix]
        sets = {chosen for word in range(length) if (chosen := _least_cut(edges, word))}
        found += [(row, chosen) for chosen in sorted(sets)]
    rows = torch.tensor([row for row, _ in found], dtype=torch.int64, device=points.device)
    normals, levels = cuts(_as_table([chosen for _, chosen in found], n).to(points.device), None)
    return Violated(rows, normals, levels[0])


def _least_cut(edges: list[dict[int, float]], word: int) -> tuple[int, ...] | None:
    """The words that a minimum cut separates from the root, or None if a flow of 1 from the root reaches the word.

    ``edges[m][h]`` is the capacity from h to m, and from the root to m if h = m. The flow is augmented along shortest paths,
    which are found from the word backwards.
    """
    rest, flow = [dict(row) for row in edges], 0.0
    while flow < 1 - _VIOLATED:
        path, seen = _path(rest, word)
        if not path:
            return tuple(sorted(seen))
        links = list(itertools.pairwise(path))
        width = min(rest[path[0]][path[0]], *(rest[m][h] for h, m in links), 1 - flow)
        rest[path[0]][path[0]] -= width
        for h, m in links:
            rest[m][h] -= width
            rest[h][m] = rest[h].get(m, 0.0) + width
        flow += width
    return None


def _path(rest: list[dict[int, float]], word: int) -> tuple[list[int], list[int]]:
    """A shortest path from the root to a word, without the root, or an empty one; and the words that were seen."""
    after, queue = {word: word}, [word]
    for m in queue:
        if rest[m].get(m, 0.0) > _NARROW:
            path = [m]
            while path[-1] != word:
                path.append(after[path[-1]])
            return path, queue
        for h, width in rest[m].items():
            if width > _NARROW and h not in after:
                after[h] = m
                queue.append(h)
    return [], queue
