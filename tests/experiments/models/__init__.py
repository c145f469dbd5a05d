"""Tests of sparsum_experiments.models."""
