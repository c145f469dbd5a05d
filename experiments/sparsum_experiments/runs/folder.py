"""The folder of a run: config, metrics, progress, evaluation and checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import filelock
import pydantic

from sparsum_experiments.files import (
    append_line,
    parse_json,
    read_bytes,
    read_json,
    read_tensors,
    remove_temporaries,
    write_bytes,
    write_json,
    write_tensors,
)
from sparsum_experiments.runs.schema import Config, EpochMetrics, Metrics, check

if TYPE_CHECKING:
    import torch

_METRICS = pydantic.TypeAdapter(Metrics)


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """``config.json``, ``metrics.jsonl``, ``progress.json``, ``evaluation*.json`` and ``checkpoints/{last,best}.pt``."""

    path: pathlib.Path

    @property
    def config_file(self) -> pathlib.Path:
        """What the run was started with."""
        return self.path / "config.json"

    @property
    def metrics_file(self) -> pathlib.Path:
        """A line for each epoch."""
        return self.path / "metrics.jsonl"

    @property
    def failure_file(self) -> pathlib.Path:
        """Why a sweep gave the run up."""
        return self.path / "failed.txt"

    def exists(self) -> bool:
        """Whether a run was started here."""
        return self.config_file.exists()

    def create(self, config: Config) -> None:
        """Start a run."""
        write_json(self.config_file, config.model_dump(exclude_unset=True))

    def update_args(self, args: Mapping[str, Any]) -> None:
        """Write the options of a run that is resumed: it may have more epochs now."""
        write_json(self.config_file, read_json(self.config_file) | {"args": dict(args)})

    @contextlib.contextmanager
    def locked(self, *, wait: bool = False) -> Iterator[None]:
        """Keep other processes from writing here; the lock of a process that dies is free again.

        Args:
            wait: for another process to end; else it is an error.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with filelock.FileLock(self.path / ".lock", timeout=-1 if wait else 0):
                yield
        except filelock.Timeout:
            raise ValueError(f"another process is training in {self.path}; wait for it, or give another --out") from None

    def remove_temporaries(self) -> None:
        """Remove what a killed process left half written; only while the folder is locked."""
        remove_temporaries(self.path)

    def config(self) -> Config:
        """What the run was started with."""
        if not self.exists():
            raise FileNotFoundError(f"{self.path} does not hold a run: it has no config.json")
        return check(Config.model_validate, read_json(self.config_file), str(self.config_file))

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of each epoch; a last line that a crash cut short is left out.

        Raises:
            ValueError: if a line is broken, or epochs are missing, swapped or there twice.
        """
        if not self.metrics_file.exists():
            return []
        *lines, last = read_bytes(self.metrics_file).split(b"\n")
        found = [self._epoch(line, number) for number, line in enumerate(lines)]
        with contextlib.suppress(ValueError):
            found += [self._epoch(last, len(lines))] if last else []
        return found

    def _epoch(self, line: bytes, number: int) -> dict[str, Any]:
        where = f"line {number + 1} of {self.metrics_file}"
        content: dict[str, Any] = parse_json(line, where)
        if (epoch := check(EpochMetrics.model_validate, content, where).epoch) != number:
            raise ValueError(f"{where} is of epoch {epoch}, not {number}: lines are missing, swapped or there twice")
        return content

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        """Add the metrics of an epoch."""
        append_line(self.metrics_file, line)

    def keep_metrics(self, n_epochs: int) -> None:
        """Drop the lines of epochs after the first ``n_epochs``, which will be run again.

        Raises:
            ValueError: if there are fewer lines; then the file stays as it is.
        """
        lines = self.metrics()
        if len(lines) < n_epochs:
            raise ValueError(
                f"{self.metrics_file} has {len(lines)} epochs, and the checkpoint comes after {n_epochs}: lines are missing"
            )
        content = b"".join((json.dumps(line) + "\n").encode() for line in lines[:n_epochs])
        if not self.metrics_file.exists() or len(content) != self.metrics_file.stat().st_size:
            write_bytes(self.metrics_file, content)

    def checkpoint_file(self, name: str) -> pathlib.Path:
        """The file of a checkpoint, ``last`` or ``best``."""
        return self.path / "checkpoints" / f"{name}.pt"

    def save(self, name: str, state: dict[str, Any]) -> None:
        """Write a checkpoint."""
        write_tensors(self.checkpoint_file(name), state)

    def load(self, name: str, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """A checkpoint, None if there is none."""
        file = self.checkpoint_file(name)
        return read_tensors(file, device) if file.exists() else None

    def evaluation_file(self, split: str = "test", checkpoint: str = "last") -> pathlib.Path:
        """The metrics of a checkpoint on a split; the usual ones have the plain name."""
        others = [word for word, usual in ((split, "test"), (checkpoint, "last")) if word != usual]
        return self.path / ("-".join(["evaluation", *others]) + ".json")

    def evaluation(self, split: str = "test", checkpoint: str = "last") -> Metrics:
        """The metrics of an evaluation, empty if there is none.

        Raises:
            ValueError: if the file holds anything else.
        """
        file = self.evaluation_file(split, checkpoint)
        return check(_METRICS.validate_python, read_json(file), str(file)) if file.exists() else {}

    def write_progress(self, progress: Mapping[str, Any]) -> None:
        """Write how far the run is, for a sweep to show."""
        write_json(self.path / "progress.json", progress)

    def progress(self) -> dict[str, float]:
        """How far the run is; empty if it is not known."""
        try:
            return check(_METRICS.validate_python, read_json(self.path / "progress.json"), "progress.json")
        except (OSError, ValueError):
            return {}
