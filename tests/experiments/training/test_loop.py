"""The training loop: a run that is killed at any moment and resumed ends as if nothing had happened."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from sparsum_experiments.experiment import Step
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.training.epoch_log import EpochLog
from sparsum_experiments.training.start import run

OPTIONS = {"epochs": 3, "warm_epochs": 1, "batch_size": 32, "device": "cpu"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSUM_CACHE", str(tmp_path / "cache"))


def command(out: pathlib.Path, *others: str, method: str = "sfe") -> list[str]:
    words = [sys.executable, "-m", "sparsum_experiments.main", "train", "ssvae", method, "--out", str(out)]
    for name, value in OPTIONS.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return [*words, *others]


def without_times(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Metrics without what two equal runs may differ in."""
    return [
        {key: value for key, value in line.items() if "seconds" not in key and key != "peak_memory_mb"} for line in lines
    ]


def same_weights(one: pathlib.Path, other: pathlib.Path) -> bool:
    states = [RunFolder(path).load("last") for path in (one, other)]
    assert states[0] is not None
    assert states[1] is not None
    first, second = states[0]["model"], states[1]["model"]
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_writes_what_it_should(tmp_path: pathlib.Path) -> None:
    folder, metrics = run("ssvae", "sparse", OPTIONS, out=tmp_path / "run")
    assert [line["epoch"] for line in metrics] == [0, 1, 2]
    assert set(metrics[0]["calls"]) == {"mean", "median", "p10", "p25", "p75", "p90"}
    assert set(metrics[0]["validation"]) == {"elbo", "accuracy", "entropy", "calls", "used_classes"}
    assert 0 <= metrics[0]["train"]["saturation"] <= 1
    assert metrics[0]["seconds"] > 0
    assert metrics[0]["peak_memory_mb"] > 0
    config = json.loads((folder.path / "config.json").read_text())
    assert config["args"]["method"] == "sparse"
    assert config["args"]["batch_size"] == 32
    assert config["args"]["lr"] == 1e-3  # the preset for digits
    assert config["versions"]["torch"] == importlib.metadata.version("torch")
    assert {"sparsum", "sparsum-experiments"} <= set(config["versions"])
    assert {file.name for file in (folder.path / "checkpoints").iterdir()} == {"last.pt", "best.pt"}
    assert any((folder.path / "tensorboard").iterdir())


@pytest.mark.parametrize(("method", "is_said"), [("sparse", True), ("sfe", False)])
def test_a_run_without_gradients_says_so_once(
    method: str, is_said: bool, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scores far apart leave a single symbol with mass; for a method that samples one, this is nothing special."""
    options = {"epochs": 4, "steps_per_epoch": 60, "sender_temperature": 1e-4, "batch_size": 2, "device": "cpu"}
    _, metrics = run("signal-game", method, options, out=tmp_path / "run")
    text = " ".join(capsys.readouterr().err.split())
    said = "in the last 120 steps every example had a single assignment with mass, so that its scores got no gradient"
    assert text.count("every example had a single") == is_said
    assert (f"{said}: a smaller --lr or a larger --sender-temperature may help" in text) == is_said
    assert [line["train"].get("saturation") for line in metrics] == ([1.0] * 4 if is_said else [None] * 4)


def test_saturated_steps_are_counted_from_the_last_one() -> None:
    log = EpochLog(5, 2, torch.device("cpu"))
    for calls, wanted in (
        ([[1, 1]] * 5, (1.0, 5)),
        ([[1, 1]] * 4 + [[1, 2]], (0.9, 0)),
        ([[3, 1]] + [[1, 1]] * 4, (0.9, 4)),
        ([[1, 2], [1, 1], [2, 2], [1, 1], [1, 1]], (0.7, 2)),
    ):
        for i, each in enumerate(calls):
            log.add(i, Step(torch.zeros(()), {}, torch.tensor(each)))
        assert log.saturation() == pytest.approx(wanted)


def test_the_same_seed_gives_the_same_run_and_another_one_another(tmp_path: pathlib.Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run("ssvae", "gumbel", OPTIONS | {"seed": seed, "epochs": 1}, out=tmp_path / name)
    assert same_weights(tmp_path / "a", tmp_path / "b")
    assert not same_weights(tmp_path / "a", tmp_path / "c")


@pytest.mark.parametrize("method", ["sfe", "gumbel"])  # with a baseline, and with a temperature, to be kept
def test_a_run_that_is_killed_again_and_again_ends_as_one_that_is_not(tmp_path: pathlib.Path, method: str) -> None:
    subprocess.run(command(tmp_path / "whole", method=method), check=True, capture_output=True)
    chance = random.Random(0)
    n_kills = 0
    for attempt in range(60):
        others = ["--checkpoint-seconds", "0.01"] + (["--resume"] if (tmp_path / "killed" / "config.json").exists() else [])
        process = subprocess.Popen(
            command(tmp_path / "killed", *others, method=method), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        if attempt < 3:
            _wait_for_a_checkpoint(tmp_path / "killed", process, chance)
            process.kill()
        _, errors = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, errors.decode()
        n_kills += 1
    assert n_kills == 3
    whole, killed = (RunFolder(tmp_path / name) for name in ("whole", "killed"))
    assert without_times(killed.metrics()) == without_times(whole.metrics())
    assert same_weights(whole.path, killed.path)


def _wait_for_a_checkpoint(path: pathlib.Path, process: subprocess.Popen[bytes], chance: random.Random) -> None:
    """Until the run has written a new checkpoint, and a random moment longer."""
    file = path / "checkpoints" / "last.pt"
    before = file.stat().st_mtime_ns if file.exists() else 0
    while process.poll() is None and not (file.exists() and file.stat().st_mtime_ns > before):
        time.sleep(0.01)
    time.sleep(chance.uniform(0, 0.2))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_says_how_to_continue(tmp_path: pathlib.Path, number: signal.Signals) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(
        command(out, "--epochs", "1000"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    while process.poll() is None and not (out / "checkpoints" / "last.pt").exists():
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert f"sparsum train ssvae sfe --out {out} --resume" in errors
    state = RunFolder(out).load("last")
    assert state is not None
    n_epochs = state["place"]["epoch"] + 1
    run("ssvae", "sfe", {"epochs": n_epochs}, out=out, resume=True)
    assert len(RunFolder(out).metrics()) == n_epochs
    reference = tmp_path / "reference"
    run("ssvae", "sfe", OPTIONS | {"epochs": n_epochs}, out=reference)
    assert same_weights(out, reference)
