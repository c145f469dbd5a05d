"""Matchings of the rows of a matrix with its columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sparsum import kernels
from sparsum.arguments import check_int
from sparsum.structures.pulling import NEGLIGIBLE, ZERO, Decomposition, Facets, direction, pull
from sparsum.structures.sized import AbstractSized, full_lengths
from sparsum.tensors import tensor_cache


@dataclass(frozen=True)
class Matching(AbstractSized):
    r"""Matchings that assign a distinct column, out of ``m``, to each of ``n`` rows.

    .. math:: a_z^\top t = \sum_i t_{i, z_i}, \quad z_i \ne z_j \text{ for } i \ne j

    Scores have shape (*batch, n, m). Atoms are int64 column indices of shape (n_atoms, n). If n = m, the matchings are the
    permutations.

    >>> structure = Matching(2)
    >>> structure.argmax(torch.tensor([[3.0, 2.0], [2.0, 0.0]]))
    tensor([1, 0])
    >>> structure.vectors(torch.tensor([[1, 0]]))
    tensor([[[0., 1.],
             [1., 0.]]])

    The best matching is found by shortest augmenting paths: on the CPU by `scipy.optimize.linear_sum_assignment`, one matrix
    at a time; on a GPU by a kernel, all matrices at once. Among matchings with the same score, which one is returned depends
    on the device. The k best matchings take about k * n times as long.

    Args:
        n: the number of rows, at least 1.
        m: the number of columns, at least n; by default n.
        lengths: the length of each example, an int64 tensor in the shape of the batch. An example of length l uses the
            first l rows and the first l + m - n columns; by default all examples have the full size. `log_count` counts the
            matchings of full size.

    Raises:
        TypeError: if ``n`` or ``m`` is not an int, or ``lengths`` is not an int64 tensor or a list of ints.
        ValueError: if n is less than 1 or m is less than n, or ``lengths`` are not from 1 to n.

    References:
        - On implementing 2D rectangular assignment algorithms (Crouse, 2016), https://doi.org/10.1109/TAES.2016.140952
    """

    n: int
    m: int | None = None

    adds_unused_scores: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_int("n", self.n, least=1)
        if self.m is None:
            object.__setattr__(self, "m", self.n)  # so that Matching(3) == Matching(3, 3)
        else:
            check_int("m", self.m, least=self.n)
        super().__post_init__()

    @property
    def score_shape(self) -> tuple[int, int]:
        """(n, m)."""
        return self.n, self.n if self.m is None else self.m

    def log_count(self) -> float:
        """Log of m! / (m - n)!."""
        n, m = self.score_shape
        return math.lgamma(m + 1) - math.lgamma(m - n + 1)

    def contains(
        self,
        atoms: Tensor,  # shape: (n_atoms, n)
    ) -> Tensor:
        """Whether columns are in range and distinct, and 0 for padding: (n_atoms,)."""
        position = torch.arange(atoms.shape[1], device=atoms.device)
        # Give each padded position a distinct column.
        columns = atoms if self.lengths is None else torch.where(self._is_padding(atoms), -1 - position, atoms)
        return self._is_in_range(atoms) & (columns.sort(-1).values.diff(dim=-1) != 0).all(-1)

    def facets(self, device: torch.device) -> Facets:
        """No column is used more than once; with as many columns as rows, each is used exactly once in any case."""
        n, m = self.score_shape
        return Facets.none(n * m, device) if n == m else _column_facets(n, m, device)

    def pull(
        self,
        mean: Tensor,  # shape: (n_rows, n, m), float64
    ) -> Decomposition:
        """Split mean vectors into matchings."""
        return pull_matchings(mean, self)

    def _best(
        self,
        rows: Tensor,  # shape: (n_rows, n, m)
    ) -> Tensor:
        return best_matching(rows.double(), self.lengths)


@tensor_cache
def _column_facets(n: int, m: int, device: torch.device) -> Facets:
    normals = -torch.eye(m, dtype=torch.float64, device=device).repeat(1, n)
    return Facets(normals, normals.new_full((1, m), -1.0))


def _are_few_columns(scores: Tensor, _lengths: Tensor | None) -> bool:
    """At most `MOST_COLUMNS` columns."""
    from sparsum.kernels.assignment import MOST_COLUMNS

    return scores.shape[-1] <= MOST_COLUMNS


def _best_in_one_launch(scores: Tensor, lengths: Tensor | None) -> Tensor:
    from sparsum.kernels import assignment

    lengths = full_lengths(len(scores), scores.shape[1], scores.device) if lengths is None else lengths
    return assignment.best(scores, lengths)[0]


@kernels.operation("best_matching", kernel=_best_in_one_launch, takes=_are_few_columns)
def best_matching(
    scores: Tensor,  # shape: (n_rows, n, m), float64
    lengths: Tensor | None,  # shape: (n_rows,)
) -> Tensor:
    """The columns of the best matching of each matrix, or of some matching if all are forbidden: (n_rows, n).

    On the CPU by SciPy, one matrix at a time: its compiled code is faster there than a batch of torch operations.
    """
    n_rows, n, m = scores.shape
    sizes = [n] * n_rows if lengths is None else lengths.tolist()
    matrices = scores.detach().cpu()
    # Tensors of function transforms have no memory that NumPy could share.
    values = matrices.tolist() if kernels.is_transformed() else matrices.numpy()
    atoms = [_best_columns(matrix, size, m - n) + [0] * (n - size) for matrix, size in zip(values, sizes, strict=True)]
    return torch.tensor(atoms, dtype=torch.int64, device=scores.device).reshape(n_rows, n)


def _best_columns(matrix: Any, length: int, n_more: int) -> list[int]:
    """The columns of the best matching for one matrix, or of some matching if all are forbidden."""
    from scipy.optimize import linear_sum_assignment  # imported lazily: takes a third of the import time of torch

    if length < len(matrix):
        matrix = [row[: length + n_more] for row in matrix[:length]]
    try:
        columns: list[int] = linear_sum_assignment(matrix, maximize=True)[1].tolist()
    except ValueError:  # infeasible, or a NaN, for which no best matching exists
        return list(range(length))
    return columns


def _are_square(mean: Tensor, structure: Matching) -> bool:
    """As many columns as rows, at most `MOST_COLUMNS`, and few enough for the memory of all matchings."""
    from sparsum.kernels.assignment import MOST_BYTES, MOST_COLUMNS

    n, m = structure.score_shape
    return n == m <= MOST_COLUMNS and 8 * len(mean) * n**3 <= MOST_BYTES


def _pull_in_one_launch(mean: Tensor, structure: Matching) -> Decomposition:
    from sparsum.kernels import assignment

    n_rows, n, _ = mean.shape
    lengths = full_lengths(n_rows, n, mean.device) if structure.lengths is None else structure.lengths.to(mean.device)
    left = torch.where(mean > ZERO, mean, 0.0).contiguous()
    atoms, weights = assignment.pull(left, direction(n * n, mean.device), lengths, ZERO, NEGLIGIBLE)
    row = torch.arange(n_rows, device=mean.device).repeat_interleave(n * n, output_size=weights.numel())
    return Decomposition.of(atoms.flatten(0, 1), weights.flatten(), row, n_rows)


@kernels.operation("pull_matchings", kernel=_pull_in_one_launch, takes=_are_square)
def pull_matchings(
    mean: Tensor,  # shape: (n_rows, n, m), float64
    structure: Matching,
) -> Decomposition:
    """Split mean vectors into matchings, one vertex of each row after the other."""
    return pull(structure, mean, structure.facets(mean.device))
