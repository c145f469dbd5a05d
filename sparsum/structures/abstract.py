"""The interface of all structures, and the door for a user's own."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from sparsum.segments import Segments
from sparsum.structures.lawler import kbest
from sparsum.structures.parts import Scores, flatten_parts, unflatten_parts


class AbstractStructure(ABC):
    r"""A finite set of assignments z, each with a vector :math:`a_z`; scores t give z the score :math:`a_z^\top t`.

    An assignment is handed around as a compact *atom*, an index for one of many categories, say, and not its one-hot
    vector. A structure says how to find the atom with the best score (`argmax`), the k best ones (`topk`), and the vectors
    behind atoms (`vectors`). It knows nothing of probabilities.

    For a structure of your own, `argmax` is enough, and `vectors` where an atom is not its own vector. A score of -inf
    forbids a part: mind that 0 * -inf is NaN, which the `torch.where` below avoids. Two structures that hold the same
    assignments should be equal, which a frozen dataclass gives for free.

    >>> import dataclasses, math
    >>> @dataclasses.dataclass(frozen=True)
    ... class AtMostOne(AbstractStructure):  # of n bits
    ...     n: int
    ...     def argmax(self, scores):
    ...         members = torch.cat([torch.zeros(1, self.n), torch.eye(self.n)]).to(scores.dtype)
    ...         values = torch.where(members > 0, scores.unsqueeze(-2), 0.0).sum(-1)
    ...         return members[values.argmax(-1)]
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

    Batches: `argmax` and `topk` take scores of shape (*batch, *score_shape). The other methods take *rows*, one flattened
    batch dimension, and atoms that are packed, of shape (n_atoms, *event_shape), with the row of each.
    """

    #: The number of trailing dimensions of the scores that belong to one example.
    score_ndim: int = 1
    #: Whether all vectors are 0/1 with the same number of ones, so that none contains another.
    is_fixed_size: bool = False

    @property
    def score_shape(self) -> tuple[int, ...]:
        """The shape of one example's scores, as far as it is known; `sparsum.testing.check_structure` draws scores of it."""
        raise TypeError(f"{self!r} has no score_shape: define it, or pass random_scores to check_structure")

    @abstractmethod
    def argmax(
        self,
        scores: Scores,  # shape: (*batch, *score_shape)
    ) -> Tensor:
        """The atom with the best score of each example: (*batch, *event_shape)."""

    def topk(
        self,
        scores: Scores,  # shape: (*batch, *score_shape)
        k: int,
    ) -> Tensor:
        """The k best atoms of each example, best first: (*batch, min(k, number of assignments), *event_shape).

        Where -inf forbids so many assignments that fewer than k are left, atoms with a score of -inf fill the rest. An
        example that has fewer assignments than others in its batch repeats its last atom instead; `kbest` tells.

        By default they are found by calls of `argmax`, k at most, each for several problems per example: this needs vectors
        of 0 and 1, and an `argmax` that takes float64 and honours -inf.
        """
        structure, rows, batch_shape = self.rows(scores)
        atoms = kbest(structure, rows, k)
        return atoms.reshape(*batch_shape, *atoms.shape[1:])

    def kbest(
        self,
        scores: Scores,  # shape: (n_rows, *score_shape)
        k: int,
    ) -> tuple[Tensor, Tensor]:
        """The k best atoms of each row, (n_rows, n_best, *event_shape), and which are allowed, (n_rows, n_best).

        An atom is allowed unless it fills a row that has fewer: then it has a score of -inf, or repeats the one before it.
        """
        atoms = self.topk(scores, k)
        n_rows, n_best = atoms.shape[:2]
        row = torch.arange(n_rows, device=atoms.device).repeat_interleave(n_best, output_size=n_rows * n_best)
        is_allowed = (self.score(scores, atoms.flatten(0, 1), row) > -torch.inf).reshape(n_rows, n_best)
        is_equal = (atoms[:, 1:] == atoms[:, :-1]).reshape(n_rows, n_best - 1, math.prod(atoms.shape[2:])).all(-1)
        return atoms, torch.cat([is_allowed[:, :1], is_allowed[:, 1:] & ~is_equal], 1)

    def vectors(
        self,
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
    ) -> Scores:
        """The vectors of atoms, (n_atoms, *score_shape); by default an atom is its own vector."""
        return atoms

    def log_count(self) -> float:
        """Logarithm of the number of assignments, as far as it is known: infinite by default."""
        return math.inf

    def check_scores(self, scores: Scores) -> None:
        """Raise a TypeError or ValueError unless the scores have a dtype and shape that fits."""
        if not isinstance(scores, Tensor):
            raise TypeError(f"scores for {self!r} must be a torch.Tensor, got {type(scores).__name__}")
        if not scores.is_floating_point():
            raise TypeError(f"scores must have a floating-point dtype, got {scores.dtype}; call scores.float() first")
        if scores.ndim < self.score_ndim:
            raise ValueError(
                f"scores for {self!r} must have at least {self.score_ndim} dimension(s), got {tuple(scores.shape)}"
            )
        with contextlib.suppress(TypeError):  # a structure need not tell its shape
            wanted = tuple(self.score_shape)
            if tuple(scores.shape[scores.ndim - len(wanted) :]) != wanted:
                shape = ", ".join(["*batch", *map(str, wanted)])
                raise ValueError(f"scores for {self!r} must have shape ({shape}), got {tuple(scores.shape)}")

    def rows(
        self,
        scores: Scores,  # shape: (*batch, *score_shape)
    ) -> tuple[AbstractStructure, Scores, torch.Size]:
        """Check the scores and flatten the batch.

        Returns:
            The structure for these rows (itself, unless it depends on the example or on the form of the scores), the scores
            with one leading dimension, (n_rows, *score_shape), and the shape of the batch.
        """
        self.check_scores(scores)
        n_batch = scores.ndim - self.score_ndim
        return self, scores.reshape(-1, *scores.shape[n_batch:]), scores.shape[:n_batch]

    def select(
        self,
        index: Tensor,  # shape: (n,), int64
    ) -> AbstractStructure:
        """The structure for some of its rows: itself, unless it depends on the example."""
        return self

    def quadratic(
        self,
        flat: Tensor,  # shape: (n_rows, n_parts)
    ) -> tuple[Tensor, Tensor]:
        r"""The linear term b, (n_rows, n_parts), and weights w, (n_parts,), of SparseMAP's objective.

        SparseMAP maximises :math:`b^\top \mu - \frac12 \sum_i w_i \mu_i^2` over the mean vectors. By default b are the
        scores and all weights are 1, which is the projection of the scores.
        """
        return flat, torch.ones(flat.shape[-1], dtype=flat.dtype, device=flat.device)

    def score(
        self,
        scores: Scores,  # shape: (n_rows, *score_shape)
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
        row: Tensor,  # shape: (n_atoms,)
    ) -> Tensor:
        """The score of each atom under the scores of its row, differentiable: (n_atoms,)."""
        vectors = flatten_parts(self.vectors(atoms))
        flat = flatten_parts(scores)
        flat = flat.float() if torch.finfo(flat.dtype).bits == 16 else flat
        # 0 * -inf is 0: a forbidden part that is not used
        return torch.where(vectors == 0, 0.0, vectors.to(flat.dtype) * flat[row]).sum(-1)

    def marginals(
        self,
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
        probs: Tensor,  # shape: (n_atoms,)
        segments: Segments,
    ) -> Scores:
        r"""The mean vector of each row, :math:`\sum_z p(z) a_z`: (n_rows, *score_shape)."""
        vectors = self.vectors(atoms)
        flat = flatten_parts(vectors).to(probs.dtype)
        return unflatten_parts(segments.sum(flat * probs.unsqueeze(-1)), like=vectors)
