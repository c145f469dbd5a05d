"""Features of images, by concept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Features:
    """Features of images, those of one concept after those of another.

    >>> features = Features.from_unsorted(torch.tensor([[0.0, 2.0], [3.0, 4.0], [1.0, 0.0]]), torch.tensor([4, 1, 4]))
    >>> features.x
    tensor([[0.6000, 0.8000],
            [0.0000, 1.0000],
            [1.0000, 0.0000]])
    >>> features.concept, features.first, features.count
    (tensor([1, 4, 4]), tensor([0, 1]), tensor([1, 2]))

    Args:
        x: features of length 1.
        concept: what is on each image, sorted.
        first: the first image of each concept that occurs.
        count: the number of its images.
    """

    x: Tensor  # shape: (n, d), float32
    concept: Tensor  # shape: (n,), int64
    first: Tensor  # shape: (n_concepts,), int64
    count: Tensor  # shape: (n_concepts,), int64

    @classmethod
    def from_unsorted(
        cls,
        x: Tensor,  # shape: (n, d), float32, finite, no row all zero
        concept: Tensor,  # shape: (n,), int64
    ) -> Features:
        """Features in any order and of any length."""
        concept, order = concept.sort(stable=True)
        _, count = concept.unique_consecutive(return_counts=True)
        return cls(_normalise(x[order]), concept, count.cumsum(0) - count, count)

    def __len__(self) -> int:
        return len(self.concept)

    @property
    def n_concepts(self) -> int:
        """How many concepts occur."""
        return len(self.first)

    def to(self, device: torch.device | str) -> Features:
        """The same on a device."""
        return Features(self.x.to(device), self.concept.to(device), self.first.to(device), self.count.to(device))


def _normalise(x: Tensor) -> Tensor:
    """Give the rows the length 1, in place, since they may fill much of the memory."""
    # By the largest entry first: the squares of very large or small ones do not fit into float32.
    for order in (torch.inf, 2):
        x /= torch.linalg.vector_norm(x, order, dim=1, keepdim=True)
    return x
