"""Output for people: what nobody reads does not stop the work."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console


class Terminal(Console):
    """A console that is silent once its reader has gone, as in ``sparsum report runs | head``, and lets the work go on."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**({"markup": False} | options))

    def on_broken_pipe(self) -> None:
        """Write to nowhere from now on; rich would end the process."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())  # also for what is still in a buffer
        os.close(nowhere)
