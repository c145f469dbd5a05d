"""The page of runs: what it says, that it is whole, and what it does with runs that are not."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import json
import math
import os
import re
import xml.etree.ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sparsum_experiments import report
from sparsum_experiments.errors import UsageError
from sparsum_experiments.registry import make_args
from sparsum_experiments.report import page
from sparsum_experiments.report.axes import line, mark
from sparsum_experiments.report.comparison import compare
from sparsum_experiments.report.drawing import Figure
from sparsum_experiments.report.figures import figures_of
from sparsum_experiments.runs import Config, RunArgs, RunFolder, RunWriter, read_run
from sparsum_experiments.training.start import run

VOID = {"img", "meta"}
LEFT, TOP, WIDTH, HEIGHT = 66, 14, 440, 314  # of the plot in a figure


class Reader(HTMLParser):
    """Reads a page, and fails on elements that are not closed, or in another order than they were opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.data: list[str] = []  # of scripts and styles, which is no text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in {"script", "style"}:
            self.data.append(data)
        else:
            self.text += data


def read(file: Path) -> Reader:
    reader = Reader()
    reader.feed(file.read_text(encoding="utf-8"))
    reader.close()
    assert not reader.open
    return reader


def config_of(experiment: str, method: str, **options: Any) -> Config:
    return Config(experiment=experiment, args=RunArgs(**make_args(experiment, method, options).model_dump()))


def change_config(path: Path, args: dict[str, Any] | None = None, **others: Any) -> None:
    """Another config of a run, as somebody could have written it."""
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    config = config | others | {"args": config["args"] | (args or {})}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")


def make_run(
    path: Path, values: list[float], *, calls: float = 2.0, test: dict[str, float] | None = None, **options: Any
) -> Path:
    """A run that was never made; an epoch takes 1.5 seconds."""
    experiment, method = options.pop("experiment", "ssvae"), options.pop("method", "sparse")
    folder = RunFolder(path)
    folder.create(config_of(experiment, method, epochs=options.pop("epochs", 3), **options))
    for epoch, value in enumerate(values):
        line = {"epoch": epoch, "validation": {"accuracy": 0.5, "elbo": value}, "calls": {"mean": calls}, "seconds": 1.5}
        folder.add_metrics(line)
    if test is not None:
        (path / "evaluation.json").write_text(json.dumps(test), encoding="utf-8")
    return path


def shown(*places: Path, width: int = 200) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(report.sections_table(*report.read_sections(places)))
    return captured.get()


def test_real_run_is_reported(tmp_path: Path) -> None:
    options = {"epochs": 1, "warm_epochs": 0, "batch_size": 1000, "device": "cpu"}
    folder, (line,) = run("ssvae", "entmax15", options, out=tmp_path / "runs" / "one")
    page = read(report.write_report([tmp_path / "runs"], tmp_path / "page"))
    read_again = read_run(folder.path)
    assert (read_again.is_finished, read_again.seconds, read_again.calls) == (True, line["seconds"], line["calls"]["mean"])
    assert "ssvae on digits" in page.text
    assert f"{line['validation']['elbo']:.4g}" in page.text
    assert "entmax15" in shown(folder.path)


def test_statistics_by_hand(tmp_path: Path) -> None:
    for seed, value in enumerate([-1.0, -2.0, -6.0]):
        make_run(tmp_path / str(seed), [-9.0, -9.0, value], seed=seed, test={"elbo": -value, "elbo_se": 0.1})
    (section,), problems = report.read_sections([tmp_path])
    (summary,) = section.summaries
    assert not problems
    # Deviations from the mean -3 are 2, 1, -3: variance 14 / 2, standard error sqrt(7 / 3).
    assert summary.validation["elbo"].mean == -3.0
    assert summary.validation["elbo"].error == pytest.approx(math.sqrt(7 / 3))
    assert set(summary.test) == {"elbo"}  # the standard error within a run is none of the metrics
    elbo, *_ = figures_of(section)
    (drawn,) = elbo.series
    assert (drawn.x.tolist(), drawn.y.tolist()) == ([1, 2, 3], [-9.0, -9.0, -3.0])
    assert drawn.low.tolist() == pytest.approx([-9.0, -9.0, -3.0 - math.sqrt(7 / 3)])
    assert drawn.high.tolist() == pytest.approx([-9.0, -9.0, -3.0 + math.sqrt(7 / 3)])
    assert summary.calls == report.Statistic(2.0, 0.0, 3)
    assert (summary.seconds.mean, summary.n_finished) == (4.5, 3)
    assert "-3 ±1.5" in shown(tmp_path)
    assert report.statistic([4.0]).error is None


def test_settings_that_differ_are_kept_apart(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [-3.0] * 3, lr=0.1)
    make_run(tmp_path / "b", [-2.0] * 3, lr=0.2, device="cpu", data_dir="elsewhere")
    make_run(tmp_path / "c", [-4.0] * 3, lr=0.1, method="dense", calls=100.0)
    make_run(tmp_path / "d", [-4.0] * 3, lr=0.1, data="mnist")
    digits, mnist = report.read_sections([tmp_path])[0]
    assert [(each.method, dict(each.setting)) for each in digits.summaries] == [
        ("dense", {"lr": 0.1}),
        ("sparse", {"lr": 0.1}),
        ("sparse", {"lr": 0.2}),
    ]
    assert [dict(each.setting) for each in digits.best] == [{"lr": 0.1}, {"lr": 0.2}]
    assert mnist.title == "ssvae on mnist"
    assert dict(mnist.summaries[0].setting) == {}
    page = read(report.write_report([tmp_path], tmp_path / "page.html"))
    assert "logarithmic" in page.text  # 2 and 100 calls
    assert "the setting with the best elbo" in page.text


def test_page_is_whole_escaped_and_asks_for_nothing(tmp_path: Path) -> None:
    evil = "<script>alert('&amp;')</script>"
    make_run(tmp_path / "a", [-3.0, -2.0, -1.0], data=evil, test={f"<b>{evil}": 1.0})
    change_config(tmp_path / "a", {"method": '"><img src=x>'}, command=["/somewhere/main.py", "train", evil])
    file = report.write_report([tmp_path], tmp_path / "page.html")
    page = read(file)
    assert not page.seen & {"img", "link", "iframe", "b"}
    assert {value for name, value in page.attributes if name in {"src", "href", "onload", "onclick"}} == set()
    assert not any("<" in text for text in page.data if text.startswith("{"))
    assert evil in page.text
    assert '"><img src=x>' in page.text
    assert f"sparsum train '{evil.replace(chr(39), chr(39) + chr(34) + chr(39) + chr(34) + chr(39))}'" in page.text
    assert set(re.findall(r"url\(.", file.read_text(encoding="utf-8"))) == {"url(#"}
    # The name of SVG is not an address that is requested.
    assert set(re.findall(r"https?://[^\"']*", file.read_text(encoding="utf-8"))) == {"http://www.w3.org/2000/svg"}
    assert evil in shown(tmp_path)  # and a bracket is no markup in the terminal
    assert not list(tmp_path.glob(".page.html*"))


def test_partial_and_broken_runs_are_named(tmp_path: Path) -> None:
    make_run(tmp_path / "begun", [], method="dense")
    make_run(tmp_path / "partial", [-3.0, -2.5])
    with (tmp_path / "partial" / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "val')  # cut short by a crash: not an error
    make_run(tmp_path / "broken", [-3.0] * 3, seed=1)
    (tmp_path / "broken" / "metrics.jsonl").write_text('{"epoch": 0\n{"epoch": 1}\n', encoding="utf-8")
    make_run(tmp_path / "odd", [-3.0] * 3, seed=2)
    (tmp_path / "odd" / "metrics.jsonl").write_text('{"epoch": 0}\n', encoding="utf-8")
    make_run(tmp_path / "evaluated", [-3.0] * 3, seed=3, method="sfe", test={})
    (tmp_path / "evaluated" / "evaluation.json").write_text("[1", encoding="utf-8")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}", encoding="utf-8")
    page = read(report.write_report([tmp_path], tmp_path / "page.html"))
    assert "0 of 1, unfinished, at epoch 2 of 3" in page.text
    for name in (
        "broken/metrics.jsonl is not valid JSON",
        "line 1 of",
        "evaluation.json is not valid JSON",
        "other/config.json: experiment is missing",
    ):
        assert name in page.text
        assert name in shown(tmp_path, width=1000)
    assert "sfe" in page.text  # a broken evaluation does not hide its run


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e308", "-1e200", "0.0"])
def test_runs_that_diverged_are_reported(tmp_path: Path, number: str) -> None:
    for seed in range(2):
        path = make_run(tmp_path / str(seed), [-3.0, 77.0, 77.0], seed=seed, calls=77.0, test={"accuracy": 77.0})
        for file in (path / "metrics.jsonl", path / "evaluation.json"):
            file.write_text(file.read_text(encoding="utf-8").replace("77.0", number))
    make_run(tmp_path / "good", [-3.0, -2.5, -2.0], method="dense")
    page = read(report.write_report([tmp_path], tmp_path / "page.html"))
    assert not [text for text in page.data if "NaN" in text and text.startswith("{")]  # which is no JSON
    assert "dense" in page.text


def test_a_run_of_another_version_is_reported(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", [-3.0] * 3)
    lines = (path / "metrics.jsonl").read_text(encoding="utf-8").replace('"elbo"', '"another"')
    (path / "metrics.jsonl").write_text(lines, encoding="utf-8")
    assert "validation another" in read(report.write_report([tmp_path], tmp_path / "page.html")).text


@pytest.mark.parametrize("change", [{"epochs": "many"}, {"method": ["sparse"]}, {"bits": "six"}, {"method": None}])
def test_odd_options_do_not_stop_the_report(tmp_path: Path, change: dict[str, Any]) -> None:
    make_run(tmp_path / "good", [-3.0] * 3)
    change_config(make_run(tmp_path / "odd", [-3.0] * 3, seed=1), change)
    page = read(report.write_report([tmp_path], tmp_path / "page.html"))
    assert f"odd/config.json: args.{next(iter(change))}" in page.text
    assert "results of 1 run\n" in page.text


def test_finished_seeds_alone_count(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [-9.0, -9.0, -2.0], seed=0)
    make_run(tmp_path / "b", [-9.0], seed=1)
    make_run(tmp_path / "again", [-9.0, -9.0], seed=0)
    (section,), problems = report.read_sections([tmp_path, tmp_path / "a"])
    (summary,) = section.summaries
    assert (summary.validation["elbo"].mean, summary.n_finished, summary.n_runs) == (-2.0, 1, 2)
    assert len(problems) == 1
    assert problems[0].startswith(f"{tmp_path / 'again'}: {tmp_path / 'a'} has the same config and seed")


def test_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no run in or below"):
        report.write_report([tmp_path], tmp_path / "page.html")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        report.read_sections([tmp_path / "nowhere"])
    make_run(tmp_path / "begun", [])
    assert "No epoch is finished yet" in read(report.write_report([tmp_path], tmp_path)).text
    assert (tmp_path / "report.html").exists()
    assert "no epoch is finished yet" in shown(tmp_path)


@pytest.mark.parametrize("n_lines", [1, 3, 30])
@pytest.mark.parametrize("values", [[1.0], [2.0, 2.0], [0.0, 0.0], [-1e-9, 3e9, math.nan, 4.0], [5.0, 500.0] * 100])
@pytest.mark.parametrize("logarithmic", ["y", ""])
def test_lines_are_drawn_within_their_frame(n_lines: int, values: list[float], logarithmic: str) -> None:
    epochs = list(range(1, len(values) + 1))
    lines = [line(f"line {i}", i, epochs, values, values, values) for i in range(n_lines)]
    drawn = Figure("a < b", "a note", "epoch", "y", lines, logarithmic)
    shown = [value for value in values if math.isfinite(value) and (value > 0 or not logarithmic)]
    if not shown:
        assert "Nothing to draw" in drawn.caption
        return
    root = parse(drawn)
    paths = [each for each in root.iter("path") if each.get("stroke-width") == "1.8"]
    assert [each.attrib["data-series"] for each in paths] == [str(i) for i in range(n_lines)]
    for path in paths:
        points = re.findall(r"[ML]([-\d.]+),([-\d.]+)", path.attrib["d"])
        assert len(points) == len(shown)
        assert all(0 <= float(x) <= WIDTH and 0 <= float(y) <= drawn.height - 66 for x, y in points)
    assert_within(drawn)


def test_a_spike_does_not_flatten_a_figure() -> None:
    values = [float(i % 10) for i in range(100)]
    values[0], values[60] = 500.0, 1e6
    drawn = Figure("title", "note", "epoch", "y", [line("a", 0, list(range(1, 101)), values)])
    assert "of the first epochs or of spikes, are outside" in drawn.caption
    (path,) = [each for each in parse(drawn).iter("path") if each.get("stroke-width") == "1.8"]
    heights = [float(y) for y in re.findall(r"[ML][-\d.]+,([-\d.]+)", path.attrib["d"])]
    assert max(heights) - min(y for y in heights if y > 0) > 200


@pytest.mark.parametrize("n", [1, 11])
@pytest.mark.parametrize("value", [0.0, 1e-7, 3.5, 2e9])
def test_points_are_drawn_within_their_frame(n: int, value: float) -> None:
    y = report.Statistic(-value, None, 1)
    series = [mark(f"a long name of method {i}", i, report.Statistic(value + i, 0.5, 3), y) for i in range(n)]
    drawn = Figure("title", "note", "x", "y", series)
    marks = [each for each in parse(drawn).iter("path") if each.get("fill", "").startswith("var(--c")]
    assert len({each.attrib["transform"] for each in marks}) == 2 * n  # each once more beside its name
    assert_within(drawn)


def test_drawn_places_are_those_of_the_numbers_for_scripts() -> None:
    values = [3.0, 30.0, 300.0]
    drawn = Figure("title", "note", "epoch", "y", [line("a", 0, [1, 2, 3], values)], "y")
    (path,) = [each for each in parse(drawn).iter("path") if each.get("stroke-width") == "1.8"]
    points = [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.]+),([-\d.]+)", path.attrib["d"])]

    def place(axis: dict[str, Any], value: float) -> float:
        scaled = math.log10(value) if axis["is_logarithmic"] else value
        part = (scaled - axis["low"]) / (axis["high"] - axis["low"])
        found: float = axis["start"] + part * (axis["end"] - axis["start"])
        return found

    for (x, y), epoch, value in zip(points, [1, 2, 3], values, strict=True):
        assert x + LEFT == pytest.approx(place(drawn.numbers["x"], epoch), abs=0.1)
        assert y + TOP == pytest.approx(place(drawn.numbers["y"], value), abs=0.1)


def methods_of(figure: Figure) -> list[str]:
    return [str(series.method.iloc[0]) for series in figure.series]


def parse(drawn: Figure) -> xml.etree.ElementTree.Element:
    return xml.etree.ElementTree.fromstring(f"<svg>{drawn.picture('one')}</svg>")


def assert_within(drawn: Figure) -> None:
    """All texts are in the picture, and the names beside the plot do not overlap."""
    places = []
    for each in parse(drawn).iter("text"):
        x, y = re.findall(r"translate\(([-\d.]+),([-\d.]+)\)", each.attrib["transform"])[0]
        places.append((float(x) + LEFT, float(y) + TOP, "data-series" in each.attrib))
    assert all(0 <= x <= drawn.width for x, _, is_name in places if is_name)
    heights = sorted(y for _, y, is_name in places if is_name)
    assert all(0 < y < drawn.height for y in heights)
    assert all(low + 14 <= high for low, high in itertools.pairwise(heights))


def test_hostile_names_are_drawn_as_text() -> None:
    names = ["</text><script>alert(1)</script>", "\x1b[31m\x00", 'x fill="red"', "]]>&amp;", "\u2028"]
    series = [line(name, i, [1, 2], [1.0, float(i)]) for i, name in enumerate(names)]
    root = parse(Figure("title", "note", "<b>\x07", "</svg>", series))
    assert {each.tag for each in root.iter()} <= {"svg", "g", "path", "line", "text", "clipPath", "rect"}
    texts = [each.text for each in root.iter("text") if "data-series" in each.attrib]
    assert {text and text[:4] for text in texts} == {"</te", "\\x1b", "x fi", "]]>&", "\\u20"}


def test_bands_of_calls_are_percentiles(tmp_path: Path) -> None:
    for seed, shift in enumerate((0.0, 2.0)):
        path = make_run(tmp_path / str(seed), [-1.0] * 3, seed=seed)
        lines = [json.loads(text) for text in (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        for epoch in lines:
            epoch["calls"] |= {"median": 3 + shift, "p10": 1 + shift, "p90": 8 + 2 * shift, "p25": 2.0, "p75": 4.0}
        (path / "metrics.jsonl").write_text("".join(f"{json.dumps(epoch)}\n" for epoch in lines), encoding="utf-8")
    (section,), _ = report.read_sections([tmp_path])
    calls = next(figure for figure in figures_of(section) if "calls" in figure.title)
    (drawn,) = calls.series
    assert (drawn.y.tolist(), drawn.low.tolist(), drawn.high.tolist()) == (
        [4.0] * 3,
        [2.0] * 3,
        [10.0] * 3,
    )  # means over the two seeds
    assert "from the 10th to the 90th percentile" in calls.note


def test_bit_vectors_have_the_figures_of_the_paper(tmp_path: Path) -> None:
    for seed, rate in enumerate((10.0, 14.0)):
        folder = RunFolder(tmp_path / str(seed))
        folder.create(config_of("bitvector-vae", "topk", epochs=2, bits=32, seed=seed))
        for epoch, calls in enumerate((10.0, 4.0)):
            metrics = {"elbo": -100.0 - seed, "rate": rate - epoch, "distortion": 90.0}
            folder.add_metrics({"epoch": epoch, "validation": metrics, "calls": {"mean": calls + seed}, "seconds": 1.5})
    (section,), _ = report.read_sections([tmp_path])
    assert section.title == "bitvector-vae on digits, 32 bits"
    figures = {figure.title: figure for figure in figures_of(section)}
    (elbo,) = figures["Validation negative ELBO over decoder calls"].series
    assert (elbo.x.tolist(), elbo.y.tolist()) == ([10.5, 15.0], [100.5, 100.5])  # calls are summed, then averaged over seeds
    (plane,) = figures["Rate and distortion"].series
    path, end = plane[~plane.is_mark], plane[plane.is_mark]
    assert (path.x.tolist(), path.y.tolist()) == ([12.0, 11.0], [90.0, 90.0])
    # Rate 11 ± 2 and distortion 90 ± 0.
    assert end[["left", "x", "right", "low", "y", "high"]].to_numpy().tolist() == [[9.0, 11.0, 13.0, 90.0, 90.0, 90.0]]
    assert set(figures) > {"Validation negative ELBO over epochs", "Decoder calls at each epoch", "Time and quality"}


def test_long_runs_are_thinned_and_grids_folded(tmp_path: Path) -> None:
    for i in range(20):
        make_run(tmp_path / str(i), [-1.0 - i] * 3, lr=0.001 * (i + 1))
    make_run(tmp_path / "long", [-5.0] * 2000, method="dense", epochs=2000)
    file = report.write_report([tmp_path], tmp_path / "page.html")
    page = read(file)
    assert "sparse: epochs 3, lr 0.001 (of 20)" in page.text
    assert "All settings (21 rows)" in page.text
    assert "100 of 2000 epochs are drawn." in page.text
    assert len(file.read_text(encoding="utf-8")) < 200_000


def test_scripts_and_styles_do_not_end_their_element() -> None:
    files = list((Path(report.__file__).parent / "page").iterdir())
    assert {file.suffix for file in files} == {".js", ".css"}
    for file in files:
        assert not re.search(r"</(script|style)|<!--", file.read_text(encoding="utf-8")), file


def test_long_tables_show_the_best_of_the_evaluated_settings(tmp_path: Path) -> None:
    for i in range(18):
        test = {"accuracy": 0.5 + 0.01 * i} if i < 9 else None
        make_run(tmp_path / str(i), [float(i)] * 3, lr=0.001 * (i + 1), test=test)
    (section,), _ = report.read_sections([tmp_path])
    table = compare(section, best_only=True)
    # The best on the validation data is the last; of those that were evaluated it is the ninth.
    assert [(row[0].text, row[1].text) for row in table.rows] == [("sparse (lr 0.009)", "58.00")]
    assert "Not averaged, 9 runs" in table.notes[-1]
    assert len(compare(section).rows) == 18


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<!--", "\u2028", "&lt;", "\"'"])
def test_numbers_for_scripts_are_escaped(text: str) -> None:
    drawn = Figure("title", "note", text, "y", [line(text, 0, [1], [2.0])])
    chart = page.macros("section.html.j2").chart(drawn, "one")
    (inside,) = re.findall(r'<script type="application/json">(.*?)</script>', chart, flags=re.DOTALL)
    assert not set("<>&\u2028\u2029") & set(inside)
    assert json.loads(inside)["xLabel"] == json.loads(inside)["series"][0]["name"] == text


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_run_of_no_epochs_is_reported(tmp_path: Path, *, is_alone: bool) -> None:
    path = make_run(tmp_path / "none", [], test={"accuracy": 0.25, "epochs": 0})
    change_config(path, {"epochs": 0})
    (path / "metrics.jsonl").write_text("", encoding="utf-8")
    if not is_alone:
        make_run(tmp_path / "other", [-3.0] * 3, test={"accuracy": 0.5})
    page = read(report.write_report([tmp_path], tmp_path / "page.html"))
    assert "25.00" in page.text
    assert shown(tmp_path)


def test_pages_of_many_sections_have_fewer_points(tmp_path: Path) -> None:
    for i in range(16):
        make_run(tmp_path / str(i), [-5.0 + 0.01 * j for j in range(60)], data=f"data-{i}", epochs=60)
    text = read(report.write_report([tmp_path], tmp_path / "page.html")).text
    assert "50 of 60 epochs are drawn." in text


def test_large_pages_leave_out_commands_then_views_then_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(3):
        make_run(tmp_path / str(i), [-5.0 + 0.01 * j for j in range(300)], data=f"data-{i}", epochs=300)
        change_config(tmp_path / str(i), command=["sparsum", "train", "x" * 5000])
    whole = report.write_report([tmp_path], tmp_path / "page.html")
    size, text = whole.stat().st_size, read(whole).text
    assert "The command of 1 run" in text
    assert "left out" not in text
    for least, most, figures, commands in ((0.9, 1.0, 0, 3), (0.5, 0.9, 3, 3)):
        monkeypatch.setattr(page, "MAX_BYTES", int((least + most) / 2 * size))
        small = report.write_report([tmp_path], tmp_path / "small.html")
        text = read(small).text
        assert small.stat().st_size <= page.MAX_BYTES
        assert text.count("Figures: left out, so that the page stays small. Report this section alone") <= figures
        assert 0 < text.count("Commands: left out") <= commands
    monkeypatch.setattr(page, "MAX_BYTES", 1)
    text = read(report.write_report([tmp_path], tmp_path / "bare.html")).text
    assert text.count("Figures: left out") == text.count("What the latent variable learned: left out") == 3
    assert text.count("sparse") >= 3  # tables are never left out


def test_files_that_are_not_pages_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    report.check_page_file(file)
    for content in (b"", b"<!DOCTYPE html><p>"):
        file.write_bytes(content)
        report.check_page_file(file)
    file.write_bytes(b"{}")
    with pytest.raises(
        UsageError, match=r"report\.html exists and is not an HTML report: choose another --out, or delete it"
    ):
        report.check_page_file(file)


def test_policy_forbids_requests_forms_and_bases(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [-5.0] * 3)
    attributes = dict(read(report.write_report([tmp_path], tmp_path / "page.html")).attributes)
    policy = next(value for value in attributes.values() if value and "default-src" in value)
    assert {"default-src 'none'", "form-action 'none'", "base-uri 'none'"} <= set(policy.split("; "))


def test_own_experiments_have_figures(tmp_path: Path) -> None:
    for method, calls in (("mine", 2.0), ("theirs", None)):
        writer = RunWriter(tmp_path / method, "own <b>", method, epochs=3, criterion="loss, nats", better="smaller")
        for epoch in range(3):
            writer.epoch({"loss, nats": 3.0 - epoch}, calls=calls, seconds=1.0)
    (section,), _ = report.read_sections([tmp_path])
    titles = [figure.title for figure in figures_of(section)]
    wanted = ["Validation loss over epochs", "Decoder calls at each epoch", "Time and quality", "Decoder calls and quality"]
    assert titles == wanted
    loss, calls_figure, time, _ = figures_of(section)
    assert methods_of(loss) == ["mine", "theirs"]
    assert loss.series[0].y.tolist() == [3.0, 2.0, 1.0]
    assert methods_of(calls_figure) == ["mine"]
    assert (time.series[1].is_mark.tolist(), time.series[1].x.tolist()) == ([True], [3.0])
    text = read(report.write_report([tmp_path], tmp_path / "page.html")).text
    assert "own <b> on own" in text
    assert "smaller loss, nats is better" in text


def test_sections_open_with_what_was_found(tmp_path: Path) -> None:
    for method, accuracy in (("sparse", 0.9), ("dense", 0.8)):
        make_run(tmp_path / method, [-5.0] * 3, method=method, test={"accuracy": accuracy})
    file = report.write_report([tmp_path], tmp_path / "page.html")
    (section,), _ = report.read_sections([tmp_path])
    finding = compare(section).finding
    assert "sparse" in finding
    assert re.search(rf'<h2>[^<]*</h2>\s*<p class="finding">{re.escape(finding)}</p>', file.read_text(encoding="utf-8"))


def test_unfinished_methods_are_marked_and_taken_at_their_common_epoch(tmp_path: Path) -> None:
    make_run(tmp_path / "done", [-3.0, -2.5, -2.0], test={"accuracy": 0.5})
    make_run(tmp_path / "a", [-9.0, -8.0], method="dense", seed=0, test={"accuracy": 0.9})
    make_run(tmp_path / "b", [-7.0], method="dense", seed=1)
    (section,), _ = report.read_sections([tmp_path])
    dense = next(summary for summary in section.summaries if summary.method == "dense")
    assert (dense.validation["elbo"].mean, dense.seconds.mean, dense.test) == (-8.0, 1.5, {})  # of the first epoch
    figures = {figure.title: figure for figure in figures_of(section)}
    elbo, time = figures["Validation ELBO over epochs"], figures["Time and quality"]
    assert set(methods_of(elbo)) == {"sparse", "dense"}
    assert "Drawn to the last epoch that all seeds have reached: dense, unfinished, at epoch 1 of 3." in elbo.note
    assert methods_of(time) == ["sparse"]
    assert "Not drawn: dense, unfinished, at epoch 1 of 3." in time.note
    page = read(report.write_report([tmp_path], tmp_path / "page.html"))
    assert "0 of 2, unfinished, at epoch 1 of 3" in page.text
    assert "Taken at the last epoch that all seeds have reached: dense, unfinished, at epoch 1 of 3." in page.text


def test_settings_with_finished_runs_come_before_those_with_none(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [-3.0] * 3, lr=0.1, seed=0)
    make_run(tmp_path / "b", [-3.0], lr=0.1, seed=1)
    make_run(tmp_path / "c", [-1.0], lr=0.2)
    (section,), _ = report.read_sections([tmp_path])
    assert [dict(summary.setting) for summary in section.best] == [{"lr": 0.1}]


def test_machines_of_seconds_are_named(tmp_path: Path) -> None:
    test = {"accuracy": 0.5}
    for seed in range(2):
        change_config(make_run(tmp_path / str(seed), [-3.0] * 3, seed=seed, test=test), machine="fast")
    assert "Seconds were measured on fast." in compare(report.read_sections([tmp_path])[0][0]).notes
    change_config(tmp_path / "1", machine="slow")
    make_run(tmp_path / "dense", [-3.0] * 3, method="dense", test=test)
    (section,), _ = report.read_sections([tmp_path])
    note = (
        "Seconds were measured on different machines and cannot be compared: unknown (dense); fast (sparse); slow (sparse). "
        "The seconds of sparse are means over different machines."
    )
    assert sorted(note) == sorted(next(each for each in compare(section).notes if each.startswith("Seconds")))
    page = read(report.write_report([tmp_path], tmp_path / "page.html"))
    assert page.text.count("The seconds of sparse are means over different machines.") == 3  # two tables and a figure


def test_different_numbers_of_samples_are_named(tmp_path: Path) -> None:
    options: dict[str, Any] = {"experiment": "bitvector-vae", "method": "topk"}
    found = {"bits_per_dim_paper": 3.5, "n_samples": 64}
    make_run(tmp_path / "a", [-3.0] * 3, seed=0, test=found, **options)
    assert "Bits/dim were estimated with 64 samples." in compare(report.read_sections([tmp_path])[0][0]).notes
    make_run(tmp_path / "b", [-3.0] * 3, seed=1, test=found | {"n_samples": 1024, "n_annealed": 30}, **options)
    make_run(tmp_path / "c", [-3.0] * 3, test=found | {"n_samples": 1024}, **options | {"method": "gumbel"})
    note = (
        "Bits/dim were estimated with 30 annealed images. Bits/dim were estimated with different numbers of samples and "
        "cannot be compared: 64 (topk); 1024 (topk, gumbel)."
    )
    assert note in compare(report.read_sections([tmp_path])[0][0]).notes
    make_run(tmp_path / "d", [-3.0] * 3, test={"accuracy": 0.5, "n_samples": 64})  # of nothing that takes samples
    assert not any("samples" in note for note in compare(report.read_sections([tmp_path / "d"])[0][0]).notes)


@pytest.mark.parametrize(("n_epochs", "ticks"), [(1, ["1"]), (2, ["1", "2"]), (4, ["1", "2", "3", "4"])])
def test_few_epochs_have_a_number_each(n_epochs: int, ticks: list[str]) -> None:
    series = [line("a", 0, list(range(1, n_epochs + 1)), [3.0] * n_epochs)]
    root = parse(Figure("title", "note", "epoch", "y", series))
    below = [
        each
        for each in root.iter("text")
        if each.attrib["text-anchor"] == "middle" and "rotate" not in each.attrib["transform"]
    ]
    assert [each.text for each in below] == [*ticks, "epoch"]


def test_bands_are_described_in_words() -> None:
    series = [line("a", 0, [1, 2], [5.0, 4.0], [4.0, 3.0], [6.0, 5.0])]
    around_mean = Figure("title", "note", "epoch", "y", series)
    around_median = Figure("title", "note", "epoch", "y", series, edges="quartiles")
    assert around_mean.description == "y against epoch. At the end: a 4 ± 1."
    assert around_median.description == "y against epoch. At the end: a median 4, quartiles 3 to 5."


def test_huge_numbers_are_short(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [1e308] * 3, calls=1e300, test={"accuracy": 1e306})
    page = read(report.write_report([tmp_path], tmp_path / "page.html"))
    assert "1e+308" in page.text
    assert not re.search(r"\d{40}", page.text)


def test_the_setting_without_a_name_is_named(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [-3.0] * 3)
    (section,), _ = report.read_sections([tmp_path])
    (summary,) = section.summaries
    named = dataclasses.replace(summary, setting={"variant": "one"}, validation={})
    both = dataclasses.replace(section, summaries=[summary, named])
    assert "sparse: no variant (of 2)." in page.drawn_settings(both)


def test_defaults_of_methods_are_not_listed(tmp_path: Path) -> None:
    for method, init in (("sparse", None), ("gumbel", None), ("st-gumbel", "normal")):
        folder = RunFolder(tmp_path / method)
        folder.create(config_of("signal-game", method, epochs=1, symbol_init=init))
        folder.add_metrics({"epoch": 0, "validation": {"success": 0.5}, "calls": {"mean": 1.0}, "seconds": 1.0})
    (section,), _ = report.read_sections([tmp_path])
    (note,) = [note for note in compare(section).notes if note.startswith("Settings")]
    assert note.count("symbol-init") == 1
    assert "symbol-init normal" in note


def test_narrow_terminals_get_a_small_table(tmp_path: Path) -> None:
    for i, method in enumerate(("sparse", "dense", "sfe") * 4):
        test = {"accuracy": 0.25, "elbo": -2.0}
        make_run(tmp_path / str(i), [-100.0 - i] * 3, method=method, lr=0.001 * (i + 1), batch_size=50 + i, test=test)
    narrow, wide = shown(tmp_path, width=60), shown(tmp_path, width=200)
    assert "the best setting of each method" in narrow
    assert "A wider terminal shows all metrics and settings." in narrow
    assert len(narrow.splitlines()) < 12
    assert all(text in narrow for text in ("test accuracy %", "-100", "25"))
    assert "seconds" not in narrow
    assert "lr 0.012" in wide
    assert "A wider terminal" not in wide


def test_an_own_run_that_has_measured_nothing_yet_is_reported(tmp_path: Path) -> None:
    RunWriter(tmp_path / "new", "mine", "plain", epochs=3)
    assert "mine on own" in read(report.write_report([tmp_path], tmp_path / "page.html")).text
    RunWriter(tmp_path / "empty", "mine", "other", epochs=1).epoch({})
    assert "mine on own" in read(report.write_report([tmp_path], tmp_path / "page.html")).text


def test_a_pipe_in_the_place_of_the_page_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "report.html")
    with pytest.raises(UsageError, match="exists and is not an HTML report"):
        report.check_page_file(tmp_path / "report.html")


def test_a_path_is_drawn_in_the_order_of_its_epochs(tmp_path: Path) -> None:
    folder = RunFolder(make_run(tmp_path / "run", [], experiment="bitvector-vae", method="topk", epochs=3))
    for epoch, rate in enumerate((1.0, 3.0, 2.0)):  # which turns back
        metrics = {"elbo": -9.0, "rate": rate, "distortion": 9.0 - epoch}
        folder.add_metrics({"epoch": epoch, "validation": metrics, "calls": {"mean": 1.0}, "seconds": 1.0})
    (figure,) = (each for each in figures_of(report.read_sections([tmp_path])[0][0]) if each.title == "Rate and distortion")
    (path,) = re.findall(r'd="M([^"Z]*L[^"Z]*L[^"Z]*)"', figure.picture("x"))
    x = [float(part.split(",")[0]) for part in path.split("L")]
    assert x[0] < x[2] < x[1]


def test_the_page_lets_no_other_script_run(tmp_path: Path) -> None:
    """Its policy names the digest of its one script, and elements have no handlers of events."""
    make_run(tmp_path / "run", [-9.0])
    text = report.write_report([tmp_path], tmp_path / "page.html").read_text(encoding="utf-8")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    (script,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy.split("; ")
    assert not re.search(r"<[a-z][^>]*\son[a-z]+=", text.replace(script, ""))
