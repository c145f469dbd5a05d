"""What the library costs on a GPU, against peers and physical limits: ``python -m benchmarks.gpu``."""
