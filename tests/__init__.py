"""Tests of sparsum."""
