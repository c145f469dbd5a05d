"""The folder of a run: config, metrics, progress, evaluation and checkpoints."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import filelock

from sparsum_experiments import files
from sparsum_experiments.runs.schema import METRICS, Config, EpochMetrics, Metrics, check

if TYPE_CHECKING:
    import torch


class RunFolder:
    """``config.json``, ``metrics.jsonl``, ``progress.json``, ``evaluation*.json`` and ``checkpoints/{last,best}.pt``."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.config_file = path / "config.json"
        self.metrics_file = path / "metrics.jsonl"
        #: Why a sweep gave the run up.
        self.failure_file = path / "failed.txt"
        self._progress_file = path / "progress.json"
        self._stop_file = path / "stopped.json"

    def exists(self) -> bool:
        """Whether a run was started here."""
        return self.config_file.exists()

    def create(self, config: Config) -> None:
        """Start a run."""
        files.write_json(self.config_file, config.model_dump(exclude_unset=True))

    def update_args(self, args: Mapping[str, Any]) -> None:
        """Write the options of a run that is resumed: it may have more epochs now."""
        files.write_json(self.config_file, files.read_json(self.config_file) | {"args": dict(args)})

    @contextlib.contextmanager
    def locked(self, *, wait: bool = False) -> Iterator[None]:
        """Keep other processes from writing here, or wait for them; the lock of a process that dies is free again."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with filelock.FileLock(self.path / ".lock", timeout=-1 if wait else 0):
                yield
        except filelock.Timeout:
            raise ValueError(f"another process is training in {self.path}; wait for it, or give another --out") from None

    def config(self) -> Config:
        """What the run was started with."""
        if not self.exists():
            raise FileNotFoundError(f"{self.path} does not hold a run: it has no config.json")
        return check(Config.model_validate, files.read_json(self.config_file), str(self.config_file))

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of each epoch; a last line that a crash cut short is left out."""
        if not self.metrics_file.exists():
            return []
        *lines, last = files.read_bytes(self.metrics_file).split(b"\n")
        found = [self._epoch(line, number) for number, line in enumerate(lines)]
        with contextlib.suppress(ValueError):
            found += [self._epoch(last, len(lines))] if last else []
        return found

    def _epoch(self, line: bytes, number: int) -> dict[str, Any]:
        where = f"line {number + 1} of {self.metrics_file}"
        content: dict[str, Any] = files.parse_json(line, where)
        if (epoch := check(EpochMetrics.model_validate, content, where).epoch) != number:
            raise ValueError(f"{where} is of epoch {epoch}, not {number}: lines are missing, swapped or there twice")
        return content

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        """Add the metrics of an epoch."""
        files.append_line(self.metrics_file, line)

    def keep_metrics(self, n_epochs: int) -> None:
        """Drop the lines of epochs after the first ``n_epochs``, which will be run again; an error if there are fewer."""
        lines = self.metrics()
        if len(lines) < n_epochs:
            raise ValueError(
                f"{self.metrics_file} has {len(lines)} epochs, and the checkpoint comes after {n_epochs}: lines are missing"
            )
        content = b"".join((json.dumps(line) + "\n").encode() for line in lines[:n_epochs])
        if not self.metrics_file.exists() or len(content) != self.metrics_file.stat().st_size:
            files.write_bytes(self.metrics_file, content)

    def checkpoint_file(self, name: str) -> pathlib.Path:
        """The file of a checkpoint, ``last`` or ``best``."""
        return self.path / "checkpoints" / f"{name}.pt"

    def save(self, name: str, state: dict[str, Any]) -> None:
        """Write a checkpoint."""
        files.write_tensors(self.checkpoint_file(name), state)

    def load(self, name: str, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """A checkpoint, None if there is none."""
        file = self.checkpoint_file(name)
        return files.read_tensors(file, device) if file.exists() else None

    def evaluation_file(self, split: str = "test", checkpoint: str = "last") -> pathlib.Path:
        """The metrics of a checkpoint on a split; the usual ones have the plain name."""
        others = [word for word, usual in ((split, "test"), (checkpoint, "last")) if word != usual]
        return self.path / ("-".join(["evaluation", *others]) + ".json")

    def evaluation(self, split: str = "test", checkpoint: str = "last") -> Metrics:
        """The metrics of an evaluation, empty if there is none."""
        file = self.evaluation_file(split, checkpoint)
        return check(METRICS.validate_python, files.read_json(file), str(file)) if file.exists() else {}

    def write_stop(self, about: Mapping[str, int]) -> None:
        """Write that a search does not continue the run: after how many ``epochs``, and its ``rank`` ``among`` others."""
        files.write_json(self._stop_file, dict(about))

    def stop(self, n_epochs: int) -> Metrics:
        """What `write_stop` wrote, if the run still has so many epochs; empty otherwise, or if it was not stopped."""
        if not self._stop_file.exists():
            return {}
        found = check(METRICS.validate_python, files.read_json(self._stop_file), str(self._stop_file))
        return found if found.get("epochs") == n_epochs else {}

    def write_progress(self, progress: Mapping[str, Any]) -> None:
        """Write how far the run is, for a sweep to show."""
        files.write_json(self._progress_file, progress)

    def progress(self) -> dict[str, float]:
        """How far the run is; empty if it is not known."""
        try:
            return METRICS.validate_python(files.read_json(self._progress_file))
        except (OSError, ValueError):
            return {}


class SilentFolder(RunFolder):
    """The folder as processes see it that train the same model as the one that writes: they read, and write nothing."""

    def create(self, config: Config) -> None:
        """Leave it to the writer."""

    def update_args(self, args: Mapping[str, Any]) -> None:
        """Leave it to the writer."""

    @contextlib.contextmanager
    def locked(self, *, wait: bool = False) -> Iterator[None]:
        """The writer holds the lock."""
        yield

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        """Leave it to the writer."""

    def keep_metrics(self, n_epochs: int) -> None:
        """Leave it to the writer."""

    def save(self, name: str, state: dict[str, Any]) -> None:
        """Leave it to the writer."""

    def write_progress(self, progress: Mapping[str, Any]) -> None:
        """Leave it to the writer."""
