"""A trained model on data that it has not seen."""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Callable
from typing import Any

import torch

from sparsum_experiments.errors import UsageError
from sparsum_experiments.experiment import AbstractExperiment
from sparsum_experiments.files import write_json
from sparsum_experiments.registry import make_experiment, restore_args
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.seeds import generator_for
from sparsum_experiments.training.loop import check_config
from sparsum_experiments.training.start import check_data, device_of, resume_command


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

    Annealed estimates of an earlier evaluation of the same model with as many samples are kept, unless it is annealed again.
    """
    folder = RunFolder(path)
    if limit is None and not os.access(path, os.W_OK):
        raise PermissionError(f"{path} is not writable, so that the metrics could not be kept; give a --limit")
    experiment, state = restore_experiment(path, checkpoint=checkpoint, device=device, data_dir=data_dir)
    n_epochs = _n_epochs(state, folder.checkpoint_file(checkpoint))  # before the work, in case it is broken
    generator = generator_for(next(experiment.model.parameters()).device, experiment.args.seed, "evaluation", split)
    metrics = experiment.evaluate(
        generator, split=split, limit=limit, n_samples=n_samples, n_annealed=n_annealed, progress=progress
    )
    if wrong := [name for name, value in metrics.items() if not math.isfinite(value)]:
        raise ValueError(f"{path}: {', '.join(wrong)} is NaN or infinite; the weights may be")
    if limit is None:
        kept = {} if n_annealed else _annealed_before(folder, split, checkpoint, n_epochs, n_samples)
        content = kept | {"epochs": n_epochs, "n_samples": n_samples} | metrics
        try:
            write_json(folder.evaluation_file(split, checkpoint), content)
        except OSError as error:  # they may have taken hours
            shown = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
            raise OSError(f"{error}; the metrics are {shown}") from error
    return metrics


def _annealed_before(folder: RunFolder, split: str, checkpoint: str, n_epochs: float, n_samples: int) -> dict[str, float]:
    """Annealed estimates of an earlier evaluation of the same model, which take longer than all the rest.

    With another number of samples they would differ: samples choose where annealing starts, and stand for the images that
    are not annealed. Within an epoch, nothing shows whether it was the same model.
    """
    try:
        earlier = folder.evaluation(split, checkpoint)
    except (OSError, ValueError):
        return {}
    is_same = (earlier.get("epochs"), earlier.get("n_samples")) == (n_epochs, n_samples) and n_epochs.is_integer()
    return {name: value for name, value in earlier.items() if "annealed" in name} if is_same else {}


def restore_experiment(
    path: pathlib.Path, *, checkpoint: str = "last", device: str | None = None, data_dir: str | None = None
) -> tuple[AbstractExperiment, dict[str, Any]]:
    """The experiment of a run with its data and its trained model, in evaluation mode, and the checkpoint."""
    folder = RunFolder(path)
    config = folder.config()
    changes = {name: value for name, value in (("device", device), ("data_dir", data_dir)) if value is not None}
    args = restore_args(config.experiment, config.args.model_dump(exclude_unset=True), folder.config_file).replace(**changes)
    place, file = device_of(args.device), folder.checkpoint_file(checkpoint)
    state = folder.load(checkpoint, place)
    if state is None:
        missing = f"{path} has no checkpoint {checkpoint!r} yet: {file} is missing"
        raise UsageError(f"{missing}; {resume_command(folder)} trains it")
    experiment = make_experiment(config.experiment, args, place)
    check_data(config, experiment, folder)
    check_config(folder, state, args)
    _load_model(experiment.model, state, file)
    experiment.model.eval()
    return experiment, state


def _load_model(model: torch.nn.Module, state: dict[str, Any], file: pathlib.Path) -> None:
    weights = state.get("model")
    if not isinstance(weights, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in weights.values()):
        raise ValueError(f"{file} does not hold a model")
    try:
        model.load_state_dict(weights)
    except (AttributeError, RuntimeError, TypeError) as error:
        raise ValueError(f"{file} does not fit the run's config.json: it is of another experiment or shape") from error


def _n_epochs(state: dict[str, Any], file: pathlib.Path) -> float:
    """After how many epochs a checkpoint was written, so that later readers can tell an older evaluation."""
    try:
        if "place" not in state:
            return float(state["epoch"] + 1)
        return float(state["place"]["epoch"]) + (0.5 if state["place"]["step"] else 0.0)  # within one
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{file} does not say after which epoch it was written") from error
