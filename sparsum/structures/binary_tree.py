"""Binary trees over the words of a sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.arguments import check_int
from sparsum.structures import chart
from sparsum.structures.abstract import AbstractStructure
from sparsum.structures.scores import BoundScores, Scores


@dataclass(frozen=True)
class BinaryTree(AbstractStructure):
    r"""Binary trees over ``n`` words, each node a span of words that has a score, and perhaps one of several labels.

    .. math:: a_z^\top t = \sum_{(i, j) \in z} t_{ij}, \quad \text{or with labels } \sum_{(i, j, c) \in z} t_{ijc}

    Scores have shape (*batch, n, n), [first word, last word], or (*batch, n, n, n_labels). A tree has 2n - 1 nodes: all
    words, the whole sentence, and n - 2 spans in between. Scores with first > last are ignored.

    Atoms are the indices of the nodes among all parts, ``first * n + last``, and with labels
    ``(first * n + last) * n_labels + label``: int64, in ascending order, (n_atoms, 2n - 1).

    >>> scores = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
    >>> best = BinaryTree(3).argmax(scores)
    >>> [divmod(node, 3) for node in best.tolist()]  # words 1 and 2 first
    [(0, 0), (0, 2), (1, 1), (1, 2), (2, 2)]

    The CKY algorithm takes O(n^3) per example, in O(n) steps for the whole batch and on its device; a sample takes O(n^2)
    more. `sparsum.Gibbs` is exact. The k best trees take about 2kn times as long as the best one.

    Args:
        n: the number of words, at least 1.
        n_labels: the number of labels, at least 1; None for spans without labels. Words have labels, too.

    Raises:
        TypeError: if ``n`` or ``n_labels`` is not an int.
        ValueError: if ``n`` or ``n_labels`` is less than 1.

    References:
        - Recognition and parsing of context-free languages in time n^3 (Younger, 1967),
          https://doi.org/10.1016/S0019-9958(67)80007-X
    """

    n: int
    n_labels: int | None = None

    is_fixed_size = True

    def __post_init__(self) -> None:
        check_int("n", self.n, least=1)
        if self.n_labels is not None:
            check_int("n_labels", self.n_labels, least=1)

    @property
    def score_shape(self) -> tuple[int, ...]:
        """(n, n), or (n, n, n_labels)."""
        return (self.n, self.n) if self.n_labels is None else (self.n, self.n, self.n_labels)

    def log_count(self) -> float:
        """Log of the number of trees, a Catalan number, times that of their labels."""
        labels = 1 if self.n_labels is None else self.n_labels
        return math.log(math.comb(2 * self.n - 2, self.n - 1) // self.n) + (2 * self.n - 1) * math.log(labels)

    def argmax(
        self,
        scores: Tensor,  # shape: (*batch, n, n) or (*batch, n, n, n_labels)
    ) -> Tensor:
        """The best tree; it has a score of -inf if every tree is forbidden: (*batch, 2n - 1)."""
        self.check_scores(scores)
        with torch.no_grad():
            bound = self._bind(scores)
            labels = self._labelled(chart.bounded(bound.scores))
            row = torch.arange(len(labels), device=labels.device)
            return bound.shaped(self._trace(labels, labels.amax(-1), row, chart.best, chart.first_best))

    def log_partition(
        self,
        scores: Tensor,  # shape: (n_rows, *score_shape)
    ) -> Tensor:
        """Log of the sum over all trees: (n_rows,)."""
        spans = self._labelled(chart.log_weights(scores)).logsumexp(-1)
        return _inside(spans, chart.log_sum).by_first[:, -1, 0]

    def sample(
        self,
        scores: Tensor,  # shape: (n_rows, *score_shape)
        n: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Draw n independent trees per row, from the top down: (n, n_rows, 2n - 1)."""
        labels = self._labelled(chart.log_weights(scores))
        row = torch.arange(len(scores), device=scores.device).repeat(n)
        atoms = self._trace(labels, labels.logsumexp(-1), row, chart.log_sum, chart.drawn(generator))
        return atoms.reshape(n, len(scores), 2 * self.n - 1)

    def vectors(
        self,
        atoms: Tensor,  # shape: (n_atoms, 2n - 1)
    ) -> Tensor:
        """Ones for the nodes of a tree: (n_atoms, *score_shape)."""
        flat = torch.zeros(len(atoms), math.prod(self.score_shape), device=atoms.device)
        return flat.scatter_(1, atoms.long(), 1.0).view(-1, *self.score_shape)

    def parts(
        self,
        atoms: Tensor,  # shape: (n_atoms, 2n - 1)
    ) -> Tensor:
        """The atoms themselves: (n_atoms, 2n - 1)."""
        return atoms

    def score(
        self,
        scores: Tensor,  # shape: (n_rows, *score_shape)
        atoms: Tensor,  # shape: (n_atoms, 2n - 1)
        row: Tensor,  # shape: (n_atoms,)
    ) -> Tensor:
        """The score of each atom, computed without vectors: (n_atoms,)."""
        return scores.flatten(1)[row.unsqueeze(-1), atoms.long()].sum(-1)

    def contains(
        self,
        atoms: Tensor,  # shape: (n_atoms, 2n - 1)
    ) -> Tensor:
        """Whether atoms are different spans in ascending order of which no two cross: (n_atoms,).

        There are at most 2n - 1 such spans, and so many only in a binary tree.
        """
        parts = atoms.long().clamp(0, math.prod(self.score_shape) - 1)
        spans = parts // (1 if self.n_labels is None else self.n_labels)
        first, last = (spans // self.n).unsqueeze(-1), (spans % self.n).unsqueeze(-1)
        is_crossing = (first < first.mT) & (first.mT <= last) & (last < last.mT)
        is_sorted = (spans.diff(dim=-1) > 0).all(-1) & (parts == atoms).all(-1)
        return is_sorted & (first <= last).flatten(1).all(-1) & ~is_crossing.flatten(1).any(-1)

    def _bind(self, scores: Scores) -> BoundScores:
        """Flatten the batch; what is not a span has a score of 0, since solvers measure their accuracy by all scores."""
        bound = super()._bind(scores)
        word = torch.arange(self.n, device=bound.device)
        is_span = (word.unsqueeze(-1) <= word).view(self.n, self.n, *[1] * (len(self.score_shape) - 2))
        return bound.map(lambda tensor: torch.where(is_span, tensor, 0.0))

    def _labelled(self, scores: Tensor) -> Tensor:
        """Scores with a dimension of labels: (n_rows, n, n, n_labels)."""
        return scores.unsqueeze(-1) if self.n_labels is None else scores

    def _trace(
        self,
        labels: Tensor,  # shape: (n_rows, n, n, n_labels)
        spans: Tensor,  # shape: (n_rows, n, n), reduced over labels
        row: Tensor,  # shape: (m,)
        reduce: chart.Reduce,
        choose: chart.Choose,
    ) -> Tensor:
        """Choose m trees from the top down: (m, 2n - 1). Each step splits one span."""
        values, n = _inside(spans, reduce).square(), self.n
        later = torch.nn.functional.pad(values, (0, 0, 0, 1))[:, 1:]  # [k, j] for the span from k + 1
        zeros = torch.zeros_like(row)
        stack = chart.Stack(torch.stack([zeros, zeros + n - 1], -1), n + 2)
        nodes = [(torch.arange(n, device=row.device) * (n + 1)).expand(len(row), n)]  # the words
        for _ in range(n - 1):
            first, last = stack.pop()[0].unbind(-1)
            split = chart.choose_within(values[row, first] + later[row, :, last], first, last - 1, choose)
            nodes.append((first * n + last).unsqueeze(-1))
            stack.push(first < split, first, split)
            stack.push(split + 1 < last, split + 1, last)
        found = torch.cat(nodes, -1).sort(-1).values
        if self.n_labels is None:
            return found
        terms = labels.flatten(1, 2)[row.unsqueeze(-1), found]
        return found * self.n_labels + choose(terms.flatten(0, 1)).view_as(found)


def _inside(
    spans: Tensor,  # shape: (n_rows, n, n), [first, last]; finite, float64
    reduce: chart.Reduce,
) -> chart.SpanTable:
    """Sum or maximise over the trees of all spans."""
    table = chart.SpanTable.of(spans.diagonal(dim1=1, dim2=2))
    for width in range(1, spans.shape[1]):
        inner = reduce(chart.splits(table.by_first, table.by_last, width), 1)
        table = table.extended(inner + spans.diagonal(width, 1, 2))
    return table
