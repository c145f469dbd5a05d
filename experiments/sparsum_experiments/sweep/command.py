"""What `sparsum sweep` does."""

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
from sparsum_experiments.registry import experiment_class
from sparsum_experiments.report import Run, Summary, best_by_method, criteria_text, read_run, rich_tables, summarise
from sparsum_experiments.sweep.board import Board
from sparsum_experiments.sweep.estimate import RemainingTime, estimate_plan
from sparsum_experiments.sweep.plan import PlannedRun, check_heeded, make_plan, parse_grid, parse_methods
from sparsum_experiments.sweep.pool import Entry, Phase, sweep
from sparsum_experiments.sweep.process import n_threads_of
from sparsum_experiments.sweep.state import State, check_plan, state_of
from sparsum_experiments.sweep.tuned import tuned_settings
from sparsum_experiments.training.progress import in_words
from sparsum_experiments.training.start import device_of

# Where no one looks at a terminal, lines may be long.
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
    """Make the runs of a sweep, or say which they are; returns the exit status.

    Args:
        experiment: its name.
        methods: some, with commas between them; None for all that can take the options, or have runs in ``tuned_by``.
        options: what all runs are told, by the names of their arguments; None means not given.
        grid: texts such as ``lr=1e-3,5e-4``.
        seeds: how many, from 0.
        out: the folder above those of the runs; None for ``runs/EXPERIMENT/sweep``.
        jobs: how many runs at a time.
        plan_only: list the runs, start none.
        evaluate: measure each run on the test data when it is trained.
        tuned_by: the folder of an earlier sweep, of which each method takes its best setting.
        by: the metric that decides which is the best; None for each method's criterion.

    Returns:
        0 if all runs are finished, 1 if some have failed, 130 if the sweep was stopped.
    """
    if jobs < 1:
        raise UsageError(f"--jobs must be at least 1, got {jobs}")
    console, messages = _console(), _console(stderr=True)
    folder = pathlib.Path("runs") / experiment / "sweep" if out is None else out
    if by is not None and tuned_by is None:
        raise UsageError("--by says what the setting of --tuned-by is chosen by; give the folder of an earlier sweep, too")
    values = parse_grid(experiment, grid)
    plan = _plan(experiment, methods, options, values, seeds, folder, tuned_by, by, messages)
    check_heeded(plan, values)
    plan = [dataclasses.replace(run, is_evaluated=evaluate) for run in plan]
    check_plan(plan)
    for device in {run.args.device for run in plan}:
        device_of(device)  # raises where there is none, before any run would
    if plan_only:
        if any(state_of(run) is not State.FINISHED for run in plan):
            messages.print("measuring a few steps of runs that are like none before ...", highlight=False)
        print_plan(estimate_plan(plan, folder, n_threads_of(jobs)), jobs, console)
        return 0
    with Board(messages, jobs) as board:
        entries, is_stopped = sweep(plan, jobs, board)
    print_results(plan, entries, console)
    if is_stopped:
        n_left = sum(entry.phase is not Phase.FINISHED for entry in entries)
        _say(messages, f"stopped with {n_left} of {len(plan)} runs left; the same command goes on where they are")
        return 130
    return int(any(entry.phase is Phase.FAILED for entry in entries))


def best_settings(plan: Sequence[PlannedRun]) -> list[Summary]:
    """For each method of a plan its best setting, with the statistics over its seeds.

    It is chosen by the mean over seeds of the method's criterion on the validation data at the last epoch, among the
    settings of which all runs are finished where there is one; see `best_by_method`.
    """
    groups: dict[tuple[str, str], list[PlannedRun]] = {}
    for run in plan:
        groups.setdefault((run.method, repr(run.setting)), []).append(run)
    found = [summarise(runs[0].method, runs[0].setting, _records(runs), len(runs)) for runs in groups.values()]
    return best_by_method(filter(None, found), plan[0].experiment) if plan else []


def print_plan(estimates: Sequence[RemainingTime], jobs: int, console: Console) -> None:
    """A table of what a sweep would do."""
    table = Table(title=f"{len(estimates)} runs", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("run", "state", "epochs", "time", "known from"):
        table.add_column(name, justify="right" if name in {"epochs", "time"} else "left", overflow="fold")
    for each in estimates:
        seconds = "unknown" if each.seconds is None else in_words(each.seconds)
        shown = [each.run.key, each.state, str(each.run.args.epochs), seconds, each.basis.removeprefix("unknown: ")]
        table.add_row(*map(Text, shown))
    console.print(table)
    known = [each.seconds for each in estimates if each.seconds is not None]
    longest = max([sum(known) / jobs, *known])
    n_unknown = len(estimates) - len(known)
    rest = f", and {n_unknown} of which nothing is known" if n_unknown else ""
    _say(console, f"about {in_words(sum(known))} of training, {in_words(longest)} with {jobs} jobs{rest}")
    _say(console, "without warm starts and the seconds in which a process starts; runs at a time may slow each other down")


def print_results(plan: Sequence[PlannedRun], entries: Sequence[Entry], console: Console) -> None:
    """The best setting of each method over its seeds, and the runs that failed, with their reasons."""
    best = best_settings(plan)
    if best:
        experiment = plan[0].experiment
        has_choice = len({(run.method, repr(run.setting)) for run in plan}) > len({run.method for run in plan})
        criteria = criteria_text(experiment, best)
        choice = f", the setting of each method with the best validation {criteria}" if has_choice else ""
        title = f"{experiment}{choice}"
        console.print(rich_tables(title, best, experiment))
    for entry in entries:
        if entry.phase is Phase.FAILED:
            _say(console, f"failed: {entry.run.key}: {entry.reason}")


def _records(runs: Sequence[PlannedRun]) -> list[Run]:
    """Those of the runs that can be read; each is to do the epochs of the plan, whatever it was begun with."""
    records = []
    for run in runs:
        try:
            record = read_run(run.folder)
        except (ValueError, OSError):
            continue  # not begun, or broken, for which it is listed among those that failed
        records.append(dataclasses.replace(record, args=record.args | {"epochs": run.args.epochs}))
    return records


def _plan(
    experiment: str,
    methods: str | None,
    options: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    seeds: int,
    out: pathlib.Path,
    tuned_by: pathlib.Path | None,
    by: str | None,
    messages: Console,
) -> list[PlannedRun]:
    """The runs that were asked for; what an earlier sweep decides of them is told."""
    named = None if methods is None else parse_methods(experiment, methods)
    if tuned_by is not None:
        chosen = tuned_settings(experiment, named, options, grid, tuned_by, out, by)
        for choice in chosen:
            _say(messages, str(choice))
        tuned = {choice.method: choice.values for choice in chosen}
        return make_plan(experiment, list(tuned), options, grid, seeds, out, tuned)
    if named is None:
        return _plan_of_all_methods(experiment, options, grid, seeds, out, messages)
    return make_plan(experiment, named, options, grid, seeds, out)


def _plan_of_all_methods(
    experiment: str,
    options: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    seeds: int,
    out: pathlib.Path,
    messages: Console,
) -> list[PlannedRun]:
    """The runs of all methods of an experiment but those that cannot take the options, which are told."""
    plan = []
    for method in experiment_class(experiment).methods:
        try:
            plan += make_plan(experiment, [method], options, grid, seeds, out)
        except UsageError:
            raise
        except ValueError as error:
            _say(messages, f"without {method}: {error}")
    if not plan:
        raise UsageError(f"no method of {experiment} can take these options")
    return plan


def _console(*, stderr: bool = False) -> Console:
    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, markup=False, width=None if is_terminal else _PLAIN_WIDTH)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)
