"""The gradient that an estimator is to have in expectation: that of the sum over its own distribution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparsum.diagnosis.case import Case, Progress
from sparsum.distribution import SparseDistribution
from sparsum.estimators import Estimate
from sparsum.gibbs import Gibbs
from sparsum.gibbs.choices import atoms_of, potentials
from sparsum.structures import Tree
from sparsum.structures.parts import flatten_parts, tensors_of

# So many terms at a time bound the memory.
CHUNK_SIZE = 2**14


@dataclass
class Exact:
    r"""The gradients :math:`\nabla_t \sum_z q(z) \ell(z)` of a batch, where they can be afforded.

    Args:
        case: the batch.
        max_terms: the largest number of assignments times rows.
        progress: hears of the number of terms.
    """

    case: Case
    max_terms: int
    progress: Progress
    # Samplers share one distribution, so that the sum over all assignments is computed once: for these scores, this result.
    _known: tuple[Tensor, Tensor] | None = field(default=None, init=False)

    def gradient(self, estimate: Estimate) -> Tensor | None:
        """The exact gradient for the distribution of an estimate, (n_scores,), or None if it is unknown or too long."""
        q = estimate.distribution
        if isinstance(q, SparseDistribution):
            return self._sum(_atoms(q), len(q.atoms))
        if not isinstance(q, Gibbs):
            return None
        length, n_choices = _shape(q)
        n_terms = self.case.n_rows * n_choices**length
        if n_terms > self.max_terms:
            return None
        flat = flatten_parts(q._rows).detach()
        if self._known is None or not torch.equal(self._known[0], flat):
            self._known = flat, self._sum(_assignments(q, length, n_choices), n_terms)
        return self._known[1]

    def _sum(self, terms: Iterator[tuple[Tensor, Tensor, Tensor]], n_terms: int) -> Tensor:
        """The gradient of the sum of probabilities times losses, which depend on the scores by the probabilities alone."""
        total = self.case.flatten((None,) * len(self.case.leaves))
        constant = None
        for i, (atoms, row, probs) in enumerate(terms):
            with torch.no_grad():
                losses = self.case.loss(atoms, row)
            # A constant changes nothing in a sum over all, and saves digits.
            constant = losses.mean().nan_to_num(0.0, 0.0, 0.0) if constant is None else constant
            weighted = (probs * (losses - constant)).sum()
            gradients = torch.autograd.grad(weighted, self.case.leaves, retain_graph=True, allow_unused=True)
            total += self.case.flatten(gradients)
            self.progress("exact gradient", min((i + 1) * CHUNK_SIZE, n_terms), n_terms)
        return total


def _atoms(q: SparseDistribution) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Atoms, rows and probabilities of what has mass, in chunks."""
    for start in range(0, len(q.atoms), CHUNK_SIZE):
        chunk = slice(start, start + CHUNK_SIZE)
        yield q.atoms[chunk], q.row[chunk], q.probs[chunk]


def _assignments(p: Gibbs, length: int, n_choices: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Atoms, rows and probabilities of all rows of choices that are allowed, in chunks."""
    scores = tensors_of(p._rows)[0]
    count = n_choices**length
    n_terms = len(scores) * count
    power = n_choices ** torch.arange(length - 1, -1, -1, device=scores.device)
    for start in range(0, n_terms, CHUNK_SIZE):
        index = torch.arange(start, min(start + CHUNK_SIZE, n_terms), device=scores.device)
        row, choices = index // count, (index % count).unsqueeze(-1) // power % n_choices
        atoms = atoms_of(p.structure, choices, scores.dtype)
        probs = p.log_prob_of(atoms, row).exp()
        # What is no tree, or not 0 in padding, has no probability, and the loss shall not see it.
        kept = probs.detach() > 0
        if kept.any():
            yield atoms[kept], row[kept], probs[kept]


def _shape(p: Gibbs) -> tuple[int, int]:
    """The number of choices that an atom consists of, and of what each may be."""
    if isinstance(p.structure, Tree):
        return p.structure.n, p.structure.n
    scores, _ = potentials(p.structure, p._rows)
    return scores.shape[1], scores.shape[2]
