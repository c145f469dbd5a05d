"""Sweeps that take the best settings of an earlier sweep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sparsum_experiments.errors import UsageError
from sparsum_experiments.main import main
from sparsum_experiments.report.recording import record_runs
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.sweep import PlannedRun, make_plan
from sparsum_experiments.sweep.command import best_settings
from sparsum_experiments.sweep.tuned import Choice, tuned_settings

from tests.experiments.sweep.finished import write_finished

RATES = [0.1, 0.2]


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders are named as they are typed, from here."""
    monkeypatch.chdir(tmp_path)


def earlier(
    values: dict[str, Sequence[float]],
    *,
    out: str = "grid",
    grid: dict[str, list[Any]] | None = None,
    experiment: str = "ssvae",
    **options: Any,
) -> list[PlannedRun]:
    """An earlier sweep of two epochs: for each method the values of its runs, one seed of all settings before the next."""
    grid = {"lr": RATES} if grid is None else grid
    n_settings = 1
    for tried in grid.values():
        n_settings *= len(tried)
    runs = []
    for method, measured in values.items():
        plan = make_plan(experiment, [method], {"epochs": 2} | options, grid, len(measured) // n_settings, Path(out))
        for run, value in zip(plan, measured, strict=True):
            write_finished(run, [0.0, value])  # the first epoch would be the best
        runs += plan
    return runs


def chosen(
    methods: Sequence[str] | None = ("sparse",),
    *,
    experiment: str = "ssvae",
    grid: Sequence[str] = (),
    folder: str = "grid",
    by: str | None = None,
    **options: Any,
) -> list[Choice]:
    return tuned_settings(experiment, methods, options, grid, Path(folder), Path("final"), by)


def test_the_mean_over_seeds_at_the_last_epoch_decides() -> None:
    earlier({"sparse": [-1.0, -3.0, -6.0, -3.0], "dense": [-8.0, -7.0]})  # means of sparse: -3.5 and -3
    sparse, dense = chosen(["sparse", "dense"])
    assert (sparse.values, dense.values) == ({"lr": 0.2}, {"lr": 0.2})
    assert (
        str(sparse)
        == "sparse: lr 0.2 (validation elbo -3, the best of 2 settings over 2 seeds in grid, where it had epochs 2)"
    )


def measured(runs: Sequence[PlannedRun], name: str, values: Sequence[float], epochs: float = 2) -> None:
    """Write what `sparsum evaluate --split validation` would."""
    for run, value in zip(runs, values, strict=True):
        (run.folder / "evaluation-validation.json").write_text(json.dumps({name: value, "epochs": epochs}))


def test_another_metric_of_an_evaluation_decides() -> None:
    runs = earlier({"topk": [-1.0, -3.0]}, experiment="bitvector-vae")
    measured(runs, "bits_per_dim_annealed", [3.5, 3.4])
    assert chosen(["topk"], experiment="bitvector-vae")[0].values == {"lr": 0.1}
    (choice,) = chosen(["topk"], experiment="bitvector-vae", by="bits_per_dim_annealed")
    reason = "the best of 2 settings over 1 seed in grid, where it had epochs 2"
    assert str(choice) == f"topk: lr 0.2 (validation bits_per_dim_annealed 3.4, {reason})"


def test_another_metric_of_the_last_epoch_decides() -> None:
    for run, accuracy in zip(earlier({"sparse": [-1.0, -3.0]}), (0.2, 0.3), strict=True):
        lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        lines[-1]["validation"]["accuracy"] = accuracy
        (run.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert chosen(by="accuracy")[0].values == {"lr": 0.2}


def _plan_of_bits(method: str) -> list[PlannedRun]:
    return make_plan("bitvector-vae", [method], {"epochs": 2, "bits": 4}, {"lr": RATES}, 1, Path("grid"))


def test_a_method_that_is_trained_by_a_bound_is_chosen_by_it() -> None:
    for method in ("topk", "topk-bound"):
        for run, elbo, value in zip(_plan_of_bits(method), (-1.0, -2.0), (-0.6, -0.5), strict=True):
            write_finished(run, [0.0, elbo], bound=value)
    topk, bound = chosen(["topk", "topk-bound"], experiment="bitvector-vae", bits=4)
    assert str(topk).startswith("topk: lr 0.1 (validation elbo -1,")
    assert str(bound).startswith("topk-bound: lr 0.2 (validation bound -0.5,")
    for by, best in (("elbo", 0.1), ("bound", 0.2)):
        assert chosen(["topk-bound"], experiment="bitvector-vae", bits=4, by=by)[0].values == {"lr": best}
    plan = [run for method in ("topk", "topk-bound") for run in _plan_of_bits(method)]
    assert [summary.setting["lr"] for summary in best_settings(plan)] == [0.1, 0.2]


def test_runs_that_are_not_evaluated_are_named_with_what_to_do() -> None:
    runs = earlier({"topk": [-1.0, -3.0]}, experiment="bitvector-vae")
    measured(runs[:1], "bits_per_dim_annealed", [3.5])
    with pytest.raises(UsageError) as raised:
        chosen(["topk"], experiment="bitvector-vae", by="bits_per_dim_annealed")
    assert "grid/topk/lr-0.2/seed-0 has not measured bits_per_dim_annealed on the validation data" in str(raised.value)
    assert "run sparsum evaluate grid --split validation --annealed 300" in str(raised.value)
    measured(runs, "bits_per_dim_annealed", [3.5, 3.4], epochs=1)  # and trained on since
    with pytest.raises(UsageError, match="after its last epoch: run sparsum evaluate grid --split validation --annealed"):
        chosen(["topk"], experiment="bitvector-vae", by="bits_per_dim_annealed")
    for run in runs:
        (run.folder / "evaluation-validation.json").write_text("[1")
    with pytest.raises(UsageError, match=r"has not measured bits_per_dim_proposal .* --split validation$"):
        chosen(["topk"], experiment="bitvector-vae", by="bits_per_dim_proposal")


def test_commands_in_messages_are_quoted_for_the_shell() -> None:
    earlier({"topk": [-1.0, -3.0]}, experiment="bitvector-vae", out="my grid")
    with pytest.raises(UsageError, match=r"run sparsum evaluate 'my grid' --split validation --annealed 300$"):
        chosen(["topk"], experiment="bitvector-vae", folder="my grid", by="bits_per_dim_annealed")


def test_an_empty_value_is_named_and_passed_on(tmp_path: Path) -> None:
    """The default of --solver is the empty text."""
    earlier({"sparsemap": [-2.0]}, experiment="bitvector-vae", grid={"solver": ["nested"]})
    earlier({"sparsemap": [-1.0]}, experiment="bitvector-vae", grid={}, out="grid/default")
    (choice,) = chosen(["sparsemap"], experiment="bitvector-vae")
    assert str(choice).startswith("sparsemap: solver default (validation elbo -1, the best of 2 settings")
    (run,) = make_plan("bitvector-vae", ["sparsemap"], {}, {}, 1, tmp_path, {"sparsemap": choice.values})
    assert run.arguments()[run.arguments().index("--solver") + 1] == ""


def test_runs_that_were_annealed_differently_are_not_compared() -> None:
    runs = earlier({"topk": [-1.0, -3.0]}, experiment="bitvector-vae")
    for run, n_annealed in zip(runs, (10, 300), strict=True):
        found = {"bits_per_dim_annealed": 3.5, "bits_per_dim_proposal": 3.6, "epochs": 2, "n_annealed": n_annealed}
        (run.folder / "evaluation-validation.json").write_text(json.dumps(found))
    with pytest.raises(UsageError, match=r"annealed for 10 and 300 images, so they cannot be compared; .* --annealed 300$"):
        chosen(["topk"], experiment="bitvector-vae", by="bits_per_dim_annealed")
    assert chosen(["topk"], experiment="bitvector-vae", by="bits_per_dim_proposal")[0].values == {"lr": 0.1}


def test_runs_with_different_numbers_of_samples_are_not_compared() -> None:
    runs = earlier({"topk": [-1.0, -3.0]}, experiment="bitvector-vae")
    for run, n_samples in zip(runs, (8, 2), strict=True):
        found = {"bits_per_dim_paper": 3.5, "epochs": 2, "n_samples": n_samples}
        (run.folder / "evaluation-validation.json").write_text(json.dumps(found))
    with pytest.raises(UsageError, match=r"measured with 2 and 8 samples, so they cannot be compared; .* --samples 8$"):
        chosen(["topk"], experiment="bitvector-vae", by="bits_per_dim_paper")
    assert chosen(["topk"], experiment="bitvector-vae", by="elbo")[0].values == {"lr": 0.1}  # which takes none of them


def test_a_bound_cannot_choose_for_methods_that_have_none() -> None:
    earlier({"topk": [-1.0, -3.0]}, experiment="bitvector-vae")
    with pytest.raises(UsageError, match="--by bound: topk does not have it; use --methods with some of topk-bound, "):
        chosen(["topk"], experiment="bitvector-vae", by="bound")


def test_an_untuned_sweep_is_refused_before_an_evaluation_is_asked_for() -> None:
    earlier({"topk": [-1.0]}, experiment="bitvector-vae", grid={})
    with pytest.raises(UsageError, match="nothing was tuned there"):
        chosen(["topk"], experiment="bitvector-vae", by="bits_per_dim_annealed")


def test_metrics_that_cannot_decide_are_refused() -> None:
    with pytest.raises(UsageError, match="--by must be one of elbo, accuracy for ssvae, got 'speed'"):
        chosen(by="speed")


def test_of_equals_the_first_is_taken() -> None:
    earlier({"sparse": [-2.0, -2.0]})
    assert chosen()[0].values == {"lr": 0.1}


def test_several_options_are_taken_and_those_of_a_place_are_not() -> None:
    earlier({"sparse": [-4.0, -3.0, -1.0, -2.0]}, grid={"batch_size": [100, 200], "lr": RATES})
    (choice,) = chosen(epochs=7, device="cpu", data_dir="elsewhere")
    assert choice.values == {"batch_size": 200, "lr": 0.1}
    assert "the best of 4 settings" in str(choice)


def test_without_methods_those_that_have_runs_are_taken() -> None:
    earlier({"sfe": [-1.0, -2.0], "sparse": [-2.0, -1.0]})
    assert [(choice.method, choice.values["lr"]) for choice in chosen(None)] == [("sparse", 0.2), ("sfe", 0.1)]


def test_a_method_with_one_setting_takes_what_differs_among_all() -> None:
    earlier({"sparse": [-1.0, -2.0]})
    earlier({"dense": [-5.0]}, grid={}, lr=0.3)
    (choice,) = chosen(["dense"])
    assert choice.values == {"lr": 0.3}
    assert "the only setting over 1 seed in grid" in str(choice)
    with pytest.raises(UsageError, match="nothing was tuned there"):
        chosen(["dense"], folder="grid/dense")


def test_options_that_a_method_ignores_are_not_required_of_its_runs() -> None:
    earlier({"sum-and-sample": [-1.0, -2.0]}, grid={"k": [1, 2]})
    earlier({"dense": [-3.0]}, grid={})
    (choice,) = chosen(["dense"], k=2)
    assert choice.values == {}
    assert str(choice).startswith("dense: nothing was tuned (validation elbo -3, the only setting over 1 seed in grid")


def test_runs_that_differ_in_ignored_options_only_have_one_setting() -> None:
    for k in (1, 2):
        earlier({"dense": [-3.0]}, out=f"grid/k-{k}", grid={}, k=k)
    with pytest.raises(UsageError, match="nothing was tuned there"):
        chosen(["dense"])


def test_presets_of_other_methods_are_not_tuned() -> None:
    """The Gumbel methods of ssvae have other presets for the decay of the temperature than all others."""
    earlier({"sum-and-sample": [-1.0, -2.0]}, grid={"k": [1, 2]})
    earlier({"dense": [-3.0], "gumbel": [-3.0]}, grid={})
    assert [choice.values for choice in chosen(None)] == [{}, {"k": 1}, {}]


def test_only_runs_that_agree_with_the_given_options_count() -> None:
    earlier({"sparse": [-1.0, -2.0]}, experiment="bitvector-vae", bits=8)
    earlier({"sparse": [-2.0, -1.5]}, experiment="bitvector-vae", bits=6, out="grid/six")
    earlier({"sparse": [-2.0, -1.0]}, out="grid/other")  # of another experiment
    assert chosen(experiment="bitvector-vae", bits=8)[0].values == {"lr": 0.1}
    assert chosen(experiment="bitvector-vae", bits=6)[0].values == {"lr": 0.2}
    assert chosen(experiment="bitvector-vae")[0].values == {"bits": 8, "lr": 0.1}  # the number of bits is tuned, too
    with pytest.raises(UsageError, match="no run of sparse of bitvector-vae with data digits, bits 7"):
        chosen(experiment="bitvector-vae", bits=7)
    with pytest.raises(UsageError, match=r"nothing was tuned there, .* bits 8, lr 0\.1 have the same"):
        chosen(experiment="bitvector-vae", bits=8, lr=0.1)
    with pytest.raises(UsageError, match="no run of sparse of ssvae with data mnist"):
        chosen(data="mnist")
    with pytest.raises(UsageError, match="--bits is not an option of ssvae"):
        chosen(bits=8)


def test_options_that_an_earlier_version_did_not_have_were_at_their_defaults() -> None:
    for run in earlier({"topk": [-1.0, -2.0]}, experiment="bitvector-vae"):
        config = json.loads((run.folder / "config.json").read_text(encoding="utf-8"))
        del config["args"]["score_centre"]
        (run.folder / "config.json").write_text(json.dumps(config))
    assert chosen(["topk"], experiment="bitvector-vae", score_centre="none")[0].values == {"lr": 0.1}
    with pytest.raises(UsageError, match="no run of topk of bitvector-vae with data digits, score_centre batch"):
        chosen(["topk"], experiment="bitvector-vae", score_centre="batch")
    earlier({"topk": [-0.5, -0.6]}, experiment="bitvector-vae", score_centre="batch", out="grid/centred")
    assert chosen(["topk"], experiment="bitvector-vae")[0].values == {"lr": 0.1, "score_centre": "batch"}


def test_data_in_a_folder_has_many_names(tmp_path: Path) -> None:
    earlier({"sparse": [-1.0, -2.0]}, data="somewhere/data")
    for name in ("somewhere/data", "./somewhere/data/", str(tmp_path / "somewhere" / "data")):
        assert chosen(data=name)[0].values == {"lr": 0.1}
    with pytest.raises(UsageError, match="there is no run of sparse"):
        chosen(data="elsewhere/data")


def test_a_record_beside_its_run_does_not_count_again() -> None:
    runs = earlier({"sparse": [-1.0, -4.0, -9.0, -4.5]})
    (runs[0].folder / "evaluation.json").write_text(json.dumps({"elbo": -1.0, "epochs": 2.0}))
    record_runs([runs[0].folder], Path("grid/records"))
    assert chosen()[0].values == {"lr": 0.2}


def test_runs_of_different_lengths_are_not_compared() -> None:
    earlier({"sparse": [-1.0]}, grid={"lr": [0.1]})
    earlier({"sparse": [-2.0]}, grid={"lr": [0.2]}, epochs=1)
    with pytest.raises(UsageError, match="runs of sparse have 1 and 2 epochs, so they cannot be compared"):
        chosen()


def test_other_differences_to_the_earlier_runs_are_named() -> None:
    earlier({"sparse": [-1.0, -2.0]}, batch_size=100)
    assert "in grid, where it had epochs 2, batch_size 100)" in str(chosen()[0])
    assert "where" not in str(chosen(batch_size=100, epochs=2)[0])
    assert "batch_size" not in str(chosen(grid=["batch_size"])[0])
    earlier({"dense": [-1.0, -2.0]}, experiment="bitvector-vae", bits=6)
    assert "bits" not in str(chosen(["dense"], experiment="bitvector-vae", grid=["bits"])[0])  # its preset has too many


def test_missing_runs_are_named_with_what_to_do() -> None:
    plan = earlier({"sparse": [-1.0, -2.0, -1.0, -2.0]})
    with pytest.raises(UsageError, match=r"there is no run of dense of ssvae .*Finish that sweep first"):
        chosen(["sparse", "dense"])
    with pytest.raises(FileNotFoundError, match="there is no folder nowhere"):
        chosen(folder="nowhere")
    with pytest.raises(UsageError, match="there is no run of signal-game with data digits"):
        chosen(None, experiment="signal-game")
    RunFolder(plan[2].folder).config_file.unlink()
    with pytest.raises(UsageError, match=r"sparse with lr 0\.1 has no run with seed 1"):
        chosen()
    (plan[2].folder / "failed.txt").write_text("no memory")  # before it had a config
    for methods in (["sparse"], None):
        with pytest.raises(UsageError, match=r"grid/sparse/lr-0\.1/seed-1 failed\."):
            chosen(methods)


def test_unfinished_runs_are_named() -> None:
    plan = earlier({"sparse": [-1.0, -2.0], "dense": [-1.0, -2.0]})
    RunFolder(plan[1].folder).keep_metrics(1)
    with pytest.raises(UsageError, match=r"grid/sparse/lr-0\.2/seed-0 has finished 1 of 2 epochs\. Finish"):
        chosen()
    (plan[1].folder / "failed.txt").write_text("killed")
    with pytest.raises(UsageError, match=r"lr-0\.2/seed-0 failed after 1 of 2 epochs"):
        chosen(None)
    assert chosen(["dense"])[0].values == {"lr": 0.1}
    RunFolder(plan[1].folder).metrics_file.write_text("{")
    RunFolder(plan[0].folder).config_file.write_text("{")
    with pytest.raises(UsageError, match=r"config\.json is not valid JSON"):
        chosen(["dense"])


def test_a_plan_holds_what_was_tuned_but_not_in_its_folders(tmp_path: Path) -> None:
    tuned = {"sparse": {"lr": 0.2}, "dense": {"lr": 0.1, "batch_size": 100}}
    plan = make_plan("ssvae", ["sparse", "dense"], {"epochs": 3}, {"warm_epochs": [1, 2]}, 1, tmp_path, tuned)
    assert [(run.args.lr, run.options["lr"]) for run in plan] == [(0.2, 0.2)] * 2 + [(0.1, 0.1)] * 2
    assert [run.key for run in plan[2:]] == ["dense/warm-epochs-1/seed-0", "dense/warm-epochs-2/seed-0"]
    assert "--batch-size" in plan[2].arguments()
    with pytest.raises(UsageError, match="--lr is given here and tuned for sparse by --tuned-by"):
        make_plan("ssvae", ["sparse"], {}, {"lr": [0.5]}, 1, tmp_path, tuned)
    with pytest.raises(UsageError, match="--batch-size is given here and tuned for dense by --tuned-by"):
        make_plan("ssvae", ["dense"], {"batch_size": 7}, {}, 1, tmp_path, tuned)


def sparsum(*words: str) -> int:
    """Run `sparsum sweep`; returns its exit status."""
    with pytest.raises(SystemExit) as stopped:
        main(["sweep", *words])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def test_a_grid_and_then_the_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["ssvae", "--batch-size", "1000", "--warm-epochs", "0", "--device", "cpu", "--epochs", "1"]
    final = [*small, "--tuned-by", "grid", "--out", "final"]
    assert sparsum(*small, "--methods", "sparse", "--grid", "lr=1e-9,1e-2", "--out", "grid") == 0
    capsys.readouterr()
    assert sparsum(*final, "--plan") == 0
    said = capsys.readouterr()
    assert "sparse: lr 0.01 (validation elbo" in said.err
    assert "sparse/seed-0" in said.out
    assert "dense" not in said.out
    assert sparsum(*final) == 0
    assert "the best of 2 settings over 1 seed in grid" in capsys.readouterr().err
    config = json.loads((tmp_path / "final" / "sparse" / "seed-0" / "config.json").read_text(encoding="utf-8"))
    assert config["args"]["lr"] == 0.01
    for words, message in (
        ([*final, "--grid", "lr=1,2"], "--lr is given here and tuned for sparse by --tuned-by"),
        ([*final[:-1], "grid/final"], "--out grid/final is in the folder of --tuned-by"),
        ([*final, "--methods", "dense"], "there is no run of dense"),
        ([*small, "--by", "accuracy", "--out", "final"], "--by is the metric by which --tuned-by chooses"),
    ):
        assert sparsum(*words) == 2
        assert message in capsys.readouterr().err
    file = tmp_path / "grid" / "sparse" / "lr-1e-09" / "seed-0" / "metrics.jsonl"
    better = json.loads(file.read_text(encoding="utf-8"))
    better["validation"]["elbo"] = 1.0
    file.write_text(json.dumps(better) + "\n")
    assert sparsum(*final) == 2
    assert "holds another run: its --lr is 0.01, not 1e-09" in capsys.readouterr().err
