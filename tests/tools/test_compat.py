"""The table of what was run with which Python and torch."""

from __future__ import annotations

from tools.compat import PAGE, Row, counts, with_rows


def test_pytest_is_counted() -> None:
    """Errors count as failures."""
    assert counts("1 failed, 20 passed, 3 skipped, 1 error in 2.5s") == ("20", "2", "3")
    assert counts("7 passed in 1s") == ("7", "0", "0")


def test_rows_replace_those_of_the_same_versions() -> None:
    """They are sorted by version, whatever the order in which they were tried, and the rest of the page stays."""
    page = PAGE.read_text(encoding="utf-8")
    rows = [
        Row("3.99.0", torch, triton, "5", "0", "0", "2026-01-01")
        for torch in ("2.90.1", "2.8.0")
        for triton in ("3", "absent")
    ]
    once = with_rows(page, rows)
    lines = [line for line in once.splitlines() if line.startswith("| 3.99.0 ")]
    assert [line.split(" | ")[1] for line in lines] == ["2.8.0", "2.8.0", "2.90.1", "2.90.1"]
    again = with_rows(once, [rows[0]._replace(passed="6")])
    assert len(again.splitlines()) == len(once.splitlines()) == len(page.splitlines()) + len(rows)
    assert again.count("| 6 | 0 | 0 | 2026-01-01 |") == 1
    assert again.split("Each line is written")[1] == page.split("Each line is written")[1]
