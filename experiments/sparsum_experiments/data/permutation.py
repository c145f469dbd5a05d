"""Permutations that stay the same for ever: those that split the data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sparsum_experiments.seeds import seed_for

#: The seed of every split. Another one would make results incomparable with those published for this one.
SPLIT_SEED = 2020


def fixed_permutation(
    n: int,
    *purpose: str,
) -> Tensor:  # shape: (n,), int64
    """The permutation of n things that belongs to a purpose, the same with every version of torch and numpy.

    It sorts the raw output of a generator whose stream numpy guarantees; `torch.randperm` promises nothing of the kind.

    >>> fixed_permutation(6, "an example")
    tensor([1, 0, 3, 5, 4, 2])
    """
    keys = np.random.PCG64(seed_for(SPLIT_SEED, "split", *purpose)).random_raw(n)
    return torch.from_numpy(np.argsort(keys, kind="stable").astype(np.int64))
