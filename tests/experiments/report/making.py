"""Runs that were never made, for reports, and what a terminal shows of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from sparsum_experiments import report
from sparsum_experiments.registry import make_args
from sparsum_experiments.report.comparison import Comparison
from sparsum_experiments.report.recording import record_runs
from sparsum_experiments.runs import Config, RunArgs, RunFolder


def make_run(
    path: Path,
    test: dict[str, float] | None = None,
    *,
    experiment: str = "ssvae",
    method: str = "sparse",
    elbo: tuple[float, ...] | None = None,
    calls: tuple[float, ...] = (3.0, 1.0),
    machine: str = "",
    **options: Any,
) -> Path:
    """A run of two epochs, which has one for each number of calls or, if given, each ELBO; an epoch takes 1.5 seconds."""
    args = make_args(experiment, method, {"epochs": 2, "data": "mnist", **options})
    folder = RunFolder(path)
    folder.create(Config(experiment=experiment, args=RunArgs(**args.model_dump()), machine=machine))
    for epoch, value in enumerate(elbo or [-1.0] * len(calls)):
        line = {"epoch": epoch, "validation": {"elbo": value}, "calls": {"mean": calls[epoch % len(calls)]}, "seconds": 1.5}
        folder.add_metrics(line)
    if test is not None:
        (path / "evaluation.json").write_text(json.dumps(test), encoding="utf-8")
    return path


def make_records(path: Path, out: Path, variant: str = "") -> Path:
    """Record runs; returns the file."""
    return Path(record_runs([path], out, variant)[0].partition(": ")[0])


def change_config(path: Path, args: dict[str, Any] | None = None, **others: Any) -> None:
    """Another config of a run, as somebody could have written it."""
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    config = config | others | {"args": config["args"] | (args or {})}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")


def table_of(*places: Path) -> Comparison:
    """The only table of some runs."""
    (table,), problems = report.read_comparisons(places)
    assert not problems
    return table


def column(table: Comparison, name: str) -> dict[str, str]:
    """The texts of a column by the labels of their rows."""
    i = table.header.index(name)
    return {row[0].text: row[i].text for row in table.rows}


def best(table: Comparison, name: str) -> list[str]:
    """The labels of the rows that are the best of a column."""
    i = table.header.index(name)
    return [row[0].text for row in table.rows if row[i].is_best]


def shown(*places: Path, width: int = 200) -> str:
    """What a terminal shows of some runs."""
    console = Console(width=width)
    with console.capture() as captured:
        console.print(report.sections_table(*report.read_sections(places)))
    return captured.get()
