"""A value that says something, with a gradient that does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Revalued(torch.autograd.Function):
    """A tensor with another value; a sum with a difference of 0 would be NaN where the tensor overflows."""

    generate_vmap_rule = True

    @staticmethod
    def forward(surrogate: Tensor, value: Tensor) -> Tensor:
        """Return the value."""
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keep the dtype of the surrogate."""
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Pass the gradient to the surrogate."""
        return gradient.to(ctx.dtype), None
