"""The folder of a sweep: a second sweep in it, and a disk that is full."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from sparsum_experiments.errors import UsageError
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.sweep import sweep_command
from sparsum_experiments.sweep.folder import full_disk_explained, sole_sweep

from tests.experiments.sweep.test_sweep import TINY

HOLDER = """
import pathlib, sys
from sparsum_experiments.sweep.folder import sole_sweep
with sole_sweep(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def command(out: Path, jobs: int = 1) -> int:
    options = TINY | {"epochs": 1}
    return sweep_command("ssvae", methods="sparse", options=options, grid=[], seeds=1, out=out, jobs=jobs, plan_only=False)


def test_a_second_sweep_in_a_folder_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    """Also after SIGKILL, which leaves the file of the lock."""
    words = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match=f"another sweep is running in {tmp_path}; wait for it, or give another --out"):
            command(tmp_path)
        assert not (tmp_path / "sparse").exists()
        first.kill()
    with sole_sweep(tmp_path):
        pass


def test_a_full_disk_stops_a_sweep_with_a_message_and_the_same_command_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint of the run does not fit; what was written before stays, and the run ends when there is room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "none", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root can make a small disk")
    try:
        assert command(disk / "out") == 1
        said = capsys.readouterr()
        assert "failed again and is given up" in said.err
        assert "the disk is full; free some space, then run" in said.out
        subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
        assert command(disk / "out") == 0
        assert len(RunFolder(disk / "out" / "sparse" / "seed-0").metrics()) == 1
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_sweep_that_cannot_write_its_own_files_says_so(tmp_path: Path) -> None:
    for number in (errno.ENOSPC, errno.EDQUOT):
        message = "log.txt: the disk is full; what the runs have saved is kept; free some space"
        with pytest.raises(OSError, match=message), full_disk_explained(tmp_path):
            raise OSError(number, "No space left on device", "log.txt")
    with pytest.raises(PermissionError, match="denied"), full_disk_explained(tmp_path):
        raise PermissionError(errno.EACCES, "denied")
