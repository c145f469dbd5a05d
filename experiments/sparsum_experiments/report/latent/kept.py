"""Views with the configs of their runs, made from runs or kept in files, and which one a section of the page shows."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import pydantic
import torch

from sparsum_experiments.files import parse_json, read_bytes
from sparsum_experiments.registry import place_options, used_config
from sparsum_experiments.report.latent.bits import BitsView
from sparsum_experiments.report.latent.classes import ClassesView
from sparsum_experiments.report.latent.symbols import SymbolsView
from sparsum_experiments.report.latent.view import AbstractView, Part, Text
from sparsum_experiments.report.sections import Section
from sparsum_experiments.report.summary import Summary, rank
from sparsum_experiments.runs import Run, RunFolder, rounded
from sparsum_experiments.runs.schema import Whole, check
from sparsum_experiments.seeds import generator_for

VIEWS: dict[str, type[AbstractView]] = {"ssvae": ClassesView, "signal-game": SymbolsView, "bitvector-vae": BitsView}
_REPEATED = ("data", "method", "bits", "seed")
# Larger files are not read: none that is written comes near it.
_MAX_BYTES = 2**24
# If a view cannot be made, the next best run is tried, so often.
_MAX_TRIED = 4
# How a run without its data, or of another version, can fail; the rest of a report goes on.
_FAILURES = (AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError)


class NoView(Exception):
    """A view cannot be made or read; the message says why."""


class Latent(Part):
    """A view and the config of its run as its record has it; data, method, bits and seed are repeated from it."""

    experiment: Literal["ssvae", "signal-game", "bitvector-vae"]
    data: Text
    method: Text
    bits: int | None
    seed: Whole
    config: dict[str, Any]
    view: pydantic.SerializeAsAny[AbstractView]

    @pydantic.model_validator(mode="after")
    def _check(self) -> Latent:
        for name in _REPEATED:
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
        kept, here = (self._comparable(config) for config in (self.config, run.args))
        names = [name for name in here | kept if kept.get(name) != here.get(name)]
        return ", ".join(f"{name} {str(kept.get(name))[:50]} instead of {str(here.get(name))[:50]}" for name in names)

    def _comparable(self, config: dict[str, Any]) -> dict[str, Any]:
        """What all runs of a setting have in common, also those of a version with fewer options."""
        config = used_config(self.experiment, config)
        kept = {name: value for name, value in config.items() if name not in place_options(self.experiment)}
        compared: dict[str, Any] = rounded(kept | {"data": pathlib.Path(str(config.get("data"))).name})
        return compared


def latent_of_run(path: pathlib.Path, data_dir: str | None = None) -> Latent:
    """The view of the run in a folder, made on the CPU from its last checkpoint and its data.

    Raises:
        NoView: if the checkpoint or the data is missing or of another kind than this version knows.
    """
    # A page of records needs no training, whose imports take 140 MB.
    from sparsum_experiments.training.evaluate import restore_experiment

    try:
        experiment, _ = restore_experiment(path, device="cpu", data_dir=data_dir)
        with torch.no_grad():
            view = VIEWS[experiment.name].of(experiment, generator_for("cpu", 0, "latent view"))
    except _FAILURES as error:
        text = (str(error).splitlines() or [""])[0]
        if not text or isinstance(error, AttributeError | LookupError | TypeError):  # whose texts alone say little
            text = f"{type(error).__name__} {text}".strip()
        raise NoView(text if str(path) in text else f"{path}: {text}") from error
    args, hidden = experiment.args, place_options(experiment.name) - {"seed"}
    config = rounded(args.model_dump(exclude=hidden) | {"data": args.data_name})
    own = {name: config.get(name) for name in _REPEATED}
    return Latent.model_validate(own | {"experiment": experiment.name, "config": config, "view": view})


def read_latent(file: pathlib.Path) -> Latent:
    """A view that was kept in a file; `NoView` if it cannot be read or holds something else."""
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


class Shown(NamedTuple):
    """What the latent variables of a section's best run learned, which run that is, and why better runs are not shown."""

    title: str
    view: AbstractView | None
    about: str
    problems: Sequence[str]


def show_latent(section: Section, data_dir: str | None = None) -> Shown | None:
    """The view of the best run that has one; None for experiments without views."""
    if section.experiment not in VIEWS:
        return None
    title, criterion = VIEWS[section.experiment].title, section.criterion
    problems: list[str] = []
    best_first = sorted(section.summaries, key=lambda each: rank(each, criterion), reverse=True)
    for summary, source in itertools.islice(_sources(best_first), _MAX_TRIED):
        try:
            latent = _read(source, summary.runs[0], data_dir)
        except NoView as error:
            problems.append(str(error))
        else:
            about = f"{summary.label}, seed {latent.seed}: the best validation {criterion} of all runs that can be shown."
            return Shown(title, latent.view, about, problems)
    return Shown(title, None, "", problems)


def _sources(summaries: Sequence[Summary]) -> Iterator[tuple[Summary, pathlib.Path]]:
    """Where views can come from, the best setting first: folders with a checkpoint by their seeds, then a kept file."""
    for summary in summaries:
        runs = sorted(summary.runs, key=lambda run: int(run.args["seed"]))
        folders = [run.path for run in runs if RunFolder(run.path).checkpoint_file("last").is_file()]
        files = dict.fromkeys(run.latent_file for run in runs if not run.path.is_dir())
        yield from ((summary, source) for source in [*folders, *(file for file in files if file and file.is_file())])


def _read(source: pathlib.Path, run: Run, data_dir: str | None) -> Latent:
    """The view of a folder, or of a file that must be of the same setting as a run."""
    if source.is_dir():
        return latent_of_run(source, data_dir)
    latent = read_latent(source)
    if difference := latent.difference(run):
        raise NoView(f"{source} is not of the runs that are recorded beside it: {difference}")
    return latent
