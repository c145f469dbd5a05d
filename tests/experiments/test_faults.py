"""Full disks, read-only folders, closed output, clocks that jump and homes that are missing: nothing is lost."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sparsum_experiments.main import main
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.sweep import launch
from sparsum_experiments.training.evaluate import evaluate_run
from sparsum_experiments.training.start import run

SMALL = {"steps_per_epoch": 2, "batch_size": 4, "n_symbols": 4, "device": "cpu"}
WORDS = ("--steps-per-epoch", "2", "--batch-size", "4", "--n-symbols", "4", "--device", "cpu")


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the data of a small game, and without anything of the user's."""
    monkeypatch.setenv("SPARSUM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "game").mkdir()
    rng = np.random.default_rng(0)
    for name in ("train", "test"):
        np.savez(tmp_path / "game" / f"{name}.npz", x=rng.normal(size=(192, 6)).astype(np.float32), y=np.arange(192) % 16)


def train(out: Path, **options: Any) -> RunFolder:
    """A small run."""
    how = {name: options.pop(name) for name in ("resume", "until") if name in options}
    data = {} if how.get("resume") else SMALL | {"data": str(Path("game").resolve())}
    return run("signal-game", "sparse", {"epochs": 2} | data | options, out=out, **how)[0]


def status_of(*words: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(list(words))
    return int(stopped.value.code or 0)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 2 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)], check=False).returncode:
        pytest.skip("only root can make a small disk")
    yield place
    os.chdir("/")
    subprocess.run(["umount", str(place)], check=True)


def contents(folder: Path) -> dict[str, bytes]:
    """All files but empty ones, such as locks, and those of the test itself."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != "filler"]
    return {str(file.relative_to(folder)): content for file in files if (content := file.read_bytes())}


@pytest.fixture
def finished(disk: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """On the small disk: a run that is evaluated, recorded and reported."""
    evaluate_run(train(disk / "run").path)
    shutil.rmtree(disk / "run" / "tensorboard")
    assert status_of("record", str(disk / "run"), "--out", str(disk / "results")) == 0
    assert status_of("report", str(disk / "run"), "--out", str(disk / "page.html")) == 0
    capsys.readouterr()
    return disk


def commands(disk: Path) -> dict[str, list[str]]:
    """What each writes, and how it is typed."""
    return {
        "run/evaluation.json": ["evaluate", str(disk / "run")],
        "results/signal-game.jsonl.gz": ["record", str(disk / "run"), "--out", str(disk / "results")],
        "page.html": ["report", str(disk / "run"), "--out", str(disk / "page.html")],
        "another/config.json": ["train", "signal-game", "sparse", "--data", "game", *WORDS, "--out", str(disk / "another")],
    }


def test_a_full_disk_leaves_what_was_there(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command names the file that it could not write, and works once there is room."""
    filler = os.open(finished / "filler", os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while os.write(filler, bytes(512)):
            pass
    os.close(filler)
    before = contents(finished)
    for file, words in commands(finished).items():
        assert status_of(*words) == 2, words
        said = capsys.readouterr().err.replace("\n", " ")
        assert file.partition("/")[0] in said, words
        assert "No space left" in said or "the disk is full" in said, words
    assert contents(finished) == before
    (finished / "filler").unlink()
    for words in commands(finished).values():
        assert status_of(*words, *(["--epochs", "1"] if words[0] == "train" else [])) == 0


def test_a_read_only_folder_is_said(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command names it, and nothing has changed."""
    before = contents(finished)
    subprocess.run(["mount", "-o", "remount,ro", str(finished)], check=True)
    for words in commands(finished).values():
        assert status_of(*words) == 2, words
        said = capsys.readouterr().err
        assert str(finished) in said.replace("\n", ""), words
        assert "Read-only file system" in said or "not writable" in said, words
    assert contents(finished) == before


def closed(*words: str, error: Any = None) -> int:
    """The status of a command whose output nobody reads."""
    command = [sys.executable, "-m", "sparsum_experiments.main", *words]
    read, write = os.pipe()
    os.close(read)
    try:
        return subprocess.run(command, check=False, stdout=write, stderr=write if error is None else error).returncode
    finally:
        os.close(write)


def test_output_that_nobody_reads_stops_no_work(tmp_path: Path) -> None:
    """Training, evaluation and report finish when their output is closed, or its disk full."""
    assert closed("train", "signal-game", "sparse", "--data", "game", *WORDS, "--epochs", "3", "--out", "run") == 0
    assert len(RunFolder(tmp_path / "run").metrics()) == 3
    assert closed("evaluate", "run") == 0
    assert RunFolder(tmp_path / "run").evaluation()
    assert closed("report", "run", "--out", "page.html") == 0
    assert (tmp_path / "page.html").read_text(encoding="utf-8").endswith("</html>")
    with Path("/dev/full").open("w") as full:
        assert closed("train", "signal-game", "sparse", "--resume", "--epochs", "4", "--out", "run", error=full) == 0
    assert len(RunFolder(tmp_path / "run").metrics()) == 4


def test_clocks_that_jump_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is paused and resumed while the clock jumps by days measures the same, and no negative durations."""
    truth = train(tmp_path / "truth")
    rng, now = random.Random(0), time.time()
    monkeypatch.setattr(time, "time", lambda: now + rng.uniform(-1e6, 1e6))
    jumping = train(tmp_path / "run", until=1)
    train(jumping.path, resume=True)
    for one, other in zip(truth.metrics(), jumping.metrics(), strict=True):
        assert {name: one[name] for name in ("validation", "train", "calls")}.items() <= other.items()
        assert 0 <= other["seconds"] < 100
        assert 0 <= other["validation_seconds"] < 100
    weights = [folder.load("last") for folder in (truth, jumping)]
    assert weights[0] is not None
    assert weights[1] is not None
    assert all(torch.equal(weights[0]["model"][name], weights[1]["model"][name]) for name in weights[0]["model"])
    entry = launch.Entry(run=None, phase=launch.Phase.WAITING)  # type: ignore[arg-type]
    entry.begin()
    assert 0 <= entry.elapsed() < 100


def test_a_user_without_a_home(tmp_path: Path) -> None:
    """As in a container: no HOME, and a user that is in no list."""
    start = "import os, sys; os.getuid = lambda: 54321; from sparsum_experiments.main import main; main(sys.argv[1:])"
    for words in (
        ["train", "signal-game", "sparse", "--data", "game", *WORDS, "--epochs", "1", "--out", "run"],
        ["evaluate", "run"],
        ["report", "run", "--out", "page.html"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", start, *words],
            check=False,
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"]},
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").exists()


def test_a_missing_checkpoint_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that starts from the beginning again does not do so silently."""
    folder = train(tmp_path / "run")
    folder.checkpoint_file("last").unlink()
    before = folder.metrics()
    train(folder.path, resume=True)
    said = capsys.readouterr().err.replace("\n", " ")
    assert "last.pt is missing: training starts from the beginning, and epochs 1 to 2 are run again" in said
    assert [line["validation"] for line in folder.metrics()] == [line["validation"] for line in before]


@pytest.mark.parametrize(
    "damage", [b"\0" * 40, b'{"epoch": 0, "validation": {"success": "high"}}', b""], ids=["zeros", "text", "gone"]
)
def test_a_corrupted_line_of_metrics_is_named_and_kept(tmp_path: Path, damage: bytes) -> None:
    """Resuming is refused, with the line, and changes no file."""
    folder = train(tmp_path / "run")
    first, second = folder.metrics_file.read_bytes().splitlines(keepends=True)
    folder.metrics_file.write_bytes((damage + b"\n" if damage else b"") + second)
    before = contents(folder.path)
    with pytest.raises(ValueError, match=r"line 1 of .*metrics\.jsonl"):
        train(folder.path, resume=True, epochs=3)
    assert contents(folder.path) == before
    folder.metrics_file.write_bytes(first + second)
    assert len(train(folder.path, resume=True, epochs=3).metrics()) == 3
