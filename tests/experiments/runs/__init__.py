"""Tests of sparsum_experiments.runs."""
