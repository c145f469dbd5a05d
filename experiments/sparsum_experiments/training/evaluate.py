"""A trained model on data it has not seen."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Callable
from typing import Any

import torch

from sparsum_experiments.errors import UsageError
from sparsum_experiments.experiment import AbstractExperiment
from sparsum_experiments.files import read_json, write_json
from sparsum_experiments.registry import make_experiment, restore_args
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.seeds import generator_for
from sparsum_experiments.training.start import device_of

SPLITS = ("test", "validation")
CHECKPOINTS = ("last", "best")


def evaluate_run(
    path: pathlib.Path,
    *,
    checkpoint: str = "last",
    split: str = "test",
    limit: int | None = None,
    n_samples: int = 1024,
    n_annealed: int = 0,
    device: str | None = None,
    data_dir: str | None = None,
    progress: Callable[[float], None] | None = None,
) -> dict[str, float]:
    """The metrics of a run's model, also written to its folder if they are of all test or validation data.

    What an earlier evaluation of the same model with as many samples has annealed stays there, unless it is annealed again.

    Args:
        path: the folder of the run.
        checkpoint: ``last``, or ``best`` by the validation data.
        split: ``test`` or ``validation``.
        limit: at most this many examples, for a quick look.
        n_samples: for what is estimated by importance sampling.
        n_annealed: for how many examples to estimate it by annealed importance sampling, too.
        device: where; by default as the run was told.
        data_dir: where the data is; by default as the run was told.
        progress: told which part is done, from 0 to 1.
    """
    if split not in SPLITS:
        raise UsageError(f"--split must be one of {', '.join(SPLITS)}, got {split!r}")
    if checkpoint not in CHECKPOINTS:
        raise UsageError(f"--checkpoint must be one of {', '.join(CHECKPOINTS)}, got {checkpoint!r}")
    if limit is None and not os.access(path, os.W_OK):
        raise PermissionError(f"{path} cannot be written to, so that what is measured could not be kept; give a --limit")
    experiment, state = restore_experiment(path, checkpoint=checkpoint, device=device, data_dir=data_dir)
    n_epochs = _n_epochs(state, RunFolder(path).checkpoint_file(checkpoint))  # a broken one is told before the work
    place, seed = next(experiment.model.parameters()).device, experiment.args.seed
    generator = generator_for(place, seed, "evaluation", split)
    with torch.no_grad():
        metrics = experiment.evaluate(
            generator, split=split, limit=limit, n_samples=n_samples, n_annealed=n_annealed, progress=progress
        )
    if wrong := [name for name, value in metrics.items() if not math.isfinite(value)]:
        raise ValueError(f"{path} has measured no finite number for {', '.join(wrong)}; its weights may be none")
    if limit is None:
        file = path / _file_name(split, checkpoint)
        kept = {} if n_annealed else _annealed_before(file, n_epochs, n_samples)
        _keep(file, metrics, kept | {"epochs": n_epochs, "n_samples": n_samples})
    return metrics


def _keep(file: pathlib.Path, metrics: dict[str, float], others: dict[str, float]) -> None:
    """Write what was measured; if that fails it is told, since it may have taken hours."""
    try:
        write_json(file, others | metrics)
    except OSError as error:
        told = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
        raise OSError(f"{error}; it would have held {told}") from error


def _annealed_before(file: pathlib.Path, n_epochs: float, n_samples: int) -> dict[str, float]:
    """What an earlier evaluation of the same model found by annealing, which takes longer than all the rest.

    With other samples it would be another number: they choose what annealing begins with, and stand for the images that are
    not annealed. In the middle of an epoch nobody knows whether it was the same model.
    """
    try:
        earlier = read_json(file)
        is_same = (earlier["epochs"], earlier["n_samples"]) == (n_epochs, n_samples) and n_epochs.is_integer()
    except (OSError, LookupError, TypeError, ValueError):
        return {}  # nothing, or nothing that can be read
    return {name: value for name, value in earlier.items() if "annealed" in name} if is_same else {}


def _file_name(split: str, checkpoint: str) -> str:
    """That of the last checkpoint on the test data is the plain one."""
    others = [word for word, usual in ((split, "test"), (checkpoint, "last")) if word != usual]
    return "-".join(["evaluation", *others]) + ".json"


def restore_experiment(
    path: pathlib.Path, *, checkpoint: str = "last", device: str | None = None, data_dir: str | None = None
) -> tuple[AbstractExperiment, dict[str, Any]]:
    """The experiment of a run with its data and its trained model, in evaluation mode, and the checkpoint it comes from.

    Raises:
        UsageError: if there is no such checkpoint.
        ValueError: if it cannot be read, or is of another run.
    """
    folder = RunFolder(path)
    config = folder.config()
    args = restore_args(config["experiment"], config["args"], folder.config_file)
    if device is not None:
        args = args.replace(device=device)
    if data_dir is not None:
        args = args.replace(data_dir=data_dir)
    place = device_of(args.device)
    state = folder.load(checkpoint, place)
    if state is None:
        raise UsageError(f"{path} has no checkpoint {checkpoint!r} yet: {folder.checkpoint_file(checkpoint)} is missing")
    experiment = make_experiment(config["experiment"], args, place)
    _load_model(experiment.model, state, folder.checkpoint_file(checkpoint))
    experiment.model.eval()
    return experiment, state


def _load_model(model: torch.nn.Module, state: dict[str, Any], file: pathlib.Path) -> None:
    """Give a model the weights of a checkpoint.

    Raises:
        ValueError: if it has none, or those of another model; it names the file.
    """
    if not isinstance(state.get("model"), dict):
        raise ValueError(f"{file} holds no model")
    try:
        model.load_state_dict(state["model"])
    except (AttributeError, RuntimeError, TypeError) as error:
        raise ValueError(f"{file} does not fit the run's config.json: it is of another experiment or shape") from error


def _n_epochs(state: dict[str, Any], file: pathlib.Path) -> float:
    """How many epochs a checkpoint comes after, so that later readers can tell an evaluation of an earlier time.

    Raises:
        ValueError: if it does not say; it names the file.
    """
    try:
        if "place" not in state:
            return float(state["epoch"] + 1)
        return float(state["place"]["epoch"]) + (0.5 if state["place"]["step"] else 0.0)  # in the middle of one
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{file} does not say which epoch it comes after") from error
