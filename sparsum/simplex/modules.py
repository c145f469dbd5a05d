"""The mappings and losses as modules, to stand in a `torch.nn.Sequential` or beside `torch.nn.CrossEntropyLoss`."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.simplex import losses, mappings


class Sparsemax(torch.nn.Module):
    """Module form of `sparsemax`.

    >>> Sparsemax()(torch.tensor([1.0, 0.8, -0.5]))
    tensor([0.6000, 0.4000, 0.0000])

    Args:
        dim: the dimension that sums to 1.
        k: the largest number of non-zeros.
    """

    def __init__(self, dim: int = -1, *, k: int | None = None) -> None:
        super().__init__()
        self.dim, self.k = dim, k

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map scores to probabilities."""
        return mappings.sparsemax(x, self.dim, k=self.k, mask=mask)

    def extra_repr(self) -> str:
        """The arguments, for printing."""
        return f"dim={self.dim}" if self.k is None else f"dim={self.dim}, k={self.k}"


class Entmax15(torch.nn.Module):
    """Module form of `entmax15`.

    Args:
        dim: the dimension that sums to 1.
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map scores to probabilities."""
        return mappings.entmax15(x, self.dim, mask=mask)

    def extra_repr(self) -> str:
        """The arguments, for printing."""
        return f"dim={self.dim}"


class Entmax(torch.nn.Module):
    """Module form of `entmax`.

    Args:
        alpha: a number, or a tensor or `torch.nn.Parameter` that broadcasts to the rows. A parameter is trained; for values
            that stay at least 1, parametrise it, for example with `torch.nn.utils.parametrize`.
        dim: the dimension that sums to 1.
    """

    alpha: float | Tensor

    def __init__(self, alpha: float | Tensor, dim: int = -1) -> None:
        super().__init__()
        _keep_alpha(self, alpha)
        self.dim = dim

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map scores to probabilities."""
        return mappings.entmax(x, self.alpha, self.dim, mask=mask)

    def extra_repr(self) -> str:
        """The arguments, for printing."""
        shown = f"tensor of shape {tuple(self.alpha.shape)}" if isinstance(self.alpha, Tensor) else self.alpha
        return f"alpha={shown}, dim={self.dim}"


def _keep_alpha(module: Entmax | EntmaxLoss, alpha: float | Tensor) -> None:
    """Let a tensor move and be saved with the module, and a parameter be trained."""
    if isinstance(alpha, Tensor) and not isinstance(alpha, torch.nn.Parameter):
        module.register_buffer("alpha", alpha)
    else:
        module.alpha = alpha


class SparsemaxLoss(torch.nn.Module):
    """Module form of `sparsemax_loss`, with its arguments.

    >>> SparsemaxLoss()(torch.tensor([[2.0, 0.5, 0.0]]), torch.tensor([0]))
    tensor(0.)
    """

    def __init__(self, *, reduction: str = "mean", ignore_index: int = -100) -> None:
        super().__init__()
        self.reduction, self.ignore_index = reduction, ignore_index

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """The loss of scores against class indices or probabilities."""
        return losses.sparsemax_loss(x, target, reduction=self.reduction, ignore_index=self.ignore_index)


class Entmax15Loss(torch.nn.Module):
    """Module form of `entmax15_loss`, with its arguments."""

    def __init__(self, *, reduction: str = "mean", ignore_index: int = -100) -> None:
        super().__init__()
        self.reduction, self.ignore_index = reduction, ignore_index

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """The loss of scores against class indices or probabilities."""
        return losses.entmax15_loss(x, target, reduction=self.reduction, ignore_index=self.ignore_index)


class EntmaxLoss(torch.nn.Module):
    """Module form of `entmax_loss`, with its arguments; a tensor or parameter as alpha belongs to the module."""

    alpha: float | Tensor

    def __init__(self, alpha: float | Tensor, *, reduction: str = "mean", ignore_index: int = -100) -> None:
        super().__init__()
        _keep_alpha(self, alpha)
        self.reduction, self.ignore_index = reduction, ignore_index

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """The loss of scores against class indices or probabilities."""
        return losses.entmax_loss(x, target, self.alpha, reduction=self.reduction, ignore_index=self.ignore_index)
