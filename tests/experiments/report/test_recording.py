"""`sparsum record`: what is kept of runs, and which runs cannot be recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sparsum_experiments.report.recording import record_runs
from sparsum_experiments.runs import RunFolder, read_records, records_file

from tests.experiments.runs.making import make_run


def records(folder: Path) -> list[Any]:
    found, problems = read_records(records_file(folder, "bitvector-vae"))
    assert not problems
    return found


def test_a_record_holds_config_and_metrics(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one", seed=3, bits=16, test={"elbo": -2 / 3, "elbo_se": 0.25})
    (line,) = record_runs([tmp_path / "runs"], tmp_path / "results", "nested")
    assert line == f"{tmp_path / 'results' / 'bitvector-vae.jsonl.gz'}: 1 run"
    (record,) = records(tmp_path / "results")
    assert (record.method, record.bits, record.variant, record.seed) == ("topk", 16, "nested", 3)
    assert record.name == "topk-16-nested"
    config = record.config.model_dump()
    assert config["k"] == 10
    assert "data_dir" not in config
    assert "device" not in config
    assert record.test == {"elbo": -0.666667, "elbo_se": 0.25, "n_samples": 4}
    assert record.versions == {"git": "abc", "machine": "a CPU", "torch": "2"}
    assert record.seconds == 2.5
    assert record.epochs["validation"] == {"elbo": [-1.42857, -1.42857]}


def test_records_are_added_to_those_that_exist(tmp_path: Path) -> None:
    for seed in range(2):
        make_run(tmp_path / str(seed), seed=seed, test={"elbo": -1.0})
        record_runs([tmp_path / str(seed)], tmp_path / "results")
    assert [record.seed for record in records(tmp_path / "results")] == [0, 1]
    before = records_file(tmp_path / "results", "bitvector-vae").read_bytes()
    record_runs([tmp_path / "0"], tmp_path / "results")  # the same once more
    assert records_file(tmp_path / "results", "bitvector-vae").read_bytes() == before


def test_options_of_a_newer_version_do_not_tell_settings_apart(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", test={"elbo": -1.0})
    record_runs([tmp_path / "run"], tmp_path / "results")
    config = json.loads(folder.config_file.read_text())
    del config["args"]["score_temperature"]  # as an older version wrote it
    folder.config_file.write_text(json.dumps(config))
    record_runs([tmp_path / "run"], tmp_path / "results")
    assert len(records(tmp_path / "results")) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [({"n_epochs": 1, "test": {}}, "has 1 of 2 epochs"), ({}, "is not evaluated: run sparsum evaluate")],
    ids=["unfinished", "not evaluated"],
)
def test_half_a_run_is_not_recorded_nor_any_beside_it(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    make_run(tmp_path / "runs" / "whole", test={"elbo": -1.0})
    make_run(tmp_path / "runs" / "half", seed=1, **options)
    with pytest.raises(ValueError, match=message) as caught:
        record_runs([tmp_path / "runs"], tmp_path / "results")
    assert "--variant" not in str(caught.value)
    assert not (tmp_path / "results").exists()


def test_two_settings_do_not_share_a_record(tmp_path: Path) -> None:
    for name, rate in (("one", 0.1), ("two", 0.2)):
        make_run(tmp_path / "runs" / name, test={"elbo": -1.0}, lr=rate)
    message = r"of a run with lr = 0\.1; runs with other settings of a method need a --variant\nnothing was written"
    with pytest.raises(ValueError, match=message):
        record_runs([tmp_path / "runs"], tmp_path / "results")
    record_runs([tmp_path / "runs" / "one"], tmp_path / "results")
    before = records_file(tmp_path / "results", "bitvector-vae").read_bytes()
    with pytest.raises(ValueError, match=message):
        record_runs([tmp_path / "runs" / "two"], tmp_path / "results")
    assert records_file(tmp_path / "results", "bitvector-vae").read_bytes() == before


@pytest.mark.parametrize(
    ("experiment", "method"),
    [("../../x", "topk"), ("bitvector-vae", "../../x"), ("/x", "y"), ("bitvector-vae", "another")],
)
def test_a_strangers_config_does_not_choose_where_records_go(tmp_path: Path, experiment: str, method: str) -> None:
    folder = make_run(tmp_path / "a" / "b" / "run", test={"elbo": -1.0})
    config = json.loads(folder.config_file.read_text())
    config |= {"experiment": experiment, "args": config["args"] | {"method": method}}
    folder.config_file.write_text(json.dumps(config))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=r"there is no experiment|has no method"):
        record_runs([tmp_path / "a"], tmp_path / "a" / "b" / "results", latent=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_broken_file_of_records_is_not_overwritten(tmp_path: Path) -> None:
    make_run(tmp_path / "run", test={"elbo": -1.0})
    file = records_file(tmp_path / "results", "bitvector-vae")
    file.parent.mkdir()
    file.write_bytes(b"not gzip")
    with pytest.raises(ValueError, match=r"jsonl\.gz is not a gzip file"):
        record_runs([tmp_path / "run"], tmp_path / "results")
    assert file.read_bytes() == b"not gzip"


def test_metrics_that_json_cannot_hold_are_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", test={"elbo": float("nan"), "rate": 1.0})
    with pytest.raises(ValueError, match=r"test\.elbo must be a finite number, got nan"):
        record_runs([tmp_path / "run"], tmp_path / "results")
    assert not (tmp_path / "results").exists()
    assert RunFolder(folder.path).exists()


@pytest.mark.parametrize("variant", ["../x", "A", "a b", "-a", "a" * 300])
def test_a_variant_is_part_of_a_name(tmp_path: Path, variant: str) -> None:
    with pytest.raises(ValueError, match="--variant"):
        record_runs([tmp_path], tmp_path / "results", variant)


def test_places_without_runs_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no run in or below"):
        record_runs([tmp_path], tmp_path / "results")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="--out must be a folder"):
        record_runs([tmp_path], tmp_path / "file")
