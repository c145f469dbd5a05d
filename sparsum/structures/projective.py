"""Projective dependency trees."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.arguments import check_int
from sparsum.structures import chart, eisner
from sparsum.structures.sized import AbstractSized
from sparsum.structures.tree import Tree


@dataclass(frozen=True)
class ProjectiveTree(AbstractSized):
    r"""Projective dependency trees: those of `Tree` whose edges do not cross if they are drawn above the sentence.

    .. math:: a_z^\top t = \sum_m t_{m, z_m}, \quad z_m \text{ the head of } m, \text{ or } m \text{ itself for the root}

    The root is a node before the first word, and edges from it must not be crossed either: no edge passes over a word that
    is attached to the root. Several words may be attached to it unless ``single_root``. Scores and atoms are those of
    `Tree`: (*batch, n, n), with modifiers in rows, heads in columns, and the root on the diagonal; atoms are int64 heads,
    (n_atoms, n).

    >>> scores = torch.zeros(4, 4)
    >>> scores[[0, 1, 2, 3], [2, 3, 2, 2]] = 2.0  # edges 2 -> 0 and 3 -> 1 cross
    >>> Tree(4).argmax(scores), ProjectiveTree(4).argmax(scores)
    (tensor([2, 3, 2, 2]), tensor([2, 2, 2, 2]))

    Eisner's algorithm takes O(n^3) per example, in O(n) steps for the whole batch and on its device; a sample takes O(n^2)
    more. `sparsum.Gibbs` is exact. The k best trees take about k * n times as long as the best one.

    Args:
        n: the number of words, at least 1.
        single_root: whether exactly one word is attached to the root, instead of at least one.
        lengths: the number of words of each example, an int64 tensor in the shape of the batch; by default all examples have
            n words. `log_count` counts the trees over n words.

    Raises:
        TypeError: if ``n`` is not an int, or ``lengths`` is not an int64 tensor or a list of ints.
        ValueError: if n is less than 1, or ``lengths`` are not from 1 to n.

    References:
        - Bilexical grammars and their cubic-time parsing algorithms (Eisner, 2000),
          https://doi.org/10.1007/978-94-015-9470-7_3
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
        """Log of (3n)! / (n! (2n + 1)!), or of (3n - 2)! / (n! (2n - 1)!) with a single root."""
        if self.single_root:
            return math.log(math.comb(3 * self.n - 2, self.n - 1) // self.n)
        return math.log(math.comb(3 * self.n, self.n) // (2 * self.n + 1))

    def contains(
        self,
        atoms: Tensor,  # shape: (n_atoms, n)
    ) -> Tensor:
        """Whether heads form a tree whose edges, with those from the root, do not cross: (n_atoms,)."""
        trees = Tree(self.n, self.single_root)
        is_right = (trees if self.lengths is None else trees._with(lengths=self.lengths)).contains(atoms)
        word = torch.arange(self.n, device=atoms.device)
        heads = torch.where(atoms == word, -1, atoms.long())
        if self.lengths is not None:
            heads = torch.where(self._is_padding(atoms), word, heads)  # an edge of no width crosses nothing
        first, last = torch.minimum(heads, word).unsqueeze(-1), torch.maximum(heads, word).unsqueeze(-1)
        is_crossing = (first < first.mT) & (first.mT < last) & (last < last.mT)
        return is_right & ~is_crossing.flatten(1).any(-1)

    def log_partition(
        self,
        scores: Tensor,  # shape: (n_rows, n, n)
    ) -> Tensor:
        """Log of the sum over all trees: (n_rows,)."""
        found = eisner.inside(chart.log_weights(scores), chart.log_sum, single_root=self.single_root)
        return found.total(self._lengths(scores))

    def sample(
        self,
        scores: Tensor,  # shape: (n_rows, n, n)
        n: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Draw n independent trees per row, from the top down: (n, n_rows, n_words)."""
        found = eisner.inside(chart.log_weights(scores), chart.log_sum, single_root=self.single_root)
        row = torch.arange(len(scores), device=scores.device).repeat(n)
        lengths = self._lengths(scores).repeat(n)
        heads = eisner.trace(found, row, lengths, chart.drawn(generator), single_root=self.single_root)
        return heads.reshape(n, len(scores), self.n)

    def _best(
        self,
        rows: Tensor,  # shape: (n_rows, n, n)
    ) -> Tensor:
        found = eisner.inside(chart.bounded(rows), chart.best, single_root=self.single_root)
        row = torch.arange(len(rows), device=rows.device)
        return eisner.trace(found, row, self._lengths(rows), chart.first_best, single_root=self.single_root)

    def _lengths(self, rows: Tensor) -> Tensor:
        """The number of words of each row: (n_rows,)."""
        if self.lengths is None:
            return torch.full((len(rows),), self.n, device=rows.device)
        lengths: Tensor = self.lengths.to(rows.device)
        return lengths.expand(len(rows))
