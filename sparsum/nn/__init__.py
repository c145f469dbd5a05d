"""Modules that keep sparse distributions trainable, and layers that are built on them.

- `SparseCodebook`: vector quantization whose codes get exact gradients.
"""

from sparsum.nn.codebook import Quantized as Quantized
from sparsum.nn.codebook import SparseCodebook as SparseCodebook
