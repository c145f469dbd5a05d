"""A view with what it is of, as it is made from a run or kept in a file."""

from __future__ import annotations

import json
import pathlib
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sparsum_experiments.files import parse_json
from sparsum_experiments.registry import with_defaults
from sparsum_experiments.report.latent.bits import BitsView
from sparsum_experiments.report.latent.classes import ClassesView
from sparsum_experiments.report.latent.fields import Fields
from sparsum_experiments.report.latent.symbols import SymbolsView
from sparsum_experiments.report.latent.view import AbstractView
from sparsum_experiments.report.sections import PLACES
from sparsum_experiments.runs import Run, rounded
from sparsum_experiments.seeds import generator_for
from sparsum_experiments.training.evaluate import restore_experiment

#: Its name, beside the records of the runs.
LATENT_FILE = "latent.json"
VIEWS: dict[str, type[AbstractView]] = {"ssvae": ClassesView, "signal-game": SymbolsView, "bitvector-vae": BitsView}
# Larger files are not read: none that is written comes near it.
_MAX_BYTES = 2**24
# The ways in which a run without its data, or of another version, can fail; none of them is worth the rest of a report.
_FAILURES = (AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError)


class NoView(Exception):
    """There is no view of a run; the message says why."""


@dataclass(frozen=True)
class Latent:
    """A view, and the run that it is of; the config is all that the run was told, in the terms of its record."""

    experiment: str
    data: str
    method: str
    bits: int | None
    seed: int
    config: dict[str, Any]
    view: AbstractView

    def text(self) -> str:
        """For a file."""
        content = vars(self) | {"view": self.view.to_json()}
        return json.dumps(content, indent=1, allow_nan=False) + "\n"

    def difference(self, run: Run) -> str:
        """What sets a run apart from the one of the view, but for its seed and where it was made; empty if nothing does."""
        if run.experiment != self.experiment:
            return f"experiment {self.experiment} instead of {run.experiment}"
        kept, here = (_comparable(self.experiment, config) for config in (self.config, run.args))
        names = [name for name in here | kept if kept.get(name) != here.get(name)]
        return ", ".join(f"{name} {str(kept.get(name))[:50]} instead of {str(here.get(name))[:50]}" for name in names)


def latent_of_run(path: pathlib.Path, data_dir: str | None = None) -> Latent:
    """The view of the run in a folder, made on the CPU from its last checkpoint and its data.

    Args:
        path: the folder.
        data_dir: where the data is; by default as the run was told.

    Raises:
        NoView: if the checkpoint or the data is missing or of another kind than this version knows.
    """
    try:
        experiment, _ = restore_experiment(path, device="cpu", data_dir=data_dir)
        args = experiment.args
        with torch.no_grad():
            view = VIEWS[experiment.name].of(experiment, generator_for("cpu", 0, "latent view"))
    except _FAILURES as error:
        raise NoView(_reason(path, error)) from error
    config = {name: value for name, value in asdict(args).items() if name not in PLACES - {"seed"}}
    config = rounded(config | {"data": args.data_name})
    return Latent(experiment.name, args.data_name, args.method, getattr(args, "bits", None), args.seed, config, view)


def _comparable(experiment: str, config: dict[str, Any]) -> dict[str, Any]:
    """What runs of one setting were all told, also by a version that did not know of every option."""
    told = with_defaults(experiment, config)
    kept = {name: value for name, value in told.items() if name not in PLACES}
    compared: dict[str, Any] = rounded(kept | {"data": pathlib.Path(str(told.get("data"))).name})
    return compared


def _reason(path: pathlib.Path, error: Exception) -> str:
    """Why there is no view of a run, in one line that names it."""
    text = (str(error).splitlines() or [""])[0]
    if not text or isinstance(error, AttributeError | LookupError | TypeError):  # whose texts say little alone
        text = f"{type(error).__name__} {text}".strip()
    return text if str(path) in text else f"{path}: {text}"


def read_latent(file: pathlib.Path) -> Latent:
    """What is kept in a file.

    Raises:
        NoView: if it cannot be read or is no view.
    """
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES:,} bytes")
        return _from_json(parse_json(file.read_bytes(), "it"))
    except (OSError, ValueError) as error:
        raise NoView(f"{file} is no view of latent variables: {error}") from error


def _from_json(content: Any) -> Latent:
    fields = Fields(content, "the file")
    if "config" not in content:
        raise ValueError("it does not say what its run was told: write it anew by sparsum record --latent")
    experiment = fields.text("experiment")
    if experiment not in VIEWS:
        raise ValueError(f"there is no experiment {experiment!r}")
    has_bits = experiment == "bitvector-vae"
    view = VIEWS[experiment].from_json(fields.part("view"))
    bits = fields.whole("bits", 1, 2**20) if has_bits else None
    if isinstance(view, BitsView) and view.n_bits != bits:
        raise ValueError(f"it is of {bits} bits, and its decoder takes {view.n_bits}")
    data, method, seed = fields.text("data"), fields.text("method"), fields.whole("seed", -(2**63), 2**63)
    config = fields.mapping("config")
    if [config.get(name) for name in ("data", "method", "bits", "seed")] != [data, method, bits, seed]:
        raise ValueError("its config is of another run than the rest of it")
    return Latent(experiment, data, method, bits, seed, config, view)
