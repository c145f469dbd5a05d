"""What a conformance test has checked."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Report:
    """What was checked, and how often."""

    counts: dict[str, int] = field(default_factory=dict)

    def check(self, name: str, is_right: bool, message: str) -> None:
        """Count a check, and raise an AssertionError with the message if it failed."""
        self.counts[name] = self.counts.get(name, 0) + 1
        if not is_right:
            raise AssertionError(f"{name}: {message}")
