"""Tests of `structures`."""
