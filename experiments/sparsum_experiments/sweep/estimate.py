"""How long the runs of a plan will take, as far as it can be known before they start.

Where the folder of the sweep has a run with the same cost, finished or not, its seconds per epoch are taken. Otherwise a few
steps are measured in this process, on the device and with the threads of a run. That leaves out the warm start and the start
of a process, takes the first steps for all (a sparse sum has other supports later), and ignores that several runs share a
GPU: it is a rough estimate.
"""

from __future__ import annotations

import pathlib
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from sparsum_experiments.options import CommonArgs
from sparsum_experiments.registry import experiment_options, make_experiment, used_config, uses
from sparsum_experiments.runs import read_folders
from sparsum_experiments.seeds import seed_for
from sparsum_experiments.sweep.plan import PlannedRun, State, counted, state_of
from sparsum_experiments.training.start import fabric_for
from sparsum_experiments.training.steps import steps_for

_MAX_STEPS, _MAX_SECONDS = 5, 2.0
# How many steps come first and are not timed: on a GPU they are captured meanwhile.
_N_UNCOUNTED = {"cpu": 1, "cuda": 4}


class RemainingTime(NamedTuple):
    """How far a run is, and how long it will still take."""

    run: PlannedRun
    state: State
    seconds: float | None  # None if unknown
    basis: str  # what it is estimated from, or why it is unknown


def estimate_plan(
    plan: Sequence[PlannedRun], out: pathlib.Path, n_threads: int, say: Callable[[str], None]
) -> list[RemainingTime]:
    """How long each run of a plan will still take with so many threads; earlier runs are looked for in ``out``."""
    known, estimates = _known_seconds(out), []
    for run in plan:
        state, found, cost = state_of(run), run.read(), _cost(run.experiment, run.args.model_dump())
        if state is State.FINISHED:
            estimates.append(RemainingTime(run, state, 0.0, ""))
            continue
        if cost not in known:
            say(f"measuring a few steps like those of {run.key} ...")
            known[cost] = _measured(run.experiment, run.args, n_threads)
        per_epoch, basis = known[cost]
        n_left = max(run.args.epochs - len(found.lines if found else []), 0)
        estimates.append(RemainingTime(run, state, None if per_epoch is None else per_epoch * n_left, basis))
    return estimates


def _cost(experiment: str, args: Mapping[str, Any]) -> str:
    """The same for runs whose epochs take equally long."""
    free = {option.name for option in experiment_options(experiment).values() if not option.changes_cost}
    costly = {name for name in args if name not in free and uses(experiment, args["method"], name)}
    return repr((experiment, [(name, args[name]) for name in sorted(costly)]))


def _known_seconds(out: pathlib.Path) -> dict[str, tuple[float | None, str]]:
    """Seconds per epoch of the runs below a folder, by their cost."""
    groups = defaultdict[str, list[float]](list)
    for run in read_folders([out])[0] if out.exists() else []:
        for line in run.lines:
            seconds = line.get("seconds", 0.0) + line.get("validation_seconds", 0.0)
            groups[_cost(run.experiment, used_config(run.experiment, run.args))].append(seconds)
    return {cost: (statistics.fmean(each), counted(len(each), "earlier epoch")) for cost, each in groups.items()}


def _measured(name: str, args: CommonArgs, n_threads: int) -> tuple[float | None, str]:
    """Seconds per epoch from a few steps, or None and why they fail."""
    n_before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        fabric = fabric_for(args)
        experiment = make_experiment(name, args, fabric.device)
        steps = steps_for(experiment, fabric)
        experiment.model.train()
        order = experiment.start_epoch(steps.generator.manual_seed(seed_for(args.seed, "estimate")))
        n_done, begin = -_N_UNCOUNTED[fabric.device.type], time.monotonic()
        with steps.epoch():
            while n_done < _MAX_STEPS and (n_done < 1 or time.monotonic() - begin < _MAX_SECONDS):
                if n_done == 0:
                    begin = time.monotonic()
                steps.take(order, 0).objective.item()  # waits for a GPU
                n_done += 1
        return (time.monotonic() - begin) / n_done * experiment.n_steps, f"{counted(n_done, 'step')} measured"
    except (RuntimeError, ValueError, OSError) as error:
        return None, str(error)
    finally:
        torch.set_num_threads(n_before)
