"""The digits that come with scikit-learn: data that needs no download."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum_experiments.data.permutation import fixed_permutation

DIGITS = "digits"
N_DIGITS, DIGITS_SHAPE, N_DIGITS_LEVELS = 1_797, (8, 8), 17
_N_TEST = 300


def load_digits() -> tuple[Tensor, Tensor]:
    """Images, uint8 (1797, 64) with levels 0 to 16, and labels, int64 (1797,), in the order of a fixed permutation.

    Raises:
        ImportError: without scikit-learn.
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        message = "the digits come with scikit-learn, which is not installed: `pip install scikit-learn`"
        raise ImportError(message) from error
    x, y = datasets.load_digits(return_X_y=True)
    order = fixed_permutation(N_DIGITS, DIGITS)
    return torch.from_numpy(x).to(torch.uint8)[order], torch.from_numpy(y).to(torch.int64)[order]


def split_digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The images and labels that are for training and validation, and those for the test."""
    x, y = load_digits()
    return (x[:-_N_TEST], y[:-_N_TEST]), (x[-_N_TEST:], y[-_N_TEST:])
