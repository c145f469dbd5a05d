"""Train the methods of a task and print its tables: ``python -m benchmarks.tasks NAME``.

Every method of a task gets the same learning rates to choose from, on validation data, and then the same seeds. Each
trained model becomes a line of ``results/tasks/NAME.jsonl``; what is there is not made again, so that an interrupted command
continues. Trainings of many minutes keep their state in the folder ``results/tasks/NAME`` meanwhile, and continue from it.
Times are CPU seconds of one thread, or seconds on a GPU. Two commands with different ``--rows`` can run at once. Rows that
are left out of a setting, because they take too long, are trained if both ``--settings`` and ``--rows`` name them.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import pkgutil
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch

import sparsum
from benchmarks.tasks.records import FOLDER, PAGES, Records, best_rate, table, write_page
from benchmarks.tasks.task import AbstractTask, Options, Trial, clock

#: Where each task is; imported on demand.
TASKS: dict[str, str] = {
    "binary-vae": "binary_vae:BinaryVAE",
    "digit-sums": "digit_sums:DigitSums",
    "large-k": "large_k:LargeK",
    "codes": "codes:Codes",
    "pixel-subsets": "pixel_subsets:PixelSubsets",
    "listops": "listops:ListOps",
    "equal-time": "equal_time:EqualTime",
}
#: The seed of tuning, which no result has.
TUNING_SEED = 1000


def task_class(name: str) -> type[AbstractTask]:
    """The class of a task."""
    return cast("type[AbstractTask]", pkgutil.resolve_name(f"benchmarks.tasks.{TASKS[name]}"))


def main(arguments: Iterable[str] | None = None) -> None:
    """Make the trials that are missing, and print the tables."""
    parser = argparse.ArgumentParser("python -m benchmarks.tasks", description=__doc__)
    parser.add_argument("task", choices=TASKS, help="; ".join(f"{name}: {task_class(name).about}" for name in TASKS))
    parser.add_argument("--settings", nargs="+", help="by default all")
    parser.add_argument("--rows", nargs="+", help="methods; by default all")
    parser.add_argument("--seeds", type=int, default=3, help="models of each row (3)")
    parser.add_argument("--data", default="", help="by default the task's own; digits needs no download")
    parser.add_argument("--data-dir", default="data", help="the folder of 'sparsum data get' (data)")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="by default a GPU if there is one"
    )
    parser.add_argument("--out", type=pathlib.Path, help=f"of the record ({FOLDER.parent.name}/{FOLDER.name})")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a few steps and one seed, on scikit-learn's digits, to see that it works; nothing is kept",
    )
    parser.add_argument("--table", action="store_true", help="train nothing, print the tables of the record")
    parser.add_argument("--write", action="store_true", help="train nothing, write the tables into docs/tasks/NAME.md")
    given = parser.parse_args(None if arguments is None else list(arguments))
    kind = task_class(given.task)
    for name in ("settings", "rows"):
        known = list(getattr(kind, name))
        if unknown := set(getattr(given, name) or ()) - set(known):
            parser.error(f"--{name}: {given.task} has no {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    with tempfile.TemporaryDirectory() as folder:
        records = Records((pathlib.Path(folder) if given.quick else given.out or FOLDER) / f"{given.task}.jsonl")
        if not (given.table or given.write):
            torch.set_num_threads(1)  # as many as its times are about
            _make(kind, records, given)
        tables = table(kind, records.read())
    if given.write:
        write_page(PAGES / f"{given.task}.md", tables)
    print(tables)


def _make(kind: type[AbstractTask], records: Records, given: argparse.Namespace) -> None:
    kept = None if given.quick else records.path.with_suffix("")
    data = given.data or ("digits" if given.quick else "")
    task = kind(Options(torch.device(given.device), data, given.data_dir, given.quick, kept))
    for trial in records.read():
        if file := task.kept(trial):
            file.unlink(missing_ok=True)  # of a command that was killed just before
    for trial in _wanted(task, records, given):
        name = f"{task.name} {trial.setting}, {trial.row}, rate {trial.rate:g}, " + (
            "tuning" if trial.is_tuning else f"seed {trial.seed}"
        )
        file = task.kept(trial)
        is_continued = file is not None and file.exists()
        if is_continued:
            _say(f"{name}: continues from {file}", is_last=True)
        begin, wall = clock(task.device), time.perf_counter()
        metrics = task.train(trial, lambda text, name=name: _say(f"{name}: {text}"))  # type: ignore[misc]
        about = {"seconds": clock(task.device) - begin, "wall_seconds": time.perf_counter() - wall} | _about(task)
        # The times are then those since it was continued.
        records.add(trial, metrics, about | {"is_continued": True} if is_continued else about)
        if file is not None:
            file.unlink(missing_ok=True)
        shown = {name: value for name, value in metrics.items() if isinstance(value, float)}
        _say(f"{name}: " + ", ".join(f"{metric} {value:.4g}" for metric, value in shown.items()), is_last=True)


def _wanted(task: AbstractTask, records: Records, given: argparse.Namespace) -> Iterator[Trial]:
    """The trials that are not recorded; the rate of a row is known once its tuning is done."""
    rates = task.rates[:1] if given.quick else task.rates
    for setting in given.settings or task.settings:
        for row in given.rows or task.rows:
            is_named = given.settings and given.rows  # what is left out by default can still be asked for
            if (why := task.reason(setting, row)) and not is_named:
                _say(f"{task.name} {setting}, {row} is left out: {why}", is_last=True)
                continue
            tuning = [Trial(setting, row, rate, TUNING_SEED, is_tuning=True) for rate in rates if len(rates) > 1]
            yield from (trial for trial in tuning if trial not in records.read())
            rate = rates[0] if given.quick else best_rate(type(task), setting, row, records.read())
            for seed in range(1 if given.quick else task.n_seeds(setting, row, given.seeds)):
                trial = Trial(setting, row, rate, seed)
                if trial not in records.read():
                    yield trial


def _say(text: str, *, is_last: bool = False) -> None:
    """Progress: a line that the next one replaces on a terminal, and whole lines alone in a file."""
    is_live = sys.stderr.isatty()
    if is_last or is_live:
        print(f"\r\x1b[K{text}" if is_live else text, end="\n" if is_last else "", file=sys.stderr, flush=True)


def _about(task: AbstractTask) -> dict[str, Any]:
    """How a line was made."""
    is_gpu = task.device.type == "cuda"
    done = subprocess.run(
        ["git", "-C", os.path.dirname(__file__), "rev-parse", "HEAD"], capture_output=True, encoding="utf-8", check=False
    )
    return {
        "machine": torch.cuda.get_device_name() if is_gpu else f"CPU, {platform.machine()}, 1 thread",
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "sparsum": sparsum.__version__},
        "git": done.stdout.strip() or None,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


if __name__ == "__main__":
    main()
