"""Recorded runs made again: they land where their records say.

`tests/experiments/records` has short runs of each experiment, on digits and on the real data, as these commands made them::

    sparsum train EXPERIMENT METHOD ... --device cpu --out RUN
    sparsum evaluate RUN --device cpu
    sparsum record RUN --out tests/experiments/records/digits      # or tests/experiments/records/real

The real ones run where the variable SPARSUM_DATA names a folder with the folders mnist, fashion-mnist and signal-game.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sparsum_experiments.options import as_flag
from sparsum_experiments.registry import NAMES
from sparsum_experiments.runs import Run, RunFolder, read_runs

RECORDS = Path(__file__).parents[1] / "records"
DATA = os.environ.get("SPARSUM_DATA")
# How far a metric may be from its record. The same seed with another machine, version of torch or number of threads rounds
# otherwise, and over thousands of steps that makes another run. Of digits there are few test images, so that each of them
# counts. The real run of ssvae has its whole warm start: after a short one, accuracies of such runs are points apart.
TOLERANCE = {
    "digits": {
        "ssvae": {"accuracy": 0.06, "elbo": 1.0},
        "signal-game": {"success": 0.03},
        "bitvector-vae": {"elbo": 3.0},
    },
    "real": {
        "ssvae": {"accuracy": 0.006, "elbo": 2.0},
        "signal-game": {"success": 0.03},
        "bitvector-vae": {"elbo": 15.0},
    },
}


def records(kind: str) -> list[Run]:
    """The records on digits or on real data."""
    runs, problems = read_runs([RECORDS / kind])
    assert not problems
    return runs


def sparsum(*arguments: str) -> None:
    """Run a command."""
    subprocess.run([sys.executable, "-m", "sparsum_experiments.main", *arguments], check=True)


def command_of(run: Run) -> list[str]:
    """What to type after ``sparsum`` for the same run again."""
    given = {name: value for name, value in run.args.items() if value not in (None, "") and name != "method"}
    typed = [text for name, value in given.items() for text in (as_flag(name), str(value))]
    return ["train", run.experiment, run.args["method"], *typed]


def with_data(command: list[str]) -> list[str]:
    """The command with the place of its real data."""
    if (name := command[command.index("--data") + 1]) == "digits":
        return command
    assert DATA is not None
    if name == "signal-game":
        return [*command, "--data", str(Path(DATA) / name)]  # the last one counts
    return [*command, "--data-dir", DATA]


CASES = [(kind, run) for kind in TOLERANCE for run in records(kind)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "record"), CASES, ids=lambda value: getattr(value, "experiment", value))
def test_a_recorded_run_made_again_lands_where_it_did(kind: str, record: Run, tmp_path: Path) -> None:
    if kind == "real" and DATA is None:
        pytest.skip("SPARSUM_DATA names no folder with mnist, fashion-mnist and signal-game")
    sparsum(*with_data(command_of(record)), "--device", "cpu", "--out", str(tmp_path / "run"))
    n_samples = str(int(record.counts["n_samples"]))
    sparsum("evaluate", str(tmp_path / "run"), "--device", "cpu", "--samples", n_samples)
    measured = RunFolder(tmp_path / "run").evaluation()
    for name, tolerance in TOLERANCE[kind][record.experiment].items():
        assert measured[name] == pytest.approx(record.test[name], abs=tolerance)


def test_there_is_a_record_of_each_experiment() -> None:
    for kind in TOLERANCE:
        assert {run.experiment for run in records(kind)} == set(NAMES)
