"""Kernels of the experiments."""
