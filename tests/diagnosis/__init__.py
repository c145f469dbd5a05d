"""Tests of `diagnosis`."""
