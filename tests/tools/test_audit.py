"""What the audit says of what pip-audit found."""

from __future__ import annotations

from tools.audit import verdict

CLEAN = {"name": "a", "version": "1", "vulns": []}
UNKNOWN = {"name": "b", "skip_reason": "not found"}
BROKEN = {"name": "c", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}


def test_what_was_not_looked_up_is_not_clean() -> None:
    """Packages without an answer make another exit status than clean ones, and are named."""
    assert verdict({"dependencies": [CLEAN]})[0] == 0
    assert verdict({"dependencies": [UNKNOWN]}) == (
        2,
        "pip-audit: NOT AUDITED: its service does not answer here for any of the 1 pinned packages",
    )
    status, text = verdict({"dependencies": [CLEAN, UNKNOWN]})
    assert status == 2
    assert text.endswith("NOT AUDITED: b")


def test_vulnerabilities_are_named_with_what_fixes_them() -> None:
    """They count before packages that were not looked up."""
    status, text = verdict({"dependencies": [CLEAN, UNKNOWN, BROKEN]})
    assert status == 1
    assert "c 2: PYSEC-1, fixed in 3" in text
