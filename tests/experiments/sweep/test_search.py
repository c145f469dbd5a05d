"""Searches: the settings that are drawn, those that are stopped early, and what reports and later sweeps make of them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sparsum_experiments.errors import UsageError
from sparsum_experiments.report.comparison import read_comparisons
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.sweep import Phase, PlannedRun, make_plan, sweep, sweep_command
from sparsum_experiments.sweep.launch import Entry
from sparsum_experiments.sweep.plan import State, parse_grid, state_of
from sparsum_experiments.sweep.search import rungs_of, search
from sparsum_experiments.sweep.settings import Range, drawn_settings, every_setting
from sparsum_experiments.sweep.tuned import tuned_settings
from sparsum_experiments.training.start import run as train

from tests.experiments.sweep.finished import write_finished
from tests.experiments.sweep.test_sweep import TINY, Quiet


def planned(out: Path, n: int, *, epochs: int = 9, seeds: int = 1, method: str = "sparse") -> list[PlannedRun]:
    grid = {"lr": Range(1e-4, 1e-1)}
    return make_plan("ssvae", [method], TINY | {"epochs": epochs}, grid, seeds, out, n_drawn=n)


class Launcher:
    """Writes the metrics that a run would have; a larger learning rate is better, and one may fail or stop the search."""

    def __init__(self, *, fails: str = "", interrupts: int = 0) -> None:
        self.fails, self.interrupts, self.rounds = fails, interrupts, list[list[tuple[str, int]]]()

    def __call__(self, plan: Sequence[PlannedRun]) -> tuple[list[Entry], bool]:
        self.rounds.append([(run.key, run.until or run.args.epochs) for run in plan])
        if len(self.rounds) == self.interrupts:
            return [Entry(run, Phase.WAITING) for run in plan], True
        for run in plan:
            if self.fails not in run.key or not self.fails:
                write_finished_until(run)
        phases = [Phase.FINISHED if state_of(run) is State.FINISHED else Phase.FAILED for run in plan]
        return [Entry(run, phase) for run, phase in zip(plan, phases, strict=True)], False


def write_finished_until(run: PlannedRun) -> None:
    n_epochs = run.until or run.args.epochs
    if len(RunFolder(run.folder).metrics()) < n_epochs:
        RunFolder(run.folder).metrics_file.unlink(missing_ok=True)
        write_finished(run, [run.args.lr * (epoch + 1) for epoch in range(n_epochs)])


@given(
    low=st.floats(1e-6, 10), factor=st.floats(1.01, 1e6), n=st.integers(1, 20), more=st.integers(0, 20), ks=st.integers(1, 9)
)
def test_drawn_settings_are_different_in_range_and_the_beginning_of_longer_searches(
    low: float, factor: float, n: int, more: int, ks: int
) -> None:
    grid = {"lr": Range(low, low * factor), "k": list(range(ks))}
    found, longer = drawn_settings(grid, n), drawn_settings(grid, n + more)
    assert longer[: len(found)] == found
    assert len({repr(setting) for setting in longer}) == len(longer) <= n + more
    assert all(low <= setting["lr"] <= low * factor and setting["k"] in range(ks) for setting in longer)
    alone = drawn_settings({"k": list(range(ks))}, 100)
    assert sorted(setting["k"] for setting in alone) == list(range(ks)), "all, where there are fewer"


def test_ranges_are_drawn_by_their_logarithm_and_whole_numbers_stay_whole() -> None:
    grid = parse_grid("ssvae", ["lr=1e-4..1e-2", "batch-size=8..64", "weight-decay=0..1"])
    found = drawn_settings(grid, 400)
    below = sum(setting["lr"] < 1e-3 for setting in found)
    assert abs(below - 200) < 60, "half of them below the geometric mean: 200 with a standard deviation of 10"
    assert {type(setting["batch_size"]) for setting in found} == {int}
    assert {setting["batch_size"] for setting in found} <= set(range(8, 65))
    assert abs(sum(setting["weight_decay"] < 0.5 for setting in found) - 200) < 60


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("lr=1e-2..1e-4", "--grid lr=1e-2..1e-4: --lr: a range must be of numbers, the smaller one first"),
        ("lr=1e-4..x", "--lr: 'x' is not a number"),
        ("lr=1e-4..", "is not a number"),
        ("precision=32..bf16-mixed", "a range must be of numbers"),
        ("rate=1..2", "'rate' cannot be in a grid of ssvae"),
    ],
)
def test_wrong_ranges_are_named(grid: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_grid("ssvae", [grid])


def test_what_a_search_needs_is_said(tmp_path: Path) -> None:
    words: dict[str, Any] = {"methods": "sparse", "options": {}, "seeds": 1, "jobs": 1, "out": tmp_path, "plan_only": True}
    with pytest.raises(UsageError, match="--search draws settings from --grid"):
        sweep_command("ssvae", **words, grid=[], search=3)
    with pytest.raises(UsageError, match="give --epochs, and not --grid epochs"):
        sweep_command("ssvae", **words, grid=["epochs=1,2"], search=3)
    with pytest.raises(UsageError, match="--grid lr is a range, from which --search N draws"):
        sweep_command("ssvae", **words, grid=["lr=1e-4..1e-2"])
    with pytest.raises(UsageError, match="--grid weight-decay is a range"):
        every_setting({"weight_decay": Range(0.1, 0.2)})


@given(n=st.integers(1, 1000), n_epochs=st.integers(1, 1000))
def test_rungs_rise_to_the_end_and_leave_a_setting_for_each(n: int, n_epochs: int) -> None:
    rungs = rungs_of(n, n_epochs)
    assert rungs[-1] == n_epochs
    assert rungs == sorted(set(rungs))
    assert rungs[0] >= 1
    assert n // 3 ** (len(rungs) - 1) >= 1


def test_the_best_third_continues_and_the_others_are_stopped(tmp_path: Path) -> None:
    plan, launch, said = planned(tmp_path, 9, seeds=2), Launcher(), list[str]()
    entries, is_interrupted, trials = search(plan, launch, said.append)
    assert not is_interrupted
    assert [len(each) for each in launch.rounds] == [18, 6, 2]
    assert [{until for _, until in each} for each in launch.rounds] == [{1}, {3}, {9}]
    order = sorted(trials, key=lambda trial: -float(trial.setting["lr"]))
    assert [trial.n_epochs for trial in order] == [9, 3, 3] + [1] * 6
    assert [trial.fate for trial in order] == ["finished"] + ["stopped"] * 8
    assert order[1].score == pytest.approx(3 * order[1].setting["lr"])
    assert [entry.phase for entry in entries] == [Phase.FINISHED] * 18
    assert said[0] == "search: 3 of 9 settings of sparse continue after epoch 1"


def test_an_interrupted_search_comes_to_the_same_decisions(tmp_path: Path) -> None:
    plan = planned(tmp_path, 9)
    entries, is_interrupted, _ = search(plan, Launcher(interrupts=2), lambda _: None)
    assert is_interrupted
    assert sum(entry.phase is Phase.WAITING for entry in entries) == 3
    again = Launcher()
    _, _, trials = search(plan, again, lambda _: None)
    whole = Launcher()
    other = search(planned(tmp_path / "whole", 9), whole, lambda _: None)[2]
    assert again.rounds == whole.rounds
    assert [(trial.fate, trial.score) for trial in trials] == [(trial.fate, trial.score) for trial in other]
    before = [RunFolder(run.folder).metrics() for run in plan]
    search(plan, Launcher(), lambda _: None)  # runs that are further by now are compared where they were
    assert [RunFolder(run.folder).metrics() for run in plan] == before


def test_a_setting_that_fails_does_not_continue(tmp_path: Path) -> None:
    plan = planned(tmp_path, 4)
    best = max(plan, key=lambda run: run.args.lr)
    entries, _, trials = search(plan, Launcher(fails=best.key), lambda _: None)
    assert [trial.fate for trial in trials if trial.runs[0] is best] == ["failed"]
    assert sum(trial.fate == "finished" for trial in trials) == 1
    assert all(math.isnan(trial.score) == (trial.fate == "failed") for trial in trials)
    assert [entry.phase for entry in entries if entry.run is not best].count(Phase.FAILED) == 1
    _, _, none = search(planned(tmp_path / "none", 4), Launcher(fails="sparse"), lambda _: None)
    assert [trial.fate for trial in none] == ["failed"] * 4


def test_reports_say_what_was_tried_and_tuned_by_takes_what_is_left(tmp_path: Path) -> None:
    plan = planned(tmp_path / "found", 4)
    search(plan, Launcher(), lambda _: None)
    best = max(run.args.lr for run in plan)
    (table,), problems = read_comparisons([tmp_path])
    assert not problems
    assert len(table.rows) == 1
    (note,) = [text for text in table.notes if "search" in text]
    assert note.startswith("A search tried sparse: 4 settings, of which it stopped lr ")
    assert note.count("after epoch 3 (rank ") == 3
    assert f"lr {best:g} " not in note
    (choice,) = tuned_settings("ssvae", ["sparse"], TINY | {"epochs": 9}, (), tmp_path / "found", tmp_path / "new")
    assert choice.values["lr"] == best
    assert "the best of 4 settings" in choice.reason
    stopped = min(plan, key=lambda run: run.args.lr)
    write_finished_until(stopped)  # when it is continued after all, it is a run like others
    assert RunFolder(stopped.folder).stop(9) == {}


def test_a_run_that_paused_equals_one_that_did_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit; while it pauses, it is a run that was interrupted."""
    monkeypatch.setenv("SPARSUM_CACHE", str(tmp_path / "cache"))
    options = TINY | {"epochs": 4}
    (run,) = make_plan("ssvae", ["sparse"], options, {}, 1, tmp_path / "paused")
    (entry,), _ = sweep([dataclasses.replace(run, until=2)], 1, Quiet())
    assert (entry.phase, len(RunFolder(run.folder).metrics())) == (Phase.FINISHED, 2)
    assert state_of(run) is State.PARTIAL
    assert RunFolder(run.folder).config().args.epochs == 4
    before = torch.get_num_threads()
    torch.set_num_threads(RunFolder(run.folder).config().threads or 1)
    try:
        _, paused = train("ssvae", "sparse", {}, out=run.folder, resume=True)
        _, straight = train("ssvae", "sparse", options, out=tmp_path / "straight")
    finally:
        torch.set_num_threads(before)
    assert len(paused) == 4
    for name in ("epoch", "train", "validation", "calls"):
        assert json.dumps([line[name] for line in paused]) == json.dumps([line[name] for line in straight])
