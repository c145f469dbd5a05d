"""The experiments by name, and the options of their runs."""

from __future__ import annotations

import difflib
import functools
import importlib.resources
import pathlib
import pkgutil
import tomllib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import pydantic

from sparsum_experiments.errors import UsageError
from sparsum_experiments.options import CommonArgs, Option, as_flag, explain, options_of

if TYPE_CHECKING:  # the experiments import torch, which `sparsum --help` does without
    import torch

    from sparsum_experiments.experiment import AbstractExperiment

#: One line about each experiment, for ``--help``.
EXPERIMENTS = {
    "ssvae": "semisupervised VAE: the class of an image is the latent variable",
    "signal-game": "signal game: one symbol has to tell an image from others",
    "bitvector-vae": "VAE of grey images whose code is a bit vector",
}
# Imported on demand.
_CLASSES = {
    "ssvae": "ssvae:SemisupervisedVAE",
    "signal-game": "signal_game:SignalGame",
    "bitvector-vae": "bitvector_vae:BitvectorVAE",
}

NAMES = tuple(EXPERIMENTS)


def experiment_class(name: str) -> type[AbstractExperiment]:
    """The class of an experiment."""
    if name not in _CLASSES:
        raise UsageError(f"there is no experiment {name!r}{hint(name, NAMES)}")
    return cast("type[AbstractExperiment]", pkgutil.resolve_name(f"sparsum_experiments.{_CLASSES[name]}"))


def experiment_options(name: str) -> dict[str, Option]:
    """The options of an experiment; those of all experiments where this version does not know it."""
    return options_of(experiment_class(name).args_class if name in NAMES else CommonArgs)


def make_args(name: str, method: str, options: dict[str, Any]) -> CommonArgs:
    """The config of a run: the experiment's defaults, the method's presets, and the given options.

    Options that are None were not given.
    """
    check_method(name, method)
    given = {key: value for key, value in options.items() if value is not None}
    known = experiment_options(name)
    for key in given:
        if key not in known:
            raise UsageError(f"{as_flag(key)} is not an option of {name}")
    special = [f"bits-{given.get('bits', known['bits'].default)}"] if "bits" in known else []
    tables = [_presets(name).get(part, {}) for part in ("all", method)]
    data = pathlib.Path(given.get("data", known["data"].default)).name  # a folder has the presets of its name
    tables += [table.get(key) for key in (*special, data) for table in tables]  # the more special, the later
    presets = [table.items() for table in tables if isinstance(table, dict)]
    preset = {key: value for items in presets for key, value in items if not isinstance(value, dict)}
    return _checked(name, {"method": method} | preset | given)


def restore_args(name: str, saved: dict[str, Any], file: pathlib.Path) -> CommonArgs:
    """The config that a run was started with."""
    try:
        check_method(name, str(saved.get("method")))
        if unknown := set(saved) - set(experiment_options(name)) - {"method"}:
            raise UsageError(f"unknown option {', '.join(sorted(unknown))} of {name}; was the run made by a newer version?")
        return _checked(name, saved)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _checked(name: str, values: dict[str, Any]) -> CommonArgs:
    try:
        return experiment_class(name).args_class(**values)
    except pydantic.ValidationError as error:
        raise ValueError(explain(error)) from None


def check_method(name: str, method: str) -> None:
    """Raise a UsageError unless an experiment has a method."""
    known = experiment_class(name).methods
    if method not in known:
        raise UsageError(f"{name} has no method {method!r}{hint(method, known)}")


def used_config(name: str, saved: Mapping[str, Any]) -> dict[str, Any]:
    """A config completed by the defaults of options that its version did not have or its method ignores.

    It is the same for runs that compute the same, except where and from which seed.
    """
    if name not in NAMES:
        return dict(saved)
    defaults = {option.name: option.default for option in experiment_options(name).values()}
    ignored = {option for option in defaults if not uses(name, str(saved.get("method")), option)}
    return defaults | dict(saved) | {option: defaults[option] for option in ignored}


def uses(name: str, method: str, option: str) -> bool:
    """Whether runs of a method depend on an option; they may where this version does not know one of the three."""
    if name not in NAMES or method not in experiment_class(name).methods or option not in experiment_options(name):
        return True
    return experiment_options(name)[option].is_used_by(method)


def place_options(name: str) -> set[str]:
    """The options that say where a run was made or which seed it had, and not what it computes."""
    return {key for key, option in experiment_options(name).items() if option.is_place}


def make_experiment(name: str, args: CommonArgs, device: torch.device) -> AbstractExperiment:
    """An experiment, with its data and its model on a device."""
    return experiment_class(name)(args, device)  # type: ignore[call-arg]


def general_presets(name: str, option: str) -> dict[str, Any]:
    """The presets of an option that hold for all methods on some data, by the name of the data."""
    tables = _presets(name).get("all", {})
    return {data: table[option] for data, table in tables.items() if isinstance(table, dict) and option in table}


@functools.lru_cache
def _presets(name: str) -> dict[str, Any]:
    file = importlib.resources.files("sparsum_experiments") / "presets" / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def hint(seen: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: what was probably meant, and what exists."""
    known = list(known)
    close = difflib.get_close_matches(seen, known, n=1, cutoff=0.7)
    meant = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{meant} known: {', '.join(known)}"
