"""Replace a tensor's value, keep its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Revalued(torch.autograd.Function):
    """A tensor with another value; adding ``value - surrogate`` instead would give NaN where the surrogate overflows."""

    generate_vmap_rule = True

    @staticmethod
    def forward(surrogate: Tensor, value: Tensor) -> Tensor:
        """Return the value."""
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Save the dtype of the surrogate."""
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Pass the gradient to the surrogate."""
        return gradient.to(ctx.dtype), None
