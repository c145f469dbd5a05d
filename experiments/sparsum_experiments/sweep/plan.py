"""Which runs a sweep has: methods x grid x seeds."""

from __future__ import annotations

import itertools
import math
import pathlib
import typing
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparsum_experiments.errors import UsageError
from sparsum_experiments.options import CommonArgs, as_flag
from sparsum_experiments.registry import args_class, experiment_class, make_args, train_options

# What a grid cannot hold, and why.
_NOT_IN_GRID = {
    "method": "methods are given by --methods",
    "seed": "seeds are given by --seeds",
    "data": "values on different data cannot be compared; make a sweep for each",
}


@dataclass(frozen=True)
class PlannedRun:
    """A run that is to be made.

    Args:
        experiment: its name.
        method: how the sum is made.
        options: all that `sparsum train` will be told, seed included.
        setting: the values of the grid among them.
        folder: where it goes.
        key: its name among the runs of the plan, which is its folder seen from that of the sweep.
        is_evaluated: whether it is measured on the test data when it is trained.
    """

    experiment: str
    method: str
    options: Mapping[str, Any]
    setting: Mapping[str, Any]
    folder: pathlib.Path
    key: str
    is_evaluated: bool = False

    @property
    def args(self) -> CommonArgs:
        """The arguments, presets included."""
        return make_args(self.experiment, self.method, dict(self.options))

    def arguments(self) -> list[str]:
        """What comes after `sparsum train`, without ``--resume``."""
        given = {name: value for name, value in self.options.items() if value is not None}
        typed = [text for name, value in given.items() for text in (as_flag(name), str(value))]
        return [self.experiment, self.method, *typed, "--out", str(self.folder)]


def make_plan(
    experiment: str,
    methods: Sequence[str],
    options: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    seeds: int,
    out: pathlib.Path,
    tuned: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[PlannedRun]:
    """All runs of a sweep, each method's together, in an order that finishes one seed of all settings before the next.

    Args:
        experiment: its name.
        methods: how the sum is made.
        options: what all runs are told; None means not given.
        grid: the values that options take in turn, as `parse_grid` gives them; methods that do not heed an option are told
            none of its values.
        seeds: how many seeds, from 0.
        out: the folder above those of the runs.
        tuned: what the runs of a method are told besides, by its name, as an earlier sweep chose it.
    """
    if seeds < 1:
        raise UsageError(f"--seeds must be at least 1, got {seeds}")
    given = {name: value for name, value in options.items() if value is not None}
    if "seed" in given:
        raise UsageError("a sweep takes --seeds N, the seeds 0 to N-1, and no --seed")
    for name in grid.keys() & given.keys():
        raise UsageError(f"{as_flag(name)} is given alone and in --grid; leave one of them out")
    own = {method: dict((tuned or {}).get(method, {})) for method in methods}
    for method, values in own.items():
        for name in sorted(values.keys() & (grid.keys() | given.keys())):
            raise UsageError(f"{as_flag(name)} is given here and tuned for {method} by --tuned-by; leave one of them out")
    plan = [
        _planned(experiment, method, given | own[method], setting, seed, out)
        for method in methods
        for seed, setting in itertools.product(range(seeds), _settings(experiment, method, grid))
    ]
    for run in plan:
        _ = run.args  # raises for an option that the experiment does not have
    return plan


def _settings(experiment: str, method: str, grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The points of a grid, without what makes no difference to a method: it would be trained again and again."""
    names = [name for name in sorted(grid) if experiment_class(experiment).uses(method, name)]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*(grid[name] for name in names))]


def check_heeded(plan: Sequence[PlannedRun], grid: Mapping[str, Sequence[Any]]) -> None:
    """Raise a UsageError for an option of a grid that makes no difference to any of the runs."""
    for name in sorted(grid.keys() - {name for run in plan for name in run.setting}):
        methods = ", ".join(dict.fromkeys(run.method for run in plan))
        kind = experiment_class(plan[0].experiment)
        others = ", ".join(method for method in kind.methods if kind.uses(method, name))
        raise UsageError(f"--grid {name}: it makes no difference to {methods}; leave it out, or add one of {others}")


def _planned(
    experiment: str, method: str, given: dict[str, Any], setting: dict[str, Any], seed: int, out: pathlib.Path
) -> PlannedRun:
    """One run; its epochs are said even where they are the preset's, so that a later preset does not change the plan."""
    parts = [method, _folder_name(setting), f"seed-{seed}"] if setting else [method, f"seed-{seed}"]
    args = make_args(experiment, method, given | setting)
    options = {"epochs": args.epochs} | given | setting | {"seed": seed}
    return PlannedRun(experiment, method, options, setting, out.joinpath(*parts), "/".join(parts))


def _folder_name(setting: dict[str, Any]) -> str:
    """Like ``batch-size-64_lr-0.001``; what may not stand in a file's name is written as in a web address."""
    values = {name: urllib.parse.quote(str(value), safe="+") for name, value in setting.items()}
    return "_".join(f"{name.replace('_', '-')}-{value}" for name, value in values.items())


def parse_grid(experiment: str, texts: Iterable[str]) -> dict[str, list[Any]]:
    """The values of a grid from what was typed, in the types of the experiment's arguments.

    >>> parse_grid("ssvae", ["lr=1e-3,5e-4", "batch-size=32,64"])
    {'lr': [0.001, 0.0005], 'batch_size': [32, 64]}
    """
    types, known = typing.get_type_hints(args_class(experiment)), grid_options(experiment)
    grid: dict[str, list[Any]] = {}
    for text in texts:
        typed, equals, values = text.partition("=")
        name = typed.strip().lstrip("-").replace("-", "_")
        if not equals or not values.strip():
            raise UsageError(f"--grid wants NAME=VALUE,VALUE, such as lr=1e-3,5e-4; got {text!r}")
        if name in _NOT_IN_GRID:
            raise UsageError(f"--grid {text}: {_NOT_IN_GRID[name]}")
        if name not in known:
            raise UsageError(f"--grid {text}: {experiment} has no option {typed!r}; there are {', '.join(known)}")
        if name in grid:
            raise UsageError(f"--grid {text}: {name} is given twice; put all its values into one --grid")
        grid[name] = [_parsed(part.strip(), types[name], text) for part in values.split(",")]
        if len(set(grid[name])) < len(grid[name]):
            raise UsageError(f"--grid {text}: a value is given twice")
    return grid


def grid_options(experiment: str) -> list[str]:
    """The options of an experiment that a grid can hold."""
    types = typing.get_type_hints(args_class(experiment))
    return [name for name in types if name in train_options() and name not in _NOT_IN_GRID]


def parse_methods(experiment: str, text: str) -> list[str]:
    """The methods of a list such as ``sparse,dense``; `make_plan` checks them."""
    methods = [part.strip() for part in text.split(",") if part.strip()]
    if not methods or len(set(methods)) < len(methods):
        known = ", ".join(experiment_class(experiment).methods)
        raise UsageError(f"--methods wants different methods, with commas between; got {text!r}; there are {known}")
    return methods


def _parsed(text: str, kind: Any, typed: str) -> Any:
    """A value in the type of its argument, which may be a union with None."""
    kinds = [each for each in (typing.get_args(kind) or (kind,)) if each is not type(None)]
    try:
        value = kinds[0](text)
        is_number = not isinstance(value, float) or math.isfinite(value)
    except ValueError:
        is_number = False
    if not text or not is_number:
        words = {int: "whole number", float: "finite number"}
        raise UsageError(f"--grid {typed}: {text!r} is no {words.get(kinds[0], 'value')}")
    return value
