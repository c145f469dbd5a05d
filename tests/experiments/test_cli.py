"""The command `sparsum`: what it says, what it refuses, and that its parts work together."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import pty
import re
import subprocess
import sys

import pytest
import torch
from rich.text import Text
from sparsum_experiments import demo
from sparsum_experiments.main import main

from sparsum import __version__

SMALL = ["--epochs", "1", "--device", "cpu"]


@pytest.fixture(autouse=True)
def _own_places(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSUM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


def sparsum(*words: str) -> int:
    """Run a command; returns its exit status."""
    with pytest.raises(SystemExit) as stopped:
        main(list(words))
    code = stopped.value.code
    assert code is None or isinstance(code, int)
    return code or 0


def test_help_names_all_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert sparsum("--help") == 0
    text = capsys.readouterr().out
    assert all(command in text for command in ("demo", "train", "evaluate", "sweep", "report", "data"))
    for command in ("demo", "train", "evaluate", "sweep", "report"):
        assert sparsum(command, "--help") == 0
        assert "Usage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "ssva", "sparse"], "there is no experiment 'ssva'; did you mean 'ssvae'?"),
        (["train", "ssvae", "topk"], "ssvae has no method 'topk'"),
        (["train", "ssvae", "sparse", "--bits", "3"], "--bits is not an option of 'sparsum train ssvae'"),
        (["train", "ssvae", "sparse", "--device", "tpu"], "--device: 'tpu' is not one of auto, cpu, cuda"),
        (["train", "ssvae", "sparse", "--precision", "8"], "--precision: '8' is not one of 32, bf16-mixed"),
        (["train", "ssvae", "sparse", "--resume"], "there is no run to resume"),
        (["train", "ssvae", "sparse", "--data", "mnist"], "sparsum data get mnist"),
        (["train", "bitvector-vae", "dense"], "--bits must be at most 12, got 32"),
        (["train", "ssvae", "sparse", "--lr", "inf"], "--lr must be a finite number, got inf"),
        (["train", "signal-game", "sparse", "--data", "entropy"], "entropy"),
        (["evaluate", "nowhere"], "there is no folder nowhere"),
        (["evaluate", "."], "does not hold a run"),
        (["report", "nowhere"], "nowhere"),
        (["data", "get", "cifar"], "cifar"),
        (["data", "features", "a", "b", "--network", "torch"], "--network must be MODULE:FUNCTION, got 'torch'"),
    ],
)
def test_wrong_use_is_one_clear_message(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sparsum(*words) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_from_training_to_the_report(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["train", "ssvae", "sparse", "--warm-epochs", "1", *SMALL, "--out", "run"]
    assert sparsum(*run) == 0
    assert "next: sparsum evaluate run" in capsys.readouterr().out
    assert sparsum(*run) == 2
    assert "add --resume to continue it" in capsys.readouterr().err
    assert sparsum(*run[:-2], "--lr", "1", "--out", "run", "--resume") == 2
    assert "--lr" in capsys.readouterr().err
    assert sparsum("train", "ssvae", "sparse", "--epochs", "2", "--out", "run", "--resume") == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["args"]["epochs"] == 2
    assert sparsum("train", "ssvae", "sparse", "--epochs", "1", "--out", "run", "--resume") == 2
    assert "has 2 epochs already" in capsys.readouterr().err
    assert sparsum("train", "ssvae", "sparse", "--out", "run", "--resume") == 0

    assert "already finished after 2 epochs" in capsys.readouterr().err
    assert sparsum("evaluate", "run", "--limit", "50") == 0
    assert not (tmp_path / "run" / "evaluation.json").exists()  # of a part of the data
    assert sparsum("evaluate", "run", "--checkpoint", "best") == 0
    assert sparsum("evaluate", "run") == 0
    assert "accuracy" in capsys.readouterr().out
    metrics = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert 0 <= metrics["accuracy"] <= 1
    assert metrics["accuracy_se"] > 0
    assert sparsum("evaluate", "run", "--split", "validation") == 0
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text()) == metrics
    kept = sorted(file.name for file in (tmp_path / "run").glob("evaluation*.json"))
    assert kept == ["evaluation-best.json", "evaluation-validation.json", "evaluation.json"]
    assert sparsum("report", "run") == 0
    assert "<svg" in (tmp_path / "run" / "report.html").read_text()


def test_bits_per_pixel_by_annealing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["train", "bitvector-vae", "topk", "--bits", "4", *SMALL, "--out", "run"]
    assert sparsum(*run) == 0
    assert sparsum("evaluate", "run", "--samples", "2") == 0
    assert sparsum("report", "run", "--markdown") == 0
    assert "annealed" not in capsys.readouterr().out
    assert sparsum("evaluate", "run", "--annealed", "1") == 2
    assert "n_annealed must be 0 or at least 2, got 1" in capsys.readouterr().err
    assert sparsum("evaluate", "run", "--samples", "2", "--annealed", "3") == 0
    assert "bits_per_dim_annealed" in capsys.readouterr().out
    metrics = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert metrics["n_annealed"] == 3
    assert 0 < metrics["bits_per_dim_annealed_se"] < metrics["bits_per_dim_annealed"] < 5
    # What took long is not lost by an evaluation without it, but by one of a model that was trained on.
    file = tmp_path / "run" / "evaluation.json"
    assert sparsum("evaluate", "run", "--samples", "2") == 0
    assert json.loads(file.read_text()) == metrics
    for earlier in (json.dumps(metrics | {"epochs": 7.0}), json.dumps(metrics | {"n_samples": 3}), "{", "[]"):
        file.write_text(earlier)
        assert sparsum("evaluate", "run", "--samples", "2") == 0
        assert "n_annealed" not in json.loads(file.read_text())
    assert sparsum("evaluate", "run", "--samples", "2", "--annealed", "3") == 0
    assert sparsum("report", "run", "--markdown") == 0
    table = capsys.readouterr().out
    assert "bits/dim, annealed" in table
    assert f"| {metrics['used_bits']:.1f} |" in table
    assert "bits used" in table


def test_a_model_without_numbers_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sparsum("train", "bitvector-vae", "topk", "--bits", "4", *SMALL, "--out", "run") == 0
    file = tmp_path / "run" / "checkpoints" / "last.pt"
    state = torch.load(file, weights_only=True)
    state["model"]["levels.bias"][0] = torch.nan
    torch.save(state, file)
    assert sparsum("evaluate", "run", "--samples", "2") == 2
    assert "run: elbo, " in capsys.readouterr().err
    assert not (tmp_path / "run" / "evaluation.json").exists()


def test_a_run_that_cannot_be_evaluated_does_not_keep_others_from_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["train", "ssvae", "sparse", "--warm-epochs", "1", *SMALL, "--out"]
    for name in ("a", "b"):
        assert sparsum(*run, f"runs/{name}") == 0
    (tmp_path / "runs" / "a" / "checkpoints" / "last.pt").unlink()
    assert sparsum("evaluate", "runs") == 2
    assert "has no checkpoint 'last' yet" in capsys.readouterr().err
    assert (tmp_path / "runs" / "b" / "evaluation.json").exists()
    (tmp_path / "runs" / "a" / "checkpoints" / "last.pt").touch()
    assert sparsum("evaluate", "runs/a") == 2
    assert "last.pt is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("batch_size", 0, "--batch-size must be at least 1, got 0"),
        ("batch_size", "64", "--batch-size must be an integer, got '64'"),
        ("bits", 10**9, "--bits must be at most 65536, got 1000000000"),
        ("k", True, "--k must be an integer, got True"),
        ("budget", [], "--budget must be an integer, got []"),
        ("lr", "a", "--lr must be a number, got 'a'"),
        ("method", ["topk"], "args.method must be text, got ['topk']"),
        ("colour", 1, "unknown option colour of bitvector-vae"),
    ],
)
def test_a_config_with_nonsense_is_named(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: object,
    message: str,
) -> None:
    run = ["train", "bitvector-vae", "topk", "--bits", "4", *SMALL, "--out", "run"]
    assert sparsum(*run) == 0
    file = tmp_path / "run" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"args": config["args"] | {name: value}}))
    capsys.readouterr()
    assert sparsum("evaluate", "run", "--samples", "2") == 2
    assert f"config.json: {message}" in capsys.readouterr().err.replace("\n", " ")


def test_options_that_make_no_difference_are_named_and_do_not_tell_records_apart(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for k in ("7", "8"):
        run = ["train", "bitvector-vae", "st-gumbel-mode", "--bits", "4", "--k", k, *SMALL, "--out", k]
        assert sparsum(*run) == 0
        assert "--k makes no difference to st-gumbel-mode\n" in capsys.readouterr().err
        assert sparsum("evaluate", k, "--samples", "2") == 0
        assert sparsum("record", k) == 0  # the second in the place of the first, which it is the same as
    assert sparsum("train", "bitvector-vae", "topk", "--bits", "4", "--k", "7", *SMALL, "--out", "topk") == 0
    assert "no difference" not in capsys.readouterr().err


def test_what_could_not_be_kept_is_not_measured(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sparsum("train", "ssvae", "sparse", "--warm-epochs", "1", *SMALL, "--out", "run") == 0
    assert sparsum("evaluate", "run", "--checkpoint", "first") == 2
    assert "--checkpoint: 'first' is not one of 'last', 'best'" in capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda _, mode, **__: mode != os.W_OK)
    assert sparsum("evaluate", "run") == 2
    assert "run is not writable" in capsys.readouterr().err.replace("\n", " ")
    assert sparsum("evaluate", "run", "--limit", "8") == 0
    assert not (tmp_path / "run" / "evaluation.json").exists()


def test_metrics_that_cannot_be_written_are_printed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sparsum("train", "ssvae", "sparse", "--warm-epochs", "1", *SMALL, "--out", "run") == 0
    (tmp_path / "run" / "evaluation.json").mkdir()  # which no file can take the place of
    assert sparsum("evaluate", "run") == 2
    assert "the metrics are elbo -" in capsys.readouterr().err.replace("\n", " ")


def test_a_checkpoint_that_does_not_fit_is_told_and_leaves_the_run_as_it_was(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["train", "ssvae", "sparse", "--warm-epochs", "1", *SMALL, "--out", "run"]
    assert sparsum(*run) == 0
    told = (tmp_path / "run" / "config.json").read_text()
    file = tmp_path / "run" / "checkpoints" / "last.pt"
    good = torch.load(file, weights_only=True)
    broken = [
        {name: value for name, value in good.items() if name != "place"},
        {name: value for name, value in good.items() if name != "optimiser"},
        good | {"place": good["place"] | {"colour": 1}},
        good | {"place": good["place"] | {"epoch": "1"}},
        good | {"model": {}},
        good | {"model": None},
    ]
    for state in broken:
        torch.save(state, file)
        capsys.readouterr()
        resumed = ["train", "ssvae", "sparse", "--epochs", "7", "--out", "run", "--resume"]
        assert sparsum(*resumed) == 2
        told_now = capsys.readouterr().err.replace("\n", " ")
        assert "last.pt does not fit this run or this version; delete it to start from the beginning" in told_now
        assert (tmp_path / "run" / "config.json").read_text() == told
    torch.save(good, file)
    (tmp_path / "run" / "config.json").write_text(json.dumps(json.loads(told) | {"args": {}}))
    assert sparsum(*resumed) == 2
    assert "config.json: args.method is missing" in capsys.readouterr().err.replace("\n", " ")
    (tmp_path / "run" / "config.json").write_text(told)
    metrics = tmp_path / "run" / "metrics.jsonl"
    for line in ("[1]", '{"epoch": "1"}', "{}"):
        metrics.write_text(line + "\n")
        assert sparsum(*resumed) == 2
        assert "line 1 of run/metrics.jsonl" in capsys.readouterr().err.replace("\n", " ")
        assert metrics.read_text() == line + "\n"


def test_a_broken_checkpoint_is_told_with_what_to_do(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["train", "ssvae", "sparse", "--warm-epochs", "1", *SMALL, "--out", "run"]
    assert sparsum(*run) == 0
    (tmp_path / "run" / "checkpoints" / "last.pt").write_bytes(b"")
    assert sparsum(*run, "--resume") == 2
    assert "is empty; delete it to start from the beginning" in capsys.readouterr().err.replace("\n", " ")


def test_resuming_needs_none_of_what_the_run_was_told(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that make sense only together may be left out, or given alone."""
    monkeypatch.chdir(tmp_path)
    run = ["train", "bitvector-vae", "--data", "digits", "--device", "cpu", "--epochs", "1"]
    told = ["--bits", "4", "--solver", "systematic", "--bit-order", "random"]
    assert sparsum(*run, "dense", "--bits", "4", "--out", "dense") == 0
    assert sparsum(*run, "sparsemap", *told, "--out", "run") == 0
    assert sparsum("train", "bitvector-vae", "dense", "--epochs", "2", "--out", "dense", "--resume") == 0
    again = ["train", "bitvector-vae", "sparsemap", "--epochs", "2", "--out", "run", "--resume"]
    assert sparsum(*again, "--bit-order", "random") == 0
    config = json.loads(pathlib.Path("run/config.json").read_text())
    del config["args"]["entropy"]  # as of an older version
    pathlib.Path("run/config.json").write_text(json.dumps(config))
    assert sparsum(*again[:3], "--epochs", "3", *again[5:], "--entropy", "1") == 0
    assert sparsum(*again[:3], "--epochs", "3", *again[5:], "--entropy", "2") == 2


def test_a_diverging_run_names_the_step_and_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for method in ("sparse", "sfe"):
        words = ["train", "ssvae", method, "--warm-epochs", "0", *SMALL, "--lr", "1e30", "--out", method]
        assert sparsum(*words) == 1
        errors = capsys.readouterr().err
        assert "at step" in errors
        assert "became NaN or infinite" in errors
        assert "checkpoint" in errors


def test_weights_that_are_no_numbers_are_not_saved(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # One step an epoch: its loss is a number, and what it leaves is none.
    words = ["train", "bitvector-vae", "topk", "--bits", "8", "--batch-size", "1197", *SMALL, "--lr", "1e20", "--out", "x"]
    assert sparsum(*words) == 1
    assert "became NaN or infinite" in capsys.readouterr().err
    assert not (tmp_path / "x" / "checkpoints").exists()
    assert not (tmp_path / "x" / "metrics.jsonl").exists()


def test_a_folder_whose_name_looks_like_markup(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "bitvector-vae", "topk", "--bits", "4", *SMALL, "--out", "a[/b][red]x"]
    assert sparsum(*words) == 0
    assert "written to a[/b][red]x;" in capsys.readouterr().out


def test_settings_of_another_version_are_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    for content, message in (
        ("[]", "config.json: input should be"),
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        (
            '{"experiment": "ssvae", "args": {"method": "sparse", "data": "digits", "epochs": 1, "seed": 0, "flavour": 1}}',
            "unknown option flavour of ssvae",
        ),
        ('{"experiment": "ssvae", "args": {"method": "sparse"}}', "args.data is missing"),
    ):
        (tmp_path / "run" / "config.json").write_text(content)
        assert sparsum("evaluate", "run") == 2
        assert message in capsys.readouterr().err


def test_data_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert sparsum("data", "list") == 0
    assert "nowhere" in capsys.readouterr().out
    assert sparsum("data", "get", "digits") == 0
    assert "nothing to download" in capsys.readouterr().out
    assert sparsum("data", "check", "mnist") == 1
    assert "missing" in capsys.readouterr().out


def test_the_demo_in_small(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [part.experiment for part in demo.PARTS] == ["ssvae", "signal-game", "bitvector-vae"]
    assert all(part.methods[:2] == ("sparse", "dense") for part in demo.PARTS)
    small = {"epochs": 1, "batch_size": 1000}
    parts = [dataclasses.replace(part, options=part.options | small, methods=("sparse",)) for part in demo.PARTS[::2]]
    monkeypatch.setattr(demo, "PARTS", parts)
    assert sparsum("demo", "--out", "demo") == 0
    text, told = capsys.readouterr()
    for experiment in ("ssvae", "bitvector-vae"):
        assert f"{experiment}/sparse/seed-0 finished in" in told
    assert "sparse" in text
    assert "report.html" in text
    assert (tmp_path / "demo" / "report.html").exists()


def test_the_version_and_completion_scripts_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert sparsum("--version") == 0
    assert __version__ in capsys.readouterr().out
    for shell in ("bash", "zsh", "fish"):
        assert sparsum("completion", shell) == 0
        assert "_SPARSUM_COMPLETE" in capsys.readouterr().out


def test_the_progress_bar_fits_80_columns() -> None:
    terminal, end = pty.openpty()
    words = [sys.executable, "-m", "sparsum_experiments.main", "train", "bitvector-vae", "topk", "--epochs", "30"]
    environment = os.environ | {"COLUMNS": "80", "TERM": "xterm"}
    process = subprocess.Popen(
        [*words, "--device", "cpu", "--out", "run"], stdout=subprocess.PIPE, stderr=end, env=environment
    )
    os.close(end)
    shown = b""
    with contextlib.suppress(OSError):  # which ends the output of a terminal
        while part := os.read(terminal, 4096):
            shown += part
    process.communicate(timeout=60)
    os.close(terminal)
    lines = [Text.from_ansi(line).plain for line in re.split(r"[\r\n]+", shown.decode())]
    assert any("epoch" in line for line in lines)
    assert max(map(len, lines)) <= 80
