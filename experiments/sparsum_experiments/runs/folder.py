"""The folder of a run: what it was told, what it measured, and where it can go on."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import importlib.metadata
import json
import pathlib
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from sparsum_experiments.experiment import CommonArgs
from sparsum_experiments.files import (
    append_line,
    read_json,
    read_lines,
    read_tensors,
    write_bytes,
    write_json,
    write_tensors,
)

_PACKAGES = ("sparsum", "sparsum-experiments", "torch", "lightning-fabric", "numpy", "scipy")


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """``config.json``, ``metrics.jsonl``, ``progress.json`` and ``checkpoints/{last,best}.pt`` below a path."""

    path: pathlib.Path

    @property
    def config_file(self) -> pathlib.Path:
        """What the run was told."""
        return self.path / "config.json"

    @property
    def metrics_file(self) -> pathlib.Path:
        """One line for each epoch."""
        return self.path / "metrics.jsonl"

    def exists(self) -> bool:
        """Whether a run was begun here."""
        return self.config_file.exists()

    def create(self, experiment: str, args: CommonArgs) -> None:
        """Begin a run."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(
            self.config_file,
            {
                "experiment": experiment,
                "args": dataclasses.asdict(args),
                "command": sys.argv,
                "versions": _versions(),
                "machine": _machine(args.device),
                "git": _revision(),
                "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            },
        )

    def update_args(self, args: CommonArgs) -> None:
        """Note what a run that goes on was told anew: more epochs, say."""
        write_json(self.config_file, self.config() | {"args": dataclasses.asdict(args)})

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing here; the lock of one that dies is free again."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".writer").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"another process is training in {self.path}; wait for it, or give another --out") from None
            yield

    def config(self) -> dict[str, Any]:
        """What the run was told."""
        if not self.exists():
            raise FileNotFoundError(f"{self.path} holds no run: there is no config.json in it")
        config = read_json(self.config_file)
        if (
            not isinstance(config, dict)
            or not isinstance(config.get("args"), dict)
            or not isinstance(config.get("experiment"), str)
        ):
            raise ValueError(f"{self.config_file} does not say what a run was told")
        return config

    def metrics(self) -> list[dict[str, Any]]:
        """What was measured, an epoch at a time."""
        return read_lines(self.metrics_file)

    def add_metrics(self, line: dict[str, Any]) -> None:
        """Add what an epoch measured."""
        append_line(self.metrics_file, line)

    def forget_metrics(self, epoch: int) -> None:
        """Drop the lines of epochs that will be done again, from ``epoch`` on."""
        try:
            kept = [line for line in self.metrics() if line["epoch"] < epoch]
        except (LookupError, TypeError) as error:
            raise ValueError(f"a line of {self.metrics_file} does not say which epoch it is of") from error
        write_bytes(self.metrics_file, b"".join((json.dumps(line) + "\n").encode() for line in kept))

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

    def write_progress(self, progress: dict[str, Any]) -> None:
        """Say how far the run is, for whoever watches."""
        write_json(self.path / "progress.json", progress)

    def progress(self) -> dict[str, Any] | None:
        """How far the run is, None if it has not said."""
        file = self.path / "progress.json"
        if not file.exists():
            return None
        progress: dict[str, Any] = json.loads(file.read_text())
        return progress


def _machine(device: str) -> str:
    """What a run is made on."""
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"CPU, {platform.machine()}, {torch.get_num_threads()} thread(s)"


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed as a package"
    return versions


def _revision() -> str | None:
    """The git revision of the source, with a mark if files differ from it; None outside of a repository."""
    folder = pathlib.Path(__file__).parent
    try:
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
