"""Networks that several experiments are built of."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from sparsum import kernels

# Blocks of this many rows stay in the cache of a CPU, and their memory is used again: four times as fast as all at once.
_MAPPED_AT_ONCE = 8
# In a running mean. Nothing holds the mean where it is, so that one over more batches would come too late.
_WEIGHT_OF_A_BATCH = 0.1


def perceptron(*sizes: int) -> torch.nn.Sequential:
    """Linear layers of these sizes, with ReLU between them."""
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


class ScalarMap(torch.nn.Module):
    r"""A network from one number to one number, the same for all: :math:`h = \sigma(v^\top \sigma(w x))`.

    On a GPU the hidden units of all numbers are never in memory.

    Args:
        n_hidden: how many units it has.
    """

    def __init__(self, n_hidden: int) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(1, n_hidden, bias=False)
        self.outer = torch.nn.Linear(n_hidden, 1, bias=False)

    def forward(
        self,
        x: Tensor,  # shape: (n, *rest)
    ) -> Tensor:
        """Each number mapped, in the shape of ``x``."""
        return _map_numbers(x, self.inner.weight, self.outer.weight)


class _Mapped(torch.autograd.Function):
    """`ScalarMap` by kernels that compute the hidden units again for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
        from sparsum_experiments.kernels import scalar_map

        mapped: Tensor = scalar_map.forward(x, inner, outer)
        ctx.save_for_backward(x, inner, outer, mapped)
        return mapped

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _pull_numbers(grad, *ctx.saved_tensors)


def _is_single(x: Tensor, inner: Tensor, _outer: Tensor) -> bool:
    """In single precision."""
    return x.dtype == inner.dtype == torch.float32


def _map_in_registers(x: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
    mapped: Tensor = _Mapped.apply(x.contiguous(), inner.reshape(-1), outer.reshape(-1))
    return mapped


@kernels.operation("scalar_map", kernel=_map_in_registers, takes=_is_single, is_traceable=True)
def _map_numbers(
    x: Tensor,  # shape: (n, *rest)
    inner: Tensor,  # shape: (n_hidden, 1)
    outer: Tensor,  # shape: (1, n_hidden)
) -> Tensor:
    """Each number mapped, in the shape of ``x``; differentiable."""
    blocks = x.split(_MAPPED_AT_ONCE) if x.device.type == "cpu" else (x,)
    return torch.cat([_map_block(block, inner, outer) for block in blocks])


def _map_block(x: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
    hidden = functional.linear(x.unsqueeze(-1), inner).sigmoid()
    return functional.linear(hidden, outer).sigmoid().squeeze(-1)


def _is_single_gradient(grad: Tensor, *_: object) -> bool:
    """In single precision."""
    return grad.dtype == torch.float32


def _pull_in_registers(
    grad: Tensor, x: Tensor, inner: Tensor, outer: Tensor, mapped: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    from sparsum_experiments.kernels import scalar_map

    of_x, of_inner, of_outer = scalar_map.backward(x, inner, outer, mapped, grad.contiguous())
    return of_x, of_inner, of_outer


@kernels.operation("scalar_map_backward", kernel=_pull_in_registers, takes=_is_single_gradient, is_traceable=True)
def _pull_numbers(
    grad: Tensor,  # shape: (*batch), of what the numbers are mapped to
    x: Tensor,  # shape: (*batch)
    inner: Tensor,  # shape: (n_hidden,)
    outer: Tensor,  # shape: (n_hidden,)
    mapped: Tensor,  # shape: (*batch)
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, inner and outer."""
    units = (x.unsqueeze(-1) * inner).sigmoid()
    of_sum = (grad * mapped * (1 - mapped)).unsqueeze(-1)
    slopes = units * (1 - units) * outer * of_sum
    return (slopes @ inner), (slopes * x.unsqueeze(-1)).flatten(0, -2).sum(0), (units * of_sum).flatten(0, -2).sum(0)


class Centred(torch.nn.Module):
    """Takes the mean over a batch away from each column; outside of training, a running mean over the last batches.

    The score of a bit can drift to one side for all examples. Then its bit is the same in all assignments that a sum over a
    few of them looks at: nothing tells any more that another value would be better, and a bit of the code is lost. With a
    mean of zero, no score is on one side for a whole batch. Numbers that are not finite stay in their rows.

    Args:
        n_columns: how many columns there are.
    """

    mean: Tensor
    n_kept: Tensor

    def __init__(self, n_columns: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(n_columns))
        self.register_buffer("n_kept", torch.zeros(()))
        self._of_batch: Tensor | None = None

    def forward(
        self,
        x: Tensor,  # shape: (n, n_columns)
    ) -> Tensor:
        """The columns without their means, in the shape of ``x``."""
        if not self.training:
            return x - self.mean
        mean = x.where(x.isfinite(), torch.nan).nanmean(0)
        self._of_batch = mean.detach()
        return x - mean

    def keep(self) -> None:
        """Remember the mean of the last batch. Not done by the call itself: a step on a GPU may begin anew."""
        if self._of_batch is not None:
            self.n_kept += 1
            self.mean.lerp_(self._of_batch, self.n_kept.reciprocal().clamp(min=_WEIGHT_OF_A_BATCH))
            self._of_batch = None


def adam(model: torch.nn.Module, lr: float, weight_decay: float = 0.0) -> torch.optim.Adam:
    """Adam for all parameters that learn, in one fused kernel that a GPU can record."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    is_recordable = all(parameter.is_cuda for parameter in parameters)
    return torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay, fused=True, capturable=is_recordable)
