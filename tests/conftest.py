"""What all tests share."""

from __future__ import annotations

import os
from typing import Any

import hypothesis
import pytest
import torch

# Without a GPU, Triton's interpreter runs its kernels; it has to be told before they are first imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The same examples at every run; a failing one is printed with what reproduces it.
hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("default")


@pytest.fixture
def generator() -> torch.Generator:
    """Randomness with a fixed seed."""
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, Any]) -> None:
    """What the examples in docstrings may use without importing it."""
    doctest_namespace["torch"] = torch
