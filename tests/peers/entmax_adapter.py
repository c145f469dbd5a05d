"""The names of the `entmax` package, with its arguments and meanings, made of sparsum alone.

Where the two differ, this is what to write: `k` is a hint there, alpha broadcasts to the scores with size 1 in ``dim``,
functions return one loss per example, and modules call the mean ``elementwise_mean``. A number of iterations is not needed.
"""
# ruff: noqa: N802, N803 (the names are those of the package)

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

import sparsum as sp


def sparsemax(X: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
    """Sparsemax by the k largest scores, and twice as many where these do not suffice."""
    probs = sp.sparsemax(X, dim, k=k)
    if k is None or k >= X.shape[dim] or bool(((probs > 0).sum(dim) < k).all()):
        return probs
    return sparsemax(X, dim, 2 * k)


def entmax15(X: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
    """1.5-entmax; the hint has no counterpart."""
    return sp.entmax15(X, dim)


def sparsemax_bisect(X: Tensor, dim: int = -1, n_iter: int = 50, ensure_sum_one: bool = True) -> Tensor:
    """Sparsemax, which needs no bisection."""
    return sp.sparsemax(X, dim)


def entmax_bisect(
    X: Tensor, alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int = 50, ensure_sum_one: bool = True
) -> Tensor:
    """Entmax; a tensor alpha broadcasts to ``X`` with size 1 in ``dim``."""
    return sp.entmax(X, _one_per_row(alpha, X, dim), dim)


def budget_bisect(X: Tensor, budget: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> Tensor:
    """The marginals of SparseMAP over vectors with ``budget`` ones, one whole number for all rows."""
    structure = sp.Subset(X.shape[dim], int(budget), symmetric=False)
    marginals = sp.sparsemap(X.movedim(dim, -1), structure).mean
    assert isinstance(marginals, Tensor)
    return marginals.movedim(-1, dim)


def sparsemax_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """The loss of each example."""
    return sp.sparsemax_loss(X, target, reduction="none")


def sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int = 50) -> Tensor:
    """The loss of each example."""
    return sp.sparsemax_loss(X, target, reduction="none")


def entmax15_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """The loss of each example."""
    return sp.entmax15_loss(X, target, reduction="none")


def entmax_bisect_loss(X: Tensor, target: Tensor, alpha: float | Tensor = 1.5, n_iter: int = 50) -> Tensor:
    """The loss of each example; alpha has no gradient."""
    alpha = _one_per_row(alpha, X, -1)
    return sp.entmax_loss(X, target, alpha.detach() if isinstance(alpha, Tensor) else alpha, reduction="none")


def Sparsemax(dim: int = -1, k: int | None = None) -> Any:
    """Module form."""
    return partial(sparsemax, dim=dim, k=k)


def Entmax15(dim: int = -1, k: int | None = None) -> torch.nn.Module:
    """Module form."""
    return sp.Entmax15(dim)


def SparsemaxBisect(dim: int = -1, n_iter: int | None = None) -> torch.nn.Module:
    """Module form."""
    return sp.Sparsemax(dim)


def EntmaxBisect(alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int = 50) -> Any:
    """Module form."""
    return partial(entmax_bisect, alpha=alpha, dim=dim)


def BudgetBisect(budget: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> Any:
    """Module form."""
    return partial(budget_bisect, budget=budget, dim=dim)


def SparsemaxLoss(
    k: int | None = None, ignore_index: int | Tensor = -100, reduction: str = "elementwise_mean"
) -> torch.nn.Module:
    """Module form, which takes a mean."""
    return sp.SparsemaxLoss(**_options(ignore_index, reduction))


def SparsemaxBisectLoss(
    n_iter: int = 50, ignore_index: int | Tensor = -100, reduction: str = "elementwise_mean"
) -> torch.nn.Module:
    """Module form, which takes a mean."""
    return sp.SparsemaxLoss(**_options(ignore_index, reduction))


def Entmax15Loss(
    k: int | None = 100, ignore_index: int | Tensor = -100, reduction: str = "elementwise_mean"
) -> torch.nn.Module:
    """Module form, which takes a mean."""
    return sp.Entmax15Loss(**_options(ignore_index, reduction))


def EntmaxBisectLoss(
    alpha: float | Tensor = 1.5, n_iter: int = 50, ignore_index: int | Tensor = -100, reduction: str = "elementwise_mean"
) -> torch.nn.Module:
    """Module form, which takes a mean."""
    return sp.EntmaxLoss(alpha, **_options(ignore_index, reduction))


def NormmaxBisectLoss(*_: object, **__: object) -> NoReturn:
    """Normmax, here and in the names below, has no counterpart."""
    raise NotImplementedError("sparsum has no counterpart")


normmax_bisect = normmax_bisect_loss = NormmaxBisect = _entmax_threshold_and_support = NormmaxBisectLoss


def _sparsemax_threshold_and_support(X: Tensor, dim: int = -1, k: int | None = None) -> tuple[Tensor, Tensor]:
    """What the probabilities say about the threshold and the size of the support; tests import it."""
    probs = sparsemax(X, dim, k)
    threshold = torch.where(probs > 0, X - probs, -torch.inf).amax(dim, keepdim=True)
    return threshold, (probs > 0).sum(dim, keepdim=True)


def _one_per_row(alpha: float | Tensor, X: Tensor, dim: int) -> float | Tensor:
    """A tensor alpha with all dimensions of ``X``, and size 1 in ``dim``."""
    if not isinstance(alpha, Tensor):
        return alpha
    shape = list(X.shape)
    shape[dim] = 1
    return alpha.expand(shape)


def _options(ignore_index: int | Tensor, reduction: str) -> dict[str, Any]:
    return {"ignore_index": int(ignore_index), "reduction": "mean" if reduction == "elementwise_mean" else reduction}
