"""Groups of categories, with one category chosen in each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.arguments import check_int
from sparsum.segments import Segments
from sparsum.structures.abstract import AbstractStructure
from sparsum.structures.declarations import Potentials
from sparsum.structures.kbest import best_choices


@dataclass(frozen=True)
class Groups(AbstractStructure):
    """One of ``n_each`` categories in each of ``n_groups`` groups: several categorical latent variables.

    Scores have shape (*batch, n_groups, n_each), atoms are int64 indices of shape (n_atoms, n_groups), and their vectors are
    one-hot in each group.

    >>> structure = Groups(2, 3)
    >>> scores = torch.tensor([[0.1, 0.7, 0.2], [1.0, 0.0, 0.6]])
    >>> structure.argmax(scores)
    tensor([1, 0])
    >>> structure.topk(scores, 3)
    tensor([[1, 0],
            [1, 2],
            [2, 0]])

    Args:
        n_groups: the number of groups, at least 1.
        n_each: the number of categories in each group, at least 1.
    """

    n_groups: int
    n_each: int

    is_fixed_size = True
    has_free_choices = True

    def __post_init__(self) -> None:
        check_int("n_groups", self.n_groups, least=1)
        check_int("n_each", self.n_each, least=1)

    @property
    def score_shape(self) -> tuple[int, int]:
        """The shape of the scores of one example."""
        return (self.n_groups, self.n_each)

    @property
    def group_size(self) -> int:
        """One part of each group is used."""
        return self.n_each

    def argmax(
        self,
        scores: Tensor,  # shape: (*batch, n_groups, n_each)
    ) -> Tensor:
        """The best category of each group, the first one on ties: (*batch, n_groups)."""
        self.check_scores(scores)
        return scores.argmax(-1)

    def topk(
        self,
        scores: Tensor,  # shape: (*batch, n_groups, n_each)
        k: int,
    ) -> Tensor:
        """The best combinations, best first: (*batch, min(k, number of assignments), n_groups)."""
        self.check_scores(scores)
        check_int("k", k, least=1)
        rows = scores.detach().reshape(-1, self.n_groups, self.n_each)
        atoms = best_choices(rows, min(k, self.n_each**self.n_groups))
        return atoms.reshape(*scores.shape[:-2], *atoms.shape[1:])

    def vectors(
        self,
        atoms: Tensor,  # shape: (n_atoms, n_groups)
    ) -> Tensor:
        """One-hot vectors: (n_atoms, n_groups, n_each)."""
        return torch.nn.functional.one_hot(atoms, self.n_each).to(torch.get_default_dtype())

    def log_count(self) -> float:
        """Log of n_each ** n_groups."""
        return self.n_groups * math.log(self.n_each)

    def score(
        self,
        scores: Tensor,  # shape: (n_rows, n_groups, n_each)
        atoms: Tensor,  # shape: (n_atoms, n_groups)
        row: Tensor,  # shape: (n_atoms,)
    ) -> Tensor:
        """The score of each atom, computed without one-hot vectors: (n_atoms,)."""
        if scores.is_cuda:  # unlike that of index_select, the gradient of indexing is deterministic
            return scores.reshape(-1)[self._places(atoms, row)].sum(-1)
        return scores.reshape(-1).index_select(0, self._places(atoms, row).flatten()).view_as(atoms).sum(-1)

    def marginals(
        self,
        atoms: Tensor,  # shape: (n_atoms, n_groups)
        probs: Tensor,  # shape: (n_atoms,)
        segments: Segments,
    ) -> Tensor:
        """The probability of each category, computed without one-hot vectors on a CPU: (n_rows, n_groups, n_each)."""
        if probs.is_cuda:  # index_add is not deterministic
            return segments.sum(self.vectors(atoms).to(probs.dtype) * probs.view(-1, 1, 1))
        dense = probs.new_zeros(segments.n_rows * self.n_groups * self.n_each)
        spread = probs.unsqueeze(-1).expand(-1, self.n_groups).flatten()
        dense = dense.index_add(0, self._places(atoms, segments.row).flatten(), spread)
        return dense.view(segments.n_rows, self.n_groups, self.n_each)

    def _places(self, atoms: Tensor, row: Tensor) -> Tensor:
        """The positions of each atom's categories in the flattened scores: (n_atoms, n_groups)."""
        group = row.unsqueeze(-1) * self.n_groups + torch.arange(self.n_groups, device=row.device)
        return group * self.n_each + atoms

    def contains(
        self,
        atoms: Tensor,  # shape: (n_atoms, n_groups)
    ) -> Tensor:
        """Whether all indices are from 0 to n_each - 1: (n_atoms,)."""
        return ((atoms >= 0) & (atoms < self.n_each) & (atoms == atoms.long())).all(-1)

    def potentials(
        self,
        scores: Tensor,  # shape: (n_rows, n_groups, n_each)
    ) -> Potentials:
        """One choice for each group."""
        return Potentials(scores)

    def choice_marginals(
        self,
        choices: Tensor,  # shape: (n_rows, n_groups, n_each)
        pairs: Tensor | None,
        scores: Tensor,  # shape: (n_rows, n_groups, n_each)
    ) -> Tensor:
        """The probabilities of the choices: (n_rows, n_groups, n_each)."""
        return choices
