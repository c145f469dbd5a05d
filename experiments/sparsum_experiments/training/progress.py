"""How training and evaluation are shown in a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from sparsum_experiments.experiment import AbstractExperiment
from sparsum_experiments.terminal import Terminal

# How often a line is printed where there is no terminal.
_PLAIN_SECONDS = 10.0


class LiveLine:
    """A progress bar on a terminal, within 80 columns, and a plain line now and then elsewhere."""

    def __init__(self, experiment: AbstractExperiment, *, is_quiet: bool = False) -> None:
        args = experiment.args
        self.title, self.n_epochs = f"{experiment.name} {args.method} seed {args.seed}", args.epochs
        self.criterion = experiment.criterion_of(args.method)
        self.console = Terminal(file=sys.stderr, quiet=is_quiet)
        columns = [BarColumn(bar_width=12), TextColumn("{task.description}", markup=False)]
        self._bar = Progress(*columns, console=self.console, transient=True, refresh_per_second=4)
        self._task = self._bar.add_task(self.title, total=1.0)
        self._last_metrics = ""
        self._printed_at = 0.0

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._bar.stop()

    def step(self, epoch: int, done: float, loss: float, calls: float, seconds_left: float) -> None:
        """A fraction of all steps is done."""
        place = f"{done:4.0%}  epoch {epoch + 1}/{self.n_epochs}"
        numbers = f"loss {loss:.4g}  calls {calls:.2f}"
        left = f"{in_words(seconds_left)} left"
        if self.console.is_terminal:
            # What fits beside the bar on the usual 80 columns, the most important first.
            self._bar.update(self._task, completed=done, description=f"{place}  {left}  {numbers}{self._last_metrics}"[:66])
        elif time.monotonic() - self._printed_at > _PLAIN_SECONDS:
            self._printed_at = time.monotonic()
            self.say(f"{self.title}  {place}  {numbers}  {left}{self._last_metrics}")

    def epoch(self, line: dict[str, Any]) -> None:
        """An epoch has ended."""
        self._last_metrics = f"  {self.criterion} {line['validation'][self.criterion]:.4g}"

    def say(self, text: str) -> None:
        """Print a message."""
        try:
            self.console.print(text, highlight=False, soft_wrap=True)
        except OSError:  # where the output goes, the disk is full, or the terminal is gone: training goes on
            self.console.on_broken_pipe()


def in_words(seconds: float) -> str:
    """A duration, for people.

    >>> in_words(42.0), in_words(600.0), in_words(9000.0)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


@contextlib.contextmanager
def evaluation_bar() -> Iterator[Callable[[float], None]]:
    """A progress bar, and a function to call with the fraction that is done."""
    with Progress(console=Terminal(stderr=True, markup=True), transient=True) as bar:
        task = bar.add_task("evaluating", total=1.0)
        yield lambda done: bar.update(task, completed=done)


def metrics_table(metrics: Mapping[str, float]) -> Table:
    """Metrics with their standard errors."""
    table = Table("metric", "value", "standard error")
    for name, value in metrics.items():
        if not name.endswith("_se"):
            error = metrics.get(f"{name}_se")
            table.add_row(name, f"{value:.5g}", "" if error is None else f"{error:.2g}")
    return table
