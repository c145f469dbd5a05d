"""Optimizers whose steps can be captured: what changes from step to step is in tensors on the GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

# What a group holds besides numbers that a graph would keep as they were.
_NOT_NUMBERS = {"params", "initial_lr", "capturable", "fused", "foreach", "param_names"}


class Optimizers:
    """The optimizers that step within a captured step. They are found when they do.

    Args:
        forget: called when captured steps no longer refer to the state of an optimizer.
    """

    def __init__(self, forget: Callable[[], None]) -> None:
        self._forget = forget
        self._known: list[Optimizer] = []
        # The rate of each group that has one on the GPU.
        self._rates: dict[tuple[int, int], Tensor] = {}
        self._settings: list[Any] = []

    @contextlib.contextmanager
    def found(self) -> Iterator[None]:
        """Prepare every optimizer that steps meanwhile."""
        handle = register_optimizer_step_pre_hook(lambda optimizer, *_: self._prepare(optimizer))
        try:
            yield
        finally:
            handle.remove()

    def have_changed(self) -> bool:
        """Whether numbers have changed that captured steps keep as they were; fills in the rates, which they read."""
        before, self._settings = self._settings, []
        for i, optimizer in enumerate(self._known):
            for j, group in enumerate(optimizer.param_groups):
                rate = self._rates.get((i, j))
                if rate is not None and group["lr"] is not rate:
                    rate.fill_(group["lr"])
                    group["lr"] = rate
                self._settings.append([group[key] for key in group if key not in _NOT_NUMBERS and group[key] is not rate])
        # When optimizers are found, nothing is captured yet.
        return bool(before) and before != self._settings

    def gradients(self) -> list[tuple[Tensor, Tensor | None]]:
        """The parameters with their gradients."""
        groups = (group for optimizer in self._known for group in optimizer.param_groups)
        return [(parameter, parameter.grad) for group in groups for parameter in group["params"]]

    def _prepare(self, optimizer: Optimizer) -> None:
        """Make an optimizer capturable, with its rates in tensors that schedulers fill."""
        known = next((i for i, each in enumerate(self._known) if each is optimizer), None)
        if known is None:
            known = len(self._known)
            self._known.append(optimizer)
            optimizer.register_load_state_dict_post_hook(lambda _: self._forget())
            # It warns of steps that are not captured, such as the first ones.
            optimizer._warned_capturable_if_run_uncaptured = True
        for i, group in enumerate(optimizer.param_groups):
            device = group["params"][0].device if group["params"] else torch.device("cpu")
            if device.type == "cuda" and _takes_rate(optimizer, group):
                self._rates[known, i] = _set_rate(group, device)
                for parameter in group["params"]:
                    state = optimizer.state.get(parameter, {})
                    for key, value in state.items():  # counts of steps
                        if isinstance(value, Tensor) and value.ndim == 0:
                            state[key] = value.to(device)


def _takes_rate(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Let a group's steps be captured, and tell whether they read the rate from a tensor.

    Of SGD, whose state does not depend on the step, the fused kernel alone does.
    """
    if "capturable" in group:
        group["capturable"] = True
        return True
    if isinstance(optimizer, torch.optim.SGD):
        group["fused"], group["foreach"] = True, False
        return True
    return False


def _set_rate(group: dict[str, Any], device: torch.device) -> Tensor:
    """The rate as a tensor on the device."""
    rate = group["lr"]
    if not isinstance(rate, Tensor) or rate.device != device:
        is_double = all(parameter.dtype == torch.float64 for parameter in group["params"]) and not group.get("fused")
        rate = torch.tensor(float(rate), dtype=torch.float64 if is_double else torch.float32, device=device)
        group["lr"] = rate
    return rate
