"""Tests that drive a browser."""
