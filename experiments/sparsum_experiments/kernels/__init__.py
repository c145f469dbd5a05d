"""Triton kernels of the experiments."""
