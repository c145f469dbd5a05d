"""Tests of the README and of the pages of the site."""
