"""Tasks of the field: every row trains, records continue, and the pages show what was recorded."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch

from benchmarks.tasks import __main__ as command
from benchmarks.tasks import front
from benchmarks.tasks.records import FOLDER, MARKS, PAGES, Records, best_rate, table, with_tables
from benchmarks.tasks.task import AbstractTask, Column, Metrics, Options, Trial


class Toy(AbstractTask):
    """A task whose result is known."""

    name, about = "toy", "a task for tests"
    settings = ("easy", "hard")
    rows: ClassVar = {"ours": "a method", "theirs": "another"}
    rates, judge = (0.1, 0.2), "validation"
    columns: ClassVar = {"test": Column("test accuracy", ".1%"), "ms": Column("ms per step", with_spread=False)}
    left_out: ClassVar = {("hard", "theirs"): "it takes too long"}

    def train(self, trial: Trial, say: Callable[[str], None]) -> Metrics:
        """Better with the larger rate; the first seed of the other method diverges."""
        say("half done")
        is_lost = trial == Trial("easy", "theirs", 0.2, 0)
        return {
            "validation": trial.rate,
            "test": math.nan if is_lost else trial.rate + trial.seed / 100,
            "ms": 1.0,
            "curve": [1.0, 2.0],
        }


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> type[Toy]:
    monkeypatch.setattr(command, "TASKS", {"toy": ""})
    monkeypatch.setattr(command, "task_class", lambda name: Toy)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    return Toy


def test_rates_are_tuned_and_records_continue(
    toy: type[Toy], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interrupted command makes what is missing, and nothing twice."""
    out = ["toy", "--device", "cpu", "--out", str(tmp_path)]
    command.main([*out, "--rows", "ours", "--seeds", "2"])
    file = tmp_path / "toy.jsonl"
    first = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["seed"] for line in first] == [1000, 0, 1, 1000] * 2
    assert {line["rate"] for line in first if not line["is_tuning"]} == {0.2}
    assert first[0]["metrics"]["curve"] == [1.0, 2.0]
    capsys.readouterr()
    command.main([*out, "--seeds", "2"])
    assert all(line in file.read_text().splitlines() for line in map(json.dumps, first))
    shown = capsys.readouterr()
    assert "toy hard, theirs is left out: it takes too long" in shown.err
    assert shown.out.splitlines() == [
        "| easy | test accuracy | ms per step | learning rate | seeds |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| ours | 20.5% ± 0.7% | 1.00 | 0.2 | 2 |",
        "| theirs | 1 of 2 diverged | 1.00 | 0.2 | 2 |",
        "",
        "| hard | test accuracy | ms per step | learning rate | seeds |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| ours | 20.5% ± 0.7% | 1.00 | 0.2 | 2 |",
        "",
        "Not trained: theirs (it takes too long).",
    ]
    records = Records(file).read()
    assert best_rate(Toy, "easy", "ours", records) == 0.2
    before = file.read_text()
    command.main([*out, "--seeds", "2"])
    assert file.read_text() == before
    command.main([*out, "--seeds", "1", "--settings", "hard", "--rows", "theirs"])  # named, so not left out
    assert len(file.read_text().splitlines()) == len(before.splitlines()) + 3


def test_what_a_trial_kept_is_removed_once_it_is_recorded(
    toy: type[Toy], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(task: Toy, trial: Trial, say: Callable[[str], None]) -> Metrics:
        kept = task.kept(trial)
        assert kept == tmp_path / "toy" / "easy-ours-0-1-0.pt"
        kept.parent.mkdir()
        kept.touch()
        return {"validation": 1.0, "test": 1.0}

    monkeypatch.setattr(toy, "train", train)
    monkeypatch.setattr(toy, "rates", (0.1,))
    command.main(["toy", "--device", "cpu", "--out", str(tmp_path), "--settings", "easy", "--rows", "ours", "--seeds", "1"])
    (tmp_path / "toy" / "easy-ours-0-1-0.pt").touch()  # as if killed between both
    command.main(["toy", "--device", "cpu", "--out", str(tmp_path), "--settings", "hard", "--rows", "theirs", "--table"])
    command.main(["toy", "--device", "cpu", "--out", str(tmp_path), "--settings", "easy", "--rows", "ours", "--seeds", "1"])
    assert not list((tmp_path / "toy").iterdir())
    assert len(Records(tmp_path / "toy.jsonl").read()) == 1


def test_unknown_rows_and_settings_are_errors(toy: type[Toy], capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("rows", "settings"):
        with pytest.raises(SystemExit):
            command.main(["toy", f"--{name}", "mine"])
        assert f"--{name}: toy has no mine; known: " in capsys.readouterr().err


def test_the_front_page_shows_the_best_of_each_kind(
    toy: type[Toy], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best row of each kind with its name; a row of which a seed diverged is no candidate."""
    command.main(["toy", "--device", "cpu", "--out", str(tmp_path), "--seeds", "2"])
    monkeypatch.setattr(front, "task_class", lambda name: toy)
    line = front.Headline("toy", "easy", "A toy", "test", "accuracy", "12 %", ("ours",), ("theirs",))
    smaller = dataclasses.replace(line, metric="validation", ours=("theirs", "ours"), is_smaller_better=True)
    with pytest.raises(ValueError, match="none of the rows theirs has a result"):
        front.front([line], tmp_path)  # no sampler has a result
    monkeypatch.setattr(toy, "columns", toy.columns | {"validation": Column("validation")})
    command.main(["toy", "--device", "cpu", "--out", str(tmp_path), "--seeds", "3", "--settings", "hard", "--rows", "ours"])
    command.main(
        ["toy", "--device", "cpu", "--out", str(tmp_path), "--seeds", "1", "--settings", "hard", "--rows", "theirs"]
    )
    fewer = dataclasses.replace(line, setting="hard", metric="ms", ours=("theirs", "ours"), samplers=("ours",))
    assert front.front([fewer], tmp_path).endswith(
        "| 1.00 (ours) | 1.00 (ours) |"
    )  # not that of one seed, the first of equals
    lost = dataclasses.replace(line, samplers=())
    text = front.front([dataclasses.replace(line, samplers=("ours",)), smaller, lost], tmp_path)
    assert text.splitlines()[2:] == [
        "| [A toy](docs/tasks/toy.md) | accuracy | 12 % | 20.5% ± 0.7% (ours) | 20.5% ± 0.7% (ours) |",
        "| [A toy](docs/tasks/toy.md) | accuracy | 12 % | 0.20 ± 0.00 (theirs) | 0.20 ± 0.00 (theirs) |",
        "| [A toy](docs/tasks/toy.md) | accuracy | 12 % | none trained | 20.5% ± 0.7% (ours) |",
    ]


@pytest.mark.parametrize("name", command.TASKS)
def test_every_row_trains_and_repeats_itself(name: str, tmp_path: pathlib.Path) -> None:
    """A few steps of each row, on data that comes with a package; the same trial has the same result."""
    kind = command.task_class(name)
    assert kind.name == name
    task = kind(Options(torch.device("cpu"), "digits", is_quick=True))
    records = Records(tmp_path / f"{name}.jsonl")
    for setting in kind.settings:
        for row in kind.rows:
            if not task.reason(setting, row):
                trial = Trial(setting, row, kind.rates[0], 0)
                metrics = task.train(trial, lambda text: None)
                assert kind.judge in metrics
                assert set(kind.columns) & set(metrics)
                records.add(trial, metrics, {})
    assert table(kind, records.read()).count("\n| ") >= len(kind.rows)


@pytest.mark.parametrize("name", command.TASKS)
def test_pages_show_the_record(name: str) -> None:
    """The tables of a page are those of the record in results/tasks, for all rows that are not left out."""
    kind, page = command.task_class(name), PAGES / f"{name}.md"
    found = Records(FOLDER / f"{name}.jsonl").read()
    text = page.read_text(encoding="utf-8")
    assert text == with_tables(text, table(kind, found)), f"python -m benchmarks.tasks {name} --write"
    made = {(trial.setting, trial.row) for trial in found if not trial.is_tuning}
    left_out = {(setting, row) for setting in kind.settings for row in kind.rows if kind.reason(setting, row)}
    assert made | left_out == {(setting, row) for setting in kind.settings for row in kind.rows}
    assert all(mark in text for mark in MARKS)


def test_the_front_pages_show_the_records() -> None:
    """The table of README and of the tasks' first page."""
    for page, text in ((front.README, front.front()), (PAGES / "index.md", front.front().replace("(docs/tasks/", "("))):
        shown = page.read_text(encoding="utf-8")
        assert shown == with_tables(shown, text), "python -m benchmarks.tasks.front --write"
