"""Files of records: what they hold, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sparsum_experiments.registry import NAMES
from sparsum_experiments.runs import read_records, read_run, read_runs, record_of, records_file, write_records

from tests.experiments.runs.making import make_run

DEEP = json.dumps({".".join("a" * 5000): 1})
RESULTS = Path(__file__).parents[3] / "results"


def write_lines(file: Path, lines: list[str]) -> None:
    file.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(errors="surrogatepass")))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of two records."""
    for seed in range(2):
        make_run(tmp_path / "runs" / str(seed), seed=seed, test={"elbo": -1.0, "elbo_se": 0.1})
    runs = [read_run(tmp_path / "runs" / str(seed)) for seed in range(2)]
    found = records_file(tmp_path / "results", "bitvector-vae")
    write_records(found, [record_of(run, "nested") for run in runs])
    return found


def test_records_are_read_as_their_runs(file: Path) -> None:
    (first, second), problems = read_runs([file.parent])
    assert not problems
    assert (first.args["seed"], second.args["seed"]) == (0, 1)
    assert first.is_record
    assert first.is_finished
    assert (first.variant, first.machine, first.test, first.counts) == ("nested", "a CPU", {"elbo": -1.0}, {"n_samples": 4})
    assert first.lines[1] == {
        "train": {"loss": 0.333333},
        "validation": {"elbo": -1.42857},
        "calls": {"mean": 2.5},
        "seconds": 1.25,
    }
    assert first.latent_file == file.parent / "latent" / "bitvector-vae" / "topk-32-nested.json"


def test_the_same_records_make_the_same_file(file: Path) -> None:
    before = file.read_bytes()
    records, _ = read_records(file)
    write_records(file, reversed(records))
    assert file.read_bytes() == before


def test_a_data_frame_reads_them_in_one_call(file: Path) -> None:
    frame = pd.read_json(file, lines=True, precise_float=True)
    assert frame["test.elbo"].tolist() == [-1.0, -1.0]
    assert frame["epochs.validation.elbo"][0] == [-1.42857, -1.42857]
    assert frame["config.lr"][1] == 0.002


@pytest.mark.parametrize("experiment", NAMES)
def test_the_records_that_are_kept_can_be_read(experiment: str) -> None:
    records, problems = read_records(records_file(RESULTS, experiment))
    assert not problems
    frame = pd.read_json(records_file(RESULTS, experiment), lines=True)
    assert len(frame) == len(records) > 40
    for record, n_epochs, seconds in zip(records, frame["config.epochs"], frame["seconds"], strict=True):
        assert record.experiment == experiment
        assert len(record.lines()) == record.config.epochs == n_epochs
        assert record.seconds == pytest.approx(seconds)


def test_the_records_that_are_kept_are_small() -> None:
    assert sum(records_file(RESULTS, experiment).stat().st_size for experiment in NAMES) < 3_000_000


ODD: dict[str, list[dict[str, Any]]] = {
    "config.": [
        *({"bits": value} for value in ("six", [], [8], True, 1.5)),
        *({"epochs": value} for value in (None, [2], float("nan"), "many", True, 10**400)),
        *({"method": value} for value in (["topk"], {"a": 1}, None, "\ud800")),
        *({"data": value} for value in (None, 3, ["digits"])),
        *({"seed": value} for value in (float("nan"), None, "0", True)),
        *({"lr": value} for value in (float("inf"), 10**400)),
    ],
    "test.": [{"elbo": value} for value in (True, 10**400, float("inf"), "good", None, [1])],
    "epochs.": [
        *({"seconds": value} for value in ([1.0], [1.0] * 3, 1.0, "ab", [None] * 2, [True] * 2, [10**400] * 2)),
        *({"validation.elbo": value} for value in ([], {"a": [1.0, 1.0]}, [float("nan")] * 2)),
        {"calls": [1.0, 2.0]},
        {"seconds.a": [1.0, 1.0]},
        {"validation": {}},
    ],
    "": [
        *({"experiment": value} for value in (["bitvector-vae"], 3, None)),
        *({"variant": value} for value in ("\ud800", ["a"], 3)),
        *({name: None} for name in ("config", "epochs", "test")),
    ],
}


@pytest.mark.parametrize(
    ("part", "change"), [(part, change) for part, changes in ODD.items() for change in changes], ids=lambda x: repr(x)[:40]
)
def test_an_odd_record_is_left_out_by_its_line(file: Path, part: str, change: dict[str, Any]) -> None:
    first, second = gzip.decompress(file.read_bytes()).decode().splitlines()
    odd = json.loads(second) | {f"{part}{name}": value for name, value in change.items()}
    write_lines(file, [first, json.dumps(odd)])
    (run,), (problem,) = read_runs([file.parent])
    assert run.args["seed"] == 0
    assert problem.startswith(f"line 2 of {file}")
    assert "\n" not in problem


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"experiment": "ssvae"}',
        '{"a": NaN}',
        "[" * 100_000,
        "3",
        '{"a.b": 1, "a": 2}',
        json.dumps({".".join("a" * 5000): 1}),
    ],
)
def test_a_line_that_is_not_a_record_is_named(file: Path, text: str) -> None:
    write_lines(file, [text])
    runs, problems = read_runs([file.parent])
    assert not runs
    assert all(f"line 1 of {file}" in problem for problem in problems)
    assert len(problems) == 1


def test_a_file_that_is_not_gzip_or_is_cut_short_or_unpacks_to_too_much_is_named(file: Path) -> None:
    whole = file.read_bytes()
    for content, message in (
        (b"{}", "is not a gzip file, or corrupted"),
        (whole[:-20], "is cut short"),
        (whole[:30] + bytes([whole[30] ^ 255]) + whole[31:], f"{file.name}"),
        (whole + whole, "bytes after its end"),
    ):
        file.write_bytes(content)
        runs, (problem, *_) = read_runs([file.parent])
        assert not runs
        assert message in problem
        assert str(file) in problem
    file.write_bytes(whole)
    with pytest.raises(ValueError, match="unpacks to more than 100 bytes"):
        read_records(file, max_bytes=100)
