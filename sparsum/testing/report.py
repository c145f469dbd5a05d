"""The result of a conformance test."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

_SHOWN = 5


@dataclass
class Report:
    """The number of checks of each kind."""

    counts: dict[str, int] = field(default_factory=dict)

    def check(self, name: str, is_right: bool, message: str) -> None:
        """Count a check, and raise an AssertionError with the message if it failed."""
        self.counts[name] = self.counts.get(name, 0) + 1
        if not is_right:
            raise AssertionError(f"{name}: {message}")


def index_of(
    atoms: Tensor,  # shape: (n_atoms, *event_shape)
    members: Tensor,  # shape: (n_members, *event_shape)
) -> Tensor:
    """The index of each atom among the members, or -1: (n_atoms,)."""
    is_equal = atoms.unsqueeze(1) == members.unsqueeze(0)
    while is_equal.ndim > 2:
        is_equal = is_equal.all(-1)
    return torch.where(is_equal.any(-1), is_equal.int().argmax(-1), -1)


def shown(atoms: Tensor) -> str:
    """Format the first few atoms for a message."""
    more = f" and {len(atoms) - _SHOWN} more" if len(atoms) > _SHOWN else ""
    return f"{atoms[:_SHOWN].tolist()}{more}"
