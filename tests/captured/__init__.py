"""Tests of captured steps."""
