"""One run, from what was typed to its last epoch."""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
from typing import Any

import torch
from lightning_fabric import Fabric

from sparsum_experiments.options import as_flag
from sparsum_experiments.errors import UsageError
from sparsum_experiments.options import CommonArgs
from sparsum_experiments.registry import make_args, make_experiment, restore_args
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.training.loop import CHECKPOINT_SECONDS, Training
from sparsum_experiments.training.progress import LiveLine

# Where a run may go on with another value than it was begun with.
_FREE_ON_RESUME = {"epochs", "device", "data_dir"}


def run(
    name: str,
    method: str,
    options: dict[str, Any],
    *,
    out: pathlib.Path | None = None,
    resume: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> tuple[RunFolder, list[dict[str, Any]]]:
    """Begin a run, or go on with one; returns its folder and the metrics of all its epochs."""
    if resume and out is not None:
        folder, args = RunFolder(out), None  # it was told more than now, so that what is given may make no sense alone
    else:
        args = make_args(name, method, options)
        folder = RunFolder(default_folder(name, args) if out is None else out)
    if resume and not folder.exists():
        raise UsageError(f"there is no run to resume in {folder.path}; leave out --resume to begin one")
    with folder.locked():  # from the first look on, so that no other process changes what is seen
        if resume or args is None:
            args = _resumed_args(folder, name, method, options)
        elif folder.exists():
            raise UsageError(f"{folder.path} holds a run already: add --resume to go on with it, or give another --out")
        fabric = fabric_for(args)
        experiment = make_experiment(name, args, fabric.device)
        criterion = experiment.criterion_of(args.method)
        with LiveLine(f"{name} {method} seed {args.seed}", args.epochs, criterion) as line:
            training = Training(experiment, folder, fabric, line, checkpoint_seconds)
            if resume:
                training.restore()  # one that cannot go on stays what it was
                folder.update_args(args)
            else:
                folder.create(name, args)
            return folder, training.run()


def default_folder(name: str, args: CommonArgs) -> pathlib.Path:
    """Where a run goes that was given no place."""
    return pathlib.Path("runs") / name / f"{args.data_name}-{args.method}-seed{args.seed}"


def resume_command(folder: RunFolder) -> str:
    """What to type to go on with a run."""
    config = folder.config()
    return f"sparsum train {config['experiment']} {config['args']['method']} --out {shlex.quote(str(folder.path))} --resume"


def _resumed_args(folder: RunFolder, name: str, method: str, options: dict[str, Any]) -> CommonArgs:
    """The arguments of a run that goes on: those it was begun with, and those that may change."""
    config = folder.config()
    saved = config["args"]
    if (config["experiment"], saved.get("method")) != (name, method):
        held = f"{config['experiment']} {saved.get('method')}"
        raise UsageError(f"{folder.path} holds a run of {held}, not of {name} {method}")
    restored = restore_args(name, saved, folder.config_file)
    for key, value in options.items():
        begun_with = getattr(restored, key, None)  # an older version may not have known the option
        if value is not None and key not in _FREE_ON_RESUME and begun_with != value:
            raise UsageError(f"{folder.path} was begun with {as_flag(key)} {begun_with} and cannot go on with {value}")
    n_done = len(folder.metrics())
    if options.get("epochs") is not None and options["epochs"] < n_done:
        raise UsageError(f"{folder.path} has {n_done} epochs already: --epochs must be at least {n_done}")
    changed = {key: options[key] for key in _FREE_ON_RESUME if options.get(key) is not None}
    return restored.replace(**changed)


def fabric_for(args: CommonArgs) -> Fabric:
    """The device and precision that a run was told."""
    return Fabric(accelerator=device_of(args.device).type, devices=1, precision=_precision(args.precision))


def device_of(device: str) -> torch.device:
    """The device that was asked for; auto is a GPU if there is one."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no CUDA device here; use --device cpu or auto")
    if device not in {"cpu", "cuda", "auto"}:
        raise UsageError(f"--device must be cpu, cuda or auto, got {device!r}")
    return torch.device({"auto": "cuda" if torch.cuda.is_available() else "cpu"}.get(device, device))


def _precision(precision: str) -> Any:
    if precision not in {"32", "bf16-mixed"}:
        raise UsageError(f"--precision must be 32 or bf16-mixed, got {precision!r}")
    return {"32": "32-true"}.get(precision, precision)
