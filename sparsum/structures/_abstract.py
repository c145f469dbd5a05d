"""The interface of all structures, and the door for a user's own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from sparsum.segments import Segments


class AbstractStructure(ABC):
    r"""A finite set of assignments z, each with a vector :math:`a_z`; scores t give z the score :math:`a_z^\top t`.

    An assignment is handed around as a compact *atom*, an index for one of many categories, say, and not its one-hot
    vector. A structure says how to find the atom with the best score (`argmax`), the k best ones (`topk`), and the vectors
    behind atoms (`vectors`). It knows nothing of probabilities.

    A score of -inf forbids: mind that 0 * -inf is NaN, which the `torch.where` below avoids. Two structures that hold the
    same assignments should be equal, which a frozen dataclass gives for free.

    >>> import dataclasses, math
    >>> @dataclasses.dataclass(frozen=True)
    ... class AtMostOne(AbstractStructure):  # of n bits
    ...     n: int
    ...     def argmax(self, scores):
    ...         return self.topk(scores, 1)[..., 0, :]
    ...     def topk(self, scores, k):
    ...         members = torch.cat([torch.zeros(1, self.n), torch.eye(self.n)])
    ...         values = torch.where(members > 0, scores.unsqueeze(-2), 0.0).sum(-1)
    ...         return members[values.topk(min(k, self.n + 1)).indices]
    ...     def log_count(self):
    ...         return math.log(self.n + 1)
    >>> import sparsum as sp
    >>> q = sp.topk_sparsemax(torch.tensor([[0.5, -torch.inf, 0.2]]), AtMostOne(3), k=4)
    >>> q.atoms
    tensor([[1., 0., 0.],
            [0., 0., 1.],
            [0., 0., 0.]])
    >>> q.probs
    tensor([0.6000, 0.3000, 0.1000])

    Batches: `argmax` and `topk` take scores of shape (*batch, *score_shape). The other methods take atoms that are packed,
    of shape (n_atoms, *event_shape), with the row of each.
    """

    #: The number of trailing dimensions of the scores that belong to one example.
    score_ndim: int = 1

    @abstractmethod
    def argmax(
        self,
        scores: Tensor,  # shape: (*batch, *score_shape)
    ) -> Tensor:
        """The atom with the best score of each example: (*batch, *event_shape)."""

    def topk(
        self,
        scores: Tensor,  # shape: (*batch, *score_shape)
        k: int,
    ) -> Tensor:
        """The k best atoms of each example, best first: (*batch, min(k, number of assignments), *event_shape).

        Where -inf forbids so many assignments that fewer than k are left, atoms with a score of -inf fill the rest.
        """
        raise TypeError(f"{self!r} has no topk(scores, k): define it to find the {k} best for scores {tuple(scores.shape)}")

    def vectors(
        self,
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
    ) -> Tensor:
        """The vectors of atoms, (n_atoms, *score_shape); by default an atom is its own vector."""
        return atoms

    def log_count(self) -> float:
        """Logarithm of the number of assignments, as far as it is known: infinite by default."""
        return math.inf

    def check_scores(self, scores: Tensor) -> None:
        """Raise a TypeError or ValueError unless the scores have a dtype and shape that fits."""
        if not isinstance(scores, Tensor):
            raise TypeError(f"scores must be a torch.Tensor, got {type(scores).__name__}")
        if not scores.is_floating_point():
            raise TypeError(f"scores must have a floating-point dtype, got {scores.dtype}; call scores.float() first")
        if scores.ndim < self.score_ndim:
            raise ValueError(
                f"scores for {self!r} must have at least {self.score_ndim} dimension(s), got {tuple(scores.shape)}"
            )

    def score(
        self,
        scores: Tensor,  # shape: (n_rows, *score_shape)
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
        row: Tensor,  # shape: (n_atoms,)
    ) -> Tensor:
        """The score of each atom under the scores of its row, differentiable: (n_atoms,)."""
        vectors = self.vectors(atoms)
        terms = torch.where(vectors == 0, 0.0, vectors * scores[row])  # 0 * -inf is 0: a forbidden part that is not used
        return terms.flatten(1).sum(-1)

    def marginals(
        self,
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
        probs: Tensor,  # shape: (n_atoms,)
        segments: Segments,
    ) -> Tensor:
        r"""The mean vector of each row, :math:`\sum_z p(z) a_z`: (n_rows, *score_shape)."""
        vectors = self.vectors(atoms).to(probs.dtype)
        return segments.sum(vectors * probs.reshape(-1, *[1] * (vectors.ndim - 1)))
