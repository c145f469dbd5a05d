"""Tests of sparsum_experiments.training."""
