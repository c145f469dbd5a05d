"""Slow, readable and independent versions of what the library computes fast, for the tests to compare with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import brentq, minimize
from torch import Tensor

from sparsum import SparseDistribution


def sparsemax_by_sorting(x: Tensor) -> Tensor:
    """The projection onto the simplex of a vector, after Held, Wolfe & Crowder (1974)."""
    ordered = sorted(x.tolist(), reverse=True)
    threshold, total = 0.0, 0.0
    for size, value in enumerate(ordered, start=1):
        total += value
        if value > (total - 1) / size:
            threshold = (total - 1) / size
    return (x - threshold).clamp_min(0)


def simplex_projection_by_qp(x: Tensor) -> Tensor:
    """The projection of a vector onto the simplex by a generic constrained solver."""
    target = x.double().numpy()
    result = minimize(
        lambda p: 0.5 * np.sum((p - target) ** 2),
        np.full(len(target), 1 / len(target)),
        jac=lambda p: p - target,
        bounds=[(0, None)] * len(target),
        constraints={"type": "eq", "fun": lambda p: np.sum(p) - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    return torch.from_numpy(result.x)


def entmax_by_root_finding(x: Tensor, alpha: float) -> Tensor:
    """Entmax of a float64 vector, its threshold by Brent's method on the definition."""
    z = (alpha - 1) * (x - x.max()).numpy()

    def probs(threshold: float) -> np.ndarray:
        return np.maximum(z - threshold, 0) ** (1 / (alpha - 1))

    high = -(len(z) ** (1.0 - alpha))
    root: float = brentq(lambda threshold: probs(threshold).sum() - 1, -1 - 1e-12, high + 1e-12, xtol=1e-16, maxiter=500)
    return torch.from_numpy(probs(root))


def tsallis_entropy(probs: Tensor, alpha: float) -> Tensor:
    """The definition of Tsallis entropy, and Shannon's at alpha = 1."""
    if alpha == 1:
        return -torch.xlogy(probs, probs).sum(-1)
    return (probs - torch.pow(probs, alpha)).sum(-1) / (alpha * (alpha - 1))


def expect_row_by_row(q: SparseDistribution, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The expectation as a loop over atoms."""
    total = [torch.zeros(())] * (int(q.row.max()) + 1)
    for z, p, r in zip(q.atoms, q.probs, q.row.tolist(), strict=True):
        total[r] = total[r] + p * loss(z[None], torch.tensor([r]))[0]
    return torch.stack(total)
