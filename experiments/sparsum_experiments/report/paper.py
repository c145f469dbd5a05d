"""The numbers of the paper, from ``paper.toml``."""

from __future__ import annotations

import decimal
import functools
import importlib.resources
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: What stands where there is no number.
NOTHING = "-"


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper.

    Args:
        rows: for each method its values by name: a mean, and where the paper has one its standard error.
        note: what a reader has to know of them.
    """

    rows: Mapping[str, Mapping[str, list[Any]]]
    note: str

    def number(self, method: str, name: str) -> str:
        """A value as the paper prints it."""
        return " ± ".join(map(str, self.rows.get(method, {}).get(name, []))) or NOTHING


def paper_table(experiment: str, data: str, bits: int | None = None) -> PaperTable | None:
    """The table that runs of an experiment on a data set can be compared with; None if there is none."""
    for table in read_tables():
        is_meant = data in table["data"] if "data" in table else data not in table["other_than"]
        if is_meant and (table["experiment"], table.get("bits")) == (experiment, bits):
            return PaperTable(table["rows"], table["note"])
    return None


@functools.lru_cache
def read_tables() -> list[dict[str, Any]]:
    """All tables of the paper."""
    file = importlib.resources.files("sparsum_experiments.report") / "paper.toml"
    tables: list[dict[str, Any]] = tomllib.loads(file.read_text(), parse_float=decimal.Decimal)["tables"]  # 3.60 stays 3.60
    return tables
