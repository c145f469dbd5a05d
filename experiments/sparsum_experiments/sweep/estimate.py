"""How long the runs of a plan will take, as far as it can be known before they start.

Where a run of the same work is in the folder of the sweep already, finished or not, its seconds per epoch are taken. Else a
few steps are made here, in this process, on the device and with the threads that a run will have, and nothing of them is
kept. That leaves out the warm start and the start of a process, takes the first steps for all (a sparse sum has other
supports later), and knows nothing of several runs that share a GPU: it is a first idea, and is said to be one.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sparsum_experiments.options import CommonArgs
from sparsum_experiments.registry import make_experiment, with_defaults
from sparsum_experiments.report import Run, read_folders
from sparsum_experiments.seeds import seed_for
from sparsum_experiments.sweep.plan import PlannedRun
from sparsum_experiments.sweep.state import State, n_epochs_done, state_of
from sparsum_experiments.training.start import fabric_for
from sparsum_experiments.training.steps import steps_for

# What does not change how much work an epoch is.
_NO_WORK = {"seed", "lr", "weight_decay", "entropy", "temperature_decay", "temperature_every", "symbol_init"}
_NO_WORK |= {"epochs", "warm_epochs", "warm_seed", "data_dir"}
_MAX_STEPS = 5
# How many steps come first: on a GPU they are recorded meanwhile.
_N_UNCOUNTED = {"cpu": 1, "cuda": 4}
_MAX_SECONDS = 2.0


@dataclass(frozen=True)
class RemainingTime:
    """How far a run is, and how long it will still take.

    Args:
        run: the run.
        state: how far it is.
        seconds: what is left; None if nothing is known.
        basis: what that is known from, or why not.
    """

    run: PlannedRun
    state: State
    seconds: float | None
    basis: str


def estimate_plan(plan: Sequence[PlannedRun], out: pathlib.Path, n_threads: int) -> list[RemainingTime]:
    """How long each run of a plan will still take.

    Args:
        plan: the runs.
        out: the folder in which earlier runs are looked for.
        n_threads: how many threads each run will have.
    """
    known = _known_seconds(out)
    estimates = []
    for run in plan:
        state = state_of(run)
        if state is State.FINISHED:
            estimates.append(RemainingTime(run, state, 0.0, ""))
            continue
        args = run.args
        work = _work(run.experiment, dataclasses.asdict(args))
        if work not in known:
            known[work] = _measured(run.experiment, args, n_threads)
        per_epoch, basis = known[work]
        n_left = max(args.epochs - n_epochs_done(run), 0)
        estimates.append(RemainingTime(run, state, None if per_epoch is None else per_epoch * n_left, basis))
    return estimates


def _work(experiment: str, args: dict[str, Any]) -> str:
    """The same for runs whose epochs are the same work."""
    return repr((experiment, sorted((name, value) for name, value in args.items() if name not in _NO_WORK)))


def _known_seconds(out: pathlib.Path) -> dict[str, tuple[float | None, str]]:
    """Seconds per epoch of the runs below a folder, by their work."""
    groups: dict[str, list[Run]] = {}
    for record in read_folders([out])[0] if out.exists() else []:
        args = with_defaults(record.experiment, record.args)
        groups.setdefault(_work(record.experiment, args), []).append(record)
    known: dict[str, tuple[float | None, str]] = {}
    for work, records in groups.items():
        lines = [line for record in records for line in record.lines]
        if lines:
            seconds = sum(line["seconds"] + line.get("validation_seconds", 0.0) for line in lines) / len(lines)
            known[work] = seconds, f"{len(lines)} epochs done before"
    return known


def _measured(name: str, args: CommonArgs, n_threads: int) -> tuple[float | None, str]:
    """Seconds per epoch by a few steps; a run that cannot even do these has no estimate, and the reason is told."""
    n_before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        seconds, n_steps, n_all = _time_steps(name, args)
    except (RuntimeError, ValueError, OSError) as error:
        return None, f"unknown: {error}"
    finally:
        torch.set_num_threads(n_before)
    return seconds / n_steps * n_all, f"{n_steps} steps measured"


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
