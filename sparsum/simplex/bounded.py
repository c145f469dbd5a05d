"""A learnable alpha that stays between two bounds."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.arguments import check_floating, check_int, check_number


class BoundedAlpha(torch.nn.Module):
    r"""A learnable alpha that no step of an optimizer moves out of its bounds.

    .. math:: \alpha = l + (h - l) \operatorname{sigmoid}(t)

    The parameter t, ``logit``, is unbounded. Weight decay on it pulls alpha to the middle of the bounds.

    >>> alpha = BoundedAlpha(1.5, (1.05, 2.0), n_heads=2)
    >>> alpha().detach()
    tensor([[1.5000],
            [1.5000]])

    Args:
        alpha: the initial value, between the bounds: a number, or a tensor with the shape that alpha is to have.
        bounds: the smallest and the largest value, both larger than 1. They are reached only by rounding.
        n_heads: if given, one alpha per head, all with the same initial value, of shape (n_heads, 1): it broadcasts to the
            rows of attention scores of shape (batch, n_heads, queries, keys). By default one for all rows.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if ``bounds`` do not increase from above 1, if ``alpha`` is not between them, or if ``n_heads`` is less
            than 1 or given with a tensor.
    """

    def __init__(self, alpha: float | Tensor, bounds: tuple[float, float], *, n_heads: int | None = None) -> None:
        super().__init__()
        if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
            raise TypeError(f"bounds must be a pair of numbers, got {bounds!r}")
        low, high = bounds
        self.bounds = check_number("bounds[0]", low, above=1), check_number("bounds[1]", high, above=low)
        self.logit = torch.nn.Parameter(_initial_logit(alpha, self.bounds, n_heads))

    def forward(self) -> Tensor:
        """The current values, in at least float32: half precision cannot tell numbers a little larger than 1 from 1."""
        low, high = self.bounds
        logit = self.logit.float() if self.logit.dtype in (torch.float16, torch.bfloat16) else self.logit
        return (low + (high - low) * torch.sigmoid(logit)).clamp(low, high)

    def extra_repr(self) -> str:
        """Format the arguments for printing."""
        return f"bounds={self.bounds}, shape={tuple(self.logit.shape)}"


def _initial_logit(alpha: float | Tensor, bounds: tuple[float, float], n_heads: int | None) -> Tensor:
    """The parameter for initial values, in the shape that alpha is to have."""
    if isinstance(alpha, torch.nn.Parameter):
        raise TypeError("alpha must not be a Parameter if bounds are given: it is only the initial value of another one")
    if not isinstance(alpha, Tensor):
        alpha = torch.tensor(check_number("alpha", alpha), dtype=torch.float64, device="cpu")
        shape = () if n_heads is None else (check_int("n_heads", n_heads, least=1), 1)
        return torch.full(shape, _initial_logit(alpha, bounds, None).item())
    if n_heads is not None:
        raise ValueError(
            f"n_heads must be None for a tensor alpha, whose shape, {tuple(alpha.shape)}, is used; got {n_heads}"
        )
    check_floating("alpha", alpha)
    share = (alpha.detach().double() - bounds[0]) / (bounds[1] - bounds[0])
    is_inside = (share > 0) & (share < 1)
    if not (alpha.is_meta or bool(is_inside.all())):
        seen = ", ".join(f"{value:g}" for value in alpha[~is_inside][:5].tolist())
        raise ValueError(
            f"alpha must be larger than bounds[0], {bounds[0]}, and less than bounds[1], {bounds[1]}, got {seen}"
        )
    return torch.logit(share).to(alpha.dtype)
