"""The input of an estimator: flattened rows of scores, and a checked loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import Node

from sparsum.distribution.loss import Loss, call_for_numbers
from sparsum.gibbs import Gibbs
from sparsum.structures import AbstractStructure, BoundScores

_INSTEAD = "or use an estimator that passes atoms to the loss, e.g. SparseMAP, TopK, ScoreFunction or LeaveOneOut"


@dataclass(frozen=True)
class Problem:
    """Rows of scores over a structure, and a loss of assignments to average in each row."""

    bound: BoundScores
    loss: Loss
    context: Tensor | None  # shape: (n_rows, *features)
    generator: torch.Generator | None
    name: str  # of the estimator, for messages
    validate_args: bool

    @property
    def structure(self) -> AbstractStructure:
        """The set of assignments, as bound to these rows."""
        return self.bound.structure

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return self.bound.n_rows

    @property
    def device(self) -> torch.device:
        """The device of the scores."""
        return self.bound.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the scores."""
        return self.bound.dtype

    def gibbs(self) -> Gibbs:
        """The dense distribution of the batch."""
        return Gibbs.from_bound(self.bound, validate_args=self.validate_args)

    def features(self, n: int) -> Tensor:
        """The context of each row as n numbers: (n_rows, n)."""
        if self.context is None:
            raise ValueError(f"{self.name} needs a context as input of its network: pass context=x")
        flat = self.context.reshape(self.n_rows, self.context.shape[1:].numel())
        if flat.shape[1] != n:
            raise ValueError(
                f"context must have {n} features per element, the context_size of this {self.name}, got {flat.shape[1]}"
            )
        return flat if flat.is_floating_point() else flat.float()

    def row(self, n_each: int) -> Tensor:
        """The row of each of ``n_each`` atoms per row: (n_rows * n_each,)."""
        return self.bound.row(n_each)

    def calls(self, n_each: int) -> Tensor:
        """The same number of calls for every row."""
        return torch.full((self.n_rows,), n_each, device=self.device)

    def losses(
        self,
        z: Tensor,  # shape: (n, *event_shape)
        row: Tensor,  # shape: (n,)
    ) -> Tensor:
        """The loss of each assignment, checked, in at least float32: (n,)."""
        return call_for_numbers("loss", self.loss, z, row, self.n_rows)

    def sample_losses(
        self,
        atoms: Tensor,  # shape: (n_rows, n_each, *event_shape)
    ) -> Tensor:
        """The loss of the same number of atoms for each row: (n_rows, n_each)."""
        return self.losses(atoms.flatten(0, 1), self.row(atoms.shape[1])).reshape(atoms.shape[:2])

    def sample(self, p: Gibbs, n: int) -> Tensor:
        """Samples for each row: (n_rows, n, *event_shape)."""
        atoms = p.sample((n,), generator=self.generator)
        return atoms.reshape(n, self.n_rows, *p.event_shape).transpose(0, 1)

    def log_probs(
        self,
        p: Gibbs,
        atoms: Tensor,  # shape: (n_rows, n_each, *event_shape)
    ) -> Tensor:
        """The log-probability of the same number of atoms for each row, in at least float32: (n_rows, n_each)."""
        return p.model.log_prob(atoms.flatten(0, 1), self.row(atoms.shape[1])).reshape(atoms.shape[:2])

    def relaxed_losses(
        self,
        vectors: Tensor,  # shape: (n_rows, n_each, *score_shape)
    ) -> Tensor:
        """The loss of vectors, not necessarily assignments, differentiable in them: (n_rows, n_each)."""
        z, row = vectors.to(self.dtype).flatten(0, 1), self.row(vectors.shape[1])
        try:
            values = self.losses(z, row)
        except (IndexError, RuntimeError, TypeError) as error:
            # For bit vectors, vectors and atoms are the same, so the error has another cause.
            if self.structure.bit_counts() is not None or isinstance(error, torch.OutOfMemoryError):
                raise
            seen = f"{str(z.dtype).removeprefix('torch.')} vectors of shape {tuple(z.shape)}"
            raise TypeError(
                f"{self.name} passes {seen} to the loss, which failed: {error}; use sparsum.embed, which accepts these "
                f"vectors and atoms, {_INSTEAD}"
            ) from error
        if torch.is_grad_enabled() and len(row) and not _depends_on(values, z):
            raise ValueError(
                f"{self.name} needs a loss that is differentiable in z, but the returned tensor does not depend on z by "
                f"differentiable operations; make it differentiable, {_INSTEAD}"
            )
        return values.reshape(vectors.shape[:2])


def _depends_on(values: Tensor, z: Tensor) -> bool:
    """Whether the autograd graph of ``values`` contains z; walks the nodes without computing anything."""
    if not z.requires_grad:
        return True  # no gradient is needed
    target, seen, waiting = z.grad_fn, set[Node](), [values.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node is target:
            return True
        seen.add(node)
        waiting.extend(parent for parent, _ in node.next_functions)
    return False
