"""The common reference of all methods: the gradient of the expected loss under the dense distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.diagnosis.case import Case
from sparsum.diagnosis.exact import CHUNK_SIZE, Exact
from sparsum.diagnosis.moments import Moments
from sparsum.estimators import Dense, LeaveOneOut
from sparsum.gibbs import Gibbs

# Samples are drawn in batches of at most this many per example; the differences between batches give the standard error.
_BATCH = 64


@dataclass(frozen=True)
class Reference:
    """A gradient with respect to the scores, and how well it is known.

    Args:
        gradient: the gradient, or the mean of its estimates, (n_scores,).
        n_samples: the number of samples per example; 0 if all assignments were enumerated.
        error: the expected squared distance of the mean from the gradient; 0 if enumerated.
        noise: the standard error of the square of a distance from the mean, at 0.
    """

    gradient: Tensor
    n_samples: int = 0
    error: float = 0.0
    noise: float = 0.0

    @property
    def norm(self) -> float:
        """The norm of the gradient; the contribution of the noise to its square is subtracted."""
        return math.sqrt(max(float(self.gradient.square().sum()) - self.error, 0.0))

    @property
    def relative_error(self) -> float:
        """The standard error of the gradient, relative to its norm."""
        return math.sqrt(self.error) / self.norm if self.norm > 0 else math.inf if self.error > 0 else 0.0


def reference_of(case: Case, exact: Exact, n_samples: int, seed: int) -> Reference | None:
    """The reference by enumeration if possible, else by samples, or None if neither is.

    Args:
        case: the batch.
        exact: enumerates what is short enough.
        n_samples: the number of samples per example, if enumeration would take too long; 0 for none.
        seed: the seed of the samples.
    """
    generator = torch.Generator(case.device).manual_seed(seed)
    try:
        if not case.structure.has_partition:
            dense = Dense(chunk_size=CHUNK_SIZE)
            return Reference(_gradient(case, dense, generator)) if exact.list_length(case.structure) else None
        p = Gibbs(case.scores, case.structure, mask=case.mask, temperature=case.temperature)
        gradient = exact.of_gibbs(p)
        if gradient is not None:
            return Reference(gradient)
        return _sampled(case, exact, n_samples, generator) if n_samples else None
    except Exception:  # the loss may not accept atoms; the estimators that pass them will say why
        return None


def _sampled(case: Case, exact: Exact, n_samples: int, generator: torch.Generator) -> Reference:
    """The mean over batches of samples, each the baseline of the others."""
    moments, size = Moments(), min(_BATCH, n_samples // 2)
    for done in range(size, n_samples + 1, size):
        moments.add(_gradient(case, LeaveOneOut(size), generator))
        exact.progress("dense gradient", done, n_samples)
    return Reference(moments.mean, moments.count * size, moments.variance / moments.count, moments.noise)


def _gradient(case: Case, estimator: Dense | LeaveOneOut, generator: torch.Generator) -> Tensor:
    surrogate = case.call(estimator, generator).surrogate.sum()
    return case.flatten(torch.autograd.grad(surrogate, case.leaves, retain_graph=True, allow_unused=True))
