"""One run, from its options to its last epoch."""

from __future__ import annotations

import errno
import importlib.metadata
import pathlib
import platform
import shlex
import subprocess
import sys
import time
from typing import Any

import torch
from lightning_fabric import Fabric

from sparsum_experiments.errors import UsageError
from sparsum_experiments.experiment import AbstractExperiment
from sparsum_experiments.files import remove_temporaries
from sparsum_experiments.options import CommonArgs, as_flag, options_of
from sparsum_experiments.registry import make_args, make_experiment, restore_args
from sparsum_experiments.runs import Config, RunArgs, RunFolder
from sparsum_experiments.training.loop import CHECKPOINT_SECONDS, Training
from sparsum_experiments.training.progress import LiveLine

_PACKAGES = ("sparsum", "sparsum-experiments", "torch", "lightning-fabric", "numpy", "scipy")


def run(
    name: str,
    method: str,
    options: dict[str, Any],
    *,
    out: pathlib.Path | None = None,
    resume: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    until: int | None = None,
) -> tuple[RunFolder, list[dict[str, Any]]]:
    """Start a run, or resume one; returns its folder and the metrics of all its epochs.

    After ``until`` epochs it pauses: it is saved and can be resumed, as if it had been interrupted there.
    """
    # A resumed run has the options of its config, so that those given here may not make sense alone.
    args = None if resume and out is not None else make_args(name, method, options)
    if out is None and args is not None:
        out = pathlib.Path("runs", name, f"{args.data_name}-{args.method}-seed{args.seed}")
    assert out is not None
    try:
        str(out).encode()  # it is written into the run's files
    except UnicodeEncodeError:
        raise UsageError(f"--out must be valid UTF-8, got {str(out)!r}") from None
    if not checkpoint_seconds >= 0:  # NaN included
        raise UsageError(f"--checkpoint-seconds must be at least 0, got {checkpoint_seconds}")
    folder = RunFolder(out)
    if resume:
        return _resume(name, method, options, folder, checkpoint_seconds, until)
    assert args is not None
    if folder.exists():
        raise _taken(folder)
    fabric = fabric_for(args)
    experiment = make_experiment(name, args, fabric.device)  # before the folder: a refused option leaves nothing behind
    with folder.locked():
        if folder.exists():
            raise _taken(folder)
        folder.create(_config(name, args, experiment))
        with LiveLine(experiment) as line:
            return folder, _train(Training(experiment, folder, fabric, line, checkpoint_seconds, until))


def _resume(
    name: str,
    method: str,
    options: dict[str, Any],
    folder: RunFolder,
    checkpoint_seconds: float,
    until: int | None,
) -> tuple[RunFolder, list[dict[str, Any]]]:
    if not folder.exists():
        raise UsageError(f"there is no run to resume in {folder.path}; omit --resume to start one")
    with folder.locked():  # from the first look on, so that no other process changes what is seen
        args, config = _resumed_args(folder, name, method, options), folder.config()
        fabric = fabric_for(args)
        experiment = make_experiment(name, args, fabric.device)
        check_data(config, experiment, folder)
        with LiveLine(experiment) as line:
            if fabric.device.type == "cpu" and config.threads not in {None, torch.get_num_threads()}:
                line.say(
                    f"the run was started with {config.threads} threads and continues with {torch.get_num_threads()}: "
                    "its numbers will differ in the last digits (OMP_NUM_THREADS sets the number)"
                )
            training = Training(experiment, folder, fabric, line, checkpoint_seconds, until)
            training.restore()  # a run that cannot be resumed stays as it was
            remove_temporaries(folder.path)
            folder.update_args(args.model_dump())
            return folder, _train(training)


def _train(training: Training) -> list[dict[str, Any]]:
    try:
        return training.run()
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        file = error.filename or training.folder.path
        raise OSError(f"{file}: the disk is full; free some space, then run {resume_command(training.folder)}") from error


def _taken(folder: RunFolder) -> UsageError:
    return UsageError(f"{folder.path} already holds a run: add --resume to continue it, or give another --out")


def check_data(config: Config, experiment: AbstractExperiment, folder: RunFolder) -> None:
    """Raise a ValueError if the data is not that which a run was started with."""
    for name, digest in config.data_files.items():
        if experiment.data_files.get(name) != digest:
            raise ValueError(
                f"{name} of {experiment.args.data} has changed since the run in {folder.path} was started: "
                "restore the file, or start a new run"
            )


def resume_command(folder: RunFolder) -> str:
    """What to type to resume a run."""
    config = folder.config()
    return f"sparsum train {config.experiment} {config.args.method} --out {shlex.quote(str(folder.path))} --resume"


def _resumed_args(folder: RunFolder, name: str, method: str, options: dict[str, Any]) -> CommonArgs:
    """The config of a run that is resumed: as it was started, with the options that may change."""
    config = folder.config()
    if (config.experiment, config.args.method) != (name, method):
        raise UsageError(f"{folder.path} holds a run of {config.experiment} {config.args.method}, not of {name} {method}")
    restored = restore_args(name, config.args.model_dump(exclude_unset=True), folder.config_file)
    free = {option.name for option in options_of(type(restored)).values() if option.free_on_resume}
    given = {key: value for key, value in options.items() if value is not None}
    for key in given.keys() - free:
        if given[key] != (before := getattr(restored, key, None)):
            raise UsageError(f"{folder.path} was started with {as_flag(key)} {before} and cannot continue with {given[key]}")
    n_done = len(folder.metrics())
    if given.get("epochs", n_done) < n_done:
        raise UsageError(f"{folder.path} has {n_done} epochs already: --epochs must be at least {n_done}")
    return restored.replace(**{key: value for key, value in given.items() if key in free})


def fabric_for(args: CommonArgs) -> Fabric:
    """The device and precision of a run."""
    precision: Any = "32-true" if args.precision == "32" else args.precision
    return Fabric(accelerator=device_of(args.device).type, devices=1, precision=precision)


def device_of(device: str) -> torch.device:
    """The device of ``--device``; auto is a GPU if there is one."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no CUDA device here; use --device cpu or auto")
    return torch.device({"auto": "cuda" if torch.cuda.is_available() else "cpu"}.get(device, device))


def _config(name: str, args: CommonArgs, experiment: AbstractExperiment) -> Config:
    return Config(
        experiment=name,
        args=RunArgs(**args.model_dump()),
        command=sys.argv,
        versions={"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        machine=_machine(args.device),
        threads=torch.get_num_threads(),
        git=_revision(),
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        data_files=dict(experiment.data_files),
    )


def _machine(device: str) -> str:
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    n_threads = torch.get_num_threads()
    return f"CPU, {platform.machine()}, {n_threads} thread{'s' * (n_threads > 1)}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed as a package"


def _revision() -> str | None:
    """The git revision of the source, marked if files differ from it; None outside of a repository."""
    command = ["git", "-C", str(pathlib.Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
