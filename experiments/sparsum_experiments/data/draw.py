"""Drawing signal games."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sparsum_experiments.data.features import Features

# Numbers so large that their remainders are as good as uniform.
_LARGE = 1 << 62


class Drawn(NamedTuple):
    """Some games.

    Args:
        images: the images of each game, as rows of ``features.x``.
        target: the place of the one that the sender sees.
    """

    images: Tensor  # shape: (n_games, n_images), int64
    target: Tensor  # shape: (n_games,), int64


def draw_games(features: Features, n_games: int, n_images: int, generator: torch.Generator) -> Drawn:
    """Games of images of different concepts, on the device of the features, without waiting for it.

    Each game has an ordered choice of ``n_images`` concepts, an image of each, and a target among them, all uniform. A
    concept with few images is as frequent as one with many.

    >>> features = Features.from_unsorted(torch.eye(4), torch.tensor([0, 0, 1, 2]))
    >>> games = draw_games(features, 5, 3, torch.Generator().manual_seed(0))
    >>> features.concept[games.images].sort().values.unique(dim=0)
    tensor([[0, 1, 2]])

    Args:
        features: the images to choose from.
        n_games: how many games, 0 or more.
        n_images: how many images each, 1 to the number of concepts.
        generator: of all randomness, on the same device.
    """
    if not 1 <= n_images <= features.n_concepts:
        raise ValueError(f"n_images is {n_images}, it must be from 1 to {features.n_concepts}, the number of concepts")
    if n_games < 0:
        raise ValueError(f"n_games is {n_games}, it must not be negative")
    device = features.x.device
    keys = torch.rand(n_games, features.n_concepts, dtype=torch.float64, device=device, generator=generator)
    concept = keys.topk(n_images).indices  # in the order of their keys, which is uniform too
    numbers = torch.randint(_LARGE, concept.shape, device=device, generator=generator)
    target = torch.randint(n_images, (n_games,), device=device, generator=generator)
    return Drawn(features.first[concept] + numbers % features.count[concept], target)
