"""The mappings and losses as modules, e.g. for `torch.nn.Sequential` or to replace `torch.nn.CrossEntropyLoss`."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.arguments import check_int
from sparsum.simplex import losses, mappings
from sparsum.simplex.bounded import BoundedAlpha


class Sparsemax(torch.nn.Module):
    """Module form of `sparsemax`.

    >>> Sparsemax()(torch.tensor([1.0, 0.8, -0.5]))
    tensor([0.6000, 0.4000, 0.0000])

    Args:
        dim: the dimension along which the probabilities sum to 1.
        k: the maximum number of non-zero entries, if the row has more; not a hint, as in the `entmax` package.
        temperature: divides the scores. A number, or a tensor or `torch.nn.Parameter` that broadcasts to the rows; a
            parameter is trained.
    """

    temperature: float | Tensor | None

    def __init__(self, dim: int = -1, *, k: int | None = None, temperature: float | Tensor | None = None) -> None:
        super().__init__()
        _keep(self, temperature=temperature)
        self.dim, self.k = dim, k

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map scores to probabilities."""
        return mappings.sparsemax(x, self.dim, k=self.k, mask=mask, temperature=self.temperature)

    def extra_repr(self) -> str:
        """Format the arguments for printing."""
        return _shown(dim=self.dim, k=self.k, temperature=self.temperature)


class Entmax15(torch.nn.Module):
    """Module form of `entmax15`.

    Args:
        dim: the dimension along which the probabilities sum to 1.
        temperature: as for `Sparsemax`.
    """

    temperature: float | Tensor | None

    def __init__(self, dim: int = -1, *, temperature: float | Tensor | None = None) -> None:
        super().__init__()
        _keep(self, temperature=temperature)
        self.dim = dim

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map scores to probabilities."""
        return mappings.entmax15(x, self.dim, mask=mask, temperature=self.temperature)

    def extra_repr(self) -> str:
        """Format the arguments for printing."""
        return _shown(dim=self.dim, temperature=self.temperature)


class Entmax(torch.nn.Module):
    """Module form of `entmax`, whose alpha can be learned.

    With ``bounds``, alpha is learned and stays between them, so that it cannot drift to 1 or below. Adaptively sparse
    attention has one alpha per head, for scores of shape (batch, heads, queries, keys):

    >>> attend = Entmax(1.5, bounds=(1.05, 2.0), n_heads=8)
    >>> attend(torch.randn(2, 8, 5, 7)).shape, attend.current_alpha().shape
    (torch.Size([2, 8, 5, 7]), torch.Size([8, 1]))

    Args:
        alpha: a number, or a tensor or `torch.nn.Parameter` that broadcasts to the rows. A parameter is trained. With
            ``bounds``, the initial value: a number, or a tensor.
        dim: the dimension along which the probabilities sum to 1.
        temperature: as for `Sparsemax`.
        bounds: the smallest and the largest alpha, both larger than 1, between which it is learned; see `BoundedAlpha`.
        n_heads: with ``bounds``, learn one alpha per head, of shape (n_heads, 1), instead of one for all rows.

    References:
        - Adaptively sparse transformers (Correia, Niculae & Martins, 2019), https://arxiv.org/abs/1909.00015
    """

    alpha: float | Tensor | BoundedAlpha
    temperature: float | Tensor | None

    def __init__(
        self,
        alpha: float | Tensor,
        dim: int = -1,
        *,
        temperature: float | Tensor | None = None,
        bounds: tuple[float, float] | None = None,
        n_heads: int | None = None,
    ) -> None:
        super().__init__()
        if bounds is not None:
            self.alpha = BoundedAlpha(alpha, bounds, n_heads=n_heads)
        elif n_heads is not None:
            raise ValueError(f"n_heads needs bounds, between which one alpha per head is learned, got {n_heads}")
        else:
            _keep(self, alpha=alpha)
        _keep(self, temperature=temperature)
        self.dim = dim

    def current_alpha(self) -> float | Tensor:
        """The alpha that scores are mapped with: a number, or a tensor that broadcasts to the rows."""
        return self.alpha() if isinstance(self.alpha, BoundedAlpha) else self.alpha

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map scores to probabilities."""
        return mappings.entmax(x, self.current_alpha(), self.dim, mask=mask, temperature=self.temperature)

    def extra_repr(self) -> str:
        """Format the arguments for printing."""
        alpha = None if isinstance(self.alpha, BoundedAlpha) else self.alpha  # torch prints a module by itself
        return _shown(alpha=alpha, dim=self.dim, temperature=self.temperature)


def _keep(module: torch.nn.Module, **values: float | Tensor | None) -> None:
    """Store values on the module: tensors as buffers, parameters as parameters, anything else as attributes."""
    for name, value in values.items():
        if isinstance(value, Tensor) and not isinstance(value, torch.nn.Parameter):
            module.register_buffer(name, value)
        else:
            setattr(module, name, value)


def _shown(**values: object) -> str:
    """Format arguments for printing, without those that are None."""
    return ", ".join(
        f"{name}=tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{name}={value}"
        for name, value in values.items()
        if value is not None
    )


class SparsemaxLoss(torch.nn.Module):
    """Module form of `sparsemax_loss`, with its arguments; ``reduction`` is checked here already.

    >>> SparsemaxLoss()(torch.tensor([[2.0, 0.5, 0.0]]), torch.tensor([0]))
    tensor(0.)
    """

    def __init__(self, *, reduction: str = "mean", ignore_index: int = -100) -> None:
        super().__init__()
        losses.check_reduction(reduction)
        check_int("ignore_index", ignore_index)
        self.reduction, self.ignore_index = reduction, ignore_index

    def forward(self, x: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the loss for class indices or probabilities, over the classes that the mask allows."""
        return losses.sparsemax_loss(x, target, mask=mask, reduction=self.reduction, ignore_index=self.ignore_index)


class Entmax15Loss(torch.nn.Module):
    """Module form of `entmax15_loss`, with its arguments."""

    def __init__(self, *, reduction: str = "mean", ignore_index: int = -100) -> None:
        super().__init__()
        losses.check_reduction(reduction)
        check_int("ignore_index", ignore_index)
        self.reduction, self.ignore_index = reduction, ignore_index

    def forward(self, x: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the loss for class indices or probabilities, over the classes that the mask allows."""
        return losses.entmax15_loss(x, target, mask=mask, reduction=self.reduction, ignore_index=self.ignore_index)


class EntmaxLoss(torch.nn.Module):
    """Module form of `entmax_loss`, with its arguments; a tensor alpha becomes a buffer, a parameter is trained."""

    alpha: float | Tensor

    def __init__(self, alpha: float | Tensor, *, reduction: str = "mean", ignore_index: int = -100) -> None:
        super().__init__()
        _keep(self, alpha=alpha)
        losses.check_reduction(reduction)
        check_int("ignore_index", ignore_index)
        self.reduction, self.ignore_index = reduction, ignore_index

    def forward(self, x: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the loss for class indices or probabilities, over the classes that the mask allows."""
        return losses.entmax_loss(x, target, self.alpha, mask=mask, reduction=self.reduction, ignore_index=self.ignore_index)
