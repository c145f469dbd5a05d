"""One of n categories."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.arguments import check_int
from sparsum.segments import Segments
from sparsum.structures.abstract import AbstractStructure
from sparsum.structures.declarations import Potentials


@dataclass(frozen=True)
class OneOf(AbstractStructure):
    """One of ``n`` categories: the structure of a categorical latent variable.

    Scores have shape (*batch, n), atoms are int64 indices of shape (n_atoms,), and their vectors are one-hot.

    >>> structure = OneOf(3)
    >>> structure.argmax(torch.tensor([[0.1, 0.7, 0.2]]))
    tensor([1])
    >>> structure.vectors(torch.tensor([2, 0]))
    tensor([[0., 0., 1.],
            [1., 0., 0.]])

    Args:
        n: the number of categories, at least 1.
    """

    n: int

    is_fixed_size = True
    has_free_choices = True

    def __post_init__(self) -> None:
        check_int("n", self.n, least=1, why=": a structure without assignments has no distribution")

    @property
    def score_shape(self) -> tuple[int, ...]:
        """The shape of one example's scores."""
        return (self.n,)

    @property
    def group_size(self) -> int:
        """All parts are one group."""
        return self.n

    def argmax(
        self,
        scores: Tensor,  # shape: (*batch, n)
    ) -> Tensor:
        """The best category, the first one on ties: (*batch,)."""
        self.check_scores(scores)
        return scores.argmax(-1)

    def topk(
        self,
        scores: Tensor,  # shape: (*batch, n)
        k: int,
    ) -> Tensor:
        """The best categories, best first: (*batch, min(k, n))."""
        self.check_scores(scores)
        check_int("k", k, least=1)
        return scores.topk(min(k, self.n), -1).indices

    def vectors(
        self,
        atoms: Tensor,  # shape: (n_atoms,)
    ) -> Tensor:
        """One-hot vectors: (n_atoms, n)."""
        return torch.nn.functional.one_hot(atoms, self.n).to(torch.get_default_dtype())

    def log_count(self) -> float:
        """Log of n."""
        return math.log(self.n)

    def score(
        self,
        scores: Tensor,  # shape: (n_rows, n)
        atoms: Tensor,  # shape: (n_atoms,)
        row: Tensor,  # shape: (n_atoms,)
    ) -> Tensor:
        """The score of each atom, computed without one-hot vectors: (n_atoms,)."""
        return scores.reshape(-1).index_select(0, row * self.n + atoms)

    def marginals(
        self,
        atoms: Tensor,  # shape: (n_atoms,)
        probs: Tensor,  # shape: (n_atoms,)
        segments: Segments,
    ) -> Tensor:
        """Dense probabilities, computed without one-hot vectors: (n_rows, n)."""
        dense = probs.new_zeros(segments.n_rows * self.n)
        return dense.index_add(0, segments.row * self.n + atoms, probs).view(segments.n_rows, self.n)

    def contains(
        self,
        atoms: Tensor,  # shape: (n_atoms,)
    ) -> Tensor:
        """Whether indices are from 0 to n - 1: (n_atoms,)."""
        return (atoms >= 0) & (atoms < self.n) & (atoms == atoms.long())

    def potentials(
        self,
        scores: Tensor,  # shape: (n_rows, n)
    ) -> Potentials:
        """A chain of one choice among n categories."""
        return Potentials(scores.unsqueeze(1))

    def choices_to_atoms(
        self,
        choices: Tensor,  # shape: (*lead, 1), int64
        dtype: torch.dtype,
    ) -> Tensor:
        """The chosen index: (*lead,)."""
        return choices.squeeze(-1)

    def atoms_to_choices(
        self,
        atoms: Tensor,  # shape: (*lead,)
    ) -> Tensor:
        """The index as a chain of one choice: (*lead, 1)."""
        return atoms.unsqueeze(-1).long()

    def choice_marginals(
        self,
        choices: Tensor,  # shape: (n_rows, 1, n)
        pairs: Tensor | None,
        scores: Tensor,  # shape: (n_rows, n)
    ) -> Tensor:
        """The probabilities of the choice: (n_rows, n)."""
        return choices.squeeze(1)
