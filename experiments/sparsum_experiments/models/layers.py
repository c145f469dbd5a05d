"""Layers and the optimiser that several experiments share."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from sparsum import kernels

# Rows per block on a CPU: blocks fit into the cache and reuse its memory, which is four times as fast as one pass.
_MAPPED_AT_ONCE = 8
# Weight of a batch in the running mean. The mean drifts freely in training, so an average over more batches would lag.
_WEIGHT_OF_A_BATCH = 0.1


def perceptron(*sizes: int) -> torch.nn.Sequential:
    """Linear layers of the given sizes with ReLU in between."""
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


class ScalarMap(torch.nn.Module):
    r"""A scalar network, applied elementwise: :math:`h = \sigma(v^\top \sigma(w x))`.

    On a GPU, the hidden units are not stored in memory.
    """

    def __init__(self, n_hidden: int) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(1, n_hidden, bias=False)
        self.outer = torch.nn.Linear(n_hidden, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # shape: (n, *rest)
        """Apply the network to each element; the shape stays."""
        return _map_numbers(x, self.inner.weight, self.outer.weight)


class _Mapped(torch.autograd.Function):
    """`ScalarMap` by kernels that recompute the hidden units in the backward pass."""

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


def _is_single(*tensors: Tensor) -> bool:
    """In single precision."""
    return all(tensor.dtype == torch.float32 for tensor in tensors)


def _map_in_registers(x: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
    mapped: Tensor = _Mapped.apply(x.contiguous(), inner.reshape(-1), outer.reshape(-1))
    return mapped


@kernels.operation("scalar_map", kernel=_map_in_registers, takes=_is_single, is_traceable=True)
def _map_numbers(
    x: Tensor,  # shape: (n, *rest)
    inner: Tensor,  # shape: (n_hidden, 1)
    outer: Tensor,  # shape: (1, n_hidden)
) -> Tensor:
    """Apply the network to each element; differentiable."""
    blocks = x.split(_MAPPED_AT_ONCE) if x.device.type == "cpu" else (x,)
    hidden = (functional.linear(block.unsqueeze(-1), inner).sigmoid() for block in blocks)  # one block at a time
    return torch.cat([functional.linear(units, outer).sigmoid().squeeze(-1) for units in hidden])


def _pull_in_registers(
    grad: Tensor, x: Tensor, inner: Tensor, outer: Tensor, mapped: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    from sparsum_experiments.kernels import scalar_map

    of_x, of_inner, of_outer = scalar_map.backward(x, inner, outer, mapped, grad.contiguous())
    return of_x, of_inner, of_outer


@kernels.operation("scalar_map_backward", kernel=_pull_in_registers, takes=_is_single, is_traceable=True)
def _pull_numbers(
    grad: Tensor,  # shape: (*batch), of the output
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
    """Subtracts each column's batch mean in training, and a running mean of recent batches in evaluation.

    The score of a bit can drift to one sign for all examples. Then the bit has the same value in every atom of a sparse sum,
    no gradient shows that the other value would be better, and the code loses a bit. With zero mean, no score has the same
    sign for a whole batch. Non-finite values do not affect other rows.
    """

    mean: Tensor
    n_kept: Tensor

    def __init__(self, n_columns: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(n_columns))
        self.register_buffer("n_kept", torch.zeros(()))
        self._of_batch: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:  # shape: (n, n_columns)
        """Subtract the mean from each column; the shape stays."""
        if not self.training:
            return x - self.mean
        mean = x.where(x.isfinite(), torch.nan).nanmean(0)
        self._of_batch = mean.detach()
        return x - mean

    def keep(self) -> None:
        """Update the running mean with the last batch. Not part of `forward`, since a step on a GPU may be restarted."""
        if self._of_batch is not None:
            self.n_kept += 1
            self.mean.lerp_(self._of_batch, self.n_kept.reciprocal().clamp(min=_WEIGHT_OF_A_BATCH))
            self._of_batch = None


def adam(model: torch.nn.Module, lr: float, weight_decay: float = 0.0) -> torch.optim.Adam:
    """Fused Adam for all trainable parameters; on a GPU its step can be captured."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    is_capturable = all(parameter.is_cuda for parameter in parameters)
    return torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay, fused=True, capturable=is_capturable)
