"""Modules that keep sparse distributions trainable, and layers that are built on them.

- `ScoreNorm`: scores that stay where a distribution has a gradient.
- `SaturationMonitor`: a warning when all rows have lost their gradient.
- `SparseCodebook`: vector quantization whose codes get exact gradients.
- `Router`: exact sums over the options of a query, or over the few candidates that are passed.
"""

from sparsum.nn.codebook import Quantized as Quantized
from sparsum.nn.codebook import SparseCodebook as SparseCodebook
from sparsum.nn.health import SaturationMonitor as SaturationMonitor
from sparsum.nn.router import Router as Router
from sparsum.nn.score_norm import ScoreNorm as ScoreNorm
