"""What a Gibbs distribution has to know of the structure that it is over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor

from sparsum.gibbs.chain import Chain
from sparsum.gibbs.choices import atoms_of, choices_of, marginals_of, potentials
from sparsum.structures import AbstractStructure, Sequence
from sparsum.structures.parts import Scores, tensors_of


class AbstractModel(ABC):
    """The Gibbs distribution of each row of scores over one kind of structure."""

    log_partition: Tensor  # shape: (n_rows,)

    @abstractmethod
    def log_prob(
        self,
        atoms: Tensor,  # shape: (n, *event_shape)
        row: Tensor,  # shape: (n,)
    ) -> Tensor:
        """Log-probability of packed atoms, each under its own row, -inf for forbidden ones: (n,)."""

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """Independent draws: (n, n_rows, *event_shape)."""

    @abstractmethod
    def mean(self) -> Scores:
        """The mean vector, in the form of the rows of scores."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Shannon entropy: (n_rows,)."""

    @abstractmethod
    def is_member(
        self,
        atoms: Tensor,  # shape: (n, *event_shape)
        row: Tensor,  # shape: (n,)
    ) -> Tensor:
        """Whether packed atoms are assignments at all, allowed or not: a single boolean."""

    @abstractmethod
    def divergence(self, other: Self) -> Tensor:
        """Kullback-Leibler divergence to a model of the same structure and as many rows: (n_rows,)."""


class ChainModel(AbstractModel):
    """Over structures that are a row of choices."""

    def __init__(self, structure: AbstractStructure, rows: Scores) -> None:
        self.structure = structure
        self.chain = Chain.from_potentials(*potentials(structure, rows))
        self.log_partition = self.chain.log_partition
        self.dtype = tensors_of(rows)[0].dtype

    def log_prob(self, atoms: Tensor, row: Tensor) -> Tensor:
        """The sum of conditional log-probabilities, which loses no digits to a large partition function."""
        return self.chain.log_prob(choices_of(self.structure, atoms), row)

    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """From the first choice to the last."""
        with torch.no_grad():
            return atoms_of(self.structure, self.chain.sample(n, generator), self.dtype)

    def mean(self) -> Scores:
        """The probability of each choice and, with transitions, of each pair."""
        return marginals_of(self.structure, *self.chain.probabilities())

    def entropy(self) -> Tensor:
        """The sum of conditional entropies."""
        return self.chain.entropy()

    def is_member(self, atoms: Tensor, row: Tensor) -> Tensor:
        """Whether all choices are whole numbers from 0 to n_choices - 1, and 0 for padding."""
        choices = choices_of(self.structure, atoms)
        most = torch.full((), self.chain.first.shape[-1] - 1, device=atoms.device)
        if isinstance(self.structure, Sequence) and self.structure.lengths is not None:
            most = torch.where(self.structure.select(row)._is_padding(len(atoms)), 0, most)
        is_whole = choices.reshape(atoms.shape) == atoms
        return is_whole.all() & ((choices >= 0) & (choices <= most)).all()

    def divergence(self, other: Self) -> Tensor:
        """The sum of conditional divergences."""
        return self.chain.divergence(other.chain)
