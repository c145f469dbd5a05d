"""Kernels on any device, for tests: on the CPU Triton's interpreter runs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def serving(is_served: bool) -> Iterator[None]:
    """With kernels for all tensors, or for none, wherever they are."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("sparsum.kernels.serve", "sparsum.kernels.registry.serve"):
            patch.setattr(name, lambda x: is_served)
        yield
