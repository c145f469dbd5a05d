"""Triton versions of what is hot on a GPU, behind one registry; imported only where they are used, never without Triton.

An operation has a twin in plain torch, in the layer that registers it: the twin runs on a CPU, and tests compare the kernel
with it. A graph holds kernels as a `torch.library.triton_op`, for `torch.compile` and `torch.export`. Eager code, which CUDA
graphs can capture, bypasses torch's dispatcher, which costs more than a small kernel. Splits and k-best search have no
operator of torch and are eager only.
Triton's interpreter runs the kernels on the CPU, for tests: set ``TRITON_INTERPRET=1`` before the first import.
"""

from __future__ import annotations

from sparsum.kernels.registry import IS_USABLE as IS_USABLE
from sparsum.kernels.registry import OPERATIONS as OPERATIONS
from sparsum.kernels.registry import Operation as Operation
from sparsum.kernels.registry import can_read as can_read
from sparsum.kernels.registry import is_transformed as is_transformed
from sparsum.kernels.registry import is_undifferentiated as is_undifferentiated
from sparsum.kernels.registry import is_unobserved as is_unobserved
from sparsum.kernels.registry import operation as operation
from sparsum.kernels.registry import serve as serve
from sparsum.kernels.registry import table as table
