"""One of n categories."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.segments import Segments
from sparsum.structures.abstract import AbstractStructure
from sparsum.structures.lawler import check_k


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

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int):
            raise TypeError(f"n must be an int, got {type(self.n).__name__}")
        if self.n < 1:
            raise ValueError(f"n must be at least 1, got {self.n}: a structure without assignments has no distribution")

    @property
    def score_shape(self) -> tuple[int, ...]:
        """The shape of one example's scores."""
        return (self.n,)

    def argmax(
        self,
        scores: Tensor,  # shape: (*batch, n)
    ) -> Tensor:
        """The best category, the first among equals: (*batch,)."""
        self.check_scores(scores)
        return scores.argmax(-1)

    def topk(
        self,
        scores: Tensor,  # shape: (*batch, n)
        k: int,
    ) -> Tensor:
        """The best categories, best first: (*batch, min(k, n))."""
        self.check_scores(scores)
        check_k(k)
        return scores.topk(min(k, self.n), -1).indices

    def vectors(
        self,
        atoms: Tensor,  # shape: (n_atoms,)
    ) -> Tensor:
        """One-hot vectors: (n_atoms, n)."""
        return torch.nn.functional.one_hot(atoms, self.n).to(torch.get_default_dtype())

    def log_count(self) -> float:
        """Logarithm of n."""
        return math.log(self.n)

    def check_scores(self, scores: Tensor) -> None:
        """Raise unless the scores are floats of shape (*batch, n)."""
        super().check_scores(scores)
        if scores.shape[-1] != self.n:
            raise ValueError(f"scores for {self!r} must have shape (*batch, {self.n}), got {tuple(scores.shape)}")

    def score(
        self,
        scores: Tensor,  # shape: (n_rows, n)
        atoms: Tensor,  # shape: (n_atoms,)
        row: Tensor,  # shape: (n_atoms,)
    ) -> Tensor:
        """The score of each atom, without its one-hot vector."""
        return scores.reshape(-1).index_select(0, row * self.n + atoms)

    def marginals(
        self,
        atoms: Tensor,  # shape: (n_atoms,)
        probs: Tensor,  # shape: (n_atoms,)
        segments: Segments,
    ) -> Tensor:
        """The dense probabilities, without one-hot vectors: (n_rows, n)."""
        dense = probs.new_zeros(segments.n_rows * self.n)
        return dense.index_add(0, segments.row * self.n + atoms, probs).view(segments.n_rows, self.n)
