"""Runs that share a GPU: when a daemon is started, its messages, and that it ends with the sweep, however that ends.

The daemon itself needs a GPU; a program of the same name that keeps a diary takes its place.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from sparsum_experiments.sweep import Phase, PlannedRun, launch, make_plan, mps, sweep
from sparsum_experiments.sweep.launch import start_process
from sparsum_experiments.sweep.mps import PROGRAM, private_daemon, sharing_gpu


@pytest.fixture
def diary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a stand-in for the daemon's program, the first on the path, writes its input."""
    written = tmp_path / "diary"
    program = tmp_path / "bin" / PROGRAM
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = -d ]; then echo "start $CUDA_MPS_PIPE_DIRECTORY" >> {written}; exit $MPS_STATUS; fi\n'
        f'echo "$(cat) $CUDA_MPS_PIPE_DIRECTORY" >> {written}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("MPS_STATUS", "0")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    return written


def plan(out: Path, device: str) -> list[PlannedRun]:
    return make_plan("ssvae", ["sparse"], {"device": device}, {}, 2, out)


def test_daemon_lives_as_long_as_the_sweep(tmp_path: Path, diary: Path) -> None:
    said: list[str] = []
    with sharing_gpu(plan(tmp_path, "cuda"), 2, said.append) as environment:
        folder = environment["CUDA_MPS_PIPE_DIRECTORY"]
        assert diary.read_text(encoding="utf-8") == f"start {folder}\n"
        assert Path(folder).is_dir()
    assert diary.read_text(encoding="utf-8") == f"start {folder}\nquit {folder}\n"
    assert not any(Path(path).exists() for path in environment.values())
    assert len(said) == 1
    assert "share the GPU" in said[0]


@pytest.mark.parametrize(("device", "jobs", "elsewhere"), [("cpu", 2, ""), ("cuda", 1, ""), ("cuda", 2, "/some/folder")])
def test_no_daemon_where_it_would_not_help(
    tmp_path: Path, diary: Path, monkeypatch: pytest.MonkeyPatch, device: str, jobs: int, elsewhere: str
) -> None:
    if elsewhere:  # the user has a daemon already
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", elsewhere)
    said: list[str] = []
    with sharing_gpu(plan(tmp_path, device), jobs, said.append) as environment:
        assert environment == {}
    assert not diary.exists()
    assert said == []


def test_sweep_continues_without_a_daemon_and_says_why(tmp_path: Path, diary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setenv("MPS_STATUS", "3")
    with sharing_gpu(plan(tmp_path, "cuda"), 2, said.append) as environment:
        assert environment == {}
    monkeypatch.setenv("PATH", "")
    with sharing_gpu(plan(tmp_path, "cuda"), 2, said.append) as environment:
        assert environment == {}
    failed, absent = said
    assert "did not start" in failed
    assert "is not installed" in absent


def test_daemon_ends_when_the_sweep_is_killed(diary: Path) -> None:
    code = (
        "import sys, time\nfrom sparsum_experiments.sweep.mps import private_daemon\n"
        "with private_daemon(print):\n    print('up', flush=True)\n    time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while process.stdout.readline() != "up\n":
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_for(diary, "quit")


def test_daemon_ends_when_its_start_is_interrupted(diary: Path, tmp_path: Path) -> None:
    """It may have come up already when the start is given up."""
    (tmp_path / "bin" / PROGRAM).write_text(
        f'#!/bin/sh\nif [ "$1" = -d ]; then echo start >> {diary}; sleep 600; fi\necho "$(cat)" >> {diary}\n'
    )
    code = "from sparsum_experiments.sweep.mps import private_daemon\nwith private_daemon(print):\n    pass"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(diary, "start")
    process.send_signal(signal.SIGINT)
    process.communicate()
    wait_for(diary, "quit")


def test_daemon_sees_all_gpus_and_the_runs_those_they_are_given(
    diary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / PROGRAM
    program.write_text(
        program.read_text(encoding="utf-8").replace("start $CUDA_MPS_PIPE_DIRECTORY", "sees <$CUDA_VISIBLE_DEVICES>")
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with private_daemon(lambda _: None) as environment:
        assert "CUDA_VISIBLE_DEVICES" not in environment
    assert diary.read_text(encoding="utf-8").startswith("sees <>")


def test_a_sweep_gives_its_runs_the_daemon(tmp_path: Path, diary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole runs, on the CPU: started when the daemon is up, in its environment, and ended before it."""
    monkeypatch.setattr(mps, "uses_gpu", lambda run: True)
    seen: list[str] = []

    def start(run: PlannedRun, n_threads: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        seen.append(environment["CUDA_MPS_PIPE_DIRECTORY"])
        assert diary.read_text(encoding="utf-8") == f"start {seen[0]}\n"
        return start_process(run, n_threads, environment)

    monkeypatch.setattr(launch, "start_process", start)
    said: list[str] = []
    watcher = SimpleNamespace(look=lambda entries: None, say=said.append)
    options = {"batch_size": 1000, "warm_epochs": 0, "device": "cpu", "epochs": 1}
    entries, is_stopped = sweep(make_plan("ssvae", ["sparse"], options, {}, 2, tmp_path / "runs"), 2, watcher)
    assert [entry.phase for entry in entries] == [Phase.FINISHED] * 2
    assert not is_stopped
    assert len(seen) == 2
    assert diary.read_text(encoding="utf-8") == f"start {seen[0]}\nquit {seen[0]}\n"
    assert "share the GPU" in said[0]


def wait_for(diary: Path, word: str) -> None:
    deadline = time.monotonic() + 60
    while not diary.exists() or word not in diary.read_text(encoding="utf-8"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_error_within_ends_the_daemon(diary: Path) -> None:
    with pytest.raises(ZeroDivisionError), private_daemon(lambda _: None):
        _ = 1 / 0
    assert diary.read_text(encoding="utf-8").count("quit") == 1
