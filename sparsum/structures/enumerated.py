"""Explicitly listed sets of vectors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sparsum.arguments import check_int
from sparsum.structures.abstract import AbstractStructure
from sparsum.structures.declarations import Potentials
from sparsum.structures.kbest import smallest
from sparsum.structures.scores import flatten
from sparsum.tensors import at_least_float32, is_traced


class Enumerated(AbstractStructure):
    r"""An explicit list of vectors.

    Scores have shape (*batch, *event), where event is the shape of a vector. Atoms are int64 indices of shape (n_atoms,). A
    score of -inf forbids all vectors with a nonzero entry there. Duplicate vectors count as distinct assignments.

    >>> structure = Enumerated(torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]))
    >>> structure
    Enumerated(3 vectors of shape (2,))
    >>> structure.topk(torch.tensor([0.5, -0.1]), 2)
    tensor([1, 2])

    Args:
        vectors: the vectors, of shape (count, *event), with at least two dimensions. They are copied, once for each
            device of scores.
    """

    def __init__(
        self,
        vectors: Tensor,  # shape: (count, *event)
    ) -> None:
        if not isinstance(vectors, Tensor):
            raise TypeError(f"vectors must be a torch.Tensor, got {type(vectors).__name__}")
        if not vectors.is_floating_point():
            raise TypeError(f"vectors must have a floating-point dtype, got {vectors.dtype}; call vectors.float() first")
        if vectors.ndim < 2:
            raise ValueError(f"vectors must have shape (count, *event), at least 2 dimensions, got {tuple(vectors.shape)}")
        if not vectors.numel():
            raise ValueError(f"vectors must not be empty, got shape {tuple(vectors.shape)}; pass at least one vector")
        if not vectors.isfinite().all():
            raise ValueError("vectors must be finite, got an infinite or NaN entry")
        self._vectors = vectors.detach().clone()
        self._copies: dict[torch.device, Tensor] = {}
        is_binary = bool(((vectors == 0) | (vectors == 1)).all())
        sizes = vectors.detach().flatten(1).sum(1, dtype=torch.float64)
        self.is_fixed_size = is_binary and bool((sizes == sizes[0]).all())

    def __repr__(self) -> str:
        return f"Enumerated({len(self._vectors)} vectors of shape {tuple(self._vectors.shape[1:])})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_copies": {}}

    def __len__(self) -> int:
        """The number of vectors."""
        return len(self._vectors)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Enumerated):
            return NotImplemented
        return torch.equal(self._vectors.double().cpu(), other._vectors.double().cpu())

    def __hash__(self) -> int:
        return hash((Enumerated, self._vectors.shape))

    @property
    def score_shape(self) -> tuple[int, ...]:
        """The shape of the scores of one example."""
        return tuple(self._vectors.shape[1:])

    def argmax(
        self,
        scores: Tensor,  # shape: (*batch, *event)
    ) -> Tensor:
        """The index of the best vector, the first one on ties: (*batch,)."""
        return self._all_scores(scores).argmax(-1)

    def topk(
        self,
        scores: Tensor,  # shape: (*batch, *event)
        k: int,
    ) -> Tensor:
        """The indices of the best vectors, best first: (*batch, min(k, count))."""
        check_int("k", k, least=1)
        return smallest(-self._all_scores(scores), min(k, len(self._vectors))).indices

    def vectors(
        self,
        atoms: Tensor,  # shape: (n_atoms,)
    ) -> Tensor:
        """The vectors at the given indices: (n_atoms, *event)."""
        return self._vectors_on(atoms.device)[atoms]

    def log_count(self) -> float:
        """Log of the number of vectors."""
        return math.log(len(self._vectors))

    def score(
        self,
        scores: Tensor,  # shape: (n_rows, *event)
        atoms: Tensor,  # shape: (n_atoms,)
        row: Tensor,  # shape: (n_atoms,)
    ) -> Tensor:
        """The score of each atom; -inf if it uses a forbidden part, even with a negative entry: (n_atoms,)."""
        vectors, parts = flatten(self.vectors(atoms)), flatten(scores)[row]
        used = torch.where(parts == -torch.inf, parts, vectors.to(parts.dtype) * parts)
        return torch.where(vectors == 0, 0.0, used).sum(-1)

    def contains(
        self,
        atoms: Tensor,  # shape: (n_atoms,)
    ) -> Tensor:
        """Whether indices are from 0 to count - 1: (n_atoms,)."""
        return (atoms >= 0) & (atoms < len(self)) & (atoms == atoms.long())

    def potentials(
        self,
        scores: Tensor,  # shape: (n_rows, *event)
    ) -> Potentials:
        """A chain of one choice among all vectors."""
        rows = at_least_float32(scores).flatten(1)
        vectors = self._vectors_on(rows.device).to(rows.dtype).flatten(1)
        is_forbidden = rows == -torch.inf
        with torch.autocast(rows.device.type, enabled=False):  # keep the precision of the scores
            values = torch.where(is_forbidden, 0.0, rows) @ vectors.T
            uses_forbidden = is_forbidden.to(rows.dtype) @ (vectors != 0).to(rows.dtype).T > 0
        return Potentials(values.masked_fill(uses_forbidden, -torch.inf).unsqueeze(1))

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
        choices: Tensor,  # shape: (n_rows, 1, count)
        pairs: Tensor | None,
        scores: Tensor,  # shape: (n_rows, *event)
    ) -> Tensor:
        """The mean of the vectors: (n_rows, *event)."""
        with torch.autocast(choices.device.type, enabled=False):
            mean: Tensor = torch.tensordot(choices.squeeze(1), self._vectors_on(choices.device).to(choices.dtype), 1)
        return mean

    def _vectors_on(self, device: torch.device) -> Tensor:
        """The vectors on a device: (count, *event)."""
        if self._vectors.device == device or is_traced():  # a copy may then belong to a trace
            return self._vectors.to(device)
        if device not in self._copies:
            with torch.inference_mode(False):  # else it cannot be used in autograd
                self._copies[device] = self._vectors.to(device)
        return self._copies[device]

    def _all_scores(
        self,
        scores: Tensor,  # shape: (*batch, *event)
    ) -> Tensor:
        """The scores of all vectors in float64: (*batch, count).

        Sums part by part instead of using a matrix product, whose rounding depends on the position of a row in the batch.
        The same scores therefore have the same best vector in every batch.
        """
        self.check_scores(scores)
        flat = scores.detach().flatten(-self.score_ndim).double()
        vectors = self._vectors_on(flat.device).flatten(1).double()
        is_forbidden = (flat == -torch.inf).double() @ (vectors != 0).double().T > 0
        # 0 * inf is NaN: replace -inf by 0 and +inf by a very large number.
        finite = flat.nan_to_num(nan=torch.nan, posinf=1e300, neginf=0.0)
        values = finite.new_zeros(*finite.shape[:-1], len(vectors))
        for part in range(vectors.shape[-1]):
            values.addcmul_(finite[..., part, None], vectors[:, part])
        return values.masked_fill(is_forbidden, -torch.inf)
