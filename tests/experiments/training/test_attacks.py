"""Damaged files, changed data and odd machines: a run is continued rightly, or refused with a clear message."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from sparsum_experiments.main import main
from sparsum_experiments.models.cache import cached
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.training.evaluate import evaluate_run
from sparsum_experiments.training.start import run

SMALL = {"epochs": 1, "bits": 4, "device": "cpu"}


@pytest.fixture(autouse=True)
def _own_places(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSUM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def status_of(*words: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(list(words))
    return int(stopped.value.code or 0)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> RunFolder:
    """A run of one epoch."""
    return run("bitvector-vae", "topk", SMALL, out=tmp_path / "run")[0]


def test_a_damaged_block_of_a_checkpoint_is_not_evaluated(folder: RunFolder) -> None:
    file = folder.checkpoint_file("last")
    whole = file.read_bytes()
    middle = len(whole) // 2 // 4096 * 4096
    file.write_bytes(whole[:middle] + bytes(4096) + whole[middle + 4096 :])
    with pytest.raises(ValueError, match=r"last\.pt is corrupted or not a sparsum checkpoint; no code in it was executed"):
        evaluate_run(folder.path, n_samples=2)
    assert not folder.evaluation_file().exists()


@pytest.mark.parametrize("model", [{"levels.bias": 3}, {"levels.bias": "x"}, [], None, {}], ids=str)
def test_a_checkpoint_with_wrong_types_is_named(folder: RunFolder, model: object) -> None:
    state = folder.load("last")
    assert state is not None
    folder.save("last", state | {"model": model})
    with pytest.raises(ValueError, match=r"last\.pt does not (hold a model|fit the run's config\.json)"):
        evaluate_run(folder.path, n_samples=2)


def test_an_edited_seed_is_noticed(folder: RunFolder) -> None:
    config = json.loads(folder.config_file.read_text())
    folder.config_file.write_text(json.dumps(config | {"args": config["args"] | {"seed": 7}}))
    with pytest.raises(ValueError, match=r"config\.json was edited since the checkpoint was written: undo the change"):
        run("bitvector-vae", "topk", {"epochs": 2}, out=folder.path, resume=True)


def test_data_that_changed_is_noticed(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "game").mkdir()
    y = np.repeat(np.arange(16), 12)
    for name in ("train", "test"):
        np.savez(tmp_path / "game" / f"{name}.npz", x=rng.normal(size=(len(y), 6)).astype(np.float32), y=y)
    options = {"epochs": 1, "data": str(tmp_path / "game"), "steps_per_epoch": 2, "batch_size": 4, "n_symbols": 4}
    game, _ = run("signal-game", "sparse", options | {"device": "cpu"}, out=tmp_path / "run")
    assert set(game.config().data_files) == {"train.npz", "test.npz"}
    evaluate_run(game.path, limit=4)
    np.savez(tmp_path / "game" / "test.npz", x=rng.normal(size=(len(y), 6)).astype(np.float32), y=y)
    with pytest.raises(ValueError, match=r"test\.npz of .*game has changed since the run in .*run was started"):
        evaluate_run(game.path, limit=4)
    with pytest.raises(ValueError, match=r"test\.npz of .*game has changed"):
        run("signal-game", "sparse", {"epochs": 2}, out=game.path, resume=True)
    assert len(game.metrics()) == 1


def test_another_number_of_threads_is_said(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads(folder.config_file.read_text())
    n = config["threads"]
    folder.config_file.write_text(json.dumps(config | {"threads": n + 1}))
    run("bitvector-vae", "topk", {"epochs": 2}, out=folder.path, resume=True)
    assert f"was started with {n + 1} threads and continues with {n}" in capsys.readouterr().err.replace("\n", " ")


def test_what_a_killed_run_left_is_removed_on_resume(folder: RunFolder) -> None:
    left = folder.path / "checkpoints" / ".last.pt.01234567.tmp"
    left.write_bytes(b"half")
    run("bitvector-vae", "topk", {"epochs": 2}, out=folder.path, resume=True)
    assert not left.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--batch-size", "5000"],
        ["--lr", "-1"],
        ["--seed", "1" * 150],
        ["--data", "minst"],
        ["--solver", "simplex"],
        ["--colour", "red"],
        ["--epochs", "0"],
        ["--epochs", "9223372036854775808"],
        ["--checkpoint-seconds", "nan"],
    ],
    ids=lambda words: words[0],
)
def test_a_refused_option_leaves_no_folder(
    tmp_path: pathlib.Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of("train", "bitvector-vae", "topk", *words, "--device", "cpu", "--out", "new/run") == 2
    assert words[0] in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_name_that_is_not_utf8_is_refused_before_training(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = os.fsdecode(b"a\xff")
    assert status_of("train", "bitvector-vae", "topk", "--device", "cpu", "--out", name) == 2
    assert "--out must be valid UTF-8, got 'a\\udcff'" in capsys.readouterr().err
    assert not (tmp_path / name).exists()


def test_the_next_command_is_quoted_for_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("train", "bitvector-vae", "topk", "--bits", "4", "--epochs", "1", "--out", "a b; c") == 0
    assert "next: sparsum evaluate 'a b; c'" in capsys.readouterr().out


def test_escapes_of_the_terminal_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("evaluate", "\x1b[31mred") == 2
    assert "\\x1b[31mred" in capsys.readouterr().err


def _weights() -> dict[str, torch.Tensor]:
    return {"weight": torch.ones(3)}


def test_a_damaged_warm_start_is_computed_again(tmp_path: pathlib.Path) -> None:
    said: list[str] = []
    for _ in range(2):
        cached("x", {"seed": 0}, _weights, said.append, torch.device("cpu"))
    (file,) = (tmp_path / "cache" / "warm-starts").glob("x-*.pt")
    whole = file.read_bytes()
    for damaged in (b"", whole[:100], whole[:200] + bytes(100) + whole[300:]):
        file.write_bytes(damaged)
        found = cached("x", {"seed": 0}, _weights, said.append, torch.device("cpu"))
        assert torch.equal(found["weight"], torch.ones(3))
        assert "recomputing it" in said[-2]
        assert file.read_bytes() == whole


@pytest.mark.parametrize("place", ["a file", "a file in the way", "read-only", "no home", "empty"])
def test_a_cache_that_cannot_be_used_is_said_and_done_without(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    said: list[str] = []
    if place == "no home":
        for name in ("SPARSUM_CACHE", "HOME", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(os, "getuid", lambda: 12345678)  # a user that is not in the list of users
    elif place == "empty":
        monkeypatch.setenv("SPARSUM_CACHE", "")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    elif place == "read-only":
        monkeypatch.setenv("SPARSUM_CACHE", "/proc/sparsum")  # not even root can write there
    else:
        (tmp_path / "cache").write_text("")
        monkeypatch.setenv("SPARSUM_CACHE", str(tmp_path / "cache" / ("x" if place == "a file in the way" else "")))
    found = cached("x", {"seed": 0}, _weights, said.append, torch.device("cpu"))
    assert torch.equal(found["weight"], torch.ones(3))
    assert "SPARSUM_CACHE" in said[-1] or place == "empty"
    assert list(tmp_path.rglob("*.pt")) == ([] if place != "empty" else list((tmp_path / "home").rglob("*.pt")))


def test_waiting_for_another_warm_start_is_said(tmp_path: pathlib.Path) -> None:
    program = (
        "import sys, torch; from sparsum_experiments.models.cache import cached\n"
        "def make(): print('in', flush=True); sys.stdin.readline(); return {'weight': torch.zeros(3)}\n"
        "cached('x', {}, make, lambda text: None, torch.device('cpu'))"
    )
    other = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "in\n"
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if "waiting" in text:
            assert other.stdin is not None
            other.stdin.write("\n")
            other.stdin.flush()

    found = cached("x", {}, _weights, say, torch.device("cpu"))
    assert said[0] == "waiting for another run that computes the same warm start ..."
    assert torch.equal(found["weight"], torch.zeros(3))
    other.communicate()


def test_a_full_disk_names_the_file_and_how_to_continue(tmp_path: pathlib.Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k", "none", str(disk)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("only root can make a small disk")
    try:
        words = [sys.executable, "-m", "sparsum_experiments.main", "train", "bitvector-vae", "topk", "--device", "cpu"]
        done = subprocess.run(
            [*words, "--epochs", "2", "--out", str(disk / "run")], check=False, capture_output=True, text=True
        )
        assert done.returncode == 2
        assert "the disk is full; free some space, then run sparsum train bitvector-vae topk --out" in done.stderr
        assert "Traceback" not in done.stderr
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    shutil.rmtree(disk)


def test_ctrl_c_while_modules_are_imported_is_quiet(tmp_path: pathlib.Path) -> None:
    words = [sys.executable, "-m", "sparsum_experiments.main", "train", "bitvector-vae", "topk", "--out", "run"]
    for seconds in (0.3, 0.6, 1.0):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode in {130, -signal.SIGINT}, errors
        assert "Traceback" not in errors
        shutil.rmtree(tmp_path / "run", ignore_errors=True)


def test_out_of_memory_is_a_message() -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30,) * 2)\n"
        "from sparsum_experiments.main import main; import sys; main(sys.argv[1:])"
    )
    words = ["train", "signal-game", "sparse", "--n-symbols", "65536", "--embedding", "65536", "--device", "cpu"]
    done = subprocess.run([sys.executable, "-c", program, *words], check=False, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "out of memory: " in done.stderr
    assert "try a smaller --batch-size" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "change",
    [
        {"place": {"best": "x"}},
        {"place": {"seconds": None}},
        {"place": {"epoch_seconds": "a"}},
        {"place": {"step": 10**9}},
        {"place": {"epoch": True}},
        {"noise": 3},
        {"noise": torch.zeros(3, dtype=torch.uint8)},
        {"noise": None},
        {"epoch_log": {"terms": torch.zeros(1, 1)}},
        {"epoch_log": {"calls": torch.zeros(1, 1, dtype=torch.int64)}},
        {"optimiser": {}},
    ],
    ids=lambda change: str(change)[:40],
)
def test_a_checkpoint_within_an_epoch_is_checked_before_training(
    folder: RunFolder, change: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    state = folder.load("last")
    assert state is not None
    log = {"names": ["objective"], "terms": torch.zeros(18, 1), "calls": torch.zeros(18, 64, dtype=torch.int64)}
    state |= {"noise": torch.Generator().get_state(), "epoch_log": log}
    state["place"] |= {"epoch": 0, "step": 3}
    for name, value in change.items():
        state[name] = state[name] | value if isinstance(value, dict) and value else value
    folder.save("last", state)
    before = folder.metrics_file.read_bytes()
    with pytest.raises(ValueError, match=r"last\.pt does not fit this run or this version"):
        run("bitvector-vae", "topk", {"epochs": 2}, out=folder.path, resume=True)
    assert folder.metrics_file.read_bytes() == before


def test_an_edited_config_is_not_evaluated(folder: RunFolder) -> None:
    config = json.loads(folder.config_file.read_text())
    folder.config_file.write_text(json.dumps(config | {"args": config["args"] | {"score_temperature": 3.0}}))
    for checkpoint in ("last", "best"):
        with pytest.raises(ValueError, match=r"config\.json was edited since the checkpoint was written"):
            evaluate_run(folder.path, checkpoint=checkpoint, n_samples=2)


def test_an_option_of_a_newer_version_does_not_make_another_config(folder: RunFolder) -> None:
    config = json.loads(folder.config_file.read_text())
    del config["args"]["score_temperature"]  # as an older version wrote it
    folder.config_file.write_text(json.dumps(config))
    run("bitvector-vae", "topk", {"epochs": 2}, out=folder.path, resume=True)
    assert len(folder.metrics()) == 2


def test_nohup_is_respected(tmp_path: pathlib.Path) -> None:
    words = [sys.executable, "-m", "sparsum_experiments.main", "train", "bitvector-vae", "topk", "--bits", "4"]
    process = subprocess.Popen(
        ["nohup", *words, "--epochs", "12", "--device", "cpu", "--checkpoint-seconds", "0", "--out", "run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not (tmp_path / "run" / "checkpoints" / "last.pt").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGHUP)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert len(RunFolder(tmp_path / "run").metrics()) == 12


def test_a_data_file_that_is_gone_is_noticed(folder: RunFolder) -> None:
    config = json.loads(folder.config_file.read_text())
    folder.config_file.write_text(json.dumps(config | {"data_files": {"another": "0" * 32}}))
    with pytest.raises(ValueError, match="another of digits has changed"):
        evaluate_run(folder.path, n_samples=2)
