"""Random numbers that depend only on a seed and a purpose."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeVar

import torch

Made = TypeVar("Made")


def seed_for(seed: int, *purpose: str | int) -> int:
    """Derive an independent 63-bit seed for a purpose."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator_for(device: torch.device | str, seed: int, *purpose: str | int) -> torch.Generator:
    """A generator seeded for a purpose."""
    return torch.Generator(device).manual_seed(seed_for(seed, *purpose))


def with_seed(make: Callable[[], Made], seed: int, *purpose: str | int) -> Made:
    """Call a function that uses torch's global generator, such as a module's constructor, with a seed for a purpose.

    The state of the global generator is restored afterwards.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, *purpose))
        return make()
