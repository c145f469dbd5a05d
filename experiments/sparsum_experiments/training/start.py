"""One run, from its options to its last epoch."""

from __future__ import annotations

import dataclasses
import errno
import importlib.metadata
import pathlib
import platform
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment

from sparsum_experiments.errors import UsageError
from sparsum_experiments.experiment import AbstractExperiment
from sparsum_experiments.files import remove_temporaries
from sparsum_experiments.options import CommonArgs, as_flag, options_of
from sparsum_experiments.registry import make_args, make_experiment, restore_args
from sparsum_experiments.runs import Config, RunArgs, RunFolder, SilentFolder
from sparsum_experiments.training.launch import run_ranks
from sparsum_experiments.training.loop import CHECKPOINT_SECONDS, Training
from sparsum_experiments.training.progress import LiveLine
from sparsum_experiments.training.ranks import ALONE, Launch, Ranks, found_launch

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
    request = Request(name, method, options, out, resume, checkpoint_seconds, until)
    devices, nodes = _wanted(request)
    if launch := found_launch(devices * nodes):
        request = dataclasses.replace(request, options=_launched_options(options, launch))
        with launch.joined() as ranks:
            return run_rank(ranks, request)
    if devices * nodes == 1:
        return run_rank(ALONE, request)
    _check_split(request, devices, nodes)
    run_ranks(run_rank, devices, request)
    return RunFolder(out), RunFolder(out).metrics()


@dataclass(frozen=True)
class Request:
    """The arguments of `run`, once they are checked."""

    name: str
    method: str
    options: dict[str, Any]
    out: pathlib.Path
    resume: bool
    checkpoint_seconds: float
    until: int | None = None


def _wanted(request: Request) -> tuple[int, int]:
    """The numbers of devices and nodes that are given or, if a run is resumed, that it had."""
    folder, options = RunFolder(request.out), request.options
    saved = folder.config().args.model_dump() if request.resume and folder.exists() else {}
    counts = {key: value for key, value in saved.items() if type(value) is int}  # others are refused later
    devices, nodes = (options.get(key) or counts.get(key) or 1 for key in ("devices", "nodes"))
    return devices, nodes


def _launched_options(options: dict[str, Any], launch: Launch) -> dict[str, Any]:
    """The options with the numbers of devices and nodes with which this process was started."""
    seen = {"devices": launch.devices, "nodes": launch.nodes}
    for key, value in seen.items():
        if options.get(key) not in {None, value}:
            raise UsageError(
                f"{as_flag(key)} is {options[key]}, but {launch.ranks.n} processes were started on {launch.nodes} nodes"
            )
    return options | seen


def _check_split(request: Request, devices: int, nodes: int) -> None:
    """Raise a UsageError if this machine cannot start the processes of a run."""
    if nodes > 1:
        raise UsageError(f"--nodes {nodes} needs a process on each machine: start it by torchrun or srun")
    folder, name, method, options = RunFolder(request.out), request.name, request.method, request.options
    if not request.resume and folder.exists():
        raise _taken(folder)
    args = _resumed_args(folder, name, method, options) if request.resume else make_args(name, method, options)
    _check_batch(args, devices)
    if device_of(args.device).type == "cuda" and devices > (n := torch.cuda.device_count()):
        raise UsageError(f"--devices {devices}: torch finds {n} GPU{'s' * (n > 1)} here; use --device cpu, or fewer")


def _check_batch(args: CommonArgs, n: int) -> None:
    if args.batch_size < n:
        raise UsageError(f"--batch-size {args.batch_size} cannot be split over {n} processes: it must be at least {n}")


def run_rank(ranks: Ranks, request: Request) -> tuple[RunFolder, list[dict[str, Any]]]:
    """Start or resume a run, as one of its processes."""
    given = {as_flag(key): value for key, value in request.options.items() if key != "data_dir"}
    about = {"experiment": request.name, "method": request.method, "--out": request.out, "--resume": request.resume}
    about |= {"--until": request.until, "--checkpoint-seconds": request.checkpoint_seconds}
    ranks.check_same("options", about | given)
    folder = (RunFolder if ranks.is_first else SilentFolder)(request.out)
    return (_resume if request.resume else _start)(ranks, request, folder)


def _start(ranks: Ranks, request: Request, folder: RunFolder) -> tuple[RunFolder, list[dict[str, Any]]]:
    args = make_args(request.name, request.method, request.options)
    if ranks.is_first and folder.exists():
        raise _taken(folder)
    # Before the folder: a refused option leaves nothing behind.
    experiment, fabric = _made(ranks, request.name, args)
    with folder.locked():
        if ranks.is_first and folder.exists():
            raise _taken(folder)
        folder.create(_config(request.name, args, experiment))
        with LiveLine(experiment, is_quiet=not ranks.is_first) as line:
            return folder, _train(
                Training(experiment, folder, fabric, line, request.checkpoint_seconds, ranks, request.until)
            )


def _made(ranks: Ranks, name: str, args: CommonArgs) -> tuple[AbstractExperiment, Fabric]:
    """The experiment on the device of a rank."""
    _check_batch(args, ranks.n)
    fabric = fabric_for(args, ranks)
    experiment = ranks.together(lambda: make_experiment(name, args, fabric.device))
    ranks.check_same("data", dict(experiment.data_files))
    if ranks.n > 1 and not experiment.is_divisible:
        raise UsageError("--score-centre batch needs the whole batch on one device: use one, or --score-centre none")
    return experiment, fabric


def _resume(ranks: Ranks, request: Request, folder: RunFolder) -> tuple[RunFolder, list[dict[str, Any]]]:
    if not folder.exists():
        raise UsageError(f"there is no run to resume in {folder.path}; omit --resume to start one")
    with folder.locked():  # from the first look on, so that no other process changes what is seen
        args, config = _resumed_args(folder, request.name, request.method, request.options), folder.config()
        experiment, fabric = _made(ranks, request.name, args)
        check_data(config, experiment, folder)
        with LiveLine(experiment, is_quiet=not ranks.is_first) as line:
            if fabric.device.type == "cpu" and config.threads not in {None, torch.get_num_threads()}:
                line.say(
                    f"the run was started with {config.threads} threads and continues with {torch.get_num_threads()}: "
                    "its numbers will differ in the last digits (OMP_NUM_THREADS sets the number)"
                )
            training = Training(experiment, folder, fabric, line, request.checkpoint_seconds, ranks, request.until)
            ranks.together(training.restore)  # a run that cannot be resumed stays as it was
            if ranks.is_first:
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


def fabric_for(args: CommonArgs, ranks: Ranks = ALONE) -> Fabric:
    """The device and precision of a run."""
    precision: Any = "32-true" if args.precision == "32" else args.precision
    kind = device_of(args.device).type
    if ranks.n == 1:
        return Fabric(accelerator=kind, devices=1, precision=precision)
    # The processes have found each other already: Fabric must not look for them in its environment.
    devices: Any = [ranks.gpu] if kind == "cuda" else 1
    return Fabric(accelerator=kind, devices=devices, precision=precision, plugins=[LightningEnvironment()])


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
