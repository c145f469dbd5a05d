"""A browser for the tests that open pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A chromium: the one that is installed, or else playwright's own."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: run make test-browser")
    with api.sync_playwright() as playwright:
        names = ("chromium", "chromium-browser", "google-chrome")
        installed = next(filter(None, map(shutil.which, names)), playwright.chromium.executable_path)
        if not Path(installed).exists():
            pytest.skip("there is no browser: install chromium, or run .venv/bin/playwright install chromium")
        # The sandbox needs rights that a container does not give to root; the page is our own.
        launched = playwright.chromium.launch(executable_path=installed, args=["--no-sandbox"])
        yield launched
        launched.close()
