"""Triton versions of what is hot on a GPU; imported only where they are used, and never without Triton.

Each kernel has a twin in plain torch in the layer that calls it, which is what runs on a CPU and what tests compare it to.
Everything here is a `torch.library.triton_op`: eager, compiled, exported and captured code call the same kernels.
Triton's interpreter runs them on the CPU, for tests: set ``TRITON_INTERPRET=1`` before the first import.
"""

from __future__ import annotations

import functools
import importlib.util

from torch import Tensor


def serve(x: Tensor) -> bool:
    """Whether the kernels take over for a tensor on this device."""
    return x.is_cuda and _has_triton()


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
