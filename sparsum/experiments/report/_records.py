"""Runs as they are found in their folders."""

from __future__ import annotations

import json
import pathlib
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sparsum.experiments.runs import RunFolder


@dataclass(frozen=True)
class RunRecord:
    """What a run was told and has measured so far.

    Args:
        path: its folder.
        experiment: its name.
        args: all that it was told.
        command: what was typed.
        lines: those of ``metrics.jsonl``, one for each epoch.
        test: the metrics of ``evaluation.json``; empty before `sparsum evaluate`.
        problem: what could not be read, in words; empty if nothing.
    """

    path: pathlib.Path
    experiment: str
    args: dict[str, Any]
    command: str
    lines: list[dict[str, Any]]
    test: dict[str, float]
    problem: str = ""

    @property
    def is_finished(self) -> bool:
        """Whether it has measured as many epochs as it was told."""
        return len(self.lines) >= int(self.args["epochs"])

    @property
    def validation(self) -> dict[str, float]:
        """The validation metrics of the last epoch."""
        found: dict[str, float] = self.lines[-1]["validation"]
        return found

    @property
    def calls(self) -> float:
        """Decoder calls for each training example, the mean over all epochs: what the training cost."""
        return sum(self.calls_by_epoch) / len(self.lines)

    @property
    def calls_by_epoch(self) -> list[float]:
        """Decoder calls for each training example, at every epoch."""
        return [line["calls"]["mean"] for line in self.lines]

    @property
    def seconds(self) -> float:
        """Of training, without validation."""
        return sum(float(line["seconds"]) for line in self.lines)


def find_runs(places: Iterable[pathlib.Path]) -> list[pathlib.Path]:
    """The folders of all runs in or below some folders, each once."""
    found = set()
    for place in places:
        if not place.exists():
            raise FileNotFoundError(f"there is no folder {place}")
        found |= {file.parent.resolve() for file in place.rglob("config.json")}
    return sorted(found)


def read_run(path: pathlib.Path) -> RunRecord:
    """What is in the folder of a run.

    Raises:
        ValueError: if a file is broken, with its name; a broken evaluation is a problem of the record alone.
    """
    folder = RunFolder(path)
    config = _json(folder.config_file)
    args = config.get("args")
    if not isinstance(args, dict) or not {"method", "seed", "epochs", "data"} <= set(args) or "experiment" not in config:
        raise ValueError(f"{folder.config_file} does not say what a run was told")
    lines = folder.metrics()
    for number, line in enumerate(lines, start=1):
        if not _is_measured(line):
            raise ValueError(f"line {number} of {folder.metrics_file} lacks validation, calls or seconds")
    try:
        test, problem = _read_evaluation(path / "evaluation.json", len(lines)), ""
    except ValueError as error:
        test, problem = {}, str(error)
    return RunRecord(path, config["experiment"], args, _typed(config.get("command", [])), lines, test, problem)


def read_runs(places: Iterable[pathlib.Path]) -> tuple[list[RunRecord], list[str]]:
    """All runs in or below some folders, and what is wrong with those that cannot be read."""
    records, problems = [], []
    for path in find_runs(places):
        try:
            record = read_run(path)
        except (ValueError, OSError) as error:
            problems.append(str(error))
            continue
        records.append(record)
        if record.problem:
            problems.append(record.problem)
    return records, problems


def _json(file: pathlib.Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except FileNotFoundError:
        raise
    except ValueError as error:
        raise ValueError(f"{file} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds a {type(content).__name__} where names and values are wanted")
    return content


def _is_measured(line: Any) -> bool:
    try:
        float(line["seconds"] + line["calls"]["mean"] + sum(line["validation"].values()))
    except (KeyError, TypeError, AttributeError):
        return False
    return True


def _read_evaluation(file: pathlib.Path, n_epochs: int) -> dict[str, float]:
    """The metrics of an evaluation, without the standard errors within the run: those over runs are what is reported."""
    if not file.exists():
        return {}
    metrics = {name: value for name, value in _json(file).items() if isinstance(value, int | float)}
    if metrics.get("epochs", n_epochs) < n_epochs:
        raise ValueError(f"{file} is of an earlier time than the last epoch: run sparsum evaluate {file.parent} again")
    if metrics.get("epochs", n_epochs) > n_epochs:
        raise ValueError(f"{file} is of the middle of an epoch: finish the run, then sparsum evaluate {file.parent}")
    return without_errors(metrics)


def without_errors(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics of an evaluation alone."""
    hidden = {f"{name}_se" for name in metrics} | {"epochs", "n_samples"}
    return {name: value for name, value in metrics.items() if name not in hidden}


def _typed(command: list[str]) -> str:
    """A command as one types it, wherever the program lay."""
    if not command:
        return "not recorded"
    program = "sparsum" if pathlib.Path(command[0]).name in {"cli.py", "main.py", "sparsum"} else command[0]
    return shlex.join([program, *command[1:]])
