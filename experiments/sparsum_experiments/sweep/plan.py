"""The runs of a sweep, methods x grid x seeds, and how far each of them is."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
import pathlib
import re
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparsum_experiments import registry
from sparsum_experiments.errors import UsageError
from sparsum_experiments.options import CommonArgs, Option, as_flag
from sparsum_experiments.runs import Run, RunFolder, read_run
from sparsum_experiments.sweep.settings import Range, Values, drawn_settings, every_setting

# What a grid cannot have, and why.
_NOT_IN_GRID = {
    "method": "methods are given by --methods",
    "seed": "seeds are given by --seeds",
    "data": "metrics on different data cannot be compared; run a sweep for each data set",
}


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A run of a sweep."""

    experiment: str
    args: CommonArgs  # the config, including presets
    options: Mapping[str, Any]  # those that `sparsum train` is given, including the seed
    setting: Mapping[str, Any]  # those of them that the grid gives
    folder: pathlib.Path
    key: str  # its name within the plan: its folder relative to that of the sweep
    is_evaluated: bool = False  # on the test data, after training
    until: int | None = None  # after how many epochs it pauses, if before its end

    @property
    def method(self) -> str:
        """How the sum is computed."""
        return self.args.method

    def arguments(self) -> list[str]:
        """What comes after `sparsum train`, without ``--resume``."""
        given = {name: value for name, value in self.options.items() if value is not None}
        words = [word for name, value in given.items() for word in (as_flag(name), str(value))]
        pause = [] if self.until is None else ["--until", str(self.until)]
        return [self.experiment, self.method, *words, *pause, "--out", str(self.folder)]

    def read(self) -> Run | None:
        """What the run has measured, with the planned number of epochs; None if it was not started or cannot be read."""
        try:
            found = read_run(self.folder)
        except (ValueError, OSError):
            return None
        return dataclasses.replace(found, args=found.args | {"epochs": self.args.epochs})


def make_plan(
    experiment: str,
    methods: Sequence[str],
    options: Mapping[str, Any],
    grid: Mapping[str, Values],
    seeds: int,
    out: pathlib.Path,
    tuned: Mapping[str, Mapping[str, Any]] | None = None,
    n_drawn: int | None = None,
) -> list[PlannedRun]:
    """All runs of a sweep, method by method, with one seed of all settings before the next seed.

    All runs have the ``options`` that are not None, those of a method also what is ``tuned`` for it. Methods that ignore an
    option of the ``grid`` are not swept over it; with ``n_drawn``, only so many settings are drawn from it. Seeds count from
    0, and ``out`` is the folder above those of the runs.
    """
    if seeds < 1:
        raise UsageError(f"--seeds must be at least 1, got {seeds}")
    _check_folder(out)
    given = {name: value for name, value in options.items() if value is not None}
    if "seed" in given:
        raise UsageError("--seed is not an option of a sweep: use --seeds N for the seeds 0 to N-1")
    if given.get("nodes", 1) != 1:
        raise UsageError(
            f"--nodes {given['nodes']}: a sweep makes each run on one machine; start runs on several by torchrun"
        )
    for name in sorted(grid.keys() & given.keys()):
        raise UsageError(f"{as_flag(name)} is given both by itself and in --grid; remove one of them")
    plan = []
    for method in methods:
        registry.check_method(experiment, method)
        own = dict((tuned or {}).get(method, {}))
        for name in sorted(own.keys() & (grid.keys() | given.keys())):
            raise UsageError(f"{as_flag(name)} is given here and tuned for {method} by --tuned-by; remove it here")
        names = [name for name in sorted(grid) if registry.uses(experiment, method, name)]
        values = {name: grid[name] for name in names}
        settings = every_setting(values) if n_drawn is None else drawn_settings(values, n_drawn)
        for seed, setting in itertools.product(range(seeds), settings):
            plan.append(_planned(experiment, method, given | own, setting, seed, out))
    return plan


def _planned(
    experiment: str, method: str, given: dict[str, Any], setting: dict[str, Any], seed: int, out: pathlib.Path
) -> PlannedRun:
    """One run; its epochs are explicit even where they are the preset's, so that a later preset does not change the plan."""
    args = registry.make_args(experiment, method, given | setting | {"seed": seed})  # raises for wrong options
    values = {name.replace("_", "-"): urllib.parse.quote(str(value), safe="+") for name, value in setting.items()}
    name = "_".join(f"{name}-{value}" for name, value in values.items())  # like batch-size-64_lr-0.001
    key = "/".join(filter(None, (method, name, f"seed-{seed}")))
    return PlannedRun(experiment, args, {"epochs": args.epochs} | given | setting | {"seed": seed}, setting, out / key, key)


def _check_folder(out: pathlib.Path) -> None:
    """Raise a UsageError for a folder whose runs could not be written, or not be read again."""
    if re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", str(out)):  # surrogates stand for bytes that are not UTF-8
        raise UsageError(f"--out {str(out)!a}: the name must be UTF-8 without control characters")
    existing = next(folder for folder in (out, *out.parents, pathlib.Path()) if folder.exists())
    if not existing.is_dir():
        raise UsageError(f"--out {out}: {existing} exists and is not a folder")


def parse_methods(experiment: str, text: str) -> list[str]:
    """The methods of a list such as ``sparse,dense``; `make_plan` checks them."""
    methods = [part.strip() for part in text.split(",") if part.strip()]
    if methods and len(set(methods)) == len(methods):
        return methods
    problem = f"--methods {text}: a method is given twice" if methods else "--methods is empty"
    raise UsageError(f"{problem}; known: {', '.join(registry.experiment_class(experiment).methods)}")


def grid_options(experiment: str) -> dict[str, Option]:
    """The options of an experiment that a grid can have."""
    options = registry.experiment_options(experiment)
    return {name: option for name, option in options.items() if name not in _NOT_IN_GRID and not option.is_place}


def parse_grid(experiment: str, texts: Iterable[str]) -> dict[str, Values]:
    """The values of a grid from the command line, or their range, in the types of the experiment's options.

    >>> parse_grid("ssvae", ["lr=1e-3,5e-4", "batch-size=32,64"])
    {'lr': [0.001, 0.0005], 'batch_size': [32, 64]}
    """
    known = grid_options(experiment)
    grid: dict[str, Values] = {}
    for text in texts:
        flag, _, values = text.partition("=")
        flag = flag.strip().lstrip("-")
        name = flag.replace("-", "_")
        if not values.strip():
            raise UsageError(f"--grid must be NAME=VALUE,VALUE, such as lr=1e-3,5e-4; got {text!r}")
        if name in _NOT_IN_GRID:
            raise UsageError(f"--grid {text}: {_NOT_IN_GRID[name]}")
        if name not in known:
            names = [name.replace("_", "-") for name in known]
            raise UsageError(f"--grid {text}: {flag!r} cannot be in a grid of {experiment}{registry.hint(flag, names)}")
        if name in grid:
            raise UsageError(f"--grid {text}: {flag} is given twice; put all its values into one --grid")
        try:
            grid[name] = _range(known[name], values) or [_value(known[name], part.strip()) for part in values.split(",")]
        except UsageError as error:
            raise UsageError(f"--grid {text}: {error}") from error
        if isinstance(grid[name], list) and len(set(grid[name])) < len(grid[name]):
            raise UsageError(f"--grid {text}: a value is given twice")
    return grid


def _value(option: Option, text: str) -> Any:
    value = option.parse(text)
    if not text or (isinstance(value, float) and not math.isfinite(value)):
        raise UsageError(f"{option.flag}: {text!r} is not a {'finite number' if text else 'value'}")
    return value


def _range(option: Option, text: str) -> Range | None:
    """The range of a text such as ``1e-4..1e-2``; None for a list of values."""
    first, dots, last = text.partition("..")
    if not dots:
        return None
    low, high = _value(option, first.strip()), _value(option, last.strip())
    if not (isinstance(low, int | float) and isinstance(high, int | float)) or not low < high:
        raise UsageError(f"{option.flag}: a range must be of numbers, the smaller one first, such as 1e-4..1e-2")
    return Range(low, high)


def check_grid_is_used(plan: Sequence[PlannedRun], grid: Iterable[str]) -> None:
    """Raise a UsageError for an option of a grid that all methods of a plan ignore."""
    for name in sorted(set(grid).difference(*(run.setting for run in plan))):
        experiment, methods = plan[0].experiment, dict.fromkeys(run.method for run in plan)
        others = [each for each in registry.experiment_class(experiment).methods if registry.uses(experiment, each, name)]
        what = f"--grid {name.replace('_', '-')} is not used by {', '.join(methods)}"
        raise UsageError(f"{what}; leave it out, or add one of {', '.join(others)}")


class State(enum.StrEnum):
    """How far a run is."""

    NEW = "new"
    PARTIAL = "partial"
    FINISHED = "finished"
    FAILED = "failed"


def state_of(run: PlannedRun) -> State:
    """How far a run is.

    It is *finished* if the metrics of all epochs up to its end or pause are written, the last checkpoint comes after the
    last of them, and it is evaluated if it is to be. It has *failed* if a sweep gave it up, and is *partial* if it was
    started. Files that cannot be read make it partial: resuming it gives the error.
    """
    folder, found = RunFolder(run.folder), run.read()
    n_epochs = run.args.epochs if run.until is None else run.until
    if found is not None and len(found.lines) >= n_epochs and (found.test or not run.is_evaluated):
        try:
            checkpoint = folder.load("last")
            if checkpoint is not None and int(checkpoint["place"]["epoch"]) >= n_epochs:
                return State.FINISHED
        except (ValueError, KeyError, TypeError, OSError):
            pass
    if folder.failure_file.exists():
        return State.FAILED
    return State.PARTIAL if folder.exists() else State.NEW


def check_plan(plan: Iterable[PlannedRun]) -> None:
    """Raise a UsageError if a folder holds another run than the planned one; it says what differs."""
    for run in plan:
        if differences := "; ".join(_differences(run)):
            raise UsageError(f"{run.folder} holds another run: {differences}. Give another --out, or delete the folder")


def _differences(run: PlannedRun) -> list[str]:
    """How the run in a folder differs from the planned one; options that its version did not have were at their defaults."""
    if not RunFolder(run.folder).exists():
        return []
    try:
        config = RunFolder(run.folder).config()
    except (ValueError, OSError) as error:
        return [str(error)]
    if config.experiment != run.experiment:
        return [f"its experiment is {config.experiment}, not {run.experiment}"]
    planned, options = run.args.model_dump(), registry.experiment_options(run.experiment)
    saved = {name: option.default for name, option in options.items()} | config.args.model_dump(exclude_unset=True)
    names = ["method", *(name for name, option in sorted(options.items()) if not option.free_on_resume)]
    pairs = [(name, _shown(saved[name]), _shown(planned[name])) for name in names if saved[name] != planned[name]]
    found = [f"its {as_flag(name)} is {before}, not {now}" for name, before, now in pairs]
    if (measured := run.read()) is not None and len(measured.lines) > run.args.epochs:
        found.append(f"it has {counted(len(measured.lines), 'epoch')}, more than {run.args.epochs}")
    return found


def _shown(value: Any) -> str:
    return "the default" if value in (None, "") else str(value)


def counted(n: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
