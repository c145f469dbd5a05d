"""Training steps captured as CUDA graphs. The package is not named after its function, `sparsum.capture`."""

from sparsum.captured.step import CapturedStep as CapturedStep
from sparsum.captured.step import capture as capture
