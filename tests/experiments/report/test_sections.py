"""Sections and summaries: statistics by hand, which runs count, own experiments, and files that anybody may have written."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparsum_experiments import report
from sparsum_experiments.errors import UsageError
from sparsum_experiments.report.comparison import compare
from sparsum_experiments.report.sections import Section
from sparsum_experiments.report.summary import kind_of
from sparsum_experiments.runs import RunWriter

from tests.experiments.report.making import best, change_config, column, make_records, make_run, shown, table_of


def section_of(*places: Path) -> Section:
    """The only section of some runs."""
    (section,), problems = report.read_sections(places)
    assert not problems
    return section


def test_statistics_by_hand(tmp_path: Path) -> None:
    for seed, value in enumerate([-1.0, -2.0, -6.0]):
        make_run(tmp_path / str(seed), {"elbo": -value, "elbo_se": 0.1}, seed=seed, elbo=(-9.0, value), calls=(2.0,))
    (summary,) = section_of(tmp_path).summaries
    # Deviations from the mean -3 are 2, 1, -3: variance 14 / 2, standard error sqrt(7 / 3).
    assert summary.validation["elbo"].mean == -3.0
    assert summary.validation["elbo"].error == pytest.approx(math.sqrt(7 / 3))
    assert set(summary.test) == {"elbo"}  # the standard error within a run is not a metric
    assert summary.calls == report.Statistic(2.0, 0.0, 3)
    assert (summary.seconds.mean, summary.n_finished) == (3.0, 3)
    assert "-3 ±1.5" in shown(tmp_path)
    assert report.statistic([4.0]).error is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9))
def test_statistics_are_those_of_the_formula(values: list[float]) -> None:
    mean = math.fsum(values) / len(values)
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    found = report.statistic(values)
    assert found.mean == pytest.approx(mean, abs=1e-6)
    assert found.error == pytest.approx(error, abs=1e-6)


@given(st.lists(st.floats(), min_size=1, max_size=5))
def test_statistics_of_diverged_runs_do_not_hide_them(values: list[float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = report.statistic(values)
    assert found.n == len(values)
    if not all(map(math.isfinite, values)):
        assert not math.isfinite(found.mean)


def test_settings_that_differ_are_distinguished(tmp_path: Path) -> None:
    make_run(tmp_path / "a", elbo=(-3.0, -3.0), lr=0.1, data="digits")
    make_run(tmp_path / "b", elbo=(-2.0, -2.0), lr=0.2, data="digits", device="cpu", data_dir="elsewhere")
    make_run(tmp_path / "c", elbo=(-4.0, -4.0), lr=0.1, data="digits", method="dense")
    make_run(tmp_path / "d", elbo=(-4.0, -4.0), lr=0.1)
    digits, mnist = report.read_sections([tmp_path])[0]
    assert [(each.method, dict(each.setting)) for each in digits.summaries] == [
        ("dense", {"lr": 0.1}),
        ("sparse", {"lr": 0.1}),
        ("sparse", {"lr": 0.2}),
    ]
    assert [each.label for each in digits.best] == ["dense (lr 0.1)", "sparse (lr 0.2)"]
    assert mnist.title == "ssvae on mnist"
    assert dict(mnist.summaries[0].setting) == {}


def test_labels_have_no_empty_values(tmp_path: Path) -> None:
    for solver in ("", "nested"):
        make_run(tmp_path / f"a{solver}", experiment="bitvector-vae", method="sparsemap", solver=solver)
    assert [summary.label for summary in section_of(tmp_path).summaries] == ["sparsemap", "sparsemap (solver nested)"]
    labels = [row[0].text for row in table_of(tmp_path).rows]
    assert labels == ["sparsemap (solver default)", "sparsemap (solver nested)"]


def test_finished_seeds_alone_count(tmp_path: Path) -> None:
    make_run(tmp_path / "a", elbo=(-9.0, -2.0), seed=0)
    make_run(tmp_path / "b", elbo=(-9.0,), seed=1)
    make_run(tmp_path / "again", elbo=(-9.0,), seed=0)
    (section,), problems = report.read_sections([tmp_path, tmp_path / "a"])
    (summary,) = section.summaries
    assert (summary.validation["elbo"].mean, summary.n_finished, summary.n_runs) == (-2.0, 1, 2)
    assert problems == [f"{tmp_path / 'again'}: {tmp_path / 'a'} has the same config and seed, and at least as many epochs"]


def test_a_folder_stays_one_beside_its_record(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a", {"accuracy": 0.5})
    make_records(tmp_path / "runs", tmp_path / "results", "mine")
    make_run(tmp_path / "runs" / "b", {"accuracy": 0.5}, seed=1)
    section = section_of(tmp_path)
    assert [(run.variant, run.is_record) for run in section.runs] == [("mine", False), ("mine", False)]


def test_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no run in or below"):
        report.read_sections([tmp_path])
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        report.read_sections([tmp_path / "nowhere"])
    make_run(tmp_path / "begun", calls=())
    assert "no epoch is finished yet" in shown(tmp_path)
    assert table_of(tmp_path).finding == "No epoch is finished yet."


def test_broken_runs_are_named_and_partial_ones_shown(tmp_path: Path) -> None:
    make_run(tmp_path / "begun", method="dense", calls=())
    with (make_run(tmp_path / "partial", elbo=(-3.0,)) / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 1, "val')  # cut short by a crash: not an error
    for name, text in (("broken", '{"epoch": 0\n{"epoch": 1}\n'), ("odd", '{"epoch": 0}\n')):
        (make_run(tmp_path / name, seed=1) / "metrics.jsonl").write_text(text)
    (make_run(tmp_path / "evaluated", method="sfe") / "evaluation.json").write_text("[1")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    text = " ".join(shown(tmp_path, width=400).split())
    assert "0 of 1, unfinished, at epoch 1 of 2" in text
    for name in ("broken/metrics.jsonl is not valid JSON", "odd/metrics.jsonl", "evaluation.json is not valid JSON"):
        assert name in text
    assert "other/config.json: experiment is missing" in text
    assert "sfe" in text  # a broken evaluation does not hide its run


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e308", "-1e200", "0.0"])
def test_runs_that_diverged_are_reported(tmp_path: Path, number: str) -> None:
    for seed in range(2):
        path = make_run(tmp_path / str(seed), {"accuracy": 77.0}, seed=seed, elbo=(-3.0, 77.0), calls=(77.0,))
        for file in (path / "metrics.jsonl", path / "evaluation.json"):
            file.write_text(file.read_text().replace("77.0", number))
    make_run(tmp_path / "good", {"accuracy": 0.5}, method="dense", elbo=(-3.0, -2.5))
    table = table_of(tmp_path)
    assert best(table, "accuracy %") == (["dense"] if number in {"-1e200", "0.0"} else [])
    for text in (report.markdown([table], []), report.latex([table], []), shown(tmp_path)):
        assert "dense" in text
        assert not any(len(word) > 60 for word in text.split() if word.isdigit())
    if number == "NaN":
        assert column(table, "accuracy %")["sparse"] == "nan ± nan"
        assert table.finding.startswith("dense is the only one with a result: accuracy 50.00 %")


def test_a_run_of_another_version_is_reported(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", {"other": 1.0})
    (path / "metrics.jsonl").write_text((path / "metrics.jsonl").read_text().replace('"elbo"', '"another"'))
    change_config(path, {"method": "future", "unknown_option": ["x", {"deep": 1}]})
    assert "another" in shown(tmp_path)
    assert table_of(tmp_path).finding == "No finite validation elbo was measured."


@pytest.mark.parametrize("change", [{"epochs": "many"}, {"method": ["sparse"]}, {"bits": "six"}, {"method": None}])
def test_odd_options_do_not_stop_the_report(tmp_path: Path, change: dict[str, Any]) -> None:
    make_run(tmp_path / "good")
    change_config(make_run(tmp_path / "odd", seed=1), change)
    (section,), (problem,) = report.read_sections([tmp_path])
    assert len(section.runs) == 1
    assert f"odd/config.json: args.{next(iter(change))}" in problem


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
METRICS = st.dictionaries(st.text(max_size=5), st.floats() | st.integers(-(2**62), 2**62), max_size=3)


@given(
    name=st.sampled_from(["ssvae", "own"]) | st.text(max_size=5),
    texts=st.tuples(st.text(max_size=5), st.text(max_size=5)),
    options=st.dictionaries(st.text(max_size=5), ANYTHING, max_size=3),
    metrics=st.tuples(METRICS, METRICS),
    criterion=st.none() | st.text(max_size=3),
    better=st.sampled_from(["larger", "smaller"]),
)
def test_tables_of_whatever_a_file_may_hold(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    texts: tuple[str, str],
    options: dict[str, Any],
    metrics: tuple[dict[str, float], dict[str, float]],
    criterion: str | None,
    better: str,
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    for seed, measured in enumerate(metrics):
        path = folder / str(seed)
        path.mkdir()
        args = {"epochs": 1} | options | {"method": texts[seed], "data": texts[0], "seed": seed}
        config = {"experiment": name, "args": args, "criterion": criterion, "better": better}
        lines = [{"epoch": 0, "validation": measured}]
        for file, content in (("config.json", [config]), ("metrics.jsonl", lines), ("evaluation.json", [measured])):
            (path / file).write_bytes("".join(f"{json.dumps(each)}\n" for each in content).encode())
    tables, problems = report.read_comparisons([folder])
    for text in (report.markdown(tables, problems), report.latex(tables, problems), shown(folder, width=500)):
        assert all(sign.isprintable() or sign == "\n" for sign in text)


def test_long_tables_show_the_best_of_the_evaluated_settings(tmp_path: Path) -> None:
    for i in range(18):
        test = {"accuracy": 0.5 + 0.01 * i} if i < 9 else None
        make_run(tmp_path / str(i), test, elbo=(float(i), float(i)), lr=0.001 * (i + 1), data="digits")
    section = section_of(tmp_path)
    table = compare(section, best_only=True)
    # The best on the validation data is the last; of those that were evaluated it is the ninth.
    assert [(row[0].text, row[1].text) for row in table.rows] == [("sparse (lr 0.009)", "58.00")]
    assert "Not averaged, 9 runs" in table.notes[-1]
    assert len(compare(section).rows) == 18


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_run_of_no_epochs_is_reported(tmp_path: Path, *, is_alone: bool) -> None:
    path = make_run(tmp_path / "none", {"accuracy": 0.25, "epochs": 0}, calls=())
    change_config(path, {"epochs": 0})
    (path / "metrics.jsonl").write_text("")
    if not is_alone:
        make_run(tmp_path / "other", {"accuracy": 0.5})
    table = table_of(tmp_path)
    assert any(text.startswith("25.00") for text in column(table, "accuracy %").values())
    assert "25.00 %" in table.finding
    assert shown(tmp_path)


def test_unfinished_methods_are_taken_at_their_common_epoch(tmp_path: Path) -> None:
    make_run(tmp_path / "done", {"accuracy": 0.5}, elbo=(-3.0, -2.0, -1.0), epochs=3)
    make_run(tmp_path / "a", {"accuracy": 0.9}, elbo=(-9.0, -8.0), method="dense", seed=0, epochs=3)
    make_run(tmp_path / "b", elbo=(-7.0,), method="dense", seed=1, epochs=3)
    dense, _ = section_of(tmp_path).summaries
    assert (dense.validation["elbo"].mean, dense.seconds.mean, dense.test) == (-8.0, 1.5, {})  # of the first epoch
    assert "0 of 2, unfinished, at epoch 1 of 3" in " ".join(shown(tmp_path).split())


def test_settings_with_finished_runs_come_before_those_with_none(tmp_path: Path) -> None:
    make_run(tmp_path / "a", elbo=(-3.0, -3.0), lr=0.1, seed=0)
    make_run(tmp_path / "b", elbo=(-3.0,), lr=0.1, seed=1)
    make_run(tmp_path / "c", elbo=(-1.0,), lr=0.2)
    assert [dict(summary.setting) for summary in section_of(tmp_path).best] == [{"lr": 0.1}]


def test_machines_of_seconds_are_named(tmp_path: Path) -> None:
    for seed in range(2):
        make_run(tmp_path / str(seed), {"accuracy": 0.5}, seed=seed, machine="fast")
    assert "Seconds were measured on fast." in table_of(tmp_path).notes
    change_config(tmp_path / "1", machine="slow")
    make_run(tmp_path / "dense", {"accuracy": 0.5}, method="dense")
    note = (
        "Seconds were measured on different machines and cannot be compared: fast (sparse); slow (sparse); unknown (dense). "
        "The seconds of sparse are means over different machines."
    )
    assert note in table_of(tmp_path).notes


def test_different_numbers_of_samples_are_named(tmp_path: Path) -> None:
    options: dict[str, Any] = {"experiment": "bitvector-vae", "data": "digits"}
    found = {"bits_per_dim_paper": 3.5, "n_samples": 64}
    make_run(tmp_path / "a", found, method="topk", seed=0, **options)
    assert "Bits/dim were estimated with 64 samples." in table_of(tmp_path).notes
    make_run(tmp_path / "b", found | {"n_samples": 1024, "n_annealed": 30}, method="topk", seed=1, **options)
    make_run(tmp_path / "c", found | {"n_samples": 1024}, method="gumbel", **options)
    note = (
        "Bits/dim were estimated with 30 annealed images. Bits/dim were estimated with different numbers of samples and "
        "cannot be compared: 64 (topk); 1024 (topk, gumbel)."
    )
    assert note in table_of(tmp_path).notes
    make_run(tmp_path / "d", {"accuracy": 0.5, "n_samples": 64})  # of nothing that takes samples
    assert not any("samples" in note for note in table_of(tmp_path / "d").notes)


def test_huge_numbers_are_short(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {"accuracy": 1e306}, elbo=(1e308, 1e308), calls=(1e300,))
    for text in (shown(tmp_path), report.markdown([table_of(tmp_path)], [])):
        assert "e+30" in text
        assert not any(len(word) > 40 for word in text.replace("|", " ").split() if word.replace(".", "").isdigit())


def test_defaults_of_methods_are_not_listed(tmp_path: Path) -> None:
    for method, init in (("sparse", None), ("gumbel", None), ("st-gumbel", "normal")):
        make_run(tmp_path / method, experiment="signal-game", method=method, data="digits", symbol_init=init)
    (note,) = [note for note in table_of(tmp_path).notes if note.startswith("Settings")]
    assert note.count("symbol-init") == 1
    assert "symbol-init normal" in note


def test_narrow_terminals_get_a_small_table(tmp_path: Path) -> None:
    for i, method in enumerate(("sparse", "dense", "sfe") * 4):
        test = {"accuracy": 0.25, "elbo": -2.0}
        make_run(tmp_path / str(i), test, elbo=(-100.0 - i,) * 2, method=method, lr=0.001 * (i + 1), batch_size=50 + i)
    narrow, wide = shown(tmp_path, width=60), shown(tmp_path)
    assert "the best setting of each method" in narrow
    assert "A wider terminal shows all metrics and settings." in narrow
    assert len(narrow.splitlines()) < 12
    assert all(text in narrow for text in ("test accuracy %", "-100", "25"))
    assert "seconds" not in narrow
    assert "lr 0.012" in wide
    assert "A wider terminal" not in wide


def test_names_do_not_command_the_terminal(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {"accuracy": 0.5})
    change_config(tmp_path / "a", {"method": "\x1b[31mred", "data": "[bold]\u202ex"})
    (tmp_path / "\x1b]0;title").mkdir()
    (tmp_path / "\x1b]0;title" / "config.json").write_text("{}")
    tables, problems = report.read_comparisons([tmp_path])
    for text in (shown(tmp_path, width=500), report.markdown(tables, problems), report.latex(tables, problems)):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "x1b" in text
    assert "[bold]\\u202ex" in shown(tmp_path)  # brackets are not markup either


# Findings.


def test_the_finding_says_what_is_best_and_by_how_much(tmp_path: Path) -> None:
    for method, values in {"sparse": (0.90, 0.92), "dense": (0.89, 0.92), "sfe": (0.1, 0.2)}.items():
        for seed, value in enumerate(values):
            make_run(tmp_path / method / str(seed), {"accuracy": value}, method=method, seed=seed, data="digits")
    section = section_of(tmp_path)
    assert compare(section).finding == (
        "sparse has the highest accuracy, 91.00 ± 1.00 %, with 1.00 decoder calls per example in the last epoch; "
        "dense follows with 90.50 ± 1.50 %, within one standard error of the difference."
    )
    assert report.markdown([compare(section)], []).splitlines()[2].startswith("sparse has the highest accuracy, 91.00 ±")
    assert r"\caption{ssvae on digits. sparse has the highest accuracy, 91.00 $\pm$ 1.00 \%," in report.latex(
        [compare(section)], []
    )


@pytest.mark.parametrize(
    ("values", "end"),
    [
        ((0.50, 0.52), "41.00 ± 1.00 %."),  # 10 against sqrt(2)
        ((0.42, 0.44), "41.00 ± 1.00 %, within two standard errors of the difference."),
        ((0.50,), "41.00 ± 1.00 %, but a single seed does not show whether the difference is chance."),
    ],
)
def test_the_finding_compares_with_the_error(tmp_path: Path, values: tuple[float, ...], end: str) -> None:
    for method, found in {"sparse": values, "dense": (0.40, 0.42)}.items():
        for seed, value in enumerate(found):
            make_run(tmp_path / method / str(seed), {"accuracy": value}, method=method, seed=seed, data="digits")
    assert table_of(tmp_path).finding.endswith(f"; dense follows with {end}")


def test_the_finding_of_equal_and_of_single_methods(tmp_path: Path) -> None:
    make_run(tmp_path / "sparse", {"accuracy": 0.5}, data="digits")
    alone = "sparse is the only one with a result: accuracy 50.00 %, with 1.00 decoder calls per example in the last epoch."
    assert table_of(tmp_path).finding == alone
    make_run(tmp_path / "dense", {"accuracy": 0.5}, method="dense", data="digits")
    assert table_of(tmp_path).finding == "sparse and dense have the same accuracy, the highest: 50.00 %."
    make_run(tmp_path / "sfe", {"accuracy": 0.25}, method="sfe", data="digits")
    assert table_of(tmp_path).finding.startswith(
        "sparse and dense have the same accuracy, the highest: 50.00 %; sfe follows with 25.00 %"
    )


def test_settings_of_a_method_follow_each_other_only_without_another_method(tmp_path: Path) -> None:
    for i, value in enumerate((0.5, 0.4)):
        make_run(tmp_path / str(i), {"accuracy": value}, data="digits", lr=0.1 * (i + 1))
    assert "; sparse (lr 0.2) follows with 40.00 %" in table_of(tmp_path).finding
    make_run(tmp_path / "dense", {"accuracy": 0.3}, method="dense", data="digits", lr=0.1)
    assert "; dense follows with 30.00 %" in table_of(tmp_path).finding


def test_without_an_evaluation_the_finding_is_about_validation_data(tmp_path: Path) -> None:
    make_run(tmp_path / "a", elbo=(-3.0, -2.0), data="digits")
    make_run(tmp_path / "b", elbo=(-3.0, -2.5), method="dense", data="digits")
    assert table_of(tmp_path).finding.startswith("sparse has the highest validation elbo, -2; dense follows with -2.5")
    make_run(tmp_path / "c", elbo=(-9.0,), method="sfe", data="digits")
    assert table_of(tmp_path).finding.startswith("sparse has the highest validation elbo so far, -2; dense follows")


def test_small_is_good_for_bits_per_dimension(tmp_path: Path) -> None:
    for method, value in (("topk", 3.7), ("sfe", 3.6)):
        test = {"bits_per_dim_paper": value}
        make_run(tmp_path / method, test, experiment="bitvector-vae", method=method, data="digits")
    assert table_of(tmp_path).finding.startswith("sfe has the lowest bits/dim (the paper's way), 3.600, with 1.00 decoder")


# Experiments that this package does not have.


def write_own(folder: Path, method: str, losses: list[float], test: dict[str, float] | None = None, **options: Any) -> None:
    calls = options.pop("calls", None)
    writer = RunWriter(folder, "own", method, epochs=len(losses), **{"criterion": "loss", "better": "smaller"} | options)
    for loss in losses:
        writer.epoch({"accuracy": 0.5, "loss": loss}, calls=calls, seconds=2.0)
    if test:
        writer.test(test)


def test_own_experiments_have_tables(tmp_path: Path) -> None:
    for seed, (one, other) in enumerate([(0.010, 0.5), (0.014, 0.6)]):
        write_own(tmp_path / f"a{seed}", "zeta", [1.0, one], {"accuracy": 0.75, "loss": one}, seed=seed)
        write_own(tmp_path / f"b{seed}", "alpha", [1.0, other], {"accuracy": 0.5, "loss": other}, seed=seed)
    section, table = section_of(tmp_path), table_of(tmp_path)
    assert (section.title, section.criterion, section.kind.sign) == ("own on own", "loss", -1)
    assert [summary.method for summary in section.summaries] == ["zeta", "alpha"]  # as they appear
    assert table.header == ["method", "test loss", "test accuracy", "seconds", "seeds"]
    assert column(table, "test loss") == {"zeta": "0.0120 ± 0.0020", "alpha": "0.5500 ± 0.0500"}
    assert best(table, "test loss") == ["zeta"]
    assert not best(table, "test accuracy")  # nobody said whether larger is better
    assert table.finding == "zeta has the lowest test loss, 0.0120 ± 0.0020; alpha follows with 0.5500 ± 0.0500."
    assert table.notes[:2] == [
        "Test data of own, after the last epoch; means ± standard errors over 2 seeds. Seconds are of training.",
        "Settings of all rows: epochs 2.",
    ]
    assert "alpha" in shown(tmp_path)
    assert "training calls" not in shown(tmp_path)


def test_own_experiments_without_tests_show_validation_data(tmp_path: Path) -> None:
    write_own(tmp_path / "a", "one", [3.0, 2.0], calls=4.0)
    write_own(tmp_path / "b", "two", [3.0, 1.0], calls=8.0)
    table = table_of(tmp_path)
    assert table.header[:3] == ["method", "validation loss", "validation accuracy"]
    assert column(table, "calls, last epoch") == {"one": "4.00", "two": "8.00"}
    assert table.finding.startswith("two has the lowest validation loss, 1.000, with 8.00 decoder calls per example")
    assert table.notes[0].startswith("Validation data of own, after the last epoch; one seed each.")


def test_own_experiments_are_ranked_by_their_criterion(tmp_path: Path) -> None:
    for i, loss in enumerate((0.3, 0.1, 0.2)):
        write_own(tmp_path / str(i), "one", [loss], width=i)
    section = section_of(tmp_path)
    assert [dict(summary.setting) for summary in section.best] == [{"width": 1}]
    assert [row[0].text for row in compare(section, best_only=True).rows] == ["one (width 1)"]
    assert "Settings of all rows: epochs 1; one (width 0): width 0" in compare(section).notes[1]


def test_own_runs_with_and_without_an_option_are_not_averaged(tmp_path: Path) -> None:
    write_own(tmp_path / "a", "one", [0.3])
    write_own(tmp_path / "b", "one", [0.1], width=3, seed=1)
    assert [row[0].text for row in table_of(tmp_path).rows] == ["one (width 3)", "one (width default)"]


def test_the_first_metric_is_the_criterion_by_default(tmp_path: Path) -> None:
    write_own(tmp_path / "a", "one", [0.3], criterion=None, better="larger")
    section = section_of(tmp_path)
    assert (section.criterion, section.kind.sign, section.kind.is_own) == ("accuracy", 1, True)
    assert kind_of("own", []).criterion == ""


def test_a_test_metric_that_is_not_the_criterion_is_not_judged(tmp_path: Path) -> None:
    for method, loss in (("one", 2.0), ("two", 1.0)):
        write_own(tmp_path / method, method, [loss], {"error": loss})
    table = table_of(tmp_path)
    assert table.header[1] == "test error"
    assert not best(table, "test error")
    assert table.finding.startswith("two has the lowest validation loss, 1; one follows with 2")


def test_options_that_a_method_ignores_do_not_set_its_runs_apart(tmp_path: Path) -> None:
    for seed, k in enumerate((1, 3)):
        make_run(tmp_path / str(seed), {"accuracy": 0.5}, seed=seed, k=k)
    (row,) = (row for row in table_of(tmp_path).rows if row[0].text.startswith("sparse"))
    assert row[0].text == "sparse"
    assert row[-1].text == "2"
