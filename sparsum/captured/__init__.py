"""Training steps captured as CUDA graphs. The package is not named after its function, `sparsum.capture`."""

from sparsum.captured.capture import CapturedStep as CapturedStep
from sparsum.captured.capture import capture as capture
