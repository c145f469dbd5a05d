"""Tests of sparsum_experiments.data."""
