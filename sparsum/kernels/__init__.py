"""Triton versions of what is hot on a GPU; imported only where they are used, and never without Triton.

Each kernel has a twin in plain torch in the layer that calls it, which is what runs on a CPU and what tests compare it to.
What a graph may hold is a `torch.library.triton_op`, for `torch.compile` and `torch.export`; eager code, which CUDA graphs
can capture, goes around torch's dispatcher, that costs more than a small kernel. Splits and k-best search are eager only.
Triton's interpreter runs them on the CPU, for tests: set ``TRITON_INTERPRET=1`` before the first import.
"""

from __future__ import annotations

import importlib.util

from torch import Tensor

_HAS_TRITON = importlib.util.find_spec("triton") is not None


def serve(x: Tensor) -> bool:
    """Whether the kernels take over for a tensor on this device."""
    return x.is_cuda and _HAS_TRITON
