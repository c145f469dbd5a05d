"""Tests with packages that are not installed for development."""
