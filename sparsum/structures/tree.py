"""Dependency trees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sparsum import kernels
from sparsum.arguments import check_bool, check_int
from sparsum.structures.arborescence import best_heads
from sparsum.structures.cuts import common_cuts, violated_cuts
from sparsum.structures.pulling import Facets, Violated
from sparsum.structures.sized import AbstractSized, full_lengths
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

    The Chu-Liu/Edmonds algorithm finds the best tree: on the CPU one matrix at a time, in a tenth of a millisecond for 10
    words; on a GPU by a kernel, all matrices at once, up to 255 words. Which of the trees with the same score is returned
    depends on the device. The k best trees take about k * n times as long.

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

    adds_unused_scores: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_int("n", self.n, least=1)
        check_bool("single_root", self.single_root)
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
            is_padding = self._is_padding(heads)
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
        return common_cuts(self.n, self.lengths, device)

    def violated(
        self,
        points: Tensor,  # shape: (n_rows, n, n)
    ) -> Violated:
        """Sets of words with too few heads outside of them, by minimum cuts: one matrix at a time and on the CPU.

        It is only called for more than 10 words: up to there, `facets` lists all sets.
        """
        return violated_cuts(points, self.lengths)

    def _best(
        self,
        rows: Tensor,  # shape: (n_rows, n, n)
    ) -> Tensor:
        return best_trees(rows.double(), self.lengths, self.single_root)


def _are_few_words(scores: Tensor, *_: object) -> bool:
    """At most `MOST_WORDS` words."""
    from sparsum.kernels.arborescence import MOST_WORDS

    return scores.shape[-1] <= MOST_WORDS


def _best_in_one_launch(scores: Tensor, lengths: Tensor | None, single_root: bool) -> Tensor:
    from sparsum.kernels import arborescence

    lengths = full_lengths(len(scores), scores.shape[1], scores.device) if lengths is None else lengths
    return arborescence.best(scores, lengths, single_root=single_root)


@kernels.operation("best_tree", kernel=_best_in_one_launch, takes=_are_few_words)
def best_trees(
    scores: Tensor,  # shape: (n_rows, n, n), float64
    lengths: Tensor | None,  # shape: (n_rows,)
    single_root: bool,
) -> Tensor:
    """The heads of the best tree of each matrix, or of some tree if all are forbidden: (n_rows, n)."""
    n_rows, n, _ = scores.shape
    if not n_rows:  # without reading from a GPU
        return torch.zeros(0, n, dtype=torch.int64, device=scores.device)
    sizes = [n] * n_rows if lengths is None else lengths.tolist()
    atoms = []
    for matrix, size in zip(scores.tolist(), sizes, strict=True):
        heads = best_heads([row[:size] for row in matrix[:size]], single_root=single_root)
        atoms.append(heads + [0] * (n - size))
    return torch.tensor(atoms, dtype=torch.int64, device=scores.device).reshape(n_rows, n)
