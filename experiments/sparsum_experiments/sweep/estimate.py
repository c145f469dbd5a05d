"""How long the runs of a plan will take, as far as it can be known before they start.

Where the folder of the sweep has a run with the same cost, finished or not, its seconds per epoch are taken. Otherwise a few
steps are measured in this process, on the device and with the threads of a run. That leaves out the warm start and the start
of a process, takes the first steps for all (a sparse sum has other supports later), and ignores that several runs share a
GPU: it is a rough estimate.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sparsum_experiments.options import CommonArgs
from sparsum_experiments.registry import experiment_options, make_experiment, uses, with_defaults
from sparsum_experiments.runs import read_folders
from sparsum_experiments.seeds import seed_for
from sparsum_experiments.sweep.plan import PlannedRun, State, counted, n_epochs_done, state_of
from sparsum_experiments.training.start import fabric_for
from sparsum_experiments.training.steps import steps_for

_MAX_STEPS = 5
# How many steps come first and are not timed: on a GPU they are captured meanwhile.
_N_UNCOUNTED = {"cpu": 1, "cuda": 4}
_MAX_SECONDS = 2.0


@dataclass(frozen=True)
class RemainingTime:
    """How far a run is, and how long it will still take.

    Args:
        run: the run.
        state: how far it is.
        seconds: what is left; None if it is unknown.
        basis: what it is estimated from, or why it is unknown.
    """

    run: PlannedRun
    state: State
    seconds: float | None
    basis: str


def estimate_plan(plan: Sequence[PlannedRun], out: pathlib.Path, n_threads: int) -> list[RemainingTime]:
    """How long each run of a plan will still take.

    Args:
        plan: the runs.
        out: the folder of earlier runs.
        n_threads: how many threads each run will have.
    """
    known = _known_seconds(out)
    estimates = []
    for run in plan:
        state, args = state_of(run), run.args
        if state is State.FINISHED:
            estimates.append(RemainingTime(run, state, 0.0, ""))
            continue
        cost = _cost(run.experiment, args.model_dump())
        if cost not in known:
            known[cost] = _measured(run.experiment, args, n_threads)
        per_epoch, basis = known[cost]
        n_left = max(args.epochs - n_epochs_done(run), 0)
        estimates.append(RemainingTime(run, state, None if per_epoch is None else per_epoch * n_left, basis))
    return estimates


def _cost(experiment: str, args: Mapping[str, Any]) -> str:
    """The same for runs whose epochs take equally long."""
    options = experiment_options(experiment)
    free = {name for name in args if name in options and not options[name].changes_cost}
    free |= {name for name in args if not uses(experiment, args["method"], name)}
    return repr((experiment, sorted((name, value) for name, value in args.items() if name not in free)))


def _known_seconds(out: pathlib.Path) -> dict[str, tuple[float | None, str]]:
    """Seconds per epoch of the runs below a folder, by their cost."""
    groups: dict[str, list[float]] = {}
    for run in read_folders([out])[0] if out.exists() else []:
        seconds = groups.setdefault(_cost(run.experiment, with_defaults(run.experiment, run.args)), [])
        seconds += [line.get("seconds", 0.0) + line.get("validation_seconds", 0.0) for line in run.lines]
    return {cost: (sum(each) / len(each), counted(len(each), "earlier epoch")) for cost, each in groups.items() if each}


def _measured(name: str, args: CommonArgs, n_threads: int) -> tuple[float | None, str]:
    """Seconds per epoch from a few steps, or None and why they fail."""
    n_before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        seconds, n_steps, n_all = _time_steps(name, args)
    except (RuntimeError, ValueError, OSError) as error:
        return None, str(error)
    finally:
        torch.set_num_threads(n_before)
    return seconds / n_steps * n_all, f"{counted(n_steps, 'step')} measured"


def _time_steps(name: str, args: CommonArgs) -> tuple[float, int, int]:
    """The seconds of some steps, how many they were, and how many an epoch has; the first ones are not counted."""
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
    return time.monotonic() - begin, n_done, experiment.n_steps
