"""Runs as they are found, in their folders or in the small files that `sparsum record` writes of them."""

from __future__ import annotations

import math
import pathlib
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from sparsum_experiments.files import read_json
from sparsum_experiments.runs.folder import RunFolder

#: What every record of a run has.
RECORD_KEYS = ("experiment", "method", "bits", "variant", "seed", "config", "epochs", "test", "seconds", "versions")
# What a run has to be told at least, to be compared with others.
_NEEDED = {"method", "seed", "epochs", "data"}
# How many samples an evaluation took, and how many images were annealed.
_COUNTS = ("n_samples", "n_annealed")
# How many digits of a number mean something, and are kept in records.
_DIGITS = 6


@dataclass(frozen=True)
class Run:
    """What a run was told and has measured so far.

    Args:
        path: its folder, or the file of its record.
        experiment: its name.
        args: all that it was told.
        command: what was typed; empty if it is not known.
        lines: those of ``metrics.jsonl``, one for each epoch.
        test: the metrics of ``evaluation.json``; empty before `sparsum evaluate`.
        problem: what could not be read, in words; empty if nothing.
        variant: how it differs from others of its method, in the word that its record has for it; None for a folder.
        machine: what it was made on; empty if it is not known.
        counts: how many samples the evaluation took (``n_samples``), and images that were annealed (``n_annealed``).
    """

    path: pathlib.Path
    experiment: str
    args: dict[str, Any]
    command: str
    lines: list[dict[str, Any]]
    test: dict[str, float]
    problem: str = ""
    variant: str | None = None
    machine: str = ""
    counts: dict[str, float] = field(default_factory=dict)

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
    return sorted({file.parent for file in _files(places, "config.json")})


def find_records(places: Iterable[pathlib.Path]) -> list[pathlib.Path]:
    """The records of runs in or below some folders, each once; a place may be the file of one, too."""
    return sorted(_files(places, "seed-*.json"))


def _files(places: Iterable[pathlib.Path], pattern: str) -> set[pathlib.Path]:
    found: set[pathlib.Path] = set()
    for place in places:
        if not place.exists():
            raise FileNotFoundError(f"there is no folder {place}")
        files = [place] if place.is_file() and place.match(pattern) else place.rglob(pattern)
        found |= {file.parent.resolve() / file.name for file in files if file.is_file()}
    return found


def read_run(path: pathlib.Path) -> Run:
    """What is in the folder of a run.

    Raises:
        ValueError: if a file is broken, with its name; a broken evaluation is a problem of the record alone.
    """
    folder = RunFolder(path)
    config = _json(folder.config_file)
    args = config.get("args")
    if not _is_told(args) or not isinstance(config.get("experiment"), str):
        raise ValueError(f"{folder.config_file} does not say what a run was told")
    lines = folder.metrics()
    for number, line in enumerate(lines, start=1):
        if not _is_measured(line):
            raise ValueError(f"line {number} of {folder.metrics_file} lacks validation, calls or seconds")
    try:
        found, problem = _evaluation(path / "evaluation.json", len(lines)), ""
    except (OSError, ValueError) as error:
        found, problem = {}, str(error)
    test, counts = _without_errors(found), _counts(found)
    command, machine = _typed(config.get("command")), _machine(config)
    return Run(path, config["experiment"], args, command, lines, test, problem, machine=machine, counts=counts)


def read_record(file: pathlib.Path) -> Run:
    """A record as the run that it is of.

    Raises:
        ValueError: if it is none.
    """
    record = read_json(file, finite=True)
    missing = [key for key in RECORD_KEYS if not isinstance(record, dict) or key not in record]
    if missing:
        raise ValueError(f"{file} is no record of a run: it lacks {', '.join(missing)}")
    try:
        return _from_record(file, record)
    except ValueError as error:
        raise ValueError(f"{file} is no record of a run: {error}") from error


def _from_record(file: pathlib.Path, record: dict[str, Any]) -> Run:
    args, test, variant = record["config"], record["test"], record["variant"]
    if not _is_told(args) or not isinstance(test, dict) or not isinstance(record["experiment"], str):
        raise ValueError("it does not say what the run was told, or what it measured")
    if not isinstance(variant, str | None):
        raise ValueError("its variant is no text")
    for key in ("method", "bits", "seed"):
        if record[key] != args.get(key):
            raise ValueError(f"its {key} is {record[key]!r}, but the run was told {args.get(key)!r}")
    lines = _lines_of(record["epochs"]) if isinstance(record["epochs"], dict) else []
    if not lines or not all(map(_is_measured, lines)):
        raise ValueError("an epoch lacks validation, calls or seconds")
    metrics, machine = _without_errors(_numbers(test, "its test")), _machine(record["versions"])
    return Run(
        file, record["experiment"], args, "", lines, metrics, variant=variant or "", machine=machine, counts=_counts(test)
    )


def _machine(found: Any) -> str:
    """The machine that a configuration or the versions of a record name; empty if none."""
    machine = found.get("machine") if isinstance(found, dict) else None
    return machine if isinstance(machine, str) else ""


def columns_of(values: list[Any]) -> Any:
    """What epochs measured, by name: each name that all of them have gets a list of a value for each epoch.

    >>> columns_of([{"loss": 2.0}, {"loss": 1.5}])
    {'loss': [2.0, 1.5]}
    """
    if not isinstance(values[0], dict):
        return values
    names = [name for name in values[0] if all(name in value for value in values)]
    return {name: columns_of([value[name] for value in values]) for name in names}


def _lines_of(columns: Any) -> list[Any]:
    """What `columns_of` was made of.

    Raises:
        ValueError: if the lists are not all of the same length.
    """
    if not isinstance(columns, dict):
        return columns if isinstance(columns, list) else []
    # Names without values say nothing of how many epochs there are.
    found = {name: _lines_of(values) for name, values in columns.items() if values != {}}
    lengths = sorted({len(values) for values in found.values()})
    if len(lengths) > 1:
        raise ValueError(f"its lists of epochs have different lengths, from {lengths[0]} to {lengths[-1]}")
    return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]


def read_folders(places: Iterable[pathlib.Path]) -> tuple[list[Run], list[str]]:
    """All runs whose folders are in or below some folders, and what is wrong with those that cannot be read."""
    return _read_all(find_runs(places), read_run)


def read_runs(places: Iterable[pathlib.Path]) -> tuple[list[Run], list[str]]:
    """All runs whose folders or records are in or below some folders, and what is wrong with those that cannot be read."""
    places = list(places)
    records, problems = read_folders(places)
    more, other_problems = _read_all(find_records(places), read_record)
    return records + more, problems + other_problems


def _read_all(paths: Iterable[pathlib.Path], read: Callable[[pathlib.Path], Run]) -> tuple[list[Run], list[str]]:
    records, problems = [], []
    for path in paths:
        try:
            record = read(path)
        except (ValueError, OSError) as error:
            problems.append(str(error))
            continue
        records.append(record)
        if record.problem:
            problems.append(record.problem)
    return records, problems


def _json(file: pathlib.Path) -> dict[str, Any]:
    content = read_json(file)
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds a {type(content).__name__} where names and values are wanted")
    return content


def _is_told(args: Any) -> TypeGuard[dict[str, Any]]:
    """Whether something is what a run was told, with which it can be compared with others."""
    if not isinstance(args, dict) or not set(args) >= _NEEDED:
        return False
    # Sorting and counting by them must not fail.
    is_named = isinstance(args["method"], str) and isinstance(args["data"], str)
    counts = [args["epochs"], args["seed"], 0 if args.get("bits") is None else args["bits"]]
    return is_named and all(map(_is_whole, counts))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_measured(line: Any) -> bool:
    try:
        numbers = [line["seconds"], line["calls"]["mean"], *line["validation"].values()]
    except (KeyError, TypeError, AttributeError):
        return False
    return all(map(_is_number, numbers))


def read_evaluation(file: pathlib.Path, n_epochs: int) -> dict[str, float]:
    """The metrics of an evaluation, without the standard errors within the run: those over runs are what is reported.

    Raises:
        ValueError: if it cannot be read, or is not of the last of so many epochs.
    """
    return _without_errors(_evaluation(file, n_epochs))


def _evaluation(file: pathlib.Path, n_epochs: int) -> dict[str, float]:
    """All that an evaluation wrote; empty where there is none."""
    if not file.exists():
        return {}
    metrics = _numbers(_json(file), str(file))
    if not _without_errors(metrics):
        raise ValueError(f"{file} holds no metrics: run sparsum evaluate {file.parent} again")
    _check_time(file, metrics.get("epochs", max(n_epochs, 1)), n_epochs)
    return metrics


def _check_time(file: pathlib.Path, n_evaluated: float, n_epochs: int) -> None:
    """Raise if an evaluation came after another number of epochs than were measured; an evaluation is of one at least."""
    if n_evaluated < n_epochs:
        raise ValueError(f"{file} is of an earlier time than the last epoch: run sparsum evaluate {file.parent} again")
    if n_evaluated >= n_epochs + 1:
        metrics = RunFolder(file.parent).metrics_file
        raise ValueError(f"{metrics} is missing or lacks epochs: it has {n_epochs}, and {file.name} is of {n_evaluated:g}")
    if n_evaluated > n_epochs:
        raise ValueError(f"{file} is of the middle of an epoch: finish the run, then sparsum evaluate {file.parent}")


def _numbers(found: dict[str, Any], where: str) -> dict[str, float]:
    """What an evaluation found.

    Raises:
        ValueError: if something in it is no number.
    """
    wrong = [name for name, value in found.items() if not _is_number(value)]
    if wrong:
        raise ValueError(f"{where} holds no number for {', '.join(wrong)[:200]}")
    return found


def _without_errors(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics of an evaluation alone."""
    hidden = {f"{name}_se" for name in metrics} | {"epochs", *_COUNTS}
    return {name: value for name, value in metrics.items() if name not in hidden}


def _counts(metrics: dict[str, float]) -> dict[str, float]:
    """How much was drawn for an evaluation."""
    return {name: metrics[name] for name in _COUNTS if name in metrics}


def rounded(value: Any) -> Any:
    """The value with floats of as many digits as records have."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{_DIGITS}g}")
    return value


def _typed(command: Any) -> str:
    """A command as one types it, wherever the program lay."""
    if not command or not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        return "not recorded"
    program = "sparsum" if pathlib.Path(command[0]).name in {"cli.py", "main.py", "sparsum"} else command[0]
    return shlex.join([program, *command[1:]])
