"""A search: settings that are drawn, of which the bad ones are stopped early.

This is successive halving (Jamieson & Talwalkar, 2016): all settings of a method are trained for a part of the epochs, then
the best third for three times as many, and so on to the end. A run that continues is an ordinary run that is resumed, so its
metrics are those of one that was never paused, and a search that is interrupted comes to the same decisions again.
Optuna and Ray Tune would keep trials and checkpoints of their own beside the runs, and Tune needs Ray on a laptop, too.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from sparsum_experiments.registry import experiment_class
from sparsum_experiments.report.summary import grouped, options_text
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.sweep.launch import Entry, Phase
from sparsum_experiments.sweep.plan import PlannedRun, counted

# One setting in so many continues, for so many times the epochs.
_FACTOR = 3

Launch = Callable[[Sequence[PlannedRun]], tuple[list[Entry], bool]]


@dataclasses.dataclass
class Trial:
    """A setting of a method in a search, with the runs of its seeds."""

    runs: list[PlannedRun]
    n_epochs: int = 0  # that it was trained for
    score: float = math.nan  # the mean over seeds of its criterion after these epochs; NaN where a run has failed
    fate: str = ""  # stopped, failed or finished; empty while it may continue

    @property
    def method(self) -> str:
        """How the sum is computed."""
        return self.runs[0].method

    @property
    def setting(self) -> Mapping[str, Any]:
        """The options that were drawn."""
        return self.runs[0].setting

    @property
    def criterion(self) -> str:
        """The validation metric that decides; larger is better."""
        return experiment_class(self.runs[0].experiment).criterion_of(self.method)

    def measure(self, n_epochs: int) -> None:
        """Take the score after so many epochs; a run may have more already."""
        lines = [RunFolder(run.folder).metrics() for run in self.runs]
        scores = [each[n_epochs - 1]["validation"].get(self.criterion, math.nan) for each in lines if len(each) >= n_epochs]
        self.score = statistics.fmean(scores) if len(scores) == len(self.runs) else math.nan
        self.n_epochs = n_epochs if scores else max(map(len, lines))


def trials_of(plan: Sequence[PlannedRun]) -> list[Trial]:
    """The settings of a plan."""
    return [Trial(runs) for runs in grouped(plan, lambda run: (run.method, repr(run.setting))).values()]


def rungs_of(n_settings: int, n_epochs: int) -> list[int]:
    """After how many epochs settings are compared, the last being the end.

    >>> rungs_of(9, 100), rungs_of(8, 100), rungs_of(100, 4), rungs_of(1, 100)
    ([12, 34, 100], [34, 100], [1, 2, 4], [100])
    """
    rungs = [n_epochs]
    while _FACTOR ** len(rungs) <= n_settings and rungs[0] > 1:
        rungs.insert(0, math.ceil(rungs[0] / _FACTOR))
    return rungs


def search(plan: Sequence[PlannedRun], launch: Launch, say: Callable[[str], None]) -> tuple[list[Entry], bool, list[Trial]]:
    """Make the runs of a plan by ``launch``, and stop those of bad settings early.

    Returns all runs, whether the search was interrupted, and what was tried. A setting does not continue if one of its
    runs failed.
    """
    trials, entries = trials_of(plan), {run.key: Entry(run, Phase.WAITING) for run in plan}
    ladders = {
        method: rungs_of(len(members), members[0].runs[0].args.epochs)
        for method, members in grouped(trials, lambda trial: trial.method).items()
    }
    for i in range(max(map(len, ladders.values()))):
        alive = [trial for trial in trials if not trial.fate and i < len(ladders[trial.method])]
        made, is_interrupted = launch([_until(run, ladders[run.method][i]) for trial in alive for run in trial.runs])
        entries |= {entry.run.key: entry for entry in made}
        if is_interrupted:  # a run that only paused is not finished
            left = [entry for entry in made if entry.run.until is not None and entry.phase is Phase.FINISHED]
            entries |= {entry.run.key: dataclasses.replace(entry, phase=Phase.WAITING) for entry in left}
            return list(entries.values()), True, trials
        for method, members in grouped(alive, lambda trial: trial.method).items():
            _judge(members, ladders[method], i, say)
    return list(entries.values()), False, trials


def _until(run: PlannedRun, n_epochs: int) -> PlannedRun:
    """A run up to a rung; only at its end it is evaluated."""
    is_end = n_epochs >= run.args.epochs
    return run if is_end else dataclasses.replace(run, until=n_epochs, is_evaluated=False)


def _judge(members: Sequence[Trial], ladder: Sequence[int], i: int, say: Callable[[str], None]) -> None:
    """Decide which settings of a method continue after a rung, and note in the folders of the others that they do not."""
    for trial in members:
        trial.measure(ladder[i])
    ranked = sorted(members, key=lambda trial: (math.isnan(trial.score), -trial.score))
    is_end = i + 1 == len(ladder)
    n_kept = len(members) if is_end else max(1, len(members) // _FACTOR)
    for rank, trial in enumerate(ranked, start=1):
        if math.isnan(trial.score):
            trial.fate = "failed"
        elif is_end:
            trial.fate = "finished"
        elif rank > n_kept:
            trial.fate = "stopped"
            for run in trial.runs:
                RunFolder(run.folder).write_stop({"epochs": trial.n_epochs, "rank": rank, "among": len(members)})
    n_left = sum(not trial.fate for trial in members)
    if not is_end:
        say(
            f"search: {n_left} of {counted(len(members), 'setting')} of {members[0].method} continue after epoch {ladder[i]}"
        )


def search_table(trials: Sequence[Trial]) -> Table:
    """What a search has tried, and where each setting stopped."""
    table = Table(title="search", title_justify="left", box=box.SIMPLE_HEAD)
    for name, side in {"method": "left", "setting": "left", "epochs": "right", "validation": "left", "": "left"}.items():
        table.add_column(name, justify=side, overflow="fold")  # type: ignore[arg-type]
    for trial in trials:
        epochs = f"{trial.n_epochs} of {trial.runs[0].args.epochs}"
        score = "" if math.isnan(trial.score) else f"{trial.criterion} {trial.score:.4g}"
        words = [trial.method, options_text(trial.setting), epochs, score, trial.fate or "not decided"]
        table.add_row(*map(Text, words))
    return table
