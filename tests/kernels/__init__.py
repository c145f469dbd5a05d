"""Tests of `kernels`."""
