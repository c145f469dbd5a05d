"""The comparison of remedies against collapse runs, and continues."""

from __future__ import annotations

import json
import pathlib

import pytest

from benchmarks import collapse


def test_an_interrupted_comparison_continues(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.jsonl"
    options = ["--quick", "--tasks", "game", "--file", str(file), "--remedies"]
    collapse.main([*options, "norm"])
    first = file.read_text()
    assert len(first.splitlines()) == 3
    capsys.readouterr()
    collapse.main([*options, "nothing", "norm"])
    assert file.read_text().startswith(first)  # those runs were not made again
    values = [json.loads(line) for line in file.read_text().splitlines()]
    assert [value["remedy"] for value in values] == ["norm"] * 3 + ["nothing"] * 3
    assert all(0 <= value["used"] <= 1 <= value["atoms"] for value in values)
    table = [line for line in capsys.readouterr().out.splitlines() if line]
    assert [line.split("|")[1].strip() for line in table] == ["game, 1 seeds", "---", "nothing", "norm"]


@pytest.mark.parametrize("task", collapse.TASKS)
@pytest.mark.parametrize("remedy", collapse.REMEDIES)
def test_every_remedy_trains_every_task(task: str, remedy: str) -> None:
    run = collapse.Run(task, remedy, 1e-3, 0)
    assert run.train(3) == run.train(3)
