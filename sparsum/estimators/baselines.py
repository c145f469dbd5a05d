"""Baselines of score-function estimators: subtracted from the loss, independent of the sample."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from sparsum.arguments import check_number, check_sizes


class RunningMean(torch.nn.Module):
    """The mean of all losses so far, or an exponential moving average if ``decay`` is given; initially 0.

    Non-finite losses are ignored, so that one bad row does not affect all later steps.

    >>> baseline = RunningMean()
    >>> baseline.update(torch.tensor([1.0, 3.0]))
    >>> baseline.update(torch.tensor([8.0]))
    >>> baseline.mean
    tensor(4.)

    Args:
        decay: None for the mean of all losses, or the weight of the old average at each step, at least 0 and less than 1.
    """

    mean: Tensor  # shape: ()
    count: Tensor  # shape: (), int64, the number of losses seen

    def __init__(self, decay: float | None = None) -> None:
        super().__init__()
        if decay is not None:
            check_number("decay", decay, least=0.0)
            if decay >= 1:
                raise ValueError(f"decay must be less than 1, got {decay}")
        self.decay = decay
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move to another device, but keep the mean in float32: in half precision small updates would be rounded away."""
        super()._apply(fn, recurse)
        self.mean = self.mean.float()
        return self

    @torch.no_grad()
    def update(self, losses: Tensor) -> None:
        """Update the mean with new losses of any shape."""
        losses = losses.float()
        is_finite = losses.isfinite()
        n = is_finite.sum()
        mean = torch.where(is_finite, losses / n.clamp_min(1), 0.0).sum()  # divide first: the sum could overflow
        share = n / (self.count + n).clamp_min(1)
        if self.decay is not None:  # weight 1 for the first batch, 1 - decay for later ones, 0 for empty ones
            share = torch.where(self.count > 0, (1 - self.decay) * (n > 0), (n > 0).to(share.dtype))
        self.mean += share * (mean - self.mean)
        self.count += n

    def extra_repr(self) -> str:
        """Shown by print."""
        return "" if self.decay is None else f"decay={self.decay}"


def perceptron(n_inputs: int, hidden: tuple[int, ...]) -> torch.nn.Sequential:
    """A network from ``n_inputs`` through hidden layers with ReLU to one number."""
    sizes = (n_inputs, *check_sizes("hidden", hidden))
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(sizes[-1], 1))


def in_dtype_of(network: torch.nn.Module, inputs: Tensor) -> Tensor:
    """Floating-point inputs in the dtype of a network's first parameter; other inputs unchanged."""
    first = next(network.parameters(), None)
    return inputs if first is None or not inputs.is_floating_point() else inputs.to(first.dtype)


def predict(network: torch.nn.Module, inputs: Tensor, *, n_rows: int) -> Tensor:
    """One number per row from a network that returns (n_rows,) or (n_rows, 1)."""
    result = network(inputs)
    if not isinstance(result, Tensor) or result.shape not in {(n_rows,), (n_rows, 1)}:
        seen = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise ValueError(f"network must return one number per row, shape ({n_rows},) or ({n_rows}, 1), got {seen}")
    return result.reshape(n_rows)
