"""The command `sparsum sweep`."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparsum_experiments.errors import UsageError
from sparsum_experiments.files import printable
from sparsum_experiments.registry import experiment_class
from sparsum_experiments.report.summary import Summary, best_by_method, criteria_text, summarise
from sparsum_experiments.report.tables import SummaryTables
from sparsum_experiments.sweep import plan as planning
from sparsum_experiments.sweep.board import Board, say
from sparsum_experiments.sweep.estimate import RemainingTime, estimate_plan
from sparsum_experiments.sweep.launch import Entry, Phase, n_threads_of, sweep
from sparsum_experiments.sweep.plan import PlannedRun, counted
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
    """Run a sweep, or list its runs if ``plan_only``; the arguments are those of the command line, None if not given.

    Returns:
        The exit status: 0 if all runs are finished, 1 if some have failed, 130 if the sweep was stopped.
    """
    if jobs < 1:
        raise UsageError(f"--jobs must be at least 1, got {jobs}")
    if by is not None and tuned_by is None:
        raise UsageError("--by is the metric by which --tuned-by chooses: give --tuned-by with the folder of a sweep, too")
    console, messages = _console(), _console(stderr=True)
    folder = pathlib.Path("runs") / experiment / "sweep" if out is None else out
    values = planning.parse_grid(experiment, grid)
    named = None if methods is None else planning.parse_methods(experiment, methods)
    tuned: dict[str, Mapping[str, Any]] = {}
    if tuned_by is not None:
        choices = tuned_settings(experiment, named, options, values, tuned_by, folder, by)
        say(messages, "\n".join(map(str, choices)))
        tuned = {choice.method: choice.values for choice in choices}
        named = list(tuned)
    make = functools.partial(
        planning.make_plan, experiment, options=options, grid=values, seeds=seeds, out=folder, tuned=tuned
    )
    plan = _plan_of_all_methods(experiment, make, messages) if named is None else make(named)
    planning.check_grid_is_used(plan, values)
    plan = [dataclasses.replace(run, is_evaluated=evaluate) for run in plan]
    planning.check_plan(plan)
    for device in {run.args.device for run in plan}:
        device_of(device)  # raises where it does not exist, before any run would
    if plan_only:
        print_plan(estimate_plan(plan, folder, n_threads_of(jobs), functools.partial(say, messages)), jobs, console)
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
    experiment: str, make: Callable[[list[str]], list[PlannedRun]], messages: Console
) -> list[PlannedRun]:
    """The runs of all methods of an experiment except those that the options do not allow, which are named."""
    plan = []
    for method in experiment_class(experiment).methods:
        try:
            plan += make([method])
        except UsageError:
            raise
        except ValueError as error:
            say(messages, f"without {method}: {error}")
    if not plan:
        raise UsageError(f"no method of {experiment} can have these options")
    return plan


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
    longest, n_unknown = max([sum(known) / jobs, *known]), len(estimates) - len(known)
    rest = f", and {counted(n_unknown, 'run')} of unknown length" if n_unknown else ""
    say(console, f"about {in_words(sum(known))} of training, {in_words(longest)} with {counted(jobs, 'job')}{rest}")
    say(console, "without warm starts and the start of processes; runs at the same time may slow each other down")


def print_results(plan: Sequence[PlannedRun], entries: Sequence[Entry], console: Console) -> None:
    """Print the best setting of each method over its seeds, and the runs that failed, with the reasons."""
    if best := best_settings(plan):
        experiment = plan[0].experiment
        has_choice = len({(run.method, repr(run.setting)) for run in plan}) > len({run.method for run in plan})
        choice = f", the setting of each method with the best validation {criteria_text(experiment, best)}"
        console.print(SummaryTables(experiment + (choice if has_choice else ""), best, experiment))
    for entry in entries:
        if entry.phase is Phase.FAILED:
            say(console, f"failed: {entry.run.key}: {entry.reason}")


def best_settings(plan: Sequence[PlannedRun]) -> list[Summary]:
    """For each method of a plan its best setting by `best_by_method`, with the statistics over its seeds."""
    groups: dict[tuple[str, str], list[PlannedRun]] = {}
    for planned in plan:
        groups.setdefault((planned.method, repr(planned.setting)), []).append(planned)
    summaries = []
    for group in groups.values():
        # With the epochs of the plan, whatever the runs were started with.
        read = [(run, planned.args.epochs) for planned in group if (run := planned.read()) is not None]
        runs = [dataclasses.replace(run, args=run.args | {"epochs": epochs}) for run, epochs in read]
        summaries.append(summarise(group[0].method, group[0].setting, runs, len(group)))
    return best_by_method(filter(None, summaries), plan[0].experiment) if plan else []


def _console(*, stderr: bool = False) -> Console:
    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, markup=False, width=None if is_terminal else _PLAIN_WIDTH)
