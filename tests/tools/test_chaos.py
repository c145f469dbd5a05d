"""A short run of the tool that kills commands; `make chaos` runs it for long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tools.chaos import difference, without_times


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_commands_that_are_killed_lose_nothing() -> None:
    """Each kind of command is killed at least once, resumed and compared."""
    words = [sys.executable, "-m", "tools.chaos", "--kills", "10", "--seed", "1"]
    done = subprocess.run(words, cwd=Path(__file__).parents[2], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 defects" in done.stdout.splitlines()[-1]


def test_differences_are_found() -> None:
    """In tensors, lists, names and values, wherever they are; times do not count."""
    one = {"model": {"w": torch.ones(2)}, "lines": [{"loss": 1.0}, {"loss": 2.0}]}
    assert not difference(one, {"model": {"w": torch.ones(2)}, "lines": [{"loss": 1.0}, {"loss": 2.0}]})
    assert difference(one, one | {"model": {"w": torch.zeros(2)}}) == ".model.w: the tensors differ"
    assert difference(one, one | {"lines": [{"loss": 1.0}]}) == ".lines: 2 entries and 1"
    assert difference(one, one | {"lines": [{"loss": 1.0}, {"loss": 3.0}]}) == ".lines[1].loss: '2.0' and '3.0'"
    assert "['best'] in one of them alone" in difference(one, one | {"best": 1})
    assert without_times({"lines": [{"loss": 1.0, "seconds": 3.0}]}) == {"lines": [{"loss": 1.0}]}
