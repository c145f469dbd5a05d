"""The records that are kept with the source, and the page made of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RECORDS = sorted((ROOT / "results").glob("*/*/seed-*.json"))
KEYS = {"experiment", "method", "bits", "variant", "seed", "config", "epochs", "test", "seconds", "versions"}


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: "/".join(file.parts[-3:]))
def test_a_record_is_where_its_content_says(file: Path) -> None:
    record = json.loads(file.read_text())
    assert set(record) >= KEYS
    parts = [record["method"], str(record["bits"] or ""), record["variant"] or ""]
    assert file.parts[-3:] == (record["experiment"], "-".join(filter(None, parts)), f"seed-{record['seed']}.json")
    assert len(record["epochs"]["seconds"]) == record["config"]["epochs"]


def test_the_example_page_is_of_all_records() -> None:
    page = (ROOT / "docs" / "report.html").read_text()
    assert len(page) < 5_000_000
    title = re.search(r"<h1>([^<]*)</h1>", page)
    assert title is not None
    assert title[1] == f"sparsum: results of {len(RECORDS)} runs", "make report brings it up to date"
