"""A view with the config of its run, as it is made from the run or kept in a file."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Literal

import pydantic
import torch

from sparsum_experiments.files import parse_json, read_bytes
from sparsum_experiments.registry import place_options, used_config
from sparsum_experiments.report.latent.bits import BitsView
from sparsum_experiments.report.latent.classes import ClassesView
from sparsum_experiments.report.latent.symbols import SymbolsView
from sparsum_experiments.report.latent.view import AbstractView, Part, Text
from sparsum_experiments.runs import Run, rounded
from sparsum_experiments.runs.schema import Whole, check
from sparsum_experiments.seeds import generator_for
from sparsum_experiments.training.evaluate import restore_experiment

VIEWS: dict[str, type[AbstractView]] = {"ssvae": ClassesView, "signal-game": SymbolsView, "bitvector-vae": BitsView}
# Larger files are not read: none that is written comes near it.
_MAX_BYTES = 2**24
# How a run without its data, or of another version, can fail; the rest of a report goes on.
_FAILURES = (AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError)


class NoView(Exception):
    """A view cannot be made or read; the message says why."""


class Latent(Part):
    """A view and the run that it is of.

    Args:
        experiment: its name; data, method, bits and seed are repeated from the config.
        config: the run's config as its record has it.
        view: what the latent variable learned.
    """

    experiment: Literal["ssvae", "signal-game", "bitvector-vae"]
    data: Text
    method: Text
    bits: int | None
    seed: Whole
    config: dict[str, Any]
    view: pydantic.SerializeAsAny[AbstractView]

    @pydantic.model_validator(mode="after")
    def _check(self) -> Latent:
        for name in ("data", "method", "bits", "seed"):
            if self.config.get(name) != getattr(self, name):
                raise ValueError(f"{name} is {getattr(self, name)!r}, but {self.config.get(name)!r} in the config")
        if isinstance(self.view, BitsView) and self.view.n_bits != self.bits:
            raise ValueError(f"bits is {self.bits}, but the decoder takes {self.view.n_bits}")
        return self

    def text(self) -> str:
        """For a file."""
        return json.dumps(self.model_dump(mode="json"), indent=1, allow_nan=False) + "\n"

    def difference(self, run: Run) -> str:
        """How the config of a run differs from the view's, except for seed and place; empty if it does not."""
        if run.experiment != self.experiment:
            return f"experiment {self.experiment} instead of {run.experiment}"
        kept, here = (_comparable(self.experiment, config) for config in (self.config, run.args))
        names = [name for name in here | kept if kept.get(name) != here.get(name)]
        return ", ".join(f"{name} {str(kept.get(name))[:50]} instead of {str(here.get(name))[:50]}" for name in names)


def _comparable(experiment: str, config: dict[str, Any]) -> dict[str, Any]:
    """What all runs of a setting have in common, also those of a version with fewer options."""
    config = used_config(experiment, config)
    kept = {name: value for name, value in config.items() if name not in place_options(experiment)}
    compared: dict[str, Any] = rounded(kept | {"data": pathlib.Path(str(config.get("data"))).name})
    return compared


def latent_of_run(path: pathlib.Path, data_dir: str | None = None) -> Latent:
    """The view of the run in a folder, made on the CPU from its last checkpoint and its data.

    Args:
        path: the folder.
        data_dir: where the data is; by default as in the run's config.

    Raises:
        NoView: if the checkpoint or the data is missing or of another kind than this version knows.
    """
    try:
        experiment, _ = restore_experiment(path, device="cpu", data_dir=data_dir)
        with torch.no_grad():
            view = VIEWS[experiment.name].of(experiment, generator_for("cpu", 0, "latent view"))
    except _FAILURES as error:
        raise NoView(_reason(path, error)) from error
    args, hidden = experiment.args, place_options(experiment.name) - {"seed"}
    config = rounded(args.model_dump(exclude=hidden) | {"data": args.data_name})
    own = {name: config.get(name) for name in ("data", "method", "bits", "seed")}
    return Latent.model_validate(own | {"experiment": experiment.name, "config": config, "view": view})


def _reason(path: pathlib.Path, error: Exception) -> str:
    """Why a run has no view, in one line that names the run."""
    text = (str(error).splitlines() or [""])[0]
    if not text or isinstance(error, AttributeError | LookupError | TypeError):  # whose texts alone say little
        text = f"{type(error).__name__} {text}".strip()
    return text if str(path) in text else f"{path}: {text}"


def read_latent(file: pathlib.Path) -> Latent:
    """A view that was kept in a file.

    Raises:
        NoView: if the file cannot be read or holds something else.
    """
    try:
        content = parse_json(read_bytes(file, _MAX_BYTES), "it")
        if not isinstance(content, dict) or content.get("experiment") not in list(VIEWS):
            raise ValueError(f"experiment must be one of {', '.join(VIEWS)}")
        if "config" not in content:
            raise ValueError("config is missing; write it again with sparsum record --latent")
        view = check(VIEWS[content["experiment"]].model_validate, content.get("view"), "view")
        return check(Latent.model_validate, content | {"view": view}, "it")
    except (OSError, ValueError) as error:
        raise NoView(f"{file} is not a latent view: {error}") from error
