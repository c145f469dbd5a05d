"""Tables for an article: their numbers by hand, their rows, and what they do with names that are markup."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from sparsum_experiments import report
from sparsum_experiments.main import main
from sparsum_experiments.registry import NAMES, experiment_class
from sparsum_experiments.report.comparison import paper_table, paper_tables
from sparsum_experiments.report.markup import escape_latex, escape_markdown
from sparsum_experiments.runs import read_records, write_records

from tests.experiments.report.making import best, change_config, column, make_records, make_run, shown, table_of


def test_numbers_by_hand(tmp_path: Path) -> None:
    for seed, (accuracy, last) in enumerate([(0.91, 1.0), (0.92, 2.0), (0.96, 3.0)]):
        make_run(tmp_path / str(seed), {"accuracy": accuracy, "accuracy_se": 0.5}, seed=seed, calls=(4.0, last))
    table = table_of(tmp_path)
    # Deviations from 93 are -2, -1, 3: variance 14 / 2, standard error sqrt(7 / 3) = 1.5275.
    assert column(table, "accuracy %")["sparse"] == "93.00 ± 1.53"
    # 1, 2, 3: standard error sqrt(1 / 3); over both epochs 2.5, 3, 3.5: half of it.
    assert column(table, "calls, last epoch")["sparse"] == "2.00 ± 0.58"
    assert column(table, "calls, all epochs")["sparse"] == "3.00 ± 0.29"
    assert column(table, "seconds")["sparse"] == "3.0 ± 0.0"
    assert column(table, "seeds")["sparse"] == "3"
    assert column(table, "paper's accuracy %")["sparse"] == "96.87 ± 0.1"
    assert column(table, "paper's calls")["sparse"] == "1.01 ± 0.01"
    assert "over 3 seeds" in table.notes[0]


def test_a_single_seed_has_no_error(tmp_path: Path) -> None:
    make_run(tmp_path, {"accuracy": 0.5})
    table = table_of(tmp_path)
    assert column(table, "accuracy %")["sparse"] == "50.00"
    assert "one seed each." in table.notes[0]


def test_methods_keep_their_order_and_rows_of_the_paper_stay(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {"accuracy": 0.5}, method="st-gumbel")
    make_run(tmp_path / "b", {"accuracy": 0.6}, method="entmax15")
    make_run(tmp_path / "c", {"accuracy": 0.7}, method="dense")
    table = table_of(tmp_path)
    assert [row[0].text for row in table.rows] == list(experiment_class("ssvae").methods)
    assert column(table, "seeds")["sparse"] == "not run"
    assert column(table, "accuracy %")["sparse"] == "-"
    assert column(table, "paper's accuracy %")["sparse"] == "96.87 ± 0.1"
    assert column(table, "paper's accuracy %")["entmax15"] == "-"  # which the paper has not


def test_the_paper_is_shown_beside_its_own_data(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {"accuracy": 0.5}, data="digits")
    table = table_of(tmp_path / "a")
    assert [row[0].text for row in table.rows] == ["sparse"]
    assert "paper" not in " ".join([*table.header, *table.notes])
    make_run(tmp_path / "b", {"success": 0.5}, experiment="signal-game", data=str(tmp_path / "features"))
    table = table_of(tmp_path / "b")
    assert table.title == "signal-game on features"
    assert column(table, "paper's success %")["gumbel"] == "23.51 ± 16.19"
    assert any("463 ImageNet concepts" in note for note in table.notes)
    make_run(tmp_path / "c", {"success": 0.5}, experiment="signal-game", data="digits")
    assert "paper" not in " ".join(table_of(tmp_path / "c").header)


def test_bits_have_tables_of_their_own(tmp_path: Path) -> None:
    for bits, value in ((128, 3.4567), (32, 3.5), (16, 3.6)):
        test = {"bits_per_dim_paper": value, "bits_per_dim_proposal": 3.25, "rate": 20.0, "distortion": 1900.125}
        make_run(tmp_path / str(bits), test, experiment="bitvector-vae", method="topk", data="fashion-mnist", bits=bits)
    tables, _ = report.read_comparisons([tmp_path])
    assert [table.title for table in tables] == [f"bitvector-vae on fashion-mnist, {bits} bits" for bits in (16, 32, 128)]
    assert [column(table, "bits/dim, the paper's way")["topk"] for table in tables] == ["3.600", "3.500", "3.457"]
    assert [len(table.rows) for table in tables] == [1, 8, 8]
    assert column(tables[2], "paper's bits/dim")["nvil"] == "3.60"  # as many digits as are printed
    assert column(tables[1], "distortion")["topk"] == "1900.12"
    assert "paper's calls" not in tables[1].header


def test_the_best_is_bold(tmp_path: Path) -> None:
    for method, success, expected in (("sparse", 0.9, 0.7), ("dense", 0.9, 0.8), ("sfe", 0.3, 0.2)):
        test = {"success": success, "expected_success": expected}
        make_run(tmp_path / "game" / method, test, experiment="signal-game", method=method, data="digits")
    game = table_of(tmp_path / "game")
    assert best(game, "success %") == ["sparse", "dense"]
    assert best(game, "expected success %") == ["dense"]
    assert not best(game, "calls, last epoch")
    assert "| **90.00** | 70.00 |" in report.markdown([game], [])
    assert r"& \textbf{90.00} & 70.00 &" in report.latex([game], [])
    for method, value in (("topk", 3.7), ("sfe", 3.6)):
        test = {"bits_per_dim_paper": value, "rate": value}
        make_run(tmp_path / "bits" / method, test, experiment="bitvector-vae", method=method)
    bits = table_of(tmp_path / "bits")
    assert best(bits, "bits/dim, the paper's way") == ["sfe"]
    assert not best(bits, "bits/dim, by a proposal")
    assert not best(bits, "rate")
    assert not best(table_of(tmp_path / "bits" / "sfe"), "bits/dim, the paper's way")  # the best of one is no news


def test_unfinished_and_unevaluated_runs_are_named_and_not_averaged(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {"accuracy": 0.9}, seed=0)
    make_run(tmp_path / "b", {"accuracy": 0.1}, seed=1, calls=(9.0,))
    make_run(tmp_path / "c", None, seed=2)
    make_run(tmp_path / "d", None, method="dense", calls=())
    table = table_of(tmp_path)
    assert column(table, "accuracy %")["sparse"] == "90.00"
    assert column(table, "calls, last epoch")["sparse"] == "1.00"
    assert column(table, "seeds") | {"sfe": ""} == column(table, "seeds") | {
        "sparse": "1 of 3",
        "dense": "0 of 1",
        "sfe": "",
    }
    assert column(table, "accuracy %")["dense"] == "-"
    assert table.notes[-1] == (
        "Not averaged, 3 runs: sparse, seed 1 (1 of 2 epochs); sparse, seed 2 (not evaluated); "
        "dense, seed 0 (0 of 2 epochs)."
    )


def test_no_finished_run_is_said(tmp_path: Path) -> None:
    make_run(tmp_path, None, calls=())
    assert table_of(tmp_path).notes[0] == "No run on mnist is finished and evaluated yet."


def test_runs_without_test_metrics_are_said_once(tmp_path: Path) -> None:
    """Finished runs that were not evaluated: one note says what measures them, and none that they are left out."""
    for seed in (0, 1):
        make_run(tmp_path / str(seed), None, seed=seed)
    notes = table_of(tmp_path).notes
    assert notes[0] == "No run on mnist has test metrics yet: sparsum evaluate measures them."
    assert not any("Not averaged" in note for note in notes)


def test_what_cannot_be_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "a", {"accuracy": 0.9})
    (tmp_path / "ssvae.jsonl.gz").write_text("{}")
    tables, problems = report.read_comparisons([tmp_path])
    assert [problem.partition(",")[0] for problem in problems] == ["ssvae.jsonl.gz is not a gzip file"]
    assert "Left out:\n\n- ssvae.jsonl.gz is not a gzip file" in report.markdown(tables, problems)
    assert "% ssvae.jsonl.gz is not a gzip file" in report.latex(tables, problems)


def test_settings_that_differ_are_rows_and_are_listed(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {"accuracy": 0.9}, lr=0.01)
    make_run(tmp_path / "b", {"accuracy": 0.8}, lr=0.002)
    make_run(tmp_path / "c", {"accuracy": 0.8}, method="gumbel", latent=4)
    make_run(tmp_path / "d", {"accuracy": 0.8}, method="sum-and-sample")
    table = table_of(tmp_path)
    labels = [row[0].text for row in table.rows]
    assert labels[:3] == ["sparse (lr 0.002)", "sparse (lr 0.01)", "dense"]
    assert list(column(table, "paper's calls").values())[:3] == ["1.01 ± 0.01", "-", "10"]
    assert table.notes[1] == (
        "Settings of all rows: epochs 2, batch-size 64; sparse (lr 0.002): lr 0.002, latent 8; sparse (lr 0.01): lr 0.01, "
        "latent 8; sum-and-sample: lr 0.001, k 1, latent 8; gumbel: lr 0.001, latent 4."
    )


def test_records_are_read_as_runs_are(tmp_path: Path) -> None:
    for seed, accuracy in enumerate([0.8, 0.9]):
        make_run(tmp_path / "runs" / str(seed), {"accuracy": accuracy}, seed=seed, lr=0.123456789)
    file = make_records(tmp_path / "runs", tmp_path / "results")
    make_run(tmp_path / "more" / "2", {"accuracy": 0.7}, seed=2, lr=0.123456789, device="cpu")
    assert table_of(tmp_path / "results") == table_of(tmp_path / "runs")
    assert table_of(tmp_path / "results", tmp_path / "runs") == table_of(tmp_path / "runs")  # each run once
    table = table_of(file, tmp_path / "results", tmp_path / "more")
    assert column(table, "seeds")["sparse"] == "3"
    assert column(table, "accuracy %")["sparse"] == "80.00 ± 5.77"  # 10 / sqrt(3)


def test_data_in_a_folder_is_the_same_in_runs_and_records(tmp_path: Path) -> None:
    options: dict[str, Any] = {"experiment": "signal-game", "test": {"success": 0.5}}
    make_run(tmp_path / "runs" / "a", data="somewhere/features", **options)
    make_records(tmp_path / "runs", tmp_path / "results")
    make_run(tmp_path / "runs" / "b", data="somewhere/features", seed=1, **options)
    assert column(table_of(tmp_path / "runs", tmp_path / "results"), "seeds")["sparse"] == "2"
    make_run(tmp_path / "runs" / "c", data="elsewhere/features", seed=2, **options)  # may be other data
    tables, _ = report.read_comparisons([tmp_path / "runs"])
    assert [table.title for table in tables] == ["signal-game on elsewhere/features", "signal-game on somewhere/features"]


def test_variants_come_after_their_method(tmp_path: Path) -> None:
    make_run(tmp_path / "plain", {"accuracy": 0.8})
    make_run(tmp_path / "b", {"accuracy": 0.7}, lr=0.02)
    make_run(tmp_path / "a", {"accuracy": 0.6}, lr=0.01)
    make_run(tmp_path / "dense", {"accuracy": 0.6}, method="dense")
    for name, variant in (("plain", ""), ("b", "zeta"), ("a", "alpha"), ("dense", "")):
        make_records(tmp_path / name, tmp_path / "results", variant)
    table = table_of(tmp_path / "results")
    assert [row[0].text for row in table.rows][:4] == ["sparse", "sparse (alpha)", "sparse (zeta)", "dense"]
    assert list(column(table, "paper's calls").values())[:4] == ["1.01 ± 0.01", "-", "-", "10"]
    make_run(tmp_path / "more", {"accuracy": 0.9}, lr=0.02, seed=1)  # in a folder, under the name of its setting
    table = table_of(tmp_path / "results", tmp_path / "more")
    assert column(table, "seeds")["sparse (zeta)"] == "2"


def test_the_terminal_shows_records(tmp_path: Path) -> None:
    make_run(tmp_path / "run", {"accuracy": 0.75})
    make_records(tmp_path / "run", tmp_path / "results", "mine")
    assert "variant mine" in shown(tmp_path / "results")


def test_records_of_one_name_with_different_settings_stay_apart(tmp_path: Path) -> None:
    for i in range(2):
        make_run(tmp_path / "run" / str(i), {"accuracy": 0.5 + 0.1 * i}, lr=0.01 * (i + 1))
        make_records(tmp_path / "run" / str(i), tmp_path / str(i))
    both = [record for i in range(2) for record in read_records(tmp_path / str(i) / "ssvae.jsonl.gz")[0]]
    write_records(tmp_path / "both" / "ssvae.jsonl.gz", both)  # as nobody should
    assert list(column(table_of(tmp_path / "both"), "accuracy %").values())[:2] == ["50.00", "60.00"]


SIGNS = r"\ ` * _ { } [ ] < > & % $ # ~ ^ | -- a"


@pytest.mark.parametrize("sign", [*SIGNS.split(), "two\nlines", "[b]", "\\\\"])
def test_names_are_text_and_not_markup(tmp_path: Path, sign: str) -> None:
    make_run(tmp_path, {"accuracy": 0.5})
    change_config(tmp_path, {"method": sign, "data": f"x{sign}"})
    tables, _ = report.read_comparisons([tmp_path])
    page = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(report.markdown(tables, []))
    cells = [html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", page)]  # an element within would be seen
    assert len(cells) == len(tables[0].header)
    assert cells[0] == " ".join(sign.split())
    assert f"<h3>ssvae on {html.escape('x' + ' '.join(sign.split()))}</h3>" in page
    tex = report.latex(tables, [])
    assert f"\\caption{{ssvae on x{escape_latex(sign)}. {escape_latex(sign)} is the only" in tex
    assert f"\n{escape_latex(sign)} & 50.00 & " in tex
    assert balance(tex) == 0


def balance(tex: str) -> int:
    """Braces that were opened less those that were closed, escaped ones aside."""
    plain = re.sub(r"\\[\\{}%]", "", tex)
    return plain.count("{") - plain.count("}")


def test_escapes() -> None:
    assert escape_markdown("a|b\n`c` <d> & \\") == "a\\|b \\`c\\` &lt;d&gt; &amp; \\\\"
    assert escape_latex("&%$#_{}") == r"\&\%\$\#\_\{\}"
    assert escape_latex("~^\\") == r"\textasciitilde{}\textasciicircum{}\textbackslash{}"
    assert escape_latex("[1] *\n---") == "{[}1] {*} -{}-{}-"
    assert escape_latex("1 ± 2") == r"1 $\pm$ 2"


def test_latex_rows_have_as_many_cells_as_columns(tmp_path: Path) -> None:
    make_run(tmp_path, {"accuracy": 0.5}, data="a&b")
    tables, _ = report.read_comparisons([tmp_path])
    tex = report.latex(tables, [])
    n_columns = len(tables[0].header)
    assert rf"\begin{{tabular}}{{l{'r' * (n_columns - 1)}}}" in tex
    rows = [line for line in tex.splitlines() if line.endswith(r" \\")]
    assert len(rows) == len(tables[0].rows) + 1
    assert all(len(re.split(r"(?<!\\)&", row)) == n_columns for row in rows)
    assert sorted(re.findall(r"\\begin{(\w+)}", tex)) == sorted(re.findall(r"\\end{(\w+)}", tex))


def test_the_paper_has_known_methods_alone() -> None:
    assert {table["experiment"] for table in paper_tables()} == set(NAMES)
    for table in paper_tables():
        assert set(table["rows"]) <= set(experiment_class(table["experiment"]).methods)
        for method, values in table["rows"].items():
            for name, numbers in values.items():
                assert len(numbers) in (1, 2), (method, name)
    assert [len(table["rows"]) for table in paper_tables()] == [8, 8, 8, 8]
    assert paper_table("ssvae", "digits") == {}
    assert paper_table("bitvector-vae", "fashion-mnist", 64) == {}


def sparsum(*words: str) -> int:
    """Run a command; returns its exit status."""
    with pytest.raises(SystemExit) as stopped:
        main(list(words))
    return int(stopped.value.code or 0)


@pytest.mark.parametrize("flag", ["--markdown", "--latex"])
def test_the_command_prints_tables_and_writes_no_page(flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "run", {"accuracy": 0.75}, data=":smile:")
    assert sparsum("report", str(tmp_path), flag) == 0
    output = capsys.readouterr().out
    assert ":smile:" in output
    assert "75.00" in output
    assert not list(tmp_path.rglob("*.html"))
    for flags in ([flag, "--out", "page.html"], ["--markdown", "--latex"]):
        assert sparsum("report", str(tmp_path), *flags) == 2
        assert "choose one" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [[], ["--markdown"], ["--latex"]])
def test_nothing_but_broken_records_is_a_failure(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ssvae.jsonl.gz").write_text("{}")
    assert sparsum("report", str(tmp_path), *flags) == 1
    assert "is not a gzip file" in re.sub(r"\s+", " ", capsys.readouterr().out)


def test_a_page_does_not_replace_a_record(tmp_path: Path) -> None:
    make_run(tmp_path / "run", {"accuracy": 0.75})
    file = make_records(tmp_path / "run", tmp_path / "results")
    before = file.read_bytes()
    assert sparsum("report", str(file)) == 0
    assert file.read_bytes() == before
    assert (file.parent / "report.html").exists()


def test_a_page_replaces_pages_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "run", {"accuracy": 0.75})
    record = make_records(tmp_path / "run", tmp_path / "results")
    (tmp_path / "empty.html").touch()
    for _ in range(2):  # the second time a page is there
        assert sparsum("report", str(record.parent), "-o", str(tmp_path / "empty.html")) == 0
        assert (tmp_path / "empty.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    before = record.read_bytes()
    capsys.readouterr()
    assert sparsum("report", str(record.parent), "-o", str(record)) == 2
    assert "ssvae.jsonl.gz exists and is not an HTML report" in " ".join(capsys.readouterr().err.split())
    assert record.read_bytes() == before


def test_the_page_shows_records(tmp_path: Path) -> None:
    make_run(tmp_path / "run", {"accuracy": 0.75})
    make_records(tmp_path / "run", tmp_path / "results", "mine")
    page = report.write_report([tmp_path / "results"], tmp_path / "page.html").read_text(encoding="utf-8")
    for text in ("ssvae on mnist", "variant mine", "0.75", "paper&#39;s accuracy %", "96.87 ± 0.1"):
        assert text in page
    assert "The command" not in page  # which records do not have
