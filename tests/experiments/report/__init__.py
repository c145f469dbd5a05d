"""Tests of sparsum_experiments.report."""
