"""The command `sparsum sweep`."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparsum_experiments.errors import UsageError
from sparsum_experiments.files import printable
from sparsum_experiments.registry import experiment_class
from sparsum_experiments.report.summary import Summary, best_by_method, criteria_text, summarise
from sparsum_experiments.report.tables import rich_tables
from sparsum_experiments.runs import Run, read_run
from sparsum_experiments.sweep.board import Board, say
from sparsum_experiments.sweep.estimate import RemainingTime, estimate_plan
from sparsum_experiments.sweep.launch import Entry, Phase, n_threads_of, sweep
from sparsum_experiments.sweep.plan import (
    PlannedRun,
    State,
    check_grid_is_used,
    check_plan,
    counted,
    make_plan,
    parse_grid,
    parse_methods,
    state_of,
)
from sparsum_experiments.sweep.tuned import tuned_settings
from sparsum_experiments.training.progress import in_words
from sparsum_experiments.training.start import device_of

# Of output that is not a terminal's, where lines may be long.
_PLAIN_WIDTH = 160


def sweep_command(
    experiment: str,
    *,
    methods: str | None,
    options: Mapping[str, Any],
    grid: Sequence[str],
    seeds: int,
    out: pathlib.Path | None,
    jobs: int,
    plan_only: bool,
    evaluate: bool = False,
    tuned_by: pathlib.Path | None = None,
    by: str | None = None,
) -> int:
    """Run a sweep, or list its runs; returns the exit status.

    Args:
        experiment: its name.
        methods: some methods, separated by commas; None for all that the options allow, or that have runs in ``tuned_by``.
        options: of all runs, by name; None means not given.
        grid: texts such as ``lr=1e-3,5e-4``.
        seeds: how many seeds, from 0.
        out: the folder above those of the runs; None for ``runs/EXPERIMENT/sweep``.
        jobs: how many runs at a time.
        plan_only: list the runs, start none.
        evaluate: evaluate each run on the test data after training.
        tuned_by: the folder of an earlier sweep, from which each method takes its best setting.
        by: the metric that decides which setting is best; None for each method's criterion.

    Returns:
        0 if all runs are finished, 1 if some have failed, 130 if the sweep was stopped.
    """
    if jobs < 1:
        raise UsageError(f"--jobs must be at least 1, got {jobs}")
    if by is not None and tuned_by is None:
        raise UsageError("--by is the metric by which --tuned-by chooses: give --tuned-by with the folder of a sweep, too")
    console, messages = _console(), _console(stderr=True)
    folder = pathlib.Path("runs") / experiment / "sweep" if out is None else out
    values = parse_grid(experiment, grid)
    named = None if methods is None else parse_methods(experiment, methods)
    tuned: dict[str, Mapping[str, Any]] = {}
    if tuned_by is not None:
        chosen = tuned_settings(experiment, named, options, values, tuned_by, folder, by)
        for choice in chosen:
            say(messages, str(choice))
        tuned = {choice.method: choice.values for choice in chosen}
        named = list(tuned)
    if named is None:
        plan = _plan_of_all_methods(experiment, options, values, seeds, folder, messages)
    else:
        plan = make_plan(experiment, named, options, values, seeds, folder, tuned)
    check_grid_is_used(plan, values)
    plan = [dataclasses.replace(run, is_evaluated=evaluate) for run in plan]
    check_plan(plan)
    for device in {run.args.device for run in plan}:
        device_of(device)  # raises where it does not exist, before any run would
    if plan_only:
        if any(state_of(run) is not State.FINISHED for run in plan):
            say(messages, "measuring a few steps of runs that no earlier run is like ...")
        print_plan(estimate_plan(plan, folder, n_threads_of(jobs)), jobs, console)
        return 0
    with Board(messages, jobs) as board:
        entries, is_stopped = sweep(plan, jobs, board)
    print_results(plan, entries, console)
    if is_stopped:
        n_left = sum(entry.phase is not Phase.FINISHED for entry in entries)
        say(messages, f"stopped with {n_left} of {counted(len(plan), 'run')} left; run the same command again to resume")
        return 130
    return int(any(entry.phase is Phase.FAILED for entry in entries))


def _plan_of_all_methods(
    experiment: str,
    options: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    seeds: int,
    out: pathlib.Path,
    messages: Console,
) -> list[PlannedRun]:
    """The runs of all methods of an experiment except those that the options do not allow, which are named."""
    plan = []
    for method in experiment_class(experiment).methods:
        try:
            plan += make_plan(experiment, [method], options, grid, seeds, out)
        except UsageError:
            raise
        except ValueError as error:
            say(messages, f"without {method}: {error}")
    if not plan:
        raise UsageError(f"no method of {experiment} can have these options")
    return plan


def best_settings(plan: Sequence[PlannedRun]) -> list[Summary]:
    """For each method of a plan its best setting, with the statistics over its seeds.

    The mean over seeds of the method's criterion on the validation data at the last epoch decides, among the settings of
    which all runs are finished where there is one; see `best_by_method`.
    """
    groups: dict[tuple[str, str], list[PlannedRun]] = {}
    for run in plan:
        groups.setdefault((run.method, repr(run.setting)), []).append(run)
    found = [summarise(runs[0].method, runs[0].setting, _readable(runs), len(runs)) for runs in groups.values()]
    return best_by_method(filter(None, found), plan[0].experiment) if plan else []


def _readable(plan: Sequence[PlannedRun]) -> list[Run]:
    """Those of the planned runs that can be read, with the epochs of the plan, whatever they were started with."""
    runs = []
    for planned in plan:
        try:
            run = read_run(planned.folder)
        except (ValueError, OSError):
            continue  # not started, or broken and listed among those that failed
        runs.append(dataclasses.replace(run, args=run.args | {"epochs": planned.args.epochs}))
    return runs


def print_plan(estimates: Sequence[RemainingTime], jobs: int, console: Console) -> None:
    """Print a table of the runs of a sweep, with the time that they will take."""
    table = Table(title=counted(len(estimates), "run"), title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("run", "state", "epochs", "time", "estimated from"):
        table.add_column(name, justify="right" if name in {"epochs", "time"} else "left", overflow="fold")
    for each in estimates:
        seconds = "unknown" if each.seconds is None else in_words(each.seconds)
        shown = [each.run.key, each.state, str(each.run.args.epochs), seconds, each.basis]
        table.add_row(*(Text(printable(text)) for text in shown))
    console.print(table)
    known = [each.seconds for each in estimates if each.seconds is not None]
    longest = max([sum(known) / jobs, *known])
    n_unknown = len(estimates) - len(known)
    rest = f", and {counted(n_unknown, 'run')} of unknown length" if n_unknown else ""
    say(console, f"about {in_words(sum(known))} of training, {in_words(longest)} with {counted(jobs, 'job')}{rest}")
    say(console, "without warm starts and the start of processes; runs at the same time may slow each other down")


def print_results(plan: Sequence[PlannedRun], entries: Sequence[Entry], console: Console) -> None:
    """Print the best setting of each method over its seeds, and the runs that failed, with the reasons."""
    if best := best_settings(plan):
        experiment = plan[0].experiment
        has_choice = len({(run.method, repr(run.setting)) for run in plan}) > len({run.method for run in plan})
        choice = f", the setting of each method with the best validation {criteria_text(experiment, best)}"
        console.print(rich_tables(experiment + (choice if has_choice else ""), best, experiment))
    for entry in entries:
        if entry.phase is Phase.FAILED:
            say(console, f"failed: {entry.run.key}: {entry.reason}")


def _console(*, stderr: bool = False) -> Console:
    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, markup=False, width=None if is_terminal else _PLAIN_WIDTH)
