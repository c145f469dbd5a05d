"""Triton kernels for performance-critical operations on a GPU, behind one registry; imported lazily, and only with Triton.

Each operation has a reference implementation in plain torch, its *twin*, in the layer that registers it. The twin runs on
the CPU, and tests compare the kernel with it. For `torch.compile` and `torch.export`, graphs contain kernels as
`torch.library.triton_op`. Eager code, which CUDA graphs can capture, bypasses torch's dispatcher, whose overhead exceeds the
time of a small kernel. Splits and k-best search are not torch operators and run in eager mode only.

For tests, Triton's interpreter runs the kernels on the CPU: set ``TRITON_INTERPRET=1`` before the first import.
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
