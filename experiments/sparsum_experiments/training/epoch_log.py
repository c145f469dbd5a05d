"""What the steps of an epoch measure, kept on the device until it is needed."""

from __future__ import annotations

import math
from typing import Any

import torch

from sparsum_experiments.experiment import Step

_PERCENTILES = (10, 25, 75, 90)
# Over how many steps the loss that is shown is averaged.
_N_RECENT = 20


class EpochLog:
    """The terms of all steps of an epoch, and the decoder calls of all examples."""

    def __init__(self, n_steps: int, n_examples: int, device: torch.device) -> None:
        self.n_steps = n_steps
        self.names: list[str] = []
        self.terms = torch.zeros(n_steps, 0, dtype=torch.float32, device=device)
        self.calls = torch.zeros(n_steps, n_examples, dtype=torch.int64, device=device)

    def add(self, i: int, step: Step) -> None:
        """Keep the measurements of step i."""
        values = {"objective": step.objective.detach(), **step.terms}
        if not self.names:
            self.names = list(values)
            self.terms = torch.zeros(self.n_steps, len(values), dtype=torch.float32, device=self.terms.device)
        self.terms[i] = torch.stack([values[name].float() for name in self.names])
        self.calls[i] = step.calls

    def problem(self, n: int, first_step: int) -> str:
        """The earliest of the first n steps with a term that is not finite, and its terms; empty if there is none."""
        is_bad = ~self.terms[:n].isfinite()
        if not bool(is_bad.any()):
            return ""
        step = int(is_bad.any(1).nonzero()[0])
        values = zip(self.names, self.terms[step].tolist(), strict=True)
        bad = ", ".join(f"{name} = {value}" for name, value in values if not math.isfinite(value))
        return f"at step {first_step + step + 1} the loss became NaN or infinite: {bad}"

    def recent(self, n: int) -> tuple[float, float]:
        """The mean objective and calls per example over the last steps before step n."""
        begin = max(0, n - _N_RECENT)
        objective = self.terms[begin:n, self.names.index("objective")].mean()
        loss, calls = torch.stack([objective.double(), self.calls[begin:n].double().mean()]).tolist()
        return loss, calls

    def summary(self) -> tuple[dict[str, float], dict[str, float]]:
        """The mean of every term, and the mean and percentiles of the calls."""
        means = dict(zip(self.names, self.terms.double().mean(0).tolist(), strict=True))
        calls = self.calls.reshape(-1).double()
        points = torch.tensor([0.5, *(p / 100 for p in _PERCENTILES)], dtype=torch.float64, device=calls.device)
        median, *others = torch.quantile(calls, points).tolist()
        spread = {f"p{p}": value for p, value in zip(_PERCENTILES, others, strict=True)}
        return means, {"mean": calls.mean().item(), "median": median, **spread}

    def saturation(self) -> tuple[float, int]:
        """The share of examples with a single call, and in how many steps up to the last one all had a single call."""
        is_single = self.calls == 1
        is_alive = ~is_single.all(-1)
        n_after = is_alive.flip(0).long().argmax() if bool(is_alive.any()) else self.n_steps
        return is_single.double().mean().item(), int(n_after)

    def state(self) -> dict[str, Any]:
        """What a checkpoint within an epoch holds."""
        return {"names": self.names, "terms": self.terms, "calls": self.calls}

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        names, terms, calls = list(state["names"]), state["terms"], state["calls"]
        if terms.shape != (self.n_steps, len(names)) or (calls.shape, calls.dtype) != (self.calls.shape, self.calls.dtype):
            raise ValueError("the log is of other steps")
        self.names, self.terms, self.calls = names, terms.to(self.calls.device), calls.to(self.calls.device)
