r"""Sums, maxima and samples of projective dependency trees, by Eisner's algorithm.

Nodes are the root, 0, and the words, 1 to n. A *complete* span from i to j holds all descendants, on one side, of its head
at one end; an *incomplete* one adds an edge between its ends:

.. math::
    I_{ij} = \bigoplus_{i \le k < j} C^\to_{ik} + C^\leftarrow_{k + 1, j}, \quad
    C^\to_{ij} = \bigoplus_{i < k \le j} t_{i \to k} + I_{ik} + C^\to_{kj}, \quad
    C^\leftarrow_{ij} = \bigoplus_{i \le k < j} C^\leftarrow_{ik} + I_{kj} + t_{j \to k}

References:
    - Bilexical grammars and their cubic-time parsing algorithms (Eisner, 2000), https://doi.org/10.1007/978-94-015-9470-7_3
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.structures.chart import Choose, Reduce, SpanTable, Stack, choose_within, splits

#: For what no tree contains; far below what stands for a forbidden edge, and finite, so that derivatives are.
_NEVER = -1e305


@dataclass(frozen=True)
class Chart:
    """The values of all spans, [i, j] for i <= j: (n_rows, n + 1, n + 1) each."""

    to_right: Tensor  # incomplete, with the edge from i to j
    to_left: Tensor  # incomplete, with the edge from j to i
    right: Tensor  # complete, the head is i
    left: Tensor  # complete, the head is j

    def total(
        self,
        lengths: Tensor,  # shape: (n_rows,)
    ) -> Tensor:
        """The value of all trees: (n_rows,)."""
        return self.right[:, 0].gather(1, lengths.unsqueeze(1)).squeeze(1)


def inside(
    scores: Tensor,  # shape: (n_rows, n, n), of heads, the root on the diagonal; finite, float64
    reduce: Reduce,
    *,
    single_root: bool,
) -> Chart:
    """Sum or maximise over the trees of all spans."""
    edges = _edges(scores)
    n_nodes = edges.shape[-1]
    zeros = edges.new_zeros(len(edges), n_nodes)
    tables = {name: SpanTable.of(zeros) for name in ("to_right", "to_left", "right", "left", "inside_right")}
    for width in range(1, n_nodes):
        right, left = tables["inside_right"].by_first, tables["left"].by_last
        inner = reduce(splits(right, left, width), 1)
        tables["to_right"] = tables["to_right"].extended(
            inner + edges.diagonal(-width, 1, 2)
        )  # at [j, i], the edge from i to j
        tables["to_left"] = tables["to_left"].extended(inner + edges.diagonal(width, 1, 2))
        complete = reduce(splits(tables["to_right"].by_first[:, 1:], tables["right"].by_last, width), 1)
        tables["right"] = tables["right"].extended(complete)
        tables["left"] = tables["left"].extended(
            reduce(splits(tables["left"].by_first, tables["to_left"].by_last[:, 1:], width), 1)
        )
        if single_root:  # a second edge of the root would start from a complete span
            is_root = torch.arange(complete.shape[1], device=complete.device) == 0
            complete = torch.where(is_root, _NEVER, complete)
        tables["inside_right"] = tables["inside_right"].extended(complete)
    return Chart(*(tables[name].square() for name in ("to_right", "to_left", "right", "left")))


def trace(
    chart: Chart,
    row: Tensor,  # shape: (m,), of the chart
    lengths: Tensor,  # shape: (m,)
    choose: Choose,
    *,
    single_root: bool,
) -> Tensor:
    """Choose m trees from the top down, as heads, 0 for padding and a root's own number: (m, n).

    Each step attaches one word, so all trees of n words take n steps.
    """
    n_nodes = chart.right.shape[-1]
    zeros = torch.zeros_like(row)
    stack = Stack(torch.stack([zeros, lengths, zeros], -1), n_nodes + 2)
    heads = row.new_zeros(len(row), n_nodes)
    later = torch.nn.functional.pad(chart.left, (0, 0, 0, 1))[:, 1:]  # [k, j] for the span from k + 1
    for _ in range(n_nodes - 1):
        (first, last, is_left), is_there = _unbound(stack.pop())
        head = torch.where(is_left, last, first)
        terms = torch.where(
            is_left.unsqueeze(-1),
            chart.left[row, first] + chart.to_left[row, :, last],
            chart.to_right[row, first] + chart.right[row, :, last],
        )
        word = choose_within(terms, first + ~is_left, last - is_left.long(), choose)
        low, high = torch.minimum(head, word), torch.maximum(head, word)
        end = (high - 1).clamp_min(0)
        if single_root:  # nothing else is attached to the root
            end = torch.where(low == 0, 0, end)
        split = choose_within(chart.right[row, low] + later[row, :, high], low, end, choose)
        # Without a span, the head is that of node 0, which is not a word.
        heads.scatter_(1, torch.where(is_there, word, 0).unsqueeze(1), head.unsqueeze(1))
        stack.push(is_there & (low < split), low, split, zeros)
        stack.push(is_there & (split + 1 < high), split + 1, high, zeros + 1)
        stack.push(
            is_there & torch.where(is_left, first < word, word < last),
            torch.where(is_left, first, word),
            torch.where(is_left, word, last),
            is_left.long(),
        )
    words = heads[:, 1:] - 1
    position = torch.arange(n_nodes - 1, device=row.device)
    own = torch.where(words < 0, position, words)
    return torch.where(position < lengths.unsqueeze(-1), own, 0)


def _unbound(popped: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """The ends of spans and whether their head is the last position, and whether there is a span."""
    (first, last, is_left), is_there = popped[0].unbind(-1), popped[1]
    return (first, last, is_left == 1), is_there


def _edges(
    scores: Tensor,  # shape: (n_rows, n, n)
) -> Tensor:
    """Scores of the edges to each node, in rows, with the root as node 0, to which none leads: (n_rows, n + 1, n + 1)."""
    edges = torch.cat([scores.diagonal(dim1=-2, dim2=-1).unsqueeze(-1), scores], -1)
    return torch.nn.functional.pad(edges, (0, 0, 1, 0), value=_NEVER)
