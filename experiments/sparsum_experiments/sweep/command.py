"""The command `sparsum sweep` and its display: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
import shlex
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from sparsum_experiments.errors import UsageError
from sparsum_experiments.files import printable
from sparsum_experiments.registry import experiment_class
from sparsum_experiments.report.summary import Summary, best_by_method, criteria_text, summarise
from sparsum_experiments.report.tables import SummaryTables
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.sweep import plan as planning
from sparsum_experiments.sweep.cluster import Cluster
from sparsum_experiments.sweep.estimate import RemainingTime, estimate_plan
from sparsum_experiments.sweep.folder import full_disk_explained, sole_sweep
from sparsum_experiments.sweep.launch import Entry, Phase, default_jobs, n_processes_of, n_threads_of, sweep
from sparsum_experiments.sweep.plan import PlannedRun, counted
from sparsum_experiments.sweep.search import Launch, Trial, search_table
from sparsum_experiments.sweep.search import search as run_search
from sparsum_experiments.sweep.tuned import tuned_settings
from sparsum_experiments.terminal import Terminal
from sparsum_experiments.training.progress import in_words
from sparsum_experiments.training.start import device_of

# Of output that is not a terminal's, where lines may be long.
_PLAIN_WIDTH = 160
_TERMINAL_SECONDS, _PLAIN_SECONDS = 0.5, 30.0
_COLUMNS = ("epoch", "done", "loss", "calls", "left")

Progress = Mapping[str, float]


def sweep_command(
    experiment: str,
    *,
    methods: str | None,
    options: Mapping[str, Any],
    grid: Sequence[str],
    seeds: int,
    out: pathlib.Path | None,
    jobs: int | None,
    plan_only: bool,
    evaluate: bool = False,
    tuned_by: pathlib.Path | None = None,
    by: str | None = None,
    ray: str | None = None,
    search: int | None = None,
) -> int:
    """Run a sweep, or list its runs if ``plan_only``; the arguments are those of the command line, None if not given.

    Returns the exit status: 0 if all runs are finished, 1 if some have failed, 130 if the sweep was stopped.
    """
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs must be at least 1, got {jobs}")
    if by is not None and tuned_by is None:
        raise UsageError("--by is the metric by which --tuned-by chooses: give --tuned-by with the folder of a sweep, too")
    if search is not None and not grid:
        raise UsageError("--search draws settings from --grid: give it, too, such as --grid lr=1e-4..1e-2")
    console, messages = _console(), _console(stderr=True)
    folder = pathlib.Path("runs") / experiment / "sweep" if out is None else out
    values = planning.parse_grid(experiment, grid)
    if search is not None and "epochs" in values:
        raise UsageError("--search decides how many epochs settings are trained for: give --epochs, and not --grid epochs")
    named = None if methods is None else planning.parse_methods(experiment, methods)
    tuned: dict[str, Mapping[str, Any]] = {}
    if tuned_by is not None:
        choices = tuned_settings(experiment, named, options, values, tuned_by, folder, by)
        say(messages, "\n".join(map(str, choices)))
        tuned = {choice.method: choice.values for choice in choices}
        named = list(tuned)
    plan: list[PlannedRun] = []
    for method in experiment_class(experiment).methods if named is None else named:
        try:
            plan += planning.make_plan(experiment, [method], options, values, seeds, folder, tuned, search)
        except ValueError as error:
            if named is not None or isinstance(error, UsageError):
                raise
            say(messages, f"without {method}: {error}")  # the options do not go with one of all methods
    if not plan:
        raise UsageError(f"no method of {experiment} can have these options")
    planning.check_grid_is_used(plan, values)
    plan = [dataclasses.replace(run, is_evaluated=evaluate) for run in plan]
    planning.check_plan(plan)
    for device in {run.args.device for run in plan} if ray is None else ():
        device_of(device)  # raises where it does not exist, before any run would; nodes of a cluster may have others
    jobs = jobs or (default_jobs(plan) if ray is None else 1)
    if plan_only:
        n_threads = n_threads_of(jobs * n_processes_of(plan))
        print_plan(
            estimate_plan(plan, folder, n_threads, functools.partial(say, messages)), jobs if ray is None else None, console
        )
        if search is not None:
            say(console, "at most: the search will stop bad settings early")
        return 0
    with sole_sweep(folder), full_disk_explained(folder), Board(messages, jobs) as board:
        entries, is_stopped, trials = _make(plan, jobs, ray, board, is_search=search is not None)
    if trials:
        console.print(search_table(trials))
    print_results(plan, entries, console)
    if is_stopped:
        n_left = sum(entry.phase is not Phase.FINISHED for entry in entries)
        say(messages, f"stopped with {n_left} of {counted(len(plan), 'run')} left; run the same command again to resume")
        return 130
    if any(entry.phase is Phase.FAILED for entry in entries):
        return 1
    where = shlex.quote(str(folder))
    say(messages, f"next: {'' if evaluate else f'sparsum evaluate {where}; '}sparsum report {where}")
    return 0


def _make(
    plan: Sequence[PlannedRun], jobs: int, ray: str | None, board: Board, *, is_search: bool
) -> tuple[list[Entry], bool, list[Trial]]:
    """Make the runs by processes of this machine or by Ray, all or as a search decides; returns what the search tried."""
    with contextlib.ExitStack() as stack:
        if ray is None:
            launch: Launch = functools.partial(sweep, jobs=jobs, watcher=board)
        else:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))  # where Ray prints what it thinks of lost nodes
            cluster = stack.enter_context(Cluster(ray, jobs, board))
            board.jobs, launch = max(1, cluster.n_at_a_time(plan)), functools.partial(cluster.sweep, watcher=board)
        return run_search(plan, launch, board.say) if is_search else (*launch(plan), [])


def print_plan(estimates: Sequence[RemainingTime], jobs: int | None, console: Console) -> None:
    """Print a table of the runs of a sweep, with the time that they will take; ``jobs`` is None on a cluster."""
    justify: dict[str, Any] = {"run": "left", "state": "left", "epochs": "right", "time": "right", "estimated from": "left"}
    columns = [Column(name, justify=side, overflow="fold") for name, side in justify.items()]
    table = Table(*columns, title=counted(len(estimates), "run"), title_justify="left", box=box.SIMPLE_HEAD)
    for each in estimates:
        seconds = "unknown" if each.seconds is None else in_words(each.seconds)
        shown = [each.run.key, each.state, str(each.run.args.epochs), seconds, each.basis]
        table.add_row(*(Text(printable(text)) for text in shown))
    console.print(table)
    known = [each.seconds for each in estimates if each.seconds is not None]
    longest, n_unknown = max([sum(known) / (jobs or len(estimates)), *known]), len(estimates) - len(known)
    how = "on a cluster that has room for all at once" if jobs is None else f"with {counted(jobs, 'job')}"
    rest = f", and {counted(n_unknown, 'run')} of unknown length" if n_unknown else ""
    say(console, f"about {in_words(sum(known))} of training, {in_words(longest)} {how}{rest}")
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
    groups = defaultdict[tuple[str, str], list[PlannedRun]](list)
    for run in plan:
        groups[run.method, repr(run.setting)].append(run)
    summaries = [
        summarise(group[0].method, group[0].setting, filter(None, [run.read() for run in group]), len(group))
        for group in groups.values()
    ]
    return best_by_method(filter(None, summaries), plan[0].experiment) if plan else []


def _console(*, stderr: bool = False) -> Console:
    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Terminal(stderr=stderr, width=None if is_terminal else _PLAIN_WIDTH)


class Board(Live):
    """Shows on a console the runs that are running, and how many are finished and waiting; a context manager."""

    def __init__(self, console: Console, jobs: int) -> None:
        # Drawn by whoever calls `look`: no thread beside the one that starts processes.
        super().__init__(console=console, auto_refresh=False, transient=True)
        self.jobs = jobs
        self._drawn_at = time.monotonic() if not console.is_terminal else 0.0

    def say(self, text: str) -> None:
        """Print a message."""
        say(self.console, text)

    def look(self, entries: Sequence[Entry]) -> None:
        """Draw again, if it is time."""
        if time.monotonic() - self._drawn_at < (_TERMINAL_SECONDS if self.console.is_terminal else _PLAIN_SECONDS):
            return
        self._drawn_at = time.monotonic()
        progress = {entry.run.key: _progress(entry) for entry in entries if entry.phase is Phase.RUNNING}
        left, counts = seconds_left(entries, progress, self.jobs), Counter(entry.phase for entry in entries)
        phases = ", ".join(f"{counts[phase]} {phase}" for phase in Phase if counts[phase])
        time_left = "time left unknown" if left is None else f"about {in_words(left)} left"
        totals = f"{counted(len(entries), 'run')}: {phases}; {time_left}"
        if self.console.is_terminal:
            self.update(Group(_table(entries, progress), Text(totals)), refresh=True)
            return
        for key, found in progress.items():
            cells = [f"{name} {cell}" for name, cell in zip(_COLUMNS, _cells(found), strict=True)] if found else ["starting"]
            self.say(f"{key}: {', '.join(cells)}")
        self.say(totals)


def say(console: Console, text: str) -> None:
    """Print a line; control characters in it, of a log or a file's name, do not reach the terminal."""
    console.print(printable(text), highlight=False, soft_wrap=True, markup=False)


def _progress(entry: Entry) -> Progress:
    """The progress that a run has written; empty until this attempt has written it."""
    found = RunFolder(entry.run.folder).progress()
    is_complete = found.keys() >= {"time", "epoch", "done", "loss", "calls", "seconds_left"}
    return found if is_complete and found["time"] >= entry.began_at else {}


def seconds_left(entries: Sequence[Entry], progress: Mapping[str, Progress], jobs: int) -> float | None:
    """How long the rest of a sweep will take, None if nothing is known yet.

    A run that has not started is estimated by those of its experiment and method, or by all others if there are none.
    """
    lengths, unknown, lefts = defaultdict[tuple[str, str], list[float]](list), list[tuple[str, str]](), list[float]()
    for entry in entries:
        kind = entry.run.experiment, entry.run.method
        if found := progress.get(entry.run.key):
            lefts.append(found["seconds_left"])
            lengths[kind].append(entry.elapsed() + lefts[-1])
        elif entry.phase in {Phase.WAITING, Phase.RUNNING}:
            unknown.append(kind)
        elif entry.phase is Phase.FINISHED and entry.n_attempts:
            lengths[kind].append(entry.seconds)
    if unknown and not lengths:
        return None
    every = [seconds for each in lengths.values() for seconds in each]
    left = sum(lefts) + sum(statistics.fmean(lengths.get(kind, every)) for kind in unknown)
    return max([left / jobs, *lefts])  # towards the end there are fewer runs than jobs, and none is shared


def _table(entries: Sequence[Entry], progress: Mapping[str, Progress]) -> Table:
    """The runs that are running, and those that failed."""
    columns = [Column(name, justify="right", overflow="fold") for name in _COLUMNS]
    table = Table(Column("run", overflow="fold"), *columns, box=box.SIMPLE_HEAD)
    for entry in entries:
        if entry.phase in {Phase.RUNNING, Phase.FAILED}:
            cells = ["failed"] if entry.phase is Phase.FAILED else _cells(progress[entry.run.key])
            table.add_row(Text(entry.run.key), *cells)
    return table


def _cells(found: Progress) -> list[str]:
    if not found:
        return ["starting"]
    left = in_words(found["seconds_left"])
    return [f"{found['epoch'] + 1:.0f}", f"{found['done']:.0%}", f"{found['loss']:.4g}", f"{found['calls']:.2f}", left]
