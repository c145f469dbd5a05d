"""Recorded runs made again: they land where their records say.

`tests/experiments/records` has short runs of each experiment, on digits and on the real data, as these commands made them::

    sparsum train EXPERIMENT METHOD ... --device cpu --out RUN
    sparsum evaluate RUN --device cpu
    sparsum record RUN --out tests/experiments/records/digits      # or tests/experiments/records/real

The real ones run where the variable SPARSUM_DATA names a folder with the folders mnist, fashion-mnist and signal-game.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sparsum_experiments.registry import train_options
from sparsum_experiments.report import Run, read_record

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


def files(kind: str) -> list[Path]:
    """The records on digits or on real data."""
    return sorted((RECORDS / kind).glob("*/*/seed-*.json"))


def sparsum(*arguments: str) -> None:
    """Run a command."""
    subprocess.run([sys.executable, "-m", "sparsum_experiments.main", *arguments], check=True)


def command_of(run: Run) -> list[str]:
    """What to type after ``sparsum`` for the same run again."""
    told = {name: run.args[name] for name in train_options() if run.args.get(name) is not None and name != "method"}
    typed = [text for name, value in told.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    return ["train", run.experiment, run.args["method"], *typed]


def places(command: list[str]) -> list[str]:
    """The command with the place of its real data."""
    if (name := command[command.index("--data") + 1]) == "digits":
        return command
    assert DATA is not None
    if name == "signal-game":
        return [*command, "--data", str(Path(DATA) / name)]  # the last one counts
    return [*command, "--data-dir", DATA]


@pytest.mark.slow
@pytest.mark.parametrize("file", files("digits") + files("real"), ids=lambda file: str(file.relative_to(RECORDS)))
def test_a_recorded_run_made_again_lands_where_it_did(file: Path, tmp_path: Path) -> None:
    kind = file.relative_to(RECORDS).parts[0]
    if kind == "real" and DATA is None:
        pytest.skip("SPARSUM_DATA names no folder with mnist, fashion-mnist and signal-game")
    record = read_record(file)
    n_samples = json.loads(file.read_text())["test"]["n_samples"]
    sparsum(*places(command_of(record)), "--device", "cpu", "--out", str(tmp_path / "run"))
    sparsum("evaluate", str(tmp_path / "run"), "--device", "cpu", "--samples", str(int(n_samples)))
    measured = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    for name, tolerance in TOLERANCE[kind][record.experiment].items():
        assert measured[name] == pytest.approx(record.test[name], abs=tolerance)


def test_there_is_a_record_of_each_experiment() -> None:
    for kind in TOLERANCE:
        assert {file.relative_to(RECORDS / kind).parts[0] for file in files(kind)} == {
            "ssvae",
            "signal-game",
            "bitvector-vae",
        }
