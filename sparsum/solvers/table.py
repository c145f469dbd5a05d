"""Closed forms as tables: a probability for each of a fixed number of atoms per row, created when needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.segments import Segments
from sparsum.solvers.abstract import Solution
from sparsum.structures import BoundScores


@dataclass(frozen=True)
class Table:
    """The closed form of all rows.

    Args:
        probs: the probability of each column, differentiable; 0 for columns that are not atoms.
        is_bad: which rows have no distribution.
        atoms: creates the atoms of columns, (n,), of the given rows, (n,): (n, *event_shape).
    """

    probs: Tensor  # shape: (n_rows, width)
    is_bad: Tensor  # shape: (n_rows,), bool
    atoms: Callable[[Tensor, Tensor], Tensor]

    def truncate(self, bound: BoundScores, k: int) -> Solution:
        """The k most probable atoms of each row, the first ones on ties, in their order, renormalized where some are lost.

        Within `torch.compile`, every row has k entries; those that are not atoms repeat one, with probability 0.
        """
        probs, column, is_cut = self._best(k)
        n_rows = len(probs)
        if torch.compiler.is_compiling():
            segments = Segments.regular(n_rows, k, probs.device)
            probs = torch.where(self.is_bad.unsqueeze(-1), torch.nan, probs).flatten()
            column = column.flatten()
        else:
            packed = bound.pack(probs.detach() > 0, self.is_bad, most=k)
            segments, probs, column = packed.segments, packed.take(probs), packed.take(column)
        return Solution.closed_form(self.atoms(segments.row, column), probs.to(bound.dtype), segments, is_cut)

    def _best(self, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities and columns of the k best atoms, (n_rows, k), and which rows have more, (n_rows,)."""
        width = self.probs.shape[-1]
        fixed = self.probs.detach()
        best = fixed.argsort(dim=-1, descending=True, stable=True)[:, :k]
        # In the order of the columns; those without mass come last, and are then replaced by the best one.
        column = torch.where(fixed.gather(-1, best) > 0, best, width).sort(-1).values
        if width < k:
            column = torch.nn.functional.pad(column, (0, k - width), value=width)
        is_atom = column < width
        column = torch.where(is_atom, column, best[:, :1])
        probs = torch.where(is_atom, self.probs.gather(-1, column), 0.0)
        is_cut = (fixed > 0).sum(-1) > k
        # A row that keeps all its atoms keeps their probabilities exactly.
        total = torch.where(is_cut, probs.sum(-1), 1.0).unsqueeze(-1)
        return probs / total, column, is_cut
