"""Checks of the source that no linter has."""
