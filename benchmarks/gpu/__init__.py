"""GPU benchmarks against other implementations and hardware limits: ``python -m benchmarks.gpu``."""
