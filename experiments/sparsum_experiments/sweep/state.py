"""How far the runs of a plan are, from what is in their folders."""

from __future__ import annotations

import dataclasses
import enum
import json
import pathlib
from collections.abc import Iterable

from sparsum_experiments.errors import UsageError
from sparsum_experiments.registry import with_defaults
from sparsum_experiments.report import read_run
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.sweep.plan import PlannedRun

#: What may differ from an earlier time: more epochs go on, and the device and the place of the data are no part of a run.
FREE = {"epochs", "device", "data_dir"}
#: What a sweep writes where it gave a run up.
FAILURE_NAME = "failed.txt"


class State(enum.StrEnum):
    """How far a run is."""

    NEW = "new"
    PARTIAL = "partial"
    FINISHED = "finished"
    FAILED = "failed"


def state_of(run: PlannedRun) -> State:
    """How far a run is.

    It is *finished* if the metrics of all planned epochs are written and the last checkpoint is from after the last of them;
    the one without the other is what a crash between the two leaves. If it is to be evaluated, it needs that, too. It has
    *failed* if a sweep gave it up, and is *partial* if it was begun. Files that cannot be read make it partial: going on
    with it will say what is wrong.
    """
    folder = RunFolder(run.folder)
    if _is_trained(folder, run.args.epochs) and (not run.is_evaluated or _has_evaluation(folder)):
        return State.FINISHED
    if failure_file(run).exists():
        return State.FAILED
    return State.PARTIAL if folder.exists() else State.NEW


def n_epochs_done(run: PlannedRun) -> int:
    """How many epochs are measured."""
    try:
        return len(RunFolder(run.folder).metrics())
    except (ValueError, OSError):
        return 0


def failure_file(run: PlannedRun) -> pathlib.Path:
    """Where a sweep writes why it gave a run up."""
    return run.folder / FAILURE_NAME


def log_file(run: PlannedRun) -> pathlib.Path:
    """What the process of a run printed."""
    return run.folder / "log.txt"


def check_plan(plan: Iterable[PlannedRun]) -> None:
    """Raise if a folder holds another run than the planned one, naming what differs."""
    for run in plan:
        if differences := _differences(run):
            raise UsageError(
                f"{run.folder} holds another run: {'; '.join(differences)}. "
                "Give another --out, or remove the folder if it is not needed"
            )


def _is_trained(folder: RunFolder, n_epochs: int) -> bool:
    try:
        if not folder.exists() or len(folder.metrics()) < n_epochs:
            return False
        state = folder.load("last")
        return state is not None and int(state["place"]["epoch"]) >= n_epochs
    except (ValueError, KeyError, TypeError, OSError):
        return False


def _has_evaluation(folder: RunFolder) -> bool:
    try:
        return bool(read_run(folder.path).test)
    except (ValueError, OSError):
        return False


def _differences(run: PlannedRun) -> list[str]:
    """What a folder's run was told otherwise; what an earlier version did not know of was as it is by default."""
    folder = RunFolder(run.folder)
    if not folder.exists():
        return []
    try:
        config = folder.config()
        saved, experiment = dict(config["args"]), config["experiment"]
        saved = with_defaults(run.experiment, saved)
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        return [f"its config.json cannot be read ({error!r})"]
    planned = dataclasses.asdict(run.args)
    found = [] if experiment == run.experiment else [f"its experiment is {experiment}, not {run.experiment}"]
    for name in sorted(planned.keys() & saved.keys() - FREE):
        if saved[name] != planned[name]:
            found.append(f"its {name} is {saved[name]}, not {planned[name]}")
    if (n_done := n_epochs_done(run)) > planned["epochs"]:
        found.append(f"it has done {n_done} epochs, more than {planned['epochs']}")
    return found
