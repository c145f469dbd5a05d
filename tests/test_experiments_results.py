"""Records of runs: where they go, what is in them, and what cannot be recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparsum.experiments.registry import make_args
from sparsum.experiments.report import RECORD_KEYS, read_record, read_sections
from sparsum.experiments.results import write_records
from sparsum.experiments.runs import RunFolder


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
    with pytest.raises(ValueError, match=message):
        write_records([tmp_path / "runs"], tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_two_runs_do_not_share_a_record(tmp_path: Path) -> None:
    for name, rate in (("one", 0.1), ("two", 0.2)):
        make_run(tmp_path / "runs" / name, test={"elbo": -1.0}, lr=rate)
    with pytest.raises(ValueError, match=r"as another run with lr = 0\.1\nnothing was written"):
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


@pytest.mark.parametrize("variant", ["../x", "A", "a b", "-a"])
def test_a_variant_is_part_of_a_name(tmp_path: Path, variant: str) -> None:
    with pytest.raises(ValueError, match="--variant"):
        write_records([tmp_path], tmp_path / "results", variant)


@pytest.mark.parametrize("text", ["", "[]", '{"experiment": "ssvae"}'])
def test_what_is_no_record_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "seed-0.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"seed-0\.json is no"):
        read_record(file)
