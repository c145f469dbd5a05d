"""The experiments by name, and what each method is told."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import importlib.resources
import inspect
import pathlib
import tomllib
from typing import Any

import torch

from sparsum_experiments.checked import as_option
from sparsum_experiments.errors import UsageError
from sparsum_experiments.experiment import AbstractExperiment, CommonArgs

#: Where each experiment is, imported when it is asked for.
_PLACES = {
    "ssvae": ("sparsum_experiments.ssvae", "SemisupervisedVAE"),
    "signal-game": ("sparsum_experiments.signal_game", "SignalGame"),
    "bitvector-vae": ("sparsum_experiments.bitvector_vae", "BitvectorVAE"),
}

NAMES = tuple(_PLACES)


def experiment_class(name: str) -> type[AbstractExperiment]:
    """The class of an experiment."""
    if name not in _PLACES:
        raise UsageError(f"there is no experiment {name!r}{_hint(name, NAMES)}")
    module, kind = _PLACES[name]
    found: type[AbstractExperiment] = getattr(importlib.import_module(module), kind)
    return found


def args_class(name: str) -> type[CommonArgs]:
    """The class of the arguments of an experiment."""
    experiment_class(name)
    found: type[CommonArgs] = importlib.import_module(_PLACES[name][0]).Args
    return found


def make_args(name: str, method: str, options: dict[str, Any]) -> CommonArgs:
    """The arguments of a run: the experiment's defaults, the presets of the method, and the given options.

    Options that are None were not given.
    """
    kind, known = args_class(name), experiment_class(name).methods
    if method not in known:
        raise UsageError(f"{name} has no method {method!r}{_hint(method, known)}")
    fields = {field.name for field in dataclasses.fields(kind)}
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if key not in fields:
            raise UsageError(f"{as_option(key)} is no option of {name}")
    data = given.get("data", kind.data)
    bits = given.get("bits", getattr(kind, "bits", None))
    tables = [_presets(name).get(part, {}) for part in ("all", method)]
    preset: dict[str, Any] = {}
    for table in tables:
        preset |= {key: value for key, value in table.items() if not isinstance(value, dict)}
    for special in (f"bits-{bits}", data):  # the more special, the later
        for table in tables:
            found = table.get(special)
            preset |= found if isinstance(found, dict) else {}
    return kind(**({"method": method} | preset | given))


def with_defaults(name: str, saved: dict[str, Any]) -> dict[str, Any]:
    """What a run was told, completed by what it could not be told, since an older version did not know of it.

    Of an experiment that this version does not know, what it was told.
    """
    if name not in NAMES:
        return saved
    fields = dataclasses.fields(args_class(name))
    return {field.name: field.default for field in fields if field.default is not dataclasses.MISSING} | saved


def uses(name: str, method: str, option: str) -> bool:
    """Whether runs of a method depend on an option; they may where this version does not know the method."""
    if name not in NAMES:
        return True
    kind = experiment_class(name)
    return method not in kind.methods or kind.uses(method, option)


def train_options() -> list[str]:
    """What `sparsum train` can be told, by the names of its arguments."""
    # Found when it is asked for, since the commands import all else.
    return list(inspect.signature(importlib.import_module("sparsum_experiments.cli").train).parameters)


def restore_args(name: str, saved: dict[str, Any], file: pathlib.Path) -> CommonArgs:
    """The arguments that a run was begun with.

    Raises:
        ValueError: if they are none of this experiment; it names the file that they come from.
    """
    try:
        return _restored(name, saved)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _restored(name: str, saved: dict[str, Any]) -> CommonArgs:
    kind, known = args_class(name), experiment_class(name).methods
    if saved.get("method") not in known:
        raise UsageError(f"{name} has no method {saved.get('method')!r}; there are {', '.join(known)}")
    unknown = set(saved) - {field.name for field in dataclasses.fields(kind)}
    if unknown:
        raise UsageError(f"this version knows no {', '.join(sorted(unknown))} of {name}; was the run made by a newer one?")
    return kind(**saved)


def make_experiment(name: str, args: CommonArgs, device: torch.device) -> AbstractExperiment:
    """An experiment, with its data and its model on a device."""
    return experiment_class(name)(args, device)  # type: ignore[call-arg]


@functools.lru_cache
def _presets(name: str) -> dict[str, Any]:
    file = importlib.resources.files("sparsum_experiments") / "presets" / f"{name}.toml"
    return tomllib.loads(file.read_text())


def _hint(seen: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(seen, known, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{meant} there are {', '.join(known)}"
