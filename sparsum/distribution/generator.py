"""Where randomness comes from."""

from __future__ import annotations

import torch


def check_generator(generator: torch.Generator | None) -> None:
    """Raise a TypeError for what is not a source of randomness, such as a seed."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator or None, got {type(generator).__name__}; "
            "of a seed, torch.Generator(device).manual_seed(seed) makes one"
        )
