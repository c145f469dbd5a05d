"""The folder of a run: what is read from it, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sparsum_experiments import files
from sparsum_experiments.runs import RunFolder, read_folders, read_run

from tests.experiments.runs.making import make_run

DEEP, HUGE, HALF = "[" * 100_000, "1" + "0" * 400, "\\ud800"


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    make_run(tmp_path / "run", seed=3, test={"elbo": -2.0, "elbo_se": 0.5})
    run = read_run(tmp_path / "run")
    assert (run.experiment, run.args["method"], run.args["seed"]) == ("bitvector-vae", "topk", 3)
    assert run.is_finished
    assert not run.is_record
    assert run.test == {"elbo": -2.0}  # without standard errors
    assert run.counts == {"n_samples": 4}
    assert (run.calls, run.seconds, run.machine, run.command) == (2.5, 2.5, "a CPU", "sparsum train")


def test_a_last_line_without_its_end_is_kept_if_it_is_whole(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    text = folder.metrics_file.read_text()
    folder.metrics_file.write_text(text.rstrip("\n"))
    assert len(folder.metrics()) == 2
    folder.keep_metrics(2)
    assert folder.metrics_file.read_text() == text
    folder.metrics_file.write_text(text + '{"epoch": 2, "valid')  # as a crash leaves it
    assert len(folder.metrics()) == 2
    folder.keep_metrics(1)
    assert folder.metrics_file.read_text() == text.splitlines(keepends=True)[0]


@pytest.mark.parametrize("order", [(0, 0), (1, 0), (1,), (0, 2)], ids=str)
def test_epochs_that_are_missing_swapped_or_there_twice_are_refused(tmp_path: Path, order: tuple[int, ...]) -> None:
    folder = make_run(tmp_path / "run")
    line = json.loads(folder.metrics_file.read_text().splitlines()[0])
    text = "".join(json.dumps(line | {"epoch": epoch}) + "\n" for epoch in order)
    folder.metrics_file.write_text(text)
    with pytest.raises(ValueError, match=r"line \d of .*metrics.jsonl is of epoch \d, not \d: lines are missing"):
        folder.keep_metrics(1)
    assert folder.metrics_file.read_text() == text


def test_fewer_lines_than_the_checkpoint_are_refused_and_kept(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", n_epochs=1)
    before = folder.metrics_file.read_text()
    with pytest.raises(ValueError, match="has 1 epochs, and the checkpoint comes after 2: lines are missing"):
        folder.keep_metrics(2)
    assert folder.metrics_file.read_text() == before


BROKEN = {
    "deep metrics": ("metrics.jsonl", DEEP + "\n", "metrics.jsonl is not valid JSON"),
    "deep config": ("config.json", DEEP, "config.json is not valid JSON"),
    "a list as config": ("config.json", "[]", "config.json: "),
    "deep evaluation": ("evaluation.json", DEEP, "evaluation.json is not valid JSON"),
    "huge evaluation": ("evaluation.json", f'{{"elbo": {HUGE}}}', "evaluation.json: elbo must be a number"),
    "evaluation in words": ("evaluation.json", '{"elbo": "good"}', "evaluation.json: elbo must be a number, got 'good'"),
    "evaluation of nulls": ("evaluation.json", '{"elbo": null}', "evaluation.json: elbo must be a number"),
    "evaluation of nothing": ("evaluation.json", '{"epochs": 2}', "evaluation.json holds no metrics"),
    "no metrics": ("metrics.jsonl", "", "metrics.jsonl lacks epochs: it has 0, and evaluation.json came after 2"),
    "an older evaluation": ("evaluation.json", '{"elbo": 1, "epochs": 1}', "is older than the last epoch"),
    "within an epoch": ("evaluation.json", '{"elbo": 1, "epochs": 2.5}', "was measured within an epoch"),
    "not UTF-8": ("config.json", b"\xff\xfe", "config.json is not valid JSON"),
}


@pytest.mark.parametrize(("name", "content", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_named_and_others_are_read(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    make_run(tmp_path / "good", test={"elbo": -1.0})
    make_run(tmp_path / "bad", seed=1, test={"elbo": -1.0})
    (tmp_path / "bad" / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    runs, (problem,) = read_folders([tmp_path])
    assert message in problem
    assert str(tmp_path / "bad") in problem
    assert "\n" not in problem
    assert tmp_path / "good" in [run.path for run in runs]


@pytest.mark.parametrize(
    "change",
    [("1.25", HUGE), ("2.5", HUGE), ("-1.4285714285714286", HUGE), ("2.5", "true"), ("1.25", '"1"'), ("elbo", HALF)],
    ids=["seconds", "calls", "validation", "true calls", "seconds in words", "half a sign"],
)
def test_a_metric_that_is_not_a_number_is_named(tmp_path: Path, change: tuple[str, str]) -> None:
    folder = make_run(tmp_path / "run")
    folder.metrics_file.write_text(folder.metrics_file.read_text().replace(*change))
    with pytest.raises(ValueError, match=r"line 1 of .*metrics\.jsonl"):
        folder.metrics()


def test_pipes_and_devices_are_refused_without_waiting(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    folder.metrics_file.unlink()
    os.mkfifo(folder.metrics_file)
    with pytest.raises(ValueError, match=r"metrics\.jsonl is not a regular file"):
        folder.metrics()
    folder.checkpoint_file("last").parent.mkdir()
    folder.checkpoint_file("last").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=r"last\.pt is not a regular file"):
        folder.load("last")


def test_a_folder_is_locked_for_other_processes(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys; from sparsum_experiments.runs import RunFolder\n"
        "with RunFolder(pathlib.Path(sys.argv[1])).locked():\n    print('in', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdin is not None
    assert other.stdout.readline() == "in\n"
    with pytest.raises(ValueError, match="another process is training in"), RunFolder(tmp_path).locked():
        pass
    other.kill()  # the lock of a process that dies is free
    other.wait()
    other.stdin.close()
    other.stdout.close()
    with RunFolder(tmp_path).locked():
        pass


def test_what_killed_writers_left_is_removed(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (tmp_path / "run" / "checkpoints").mkdir()
    left = [tmp_path / "run" / ".metrics.jsonl.0a1b2c3d.tmp", tmp_path / "run" / "checkpoints" / ".last.pt.ffffffff.tmp"]
    for file in left:
        file.write_bytes(b"half")
    files.remove_temporaries(folder.path)
    assert not any(file.exists() for file in left)
    assert folder.metrics_file.exists()


def test_files_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        files.write_bytes(tmp_path / "file", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_is_named_itself(tmp_path: Path) -> None:
    (tmp_path / "page.html" / "folder").mkdir(parents=True)
    with pytest.raises(IsADirectoryError) as failure:
        files.write_bytes(tmp_path / "page.html", b"")
    assert str(failure.value).endswith(f": '{tmp_path / 'page.html'}'")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_every_damaged_block_of_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.save("last", {"model": {"weight": torch.randn(100, 100, generator=torch.Generator().manual_seed(0))}})
    file = folder.checkpoint_file("last")
    whole = file.read_bytes()
    for begin in range(0, len(whole), 4096):
        file.write_bytes(whole[:begin] + bytes(len(whole[begin : begin + 4096])) + whole[begin + 4096 :])
        with pytest.raises(ValueError, match="is corrupted or not a sparsum checkpoint; no code in it was executed"):
            folder.load("last")
    file.write_bytes(whole)
    assert folder.load("last") is not None
    for wrong, message in ((b"", "is empty"), (whole[:-10], "is corrupted"), (b"PK\x03\x04", "is corrupted")):
        file.write_bytes(wrong)
        with pytest.raises(ValueError, match=message):
            folder.load("last")


def test_text_is_utf8_whatever_the_locale(tmp_path: Path) -> None:
    make_run(tmp_path / "schön")
    program = (
        "import pathlib; from sparsum_experiments.runs import read_folders; print(len(read_folders([pathlib.Path('.')])[0]))"
    )
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"


def test_what_a_killed_writer_left_is_removed_at_the_next_write(tmp_path: Path) -> None:
    """Only what nobody is writing: not the files of living processes, of other machines, or of other names."""
    kill = "import os, signal; os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)"
    write = "import pathlib; from sparsum_experiments import files; files.write_bytes(pathlib.Path('x'), b'')"
    subprocess.run([sys.executable, "-c", f"{kill}\n{write}"], check=False, cwd=tmp_path)
    (left,) = tmp_path.iterdir()
    machine, process, token = left.name.removeprefix(".x.").removesuffix(".tmp").split("-")
    kept = [
        f".x.{machine}-{os.getppid()}-{token}.tmp",
        f".x.01234567-{process}-{token}.tmp",
        f".y.{machine}-{process}-{token}.tmp",
    ]
    for name in kept:
        (tmp_path / name).touch()
    files.write_bytes(tmp_path / "x", b"b")
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([*kept, "x"])
    assert (tmp_path / "x").read_bytes() == b"b"
