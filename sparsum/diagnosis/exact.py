"""The exact gradient of an estimator: that of the sum over its distribution."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparsum.diagnosis.case import Case, Progress
from sparsum.distribution import SparseDistribution
from sparsum.distribution.loss import call_for_numbers
from sparsum.estimators import Estimate
from sparsum.estimators.members import members
from sparsum.gibbs import Gibbs
from sparsum.structures import AbstractStructure

# The number of terms per chunk, which bounds the memory.
CHUNK_SIZE = 2**14

# Where atoms do not consist of choices, all assignments are found as the best ones, which is slow for many.
_FEW = 1024


@dataclass
class Exact:
    r"""The gradients :math:`\nabla_t \sum_z q(z) \ell(z)` of a batch, where they are affordable.

    Args:
        case: the batch.
        max_terms: the largest number of assignments times rows.
        progress: called with the number of terms summed so far.
    """

    case: Case
    max_terms: int
    progress: Progress
    # Sampling estimators share one distribution: cache its scores and their gradient, to sum over all assignments once.
    _known: tuple[Tensor, Tensor] | None = field(default=None, init=False)

    def gradient(self, estimate: Estimate) -> Tensor | None:
        """The exact gradient for the distribution of an estimate, (n_scores,), or None if unknown or too expensive."""
        q = estimate.distribution
        if isinstance(q, SparseDistribution):
            return self._sum(_atoms(q), len(q.atoms))
        return self.of_gibbs(q) if isinstance(q, Gibbs) else None

    def of_gibbs(self, p: Gibbs) -> Tensor | None:
        """The exact gradient for a dense distribution, (n_scores,), or None if it has too many assignments."""
        shape = _shape(p)
        count = self.list_length(p.structure) if shape is None else shape[1] ** shape[0]
        n_terms = self.case.n_rows * count
        if not count or n_terms > self.max_terms:
            return None
        flat = p.bound.flat.detach()
        if self._known is None or not torch.equal(self._known[0], flat):
            terms = _listed(p, count) if shape is None else _assignments(p, *shape)
            self._known = flat, self._sum(terms, n_terms)
        return self._known[1]

    def list_length(self, structure: AbstractStructure) -> int:
        """The number of assignments of a structure that does not consist of choices; 0 if there are too many to list."""
        most = min(_FEW, self.max_terms // self.case.n_rows)
        return round(math.exp(structure.log_count())) if structure.log_count() <= math.log(max(most, 1)) else 0

    def _sum(self, terms: Iterator[tuple[Tensor, Tensor, Tensor]], n_terms: int) -> Tensor:
        """The gradient of the sum of probabilities times losses; only the probabilities depend on the scores."""
        total = self.case.flatten((None,) * len(self.case.leaves))
        constant = None
        for i, (atoms, row, probs) in enumerate(terms):
            with torch.no_grad():
                losses = call_for_numbers("loss", self.case.loss, atoms, row, self.case.n_rows)
            # Subtracting a constant does not change the gradient of the full sum, and reduces rounding errors.
            constant = losses.mean().nan_to_num(0.0, 0.0, 0.0) if constant is None else constant
            weighted = (probs * (losses - constant)).sum()
            gradients = torch.autograd.grad(weighted, self.case.leaves, retain_graph=True, allow_unused=True)
            total += self.case.flatten(gradients)
            self.progress("exact gradient", min((i + 1) * CHUNK_SIZE, n_terms), n_terms)
        return total


def _atoms(q: SparseDistribution) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Atoms, rows and probabilities of the support, in chunks."""
    for start in range(0, len(q.atoms), CHUNK_SIZE):
        chunk = slice(start, start + CHUNK_SIZE)
        yield q.atoms[chunk], q.row[chunk], q.probs[chunk]


def _assignments(p: Gibbs, length: int, n_choices: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Atoms, rows and probabilities of all allowed sequences of choices, in chunks."""
    bound, count = p.bound, n_choices**length
    n_terms = bound.n_rows * count
    power = n_choices ** torch.arange(length - 1, -1, -1, device=bound.device)
    for start in range(0, n_terms, CHUNK_SIZE):
        index = torch.arange(start, min(start + CHUNK_SIZE, n_terms), device=bound.device)
        row, choices = index // count, (index % count).unsqueeze(-1) // power % n_choices
        atoms = p.structure.choices_to_atoms(choices, bound.dtype)
        probs = p.log_prob_of(atoms, row).exp()
        # Choices that do not form an assignment have probability 0, and must not be passed to the loss.
        kept = probs.detach() > 0
        if kept.any():
            yield atoms[kept], row[kept], probs[kept]


def _listed(p: Gibbs, count: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Atoms, rows and probabilities of all allowed assignments, in chunks, from a list of them."""
    atoms, scores = members(p.bound, count)
    kept = (scores.detach() > -torch.inf).flatten()
    every, rows = atoms.flatten(0, 1)[kept], p.bound.row(count)[kept]
    for start in range(0, len(rows), CHUNK_SIZE):
        chunk = slice(start, start + CHUNK_SIZE)
        yield every[chunk], rows[chunk], p.log_prob_of(every[chunk], rows[chunk]).exp()


def _shape(p: Gibbs) -> tuple[int, int] | None:
    """The number of choices of an atom and of options per choice, or None if atoms do not consist of choices."""
    structure = p.structure
    if structure.is_chain:
        _, length, n_choices = structure.potentials(p.bound.scores).unary.shape
        return length, n_choices
    if structure.group_size is None:
        return None
    length = p.bound.flat.shape[-1] // structure.group_size
    return (length, structure.group_size) if p.event_shape == (length,) else None
