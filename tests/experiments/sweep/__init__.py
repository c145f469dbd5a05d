"""Tests of sparsum_experiments.sweep."""
