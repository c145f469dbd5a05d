"""The table of estimators says what their classes say."""

from __future__ import annotations

import pathlib
import re

import pytest

import sparsum as sp
from sparsum.estimators import AbstractEstimator

PAGE = (pathlib.Path(__file__).parent.parent.parent / "docs" / "estimators.md").read_text()
# The name, the star, the year, the bias and the structures of each row.
ROW = re.compile(
    r"^\| \[`(\w+)\(.*?\)`\]\(#sparsum\.estimators\.(\w+)\)( \*)? \| (\d*) ?\| .*? \| (.*?) \| .*? \| (.*?) \|$", re.M
)
ROWS = {found[1]: found for found in ROW.finditer(PAGE)}
CLASSES = [
    kind
    for kind in vars(sp.estimators).values()
    if isinstance(kind, type) and issubclass(kind, AbstractEstimator) and kind is not AbstractEstimator
]
FREE = "`OneOf`, `Bits`, `Groups`"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_row_agrees_with_its_class(kind: type[AbstractEstimator]) -> None:
    """Each estimator has a row, whose star, bias, year and structures are those of the class and its references."""
    row = ROWS[kind.__name__]
    assert row[2] == kind.__name__
    assert bool(row[3]) == kind.needs_relaxed_loss
    assert row[5].startswith("biased") == (not kind.is_unbiased)
    assert (row[6] == FREE) == (kind.needs is sp.estimators.Needs.FREE_CHOICES)
    assert (row[6] == "any") == (kind.needs is sp.estimators.Needs.NOTHING)
    years = re.findall(r", (\d{4})\)", (kind.__doc__ or "").replace("\n", " "))
    assert not years or row[4] in years


def test_every_row_is_an_estimator_and_every_bound_has_a_row() -> None:
    assert set(ROWS) == {kind.__name__ for kind in CLASSES}
    assert len(CLASSES) > 18
    for name in ("topk_bound", "distinct_bound", "vimco", "wake_wake"):
        assert f"| [`{name}`](#sparsum.estimators.{name}) |" in PAGE
