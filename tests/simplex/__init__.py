"""Tests of `simplex`."""
