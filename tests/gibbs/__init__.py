"""Tests of `gibbs`."""
