"""Records of runs: where they go, what is in them, and what cannot be recorded."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest
from sparsum_experiments.files import write_bytes
from sparsum_experiments.registry import make_args
from sparsum_experiments.report import (
    RECORD_KEYS,
    markdown,
    read_comparisons,
    read_record,
    read_sections,
    write_report,
)
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.runs.records import write_records


def make_run(path: Path, *, seed: int = 0, n_epochs: int = 2, test: dict[str, float] | None = None, **options: Any) -> None:
    """A run as training and evaluation leave it, without either."""
    args = make_args("bitvector-vae", "topk", {"epochs": 2, "seed": seed, "data_dir": "/somewhere/else", **options})
    folder = RunFolder(path)
    folder.create("bitvector-vae", args)
    for epoch in range(n_epochs):
        line = {"epoch": epoch, "train": {"loss": 1 / 3}, "validation": {"elbo": -10 / 7}, "calls": {"mean": 2.5}}
        folder.add_metrics(line | {"seconds": 1.25, "validation_seconds": 0.5, "peak_memory_mb": 100.0})
    if test is not None:
        (path / "evaluation.json").write_text(json.dumps(test | {"epochs": float(n_epochs), "n_samples": 4}))


def test_a_record_says_what_the_run_was_told_and_measured(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one", seed=3, bits=16, test={"elbo": -2 / 3, "elbo_se": 0.25})
    (file,) = write_records([tmp_path / "runs"], tmp_path / "results", "nested")
    assert file == tmp_path / "results" / "bitvector-vae" / "topk-16-nested" / "seed-3.json"
    record = json.loads(file.read_text())
    assert tuple(record) == RECORD_KEYS
    assert (record["method"], record["bits"], record["variant"], record["seed"]) == ("topk", 16, "nested", 3)
    assert record["config"]["k"] == 10
    assert record["test"] == {"elbo": -0.666667, "elbo_se": 0.25, "n_samples": 4}
    assert "git" in record["versions"]
    assert "machine" in record["versions"]
    assert record["seconds"] == 2.5
    assert record["epochs"]["validation"] == {"elbo": [-1.42857, -1.42857]}
    assert "torch" in record["versions"]
    assert "/somewhere/else" not in file.read_text()


def test_a_record_is_read_as_its_run(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", test={"elbo": -1.0})
    (file,) = write_records([tmp_path / "runs"], tmp_path / "results")
    run = read_record(file)
    assert run.is_finished
    assert (run.experiment, run.args["method"], run.test) == ("bitvector-vae", "topk", {"elbo": -1.0})
    assert run.seconds == 2.5
    assert run.lines[1] == {
        "train": {"loss": 0.333333},
        "validation": {"elbo": -1.42857},
        "calls": {"mean": 2.5},
        "seconds": 1.25,
    }


def test_a_record_of_an_older_version_is_of_the_same_run(tmp_path: Path) -> None:
    """An option that it did not know is at its default."""
    make_run(tmp_path / "runs", test={"elbo": -1.0})
    (file,) = write_records([tmp_path / "runs"], tmp_path / "results")
    record = json.loads(file.read_text())
    del record["config"]["score_temperature"]
    file.write_text(json.dumps(record))
    (section,), problems = read_sections([tmp_path])
    assert not problems
    assert len(section.records) == 1
    assert write_records([tmp_path / "runs"], tmp_path / "results") == [file]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"n_epochs": 1, "test": {}}, "has 1 of 2 epochs"), ({}, "is not evaluated")],
    ids=["unfinished", "not evaluated"],
)
def test_half_a_run_is_not_recorded_nor_any_beside_it(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    make_run(tmp_path / "runs" / "whole", test={"elbo": -1.0})
    make_run(tmp_path / "runs" / "half", seed=1, **options)
    with pytest.raises(ValueError, match=message) as caught:
        write_records([tmp_path / "runs"], tmp_path / "results")
    assert "--variant" not in str(caught.value)
    assert not (tmp_path / "results").exists()


def test_two_runs_do_not_share_a_record(tmp_path: Path) -> None:
    for name, rate in (("one", 0.1), ("two", 0.2)):
        make_run(tmp_path / "runs" / name, test={"elbo": -1.0}, lr=rate)
    with pytest.raises(ValueError, match=r"as another run with lr = 0\.1; .* need a --variant\nnothing was written"):
        write_records([tmp_path / "runs"], tmp_path / "results")


def test_a_record_is_not_overwritten_by_another_setting(tmp_path: Path) -> None:
    for name, rate in (("one", 0.1), ("two", 0.2)):
        make_run(tmp_path / "runs" / name, test={"elbo": -1.0}, lr=rate)
    (file,) = write_records([tmp_path / "runs" / "one"], tmp_path / "results")
    before = file.read_text()
    with pytest.raises(ValueError, match=r"as another run with lr = 0\.1"):
        write_records([tmp_path / "runs" / "two"], tmp_path / "results")
    assert file.read_text() == before
    assert write_records([tmp_path / "runs" / "one"], tmp_path / "results") == [file]  # the same once more


def test_a_broken_record_is_not_overwritten(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", test={"elbo": -1.0})
    (file,) = write_records([tmp_path / "runs"], tmp_path / "results")
    file.write_text("{")
    with pytest.raises(ValueError, match=r"seed-0\.json is no JSON.*; remove it to write another\nnothing was written"):
        write_records([tmp_path / "runs"], tmp_path / "results")


def test_records_go_into_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="--out must be a folder"):
        write_records([tmp_path], tmp_path / "file")


def test_no_run_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no run in or below"):
        write_records([tmp_path], tmp_path / "results")


def test_an_evaluation_in_the_middle_of_an_epoch_says_so(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", n_epochs=1)
    (tmp_path / "runs" / "evaluation.json").write_text(json.dumps({"elbo": -1.0, "epochs": 1.5}))
    with pytest.raises(ValueError, match="of the middle of an epoch"):
        write_records([tmp_path / "runs"], tmp_path / "results")


@pytest.mark.parametrize("variant", ["../x", "A", "a b", "-a", "a" * 300])
def test_a_variant_is_part_of_a_name(tmp_path: Path, variant: str) -> None:
    with pytest.raises(ValueError, match="--variant"):
        write_records([tmp_path], tmp_path / "results", variant)


@pytest.mark.parametrize("text", ["", "[]", '{"experiment": "ssvae"}', '{"a": NaN}', "[" * 100_000])
def test_what_is_no_record_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "seed-0.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"seed-0\.json is n"):
        read_record(file)


DEEP, HUGE, HALF = "[" * 100_000, "1" + "0" * 400, "\\ud800"


def left_out(*places: Path, out: Path) -> list[str]:
    """What a report says of files that it cannot read, after it was written to the end in all its forms."""
    tables, _ = read_comparisons(places)
    markdown(tables, [])
    _, problems = read_sections(places)
    page = write_report(places, out).read_text()
    assert all(html.escape(problem) in page for problem in problems)
    return problems


BROKEN_FILES = {
    "deep metrics": ("metrics.jsonl", DEEP + "\n", "metrics.jsonl is nested too deeply"),
    "deep config": ("config.json", DEEP, "config.json is nested too deeply"),
    "deep evaluation": ("evaluation.json", DEEP, "evaluation.json is nested too deeply"),
    "deeper than Python": ("evaluation.json", '{"a":' * 900 + "1" + "}" * 900, "evaluation.json is nested too deeply"),
    "huge evaluation": (
        "evaluation.json",
        f'{{"elbo": {HUGE}}}',
        "evaluation.json is no JSON: a whole number of 401 digits",
    ),
    "too large a float": ("evaluation.json", '{"elbo": 1e400}', "evaluation.json is no JSON: 1e400 is too large"),
    "evaluation in words": ("evaluation.json", '{"elbo": "good"}', "evaluation.json holds no number for elbo"),
    "evaluation of nulls": ("evaluation.json", '{"elbo": null}', "evaluation.json holds no number for elbo"),
    "evaluation of nothing": ("evaluation.json", '{"epochs": 2}', "evaluation.json holds no metrics"),
    "no metrics": ("metrics.jsonl", "", "metrics.jsonl is missing or lacks epochs: it has 0, and evaluation.json is of 2"),
}


@pytest.mark.parametrize(("name", "text", "message"), BROKEN_FILES.values(), ids=BROKEN_FILES)
def test_a_broken_file_of_a_run_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    make_run(tmp_path / "good", test={"elbo": -1.0})
    make_run(tmp_path / "bad", seed=1, test={"elbo": -1.0})
    (tmp_path / "bad" / name).write_text(text)
    (problem,) = left_out(tmp_path, out=tmp_path / "page.html")
    assert message in problem
    assert f"{tmp_path / 'bad'}" in problem


@pytest.mark.parametrize(
    "change",
    [("1.25", HUGE), ("2.5", HUGE), ("-1.4285714285714286", HUGE), ("2.5", "true"), ("1.25", '"1"'), ("elbo", HALF)],
    ids=["seconds", "calls", "validation", "true calls", "seconds in words", "half a sign"],
)
def test_a_measurement_that_is_no_number_is_named(tmp_path: Path, change: tuple[str, str]) -> None:
    make_run(tmp_path / "good", test={"elbo": -1.0})
    make_run(tmp_path / "bad", seed=1)
    file = tmp_path / "bad" / "metrics.jsonl"
    assert change[0] in file.read_text()
    file.write_text(file.read_text().replace(*change))
    (problem,) = left_out(tmp_path, out=tmp_path / "page.html")
    assert f"line 1 of {file}" in problem


def test_missing_metrics_are_told_as_such(tmp_path: Path) -> None:
    make_run(tmp_path / "run", test={"elbo": -1.0})
    (tmp_path / "run" / "metrics.jsonl").unlink()
    (problem,) = left_out(tmp_path, out=tmp_path / "page.html")
    assert f"{tmp_path / 'run' / 'metrics.jsonl'} is missing or lacks epochs" in problem


def test_an_evaluation_that_is_a_folder_does_not_hide_its_run(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    (tmp_path / "run" / "evaluation.json").mkdir()
    (problem,) = left_out(tmp_path, out=tmp_path / "page.html")
    assert "evaluation.json" in problem
    assert len(read_sections([tmp_path])[0][0].records) == 1


@pytest.mark.parametrize("command", [3, [1], {"a": 1}, None])
def test_an_odd_command_is_not_shown(tmp_path: Path, command: Any) -> None:
    make_run(tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    (tmp_path / "run" / "config.json").write_text(json.dumps(config | {"command": command}))
    assert not left_out(tmp_path, out=tmp_path / "page.html")


ODD: dict[str, list[dict[str, Any]]] = {
    "config": [
        *({"bits": value} for value in ("six", [], [8], True, 1.5)),
        *({"epochs": value} for value in (None, [2], float("nan"), "many", True, 10**400)),
        *({"method": value} for value in (["topk"], {"a": 1}, None, "\ud800")),
        *({"data": value} for value in (None, 3, ["digits"])),
        *({"seed": value} for value in (float("nan"), None, "0", True)),
        *({"lr": value} for value in (float("inf"), 10**400)),
    ],
    "test": [{"elbo": value} for value in (True, 10**400, float("inf"), "good", None, [1])],
    "epochs": [{"seconds": value} for value in ([1.0], [1.0] * 3, 1.0, "ab", [None] * 2, [True] * 2, [10**400] * 2)],
    "": [
        *({"experiment": value} for value in (["bitvector-vae"], 3, None, "another")),
        *({"variant": value} for value in ("\ud800", ["a"], 3)),
        *({name: None} for name in ("config", "epochs", "test")),
    ],
}


@pytest.mark.parametrize(
    ("part", "change"), [(part, change) for part, changes in ODD.items() for change in changes], ids=lambda x: repr(x)[:40]
)
def test_an_odd_record_is_left_out_by_its_name(tmp_path: Path, part: str, change: dict[str, Any]) -> None:
    for seed in range(2):
        make_run(tmp_path / "runs" / str(seed), seed=seed, test={"elbo": -1.0})
    _, file = write_records([tmp_path / "runs"], tmp_path / "results")
    record = json.loads(file.read_text())
    (record[part] if part else record).update(change)
    file.write_text(json.dumps(record))
    (problem,) = left_out(tmp_path / "results", out=tmp_path / "page.html")
    assert str(file) in problem
    assert "\n" not in problem
    assert len(read_sections([tmp_path / "results"])[0][0].records) == 1


def test_lists_of_different_lengths_are_told(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", test={"elbo": -1.0})
    (file,) = write_records([tmp_path / "runs"], tmp_path / "results")
    record = json.loads(file.read_text())
    record["epochs"]["train"]["loss"].append(1.0)
    file.write_text(json.dumps(record))
    with pytest.raises(ValueError, match="lists of epochs have different lengths, from 2 to 3"):
        read_record(file)


def test_what_no_record_can_hold_is_named_with_its_file(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", test={"elbo": float("nan"), "rate": 1.0})
    file = tmp_path / "runs" / "metrics.jsonl"
    file.write_text(file.read_text().replace("0.3333333333333333", "Infinity"))
    with pytest.raises(ValueError, match="has no finite number for") as failure:
        write_records([tmp_path / "runs"], tmp_path / "results")
    assert f"{tmp_path / 'runs' / 'evaluation.json'} has no finite number for elbo\n" in str(failure.value)
    assert f"{file} has no finite number for loss\n" in str(failure.value)
    assert not (tmp_path / "results").exists()


def test_a_file_that_cannot_be_written_is_named_itself(tmp_path: Path) -> None:
    (tmp_path / "page.html" / "folder").mkdir(parents=True)
    with pytest.raises(IsADirectoryError) as failure:
        write_bytes(tmp_path / "page.html", b"")
    assert str(failure.value).endswith(f": '{tmp_path / 'page.html'}'")
    long = tmp_path / ("a" * 300)
    with pytest.raises(OSError, match="too long") as failure_of_name:
        write_bytes(long, b"")
    assert failure_of_name.value.filename == str(long)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
