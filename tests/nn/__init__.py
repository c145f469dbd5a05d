"""Tests of `nn`."""
