"""Random numbers that depend on nothing but a seed and what they are for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeVar

import torch

Made = TypeVar("Made")


def seed_for(seed: int, *purpose: str | int) -> int:
    """A seed of 63 bits for a purpose: different purposes, and different seeds, have nothing in common."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator_for(device: torch.device | str, seed: int, *purpose: str | int) -> torch.Generator:
    """A generator on a device for a purpose."""
    return torch.Generator(device).manual_seed(seed_for(seed, *purpose))


def with_seed(make: Callable[[], Made], seed: int, *purpose: str | int) -> Made:
    """What a function makes from torch's global generator, such as a module with its first weights, for a purpose.

    The global generator is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, *purpose))
        return make()
