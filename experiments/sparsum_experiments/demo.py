"""All three experiments on the digits that come with scikit-learn, in a few minutes."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table

from sparsum_experiments.report import write_report
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.sweep import Board, Phase, PlannedRun, make_plan, sweep
from sparsum_experiments.terminal import Terminal
from sparsum_experiments.training.evaluate import evaluate_run

# Enough importance samples for a look; the paper takes 1,024.
_N_SAMPLES = 128


@dataclass(frozen=True)
class Part:
    """An experiment of the demo."""

    experiment: str
    what: str  # is learned
    methods: tuple[str, ...]  # the sparse sum first, then the dense one, then samplers
    options: dict[str, Any]
    metric: str  # of the test data
    unit: str


PARTS = (
    Part("ssvae", "classes from 100 labels", ("sparse", "dense", "sfe"), {"warm_epochs": 40}, "accuracy", "accuracy"),
    Part("signal-game", "a language of 64 words", ("sparse", "dense", "sfe"), {}, "success", "success"),
    Part("bitvector-vae", "codes of 6 bits", ("sparse", "dense", "sfe-plus"), {"bits": 6}, "elbo", "ELBO (nats)"),
)


def run_demo(out: pathlib.Path, jobs: int) -> int:
    """Make all runs, evaluate them, print a table and write a report; returns the exit status."""
    console, messages = Terminal(), Terminal(stderr=True)
    plans = [_plan(part, out) for part in PARTS]
    with Board(messages, jobs) as board:
        entries, is_stopped = sweep([run for plan in plans for run in plan], jobs, board)
    if is_stopped:
        messages.print("stopped; the same command continues where it was", highlight=False)
        return 130
    failed = [entry for entry in entries if entry.phase is Phase.FAILED]
    if failed:
        messages.print(f"{len(failed)} of {len(entries)} runs failed; see log.txt below {out}", highlight=False)
        return 1
    table = Table("experiment", "method", "test", "", "calls", "seconds")
    for part, plan in zip(PARTS, plans, strict=True):
        messages.print(f"evaluating {part.experiment} ...", highlight=False)
        for i, run in enumerate(plan):
            title = [part.experiment, part.what, *[""] * len(plan)][i]
            table.add_row(title, run.method, *_cells(part, run))
        table.add_section()
    console.print(table)
    page = write_report([out], out)
    console.print("calls: decoder calls per example, the mean over all steps; seconds: of training", highlight=False)
    console.print(f"report: {page}", highlight=False, soft_wrap=True)
    return 0


def _plan(part: Part, out: pathlib.Path) -> list[PlannedRun]:
    """The runs of an experiment, under names that are unique among all experiments."""
    options = {"data": "digits", "device": "cpu", **part.options}
    plan = make_plan(part.experiment, list(part.methods), options, {}, 1, out / part.experiment)
    return [replace(run, key=f"{part.experiment}/{run.key}") for run in plan]


def _cells(part: Part, run: PlannedRun) -> list[str]:
    metrics = evaluate_run(run.folder, n_samples=_N_SAMPLES)
    lines = RunFolder(run.folder).metrics()
    calls = sum(line["calls"]["mean"] for line in lines) / len(lines)
    seconds = sum(line["seconds"] for line in lines)
    value = metrics[part.metric]
    shown = f"{value:.2f}" if part.metric == "elbo" else f"{value:.1%}"
    return [shown, part.unit, f"{calls:.2f}", f"{seconds:.0f}"]
