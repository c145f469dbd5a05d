"""The numbers of the paper, from ``paper.toml``."""

from __future__ import annotations

import decimal
import functools
import importlib.resources
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparsum_experiments.report.summary import NOTHING


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper; an empty one where it has none.

    Args:
        rows: for each method its values by name: a mean, and where the paper has one its standard error.
        note: what a reader has to know of them.
    """

    rows: Mapping[str, Mapping[str, list[Any]]] = field(default_factory=dict)
    note: str = ""

    def has(self, name: str) -> bool:
        """Whether any method has a value of this name."""
        return any(name in values for values in self.rows.values())

    def number(self, method: str, name: str) -> str:
        """A value as the paper prints it."""
        return " ± ".join(map(str, self.rows.get(method, {}).get(name, []))) or NOTHING


def paper_table(experiment: str, data: str, bits: int | None = None) -> PaperTable:
    """The table that runs of an experiment on a data set can be compared with."""
    for table in read_tables():
        is_meant = data in table["data"] if "data" in table else data not in table["other_than"]
        if is_meant and (table["experiment"], table.get("bits")) == (experiment, bits):
            return PaperTable(table["rows"], table["note"])
    return PaperTable()


@functools.lru_cache
def read_tables() -> list[dict[str, Any]]:
    """All tables of the paper."""
    text = (importlib.resources.files("sparsum_experiments.report") / "paper.toml").read_text(encoding="utf-8")
    tables: list[dict[str, Any]] = tomllib.loads(text, parse_float=decimal.Decimal)["tables"]  # 3.60 stays 3.60
    return tables
