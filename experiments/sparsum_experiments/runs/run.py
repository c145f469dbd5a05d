"""Runs as they were found, in their folders or among records."""

from __future__ import annotations

import functools
import pathlib
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from sparsum_experiments.registry import place_options
from sparsum_experiments.runs.folder import RunFolder
from sparsum_experiments.runs.records import LATENT_FOLDER, read_records
from sparsum_experiments.runs.schema import Config, Metrics, Record, check, columns_of

# How many samples an evaluation drew, and how many images were annealed.
_COUNTS = ("n_samples", "n_annealed")
# Which metrics of an epoch are kept in records.
_EPOCH = ("train", "validation", "calls", "seconds")
# How many digits of a number mean something, and are kept in records.
_DIGITS = 6


@dataclass(frozen=True)
class Run:
    """The config of a run, and what it has measured so far; texts that are not known are empty."""

    path: pathlib.Path  # its folder; of a record, its place in the file of records
    experiment: str
    args: dict[str, Any]  # all options
    lines: Sequence[dict[str, Any]]  # the metrics of each epoch, as in ``metrics.jsonl``
    test: dict[str, float]  # the metrics of ``evaluation.json`` without standard errors; empty before `sparsum evaluate`
    command: str = ""  # what was typed
    problem: str = ""  # what could not be read, as a sentence
    is_record: bool = False  # and not a folder
    variant: str = ""  # how it differs from others of its method, as a record of its setting names it
    machine: str = ""  # what it ran on
    counts: dict[str, float] = field(default_factory=dict)  # samples that the evaluation drew, and images it annealed
    criterion: str | None = None  # as in `Config`
    better: str = "larger"
    stop: dict[str, float] = field(default_factory=dict)  # where a search stopped it, see `RunFolder.write_stop`

    @property
    def is_finished(self) -> bool:
        """Whether it has as many epochs as its config says."""
        return len(self.lines) >= int(self.args["epochs"])

    @property
    def validation(self) -> dict[str, float]:
        """The validation metrics of the last epoch."""
        return cast("dict[str, float]", self.lines[-1]["validation"])

    @functools.cached_property
    def calls(self) -> float | None:
        """Decoder calls per training example, the mean over all epochs: the cost of training; None if not counted."""
        return sum(self.calls_by_epoch) / len(self.lines) if self.calls_by_epoch else None

    @functools.cached_property
    def calls_by_epoch(self) -> list[float]:
        """Decoder calls per training example at every epoch; empty if not counted."""
        calls = [line.get("calls", {}).get("mean") for line in self.lines]
        return [] if None in calls else calls

    @functools.cached_property
    def seconds(self) -> float:
        """Of training, without validation."""
        return sum(float(line.get("seconds", 0.0)) for line in self.lines)

    @property
    def latent_file(self) -> pathlib.Path | None:
        """Where the latent view of a record's setting is, if it was kept; None for a folder."""
        if not self.is_record:
            return None
        file, setting = self.path.parents[1], self.path.parent.name
        return file.parent / LATENT_FOLDER / self.experiment / f"{setting}.json"


def find_runs(places: Iterable[pathlib.Path]) -> list[pathlib.Path]:
    """The folders of all runs in or below some folders, each once."""
    return sorted({file.parent for file in _files(places, "config.json")})


def read_run(path: pathlib.Path) -> Run:
    """The run in a folder."""
    folder = RunFolder(path)
    config, lines = folder.config(), folder.metrics()
    try:
        found, problem = read_evaluation(folder, len(lines)), ""
    except (OSError, ValueError) as error:
        found, problem = {}, str(error)
    return Run(
        path,
        config.experiment,
        config.args.model_dump(exclude_unset=True),
        lines,
        without_errors(found),
        command=_typed(config),
        problem=problem,
        machine=config.machine,
        counts={name: found[name] for name in _COUNTS if name in found},
        criterion=config.criterion,
        better=config.better,
        stop=folder.stop(len(lines)),
    )


def _from_record(file: pathlib.Path, record: Record) -> Run:
    return Run(
        file / record.name / f"seed-{record.seed}",
        record.experiment,
        record.config.model_dump(exclude_unset=True),
        record.lines(),
        without_errors(record.test),
        is_record=True,
        variant=record.variant or "",
        machine=record.versions.get("machine") or "",
        counts={name: record.test[name] for name in _COUNTS if name in record.test},
    )


def read_folders(places: Iterable[pathlib.Path]) -> tuple[list[Run], list[str]]:
    """All runs with a folder in or below some folders, and what is wrong with those that cannot be read."""
    runs: list[Run] = []
    problems: list[str] = []
    for path in find_runs(places):
        try:
            runs.append(read_run(path))
        except (ValueError, OSError) as error:
            problems.append(str(error))
    return runs, problems + [run.problem for run in runs if run.problem]


def read_runs(places: Iterable[pathlib.Path]) -> tuple[list[Run], list[str]]:
    """All runs and records in or below some folders, and what is wrong with those that cannot be read."""
    places = list(places)
    runs, problems = read_folders(places)
    for file in sorted(_files(places, "*.jsonl.gz")):
        try:
            records, broken = read_records(file)
        except (ValueError, OSError) as error:
            problems.append(str(error))
            continue
        runs += [_from_record(file, record) for record in records]
        problems += broken
    return runs, problems


def _files(places: Iterable[pathlib.Path], pattern: str) -> set[pathlib.Path]:
    found: set[pathlib.Path] = set()
    for place in places:
        if not place.exists():
            raise FileNotFoundError(f"there is no folder {place}")
        files = [place] if place.is_file() and place.match(pattern) else place.rglob(pattern)
        found |= {file.parent.resolve() / file.name for file in files if file.is_file()}
    return found


def read_evaluation(folder: RunFolder, n_epochs: int, split: str = "test") -> Metrics:
    """All that an evaluation of the last checkpoint wrote; empty if there is none."""
    metrics, file = folder.evaluation(split), folder.evaluation_file(split)
    if not file.exists():
        return {}
    again = f"run sparsum evaluate {shlex.quote(str(folder.path))} again"
    if not without_errors(metrics):
        raise ValueError(f"{file} holds no metrics: {again}")
    n_evaluated = metrics.get("epochs", max(n_epochs, 1))
    if n_evaluated < n_epochs:
        raise ValueError(f"{file} is older than the last epoch: {again}")
    if n_evaluated >= n_epochs + 1:
        raise ValueError(
            f"{folder.metrics_file} lacks epochs: it has {n_epochs}, and {file.name} came after {n_evaluated:g}"
        )
    if n_evaluated > n_epochs:
        raise ValueError(f"{file} was measured within an epoch: finish the run, then {again}")
    return metrics


def without_errors(metrics: Metrics) -> Metrics:
    """The metrics of an evaluation alone."""
    hidden = {f"{name}_se" for name in metrics} | {"epochs", *_COUNTS}
    return {name: value for name, value in metrics.items() if name not in hidden}


def record_of(run: Run, variant: str = "") -> Record:
    """The record of a run, with as many digits as mean something."""
    hidden = place_options(run.experiment) - {"seed"}
    config = {name: value for name, value in run.args.items() if name not in hidden}
    config["data"] = pathlib.Path(str(config["data"])).name
    about = RunFolder(run.path).config()
    test = {name: value for name, value in RunFolder(run.path).evaluation().items() if name != "epochs"}
    content = {
        "experiment": run.experiment,
        "method": run.args["method"],
        "bits": run.args.get("bits"),
        "variant": variant or None,
        "seed": run.args["seed"],
        "config": config,
        "epochs": columns_of([{name: line[name] for name in _EPOCH if name in line} for line in run.lines]),
        "test": test,
        "seconds": run.seconds,
        "versions": {"git": about.git, "machine": about.machine, **about.versions},
    }
    return check(Record.model_validate, rounded(content), str(run.path))


def rounded(value: Any) -> Any:
    """The value with floats of as many digits as records have."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    return value


def _typed(config: Config) -> str:
    """A command as one types it, wherever the program is."""
    if not config.command:
        return ""
    first, *others = config.command
    return shlex.join(["sparsum" if pathlib.Path(first).name in {"main.py", "sparsum"} else first, *others])
