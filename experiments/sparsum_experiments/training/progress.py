"""How a run is shown while it goes on."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text


class LiveLine:
    """One line that is kept up to date on a terminal, and a plain line now and then elsewhere.

    Args:
        title: what is running.
        n_epochs: how many epochs there will be.
        criterion: the validation metric that is shown.
    """

    def __init__(self, title: str, n_epochs: int, criterion: str) -> None:
        self.title, self.n_epochs, self.criterion = title, n_epochs, criterion
        self.console = Console(file=sys.stderr, markup=False)
        self._live = Live(console=self.console, refresh_per_second=4, transient=True)
        self._last_metrics = ""
        self._told = 0.0

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def step(self, epoch: int, done: float, loss: float, calls: float, seconds_left: float) -> None:
        """So much of all steps is done."""
        text = (
            f"{self.title}  epoch {epoch + 1}/{self.n_epochs}  {done:4.0%}  loss {loss:.4g}  calls {calls:.2f}  "
            f"{in_words(seconds_left)} left{self._last_metrics}"
        )
        if self.console.is_terminal:
            self._live.update(Text(text))
        elif time.monotonic() - self._told > 10:
            self._told = time.monotonic()
            self.console.print(text, highlight=False, soft_wrap=True)

    def epoch(self, line: dict[str, Any]) -> None:
        """An epoch has ended."""
        validation = line["validation"]
        shown = [self.criterion, *(name for name in ("accuracy",) if name in validation)]
        self._last_metrics = "  validation " + ", ".join(f"{name} {validation[name]:.4g}" for name in shown)

    def say(self, text: str) -> None:
        """Something to know."""
        self.console.print(text, highlight=False, soft_wrap=True)


def in_words(seconds: float) -> str:
    """A length of time, for people."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
