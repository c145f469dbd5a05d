"""Triton versions of what is hot on a GPU; imported only where they are used, and never without Triton.

Each kernel has a twin in plain torch in the layer that calls it, which is what runs on a CPU and what tests compare it to.
What a graph may hold is a `torch.library.triton_op`, for `torch.compile` and `torch.export`; eager code, which CUDA graphs
can capture, goes around torch's dispatcher, that costs more than a small kernel. Splits and k-best search are eager only.
Triton's interpreter runs them on the CPU, for tests: set ``TRITON_INTERPRET=1`` before the first import.
"""

from __future__ import annotations

import importlib.util
import os
import shutil

import torch
from torch import Tensor


def _is_usable() -> bool:
    """Whether Triton is there and can build what launches its kernels, and nobody has switched them off."""
    has_compiler = "CC" in os.environ or any(map(shutil.which, ("gcc", "clang")))
    is_wanted = os.environ.get("SPARSUM_KERNELS", "1").lower() not in {"0", "false", "off", "no"}
    return is_wanted and has_compiler and torch.version.cuda is not None and importlib.util.find_spec("triton") is not None


#: Whether there are kernels for tensors on a GPU. Found out once: the tracers of graphs stumble over the search.
IS_USABLE = _is_usable()


def serve(x: Tensor) -> bool:
    """Whether the kernels take over for a tensor on this device; ``SPARSUM_KERNELS=0`` says that they never do."""
    return x.is_cuda and IS_USABLE and (torch.compiler.is_compiling() or not x.is_neg())


def can_read(x: Tensor) -> bool:
    """Whether the memory of a tensor holds its values: not for a batch of gradients, nor for some views and zeros."""
    return not (torch._C._functorch.is_legacy_batchedtensor(x) or x.is_neg() or x._is_zerotensor())
