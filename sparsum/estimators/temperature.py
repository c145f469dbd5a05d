"""Temperature schedules for relaxations."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.arguments import check_int, check_number

# Below this, division by the temperature overflows in float32.
_LOWEST = 1e-6
# Any faster rate reaches the minimum after one step, too.
_FASTEST = 1e3


class Anneal(torch.nn.Module):
    r"""The temperature :math:`\max(\tau_{\min}, \exp(-r t))`, where t is the step, held for ``every`` steps at a time.

    Each call of the estimator while ``training`` is one step. The step is part of the ``state_dict()``.

    >>> temperature = Anneal(rate=1e-4, every=1000)
    >>> for _ in range(2500):
    ...     temperature.advance()
    >>> temperature()  # exp(-1e-4 * 2000)
    tensor(0.8187)

    Args:
        rate: r, not negative.
        every: the number of steps between changes of the temperature.
        minimum: the lowest temperature, larger than 0.

    References:
        - Categorical reparameterization with Gumbel-softmax (Jang, Gu & Poole, 2017), section 4.2,
          https://arxiv.org/abs/1611.01144
    """

    step: Tensor  # shape: (), int64

    def __init__(self, rate: float = 1e-5, *, every: int = 500, minimum: float = 0.5) -> None:
        super().__init__()
        check_number("rate", rate, least=0.0)
        check_int("every", every, least=1)
        check_number("minimum", minimum, above=0.0, least=_LOWEST)
        self.rate, self.every, self.minimum = rate, every, minimum
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self) -> Tensor:
        """The temperature at the current step."""
        held = self.step // self.every * self.every
        rate = min(self.rate, _FASTEST)  # a larger rate may be infinite in float32, and inf * 0 is NaN
        return (-rate * held).exp().clamp_min(self.minimum)

    def advance(self) -> None:
        """Advance by one step."""
        self.step += 1

    def extra_repr(self) -> str:
        """Shown by print."""
        return f"rate={self.rate}, every={self.every}, minimum={self.minimum}"


class Constant(torch.nn.Module):
    """A constant temperature."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        check_number("temperature", temperature, above=0.0, least=_LOWEST)
        self.temperature = float(temperature)

    def forward(self) -> float:
        """The temperature."""
        return self.temperature

    def advance(self) -> None:
        """Do nothing: the temperature is constant."""

    def extra_repr(self) -> str:
        """Shown by print."""
        return str(self.temperature)


def temperature_of(temperature: float | Anneal) -> Anneal | Constant:
    """Wrap a number as a module; return a schedule unchanged."""
    return temperature if isinstance(temperature, Anneal) else Constant(temperature)
