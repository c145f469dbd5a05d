"""Runs of one's own training loop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sparsum_experiments.runs import RunWriter, read_run


def test_a_run_of_another_loop_is_read_like_any_other(tmp_path: Path) -> None:
    about = {"data": "toy", "criterion": "loss", "better": "smaller", "lr": 0.1}
    writer = RunWriter(tmp_path / "run", "mine", "gumbel", epochs=2, seed=4, **about)  # type: ignore[arg-type]
    for epoch in range(2):
        writer.epoch({"loss": 1.0 - epoch / 2}, train={"loss": 2.0}, calls=3, seconds=0.5)
    writer.test({"loss": 0.6})
    run = read_run(tmp_path / "run")
    assert (run.experiment, run.criterion, run.better) == ("mine", "loss", "smaller")
    assert run.args == {"method": "gumbel", "data": "toy", "seed": 4, "epochs": 2, "lr": 0.1}
    assert run.is_finished
    assert run.validation == {"loss": 0.5}
    assert (run.test, run.calls, run.seconds) == ({"loss": 0.6}, 3, 1.0)


def test_calls_and_seconds_need_not_be_counted(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", "mine", "plain", epochs=1)
    writer.epoch({"loss": 1.0})
    run = read_run(tmp_path / "run")
    assert run.calls is None
    assert run.seconds > 0


def test_mistakes_are_named_and_a_run_is_not_overwritten(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", "mine", "plain", epochs=1)
    with pytest.raises(FileExistsError, match="holds a run already"):
        RunWriter(tmp_path / "run", "mine", "plain", epochs=1)
    with pytest.raises(ValueError, match="must be a number"):
        writer.epoch({"loss": "low"})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="Out of range float values"):
        writer.epoch({"loss": float("nan")})
    assert read_run(tmp_path / "run").lines == []


def test_it_does_not_import_torch() -> None:
    program = "import sys; import sparsum_experiments.runs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
