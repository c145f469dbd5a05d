"""The page of runs: what it says, that it is whole, and what it does with runs that are not."""

from __future__ import annotations

import dataclasses
import json
import math
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
from sparsum_experiments.report.comparison import compare
from sparsum_experiments.report.figures import Figure, Point, Series, draw, figures_of
from sparsum_experiments.report.html import json_script
from sparsum_experiments.report.latent import latent_views
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.training.start import run

VOID = {"img", "meta"}


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
    reader.feed(file.read_text())
    reader.close()
    assert not reader.open
    return reader


def make_run(
    path: Path, values: list[float], *, calls: float = 2.0, test: dict[str, float] | None = None, **options: Any
) -> Path:
    """A run that was never made; an epoch takes 1.5 seconds."""
    experiment, method = options.pop("experiment", "ssvae"), options.pop("method", "sparse")
    folder = RunFolder(path)
    folder.create(experiment, make_args(experiment, method, {"epochs": 3, **options}))
    for epoch, value in enumerate(values):
        line = {"epoch": epoch, "validation": {"accuracy": 0.5, "elbo": value}, "calls": {"mean": calls}, "seconds": 1.5}
        folder.add_metrics(line)
    if test is not None:
        (path / "evaluation.json").write_text(json.dumps(test))
    return path


def shown(*places: Path, width: int = 200) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(report.summary_table(places))
    return captured.get()


def test_real_run_is_reported(tmp_path: Path) -> None:
    options = {"epochs": 1, "warm_epochs": 0, "batch_size": 1000, "device": "cpu"}
    folder, (line,) = run("ssvae", "entmax15", options, out=tmp_path / "runs" / "one")
    page = read(report.write_report([tmp_path / "runs"], tmp_path / "page"))
    record = report.read_run(folder.path)
    assert (record.is_finished, record.seconds, record.calls) == (True, line["seconds"], line["calls"]["mean"])
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
    (line,) = elbo.series
    assert (line.x, line.y) == ([1, 2, 3], [-9.0, -9.0, -3.0])
    assert line.low == pytest.approx([-9.0, -9.0, -3.0 - math.sqrt(7 / 3)])
    assert line.high == pytest.approx([-9.0, -9.0, -3.0 + math.sqrt(7 / 3)])
    assert (summary.calls.mean, summary.seconds.mean, summary.n_finished) == (2.0, 4.5, 3)
    assert "-3 ±1.5" in shown(tmp_path)
    assert report.statistic([4.0]).error is None


def test_settings_that_differ_are_told_apart(tmp_path: Path) -> None:
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
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    config["args"]["method"] = '"><img src=x>'
    config["command"] = ["/somewhere/cli.py", "train", evil]
    (tmp_path / "a" / "config.json").write_text(json.dumps(config))
    file = report.write_report([tmp_path], tmp_path / "page.html")
    page = read(file)
    assert not page.seen & {"img", "link", "iframe", "b"}
    assert {value for name, value in page.attributes if name in {"src", "href", "onload", "onclick"}} == set()
    assert not any("<" in text for text in page.data if text.startswith("{"))
    assert evil in page.text
    assert '"><img src=x>' in page.text
    assert f"sparsum train '{evil.replace(chr(39), chr(39) + chr(34) + chr(39) + chr(34) + chr(39))}'" in page.text
    assert set(re.findall(r"url\(.", file.read_text())) == {"url(#"}
    # The name of SVG is no address that is asked for.
    assert set(re.findall(r"https?://[^\"']*", file.read_text())) == {"http://www.w3.org/2000/svg"}
    assert evil in shown(tmp_path)  # and a bracket is no markup in the terminal
    assert not list(tmp_path.glob(".page.html*"))


def test_partial_and_broken_runs_are_told(tmp_path: Path) -> None:
    make_run(tmp_path / "begun", [], method="dense")
    make_run(tmp_path / "partial", [-3.0, -2.5])
    with (tmp_path / "partial" / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "val')  # cut short by a crash: not an error
    make_run(tmp_path / "broken", [-3.0] * 3, seed=1)
    (tmp_path / "broken" / "metrics.jsonl").write_text('{"epoch": 0\n{"epoch": 1}\n')
    make_run(tmp_path / "odd", [-3.0] * 3, seed=2)
    (tmp_path / "odd" / "metrics.jsonl").write_text('{"epoch": 0}\n')
    make_run(tmp_path / "evaluated", [-3.0] * 3, seed=3, method="sfe", test={})
    (tmp_path / "evaluated" / "evaluation.json").write_text("[1")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    page = read(report.write_report([tmp_path], tmp_path / "page.html"))
    assert "0 of 1, unfinished, at epoch 2 of 3" in page.text
    for name in (
        "broken/metrics.jsonl is no JSON",
        "line 1 of",
        "evaluation.json is no JSON",
        "does not say what a run was",
    ):
        assert name in page.text
        assert name in shown(tmp_path)
    assert "sfe" in page.text  # a broken evaluation does not hide its run


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e308", "-1e200", "0.0"])
def test_runs_that_diverged_are_reported(tmp_path: Path, number: str) -> None:
    for seed in range(2):
        path = make_run(tmp_path / str(seed), [-3.0, 77.0, 77.0], seed=seed, calls=77.0, test={"accuracy": 77.0})
        for file in (path / "metrics.jsonl", path / "evaluation.json"):
            file.write_text(file.read_text().replace("77.0", number))
    make_run(tmp_path / "good", [-3.0, -2.5, -2.0], method="dense")
    page = read(report.write_report([tmp_path], tmp_path / "page.html"))
    assert not [text for text in page.data if "NaN" in text and text.startswith("{")]  # which is no JSON
    assert "dense" in page.text


def test_a_run_of_another_version_is_reported(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", [-3.0] * 3)
    lines = (path / "metrics.jsonl").read_text().replace('"elbo"', '"another"')
    (path / "metrics.jsonl").write_text(lines)
    assert "validation another" in read(report.write_report([tmp_path], tmp_path / "page.html")).text


@pytest.mark.parametrize("change", [{"epochs": "many"}, {"method": ["sparse"]}, {"bits": "six"}, {"method": None}])
def test_odd_options_do_not_stop_the_report(tmp_path: Path, change: dict[str, Any]) -> None:
    make_run(tmp_path / "good", [-3.0] * 3)
    config = json.loads((make_run(tmp_path / "odd", [-3.0] * 3, seed=1) / "config.json").read_text())
    config["args"] |= change
    (tmp_path / "odd" / "config.json").write_text(json.dumps(config))
    page = read(report.write_report([tmp_path], tmp_path / "page.html"))
    assert "odd/config.json does not say what a run was told" in page.text
    assert "results of 1 runRead on" in page.text


def test_finished_seeds_alone_count(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [-9.0, -9.0, -2.0], seed=0)
    make_run(tmp_path / "b", [-9.0], seed=1)
    make_run(tmp_path / "again", [-9.0, -9.0], seed=0)
    (section,), problems = report.read_sections([tmp_path, tmp_path / "a"])
    (summary,) = section.summaries
    assert (summary.validation["elbo"].mean, summary.n_finished, summary.n_runs) == (-2.0, 1, 2)
    assert len(problems) == 1
    assert problems[0].startswith(f"{tmp_path / 'again'}: another run was told the same")


def test_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no run in or below"):
        report.write_report([tmp_path], tmp_path / "page.html")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        report.summary_table([tmp_path / "nowhere"])
    make_run(tmp_path / "begun", [])
    assert "No epoch is finished yet" in read(report.write_report([tmp_path], tmp_path)).text
    assert (tmp_path / "report.html").exists()
    assert "no epoch is finished yet" in shown(tmp_path)


@pytest.mark.parametrize("n_lines", [1, 3, 20])
@pytest.mark.parametrize("values", [[1.0], [2.0, 2.0], [0.0, 0.0], [-1e-9, 3e9, math.nan, 4.0], [5.0, 500.0] * 100])
@pytest.mark.parametrize("is_logarithmic", [True, False])
def test_lines_are_drawn_within_their_frame(n_lines: int, values: list[float], *, is_logarithmic: bool) -> None:
    epochs = list(range(1, len(values) + 1))
    lines = [Series(f"line {i}", i, epochs, values, values, values) for i in range(n_lines)]
    root = parse(draw(Figure("a < b", "a note", "epoch", "y", lines, y_is_logarithmic=is_logarithmic), "one"))
    shown = [value for value in values if math.isfinite(value) and (value > 0 or not is_logarithmic)]
    if not shown:
        assert "Nothing to draw" in "".join(root.itertext())
        return
    paths = [each for each in root.iter("path") if each.attrib["class"] == "line"]
    assert len(paths) == n_lines
    for path in paths:
        points = [tuple(map(float, point[1:].split())) for point in re.findall(r"[ML][^ML]+", path.attrib["d"])]
        assert len(points) == len(shown)
        assert all(66 <= x <= 512 and 14 <= y <= 328 for x, y in points)
    assert_within(root)


def test_a_spike_does_not_flatten_a_figure() -> None:
    values = [float(i % 10) for i in range(100)]
    values[0], values[60] = 500.0, 1e6
    drawn = draw(Figure("title", "note", "epoch", "y", [Series("a", 0, list(range(1, 101)), values)]), "one")
    assert "of the first epochs or of spikes, are outside" in drawn
    heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", drawn)]
    assert max(heights) - min(y for y in heights if y > 0) > 200


@pytest.mark.parametrize("n", [1, 11])
@pytest.mark.parametrize("value", [0.0, 1e-7, 3.5, 2e9])
def test_points_are_drawn_within_their_frame(n: int, value: float) -> None:
    points = [Point(report.Statistic(value + i, 0.5, 3), report.Statistic(-value, None, 1)) for i in range(n)]
    series = [Series(f"a long name of method {i}", i, point=point) for i, point in enumerate(points)]
    root = parse(draw(Figure("title", "note", "x", "y", series), "one"))
    assert len({each.attrib["transform"] for each in root.iter("path") if each.attrib["class"] == "mark"}) == n
    assert_within(root)


def parse(drawn: str) -> xml.etree.ElementTree.Element:
    return xml.etree.ElementTree.fromstring(drawn)


def assert_within(root: xml.etree.ElementTree.Element) -> None:
    """All texts are in the picture, and none covers another of the same column."""
    picture = next(root.iter("svg"))
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    texts = [each.attrib for each in picture.iter("text") if "transform" not in each.attrib]
    assert all(0 < float(each["x"]) < width and 0 < float(each["y"]) < height for each in texts)
    places = [(each["x"], each["y"]) for each in texts]
    assert len(places) == len(set(places))


def test_bands_of_calls_are_percentiles(tmp_path: Path) -> None:
    for seed, shift in enumerate((0.0, 2.0)):
        path = make_run(tmp_path / str(seed), [-1.0] * 3, seed=seed)
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            line["calls"] |= {"median": 3 + shift, "p10": 1 + shift, "p90": 8 + 2 * shift, "p25": 2.0, "p75": 4.0}
        (path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (section,), _ = report.read_sections([tmp_path])
    calls = next(figure for figure in figures_of(section) if "calls" in figure.title)
    (line,) = calls.series
    assert (line.y, line.low, line.high) == ([4.0] * 3, [2.0] * 3, [10.0] * 3)  # means over the two seeds
    assert "from the 10th to the 90th percentile" in calls.note


def test_bit_vectors_have_the_figures_of_the_paper(tmp_path: Path) -> None:
    for seed, rate in enumerate((10.0, 14.0)):
        folder = RunFolder(tmp_path / str(seed))
        folder.create("bitvector-vae", make_args("bitvector-vae", "topk", {"epochs": 2, "bits": 32, "seed": seed}))
        for epoch, calls in enumerate((10.0, 4.0)):
            metrics = {"elbo": -100.0 - seed, "rate": rate - epoch, "distortion": 90.0}
            folder.add_metrics({"epoch": epoch, "validation": metrics, "calls": {"mean": calls + seed}, "seconds": 1.5})
    (section,), _ = report.read_sections([tmp_path])
    assert section.title == "bitvector-vae on digits, 32 bits"
    figures = {figure.title: figure for figure in figures_of(section)}
    (elbo,) = figures["Validation negative ELBO over decoder calls"].series
    assert (elbo.x, elbo.y) == ([10.5, 15.0], [100.5, 100.5])  # calls are summed, then averaged over seeds
    (plane,) = figures["Rate and distortion"].series
    assert (plane.x, plane.y) == ([12.0, 11.0], [90.0, 90.0])
    assert plane.point == Point(report.Statistic(11.0, 2.0, 2), report.Statistic(90.0, 0.0, 2))
    assert set(figures) > {"Validation negative ELBO over epochs", "Decoder calls at each epoch", "Time and quality"}


def test_long_runs_are_thinned_and_grids_folded(tmp_path: Path) -> None:
    for i in range(20):
        make_run(tmp_path / str(i), [-1.0 - i] * 3, lr=0.001 * (i + 1))
    make_run(tmp_path / "long", [-5.0] * 2000, method="dense", epochs=2000)
    file = report.write_report([tmp_path], tmp_path / "page.html")
    page = read(file)
    assert "sparse: epochs 3, lr 0.001 (of 20)" in page.text
    assert "All settings (21 rows)" in page.text
    assert "Of 2000 epochs 250 are drawn." in page.text
    assert len(file.read_text()) < 200_000


def test_scripts_and_styles_end_no_element() -> None:
    files = list((Path(report.__file__).parent / "page").iterdir())
    assert {file.suffix for file in files} == {".js", ".css"}
    for file in files:
        assert not re.search(r"</(script|style)|<!--", file.read_text()), file


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
    script = json_script({text: [text]})
    inside = script.removeprefix('<script type="application/json">').removesuffix("</script>")
    assert not set("<>&\u2028\u2029") & set(inside)
    assert json.loads(inside) == {text: [text]}


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_run_of_no_epochs_is_reported(tmp_path: Path, *, is_alone: bool) -> None:
    path = make_run(tmp_path / "none", [], epochs=0, test={"accuracy": 0.25, "epochs": 0})
    (path / "metrics.jsonl").write_text("")
    if not is_alone:
        make_run(tmp_path / "other", [-3.0] * 3, test={"accuracy": 0.5})
    page = read(report.write_report([tmp_path], tmp_path / "page.html"))
    assert "25.00" in page.text
    assert shown(tmp_path)


def test_pages_of_many_sections_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(3):
        make_run(tmp_path / str(i), [-5.0 + 0.01 * j for j in range(300)], data=f"data-{i}", epochs=300)
    whole = report.write_report([tmp_path], tmp_path / "page.html")
    assert "Of 300 epochs 250 are drawn." in read(whole).text
    assert "The command of 1 run" in read(whole).text
    monkeypatch.setattr(page, "MAX_LETTERS", int(1.5 * whole.stat().st_size))
    assert "Of 300 epochs 100 are drawn." in read(report.write_report([tmp_path], tmp_path / "small.html")).text
    monkeypatch.setattr(page, "MAX_LETTERS", 1)
    assert read(report.write_report([tmp_path], tmp_path / "bare.html")).text.count("report this section alone") == 3
    monkeypatch.setattr(page, "MAX_LETTERS", 90_000)
    bounded = report.write_report([tmp_path], tmp_path / "bounded.html")
    assert 0 < read(bounded).text.count("report this section alone") < 3
    assert bounded.stat().st_size < 93_000  # views and their sentences are not counted here
    monkeypatch.setattr(page, "MAX_LETTERS", 110_000)
    smallest = report.write_report([tmp_path], tmp_path / "smallest.html")
    assert "Of 300 epochs 40 are drawn." in read(smallest).text
    assert "The commands of the runs are left out" in read(smallest).text
    assert smallest.stat().st_size < 0.8 * whole.stat().st_size


def test_views_get_what_the_rest_leaves(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [-5.0] * 3)
    sections, _ = report.read_sections([tmp_path])
    (view,), (small,) = latent_views(sections), latent_views(sections, n_used=4_900_000)
    assert "here is neither" in view
    assert "left out, so that the page stays small" in small


def test_unfinished_methods_are_marked_and_taken_at_their_common_epoch(tmp_path: Path) -> None:
    make_run(tmp_path / "done", [-3.0, -2.5, -2.0], test={"accuracy": 0.5})
    make_run(tmp_path / "a", [-9.0, -8.0], method="dense", seed=0, test={"accuracy": 0.9})
    make_run(tmp_path / "b", [-7.0], method="dense", seed=1)
    (section,), _ = report.read_sections([tmp_path])
    dense = next(summary for summary in section.summaries if summary.method == "dense")
    assert (dense.validation["elbo"].mean, dense.seconds.mean, dense.test) == (-8.0, 1.5, {})  # of the first epoch
    figures = {figure.title: figure for figure in figures_of(section)}
    elbo, time = figures["Validation ELBO over epochs"], figures["Time and quality"]
    assert {series.name for series in elbo.series} == {"sparse", "dense"}
    assert "Drawn to the last epoch that all seeds have reached: dense, unfinished, at epoch 1 of 3." in elbo.note
    assert [series.name for series in time.series] == ["sparse"]
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


def made_on(path: Path, machine: object) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"machine": machine}))


def test_machines_of_seconds_are_named(tmp_path: Path) -> None:
    test = {"accuracy": 0.5}
    for seed in range(2):
        made_on(make_run(tmp_path / str(seed), [-3.0] * 3, seed=seed, test=test), "fast")
    assert "Seconds are of fast." in compare(report.read_sections([tmp_path])[0][0]).notes
    made_on(tmp_path / "1", "slow")
    made_on(make_run(tmp_path / "dense", [-3.0] * 3, method="dense", test=test), ["odd"])
    (section,), _ = report.read_sections([tmp_path])
    told = (
        "Seconds are of different machines and cannot be compared between them: fast (sparse); slow (sparse); a machine "
        "that is not known (dense). The seeds of sparse come from different ones, over which seconds are averaged."
    )
    assert told in compare(section).notes
    page = read(report.write_report([tmp_path], tmp_path / "page.html"))
    assert page.text.count("The seeds of sparse come from different ones") == 3  # two tables and a figure


def test_different_numbers_of_samples_are_told(tmp_path: Path) -> None:
    options: dict[str, Any] = {"experiment": "bitvector-vae", "method": "topk"}
    found = {"bits_per_dim_paper": 3.5, "n_samples": 64}
    make_run(tmp_path / "a", [-3.0] * 3, seed=0, test=found, **options)
    assert "Bits/dim are of 64 samples." in compare(report.read_sections([tmp_path])[0][0]).notes
    make_run(tmp_path / "b", [-3.0] * 3, seed=1, test=found | {"n_samples": 1024, "n_annealed": 30}, **options)
    make_run(tmp_path / "c", [-3.0] * 3, test=found | {"n_samples": 1024}, **options | {"method": "gumbel"})
    told = (
        "Bits/dim are of 30 annealed images. Bits/dim are of different numbers of samples, and cannot be compared: "
        "64 (topk); 1024 (topk, gumbel)."
    )
    assert told in compare(report.read_sections([tmp_path])[0][0]).notes
    make_run(tmp_path / "d", [-3.0] * 3, test={"accuracy": 0.5, "n_samples": 64})  # of nothing that takes samples
    assert not any("samples" in note for note in compare(report.read_sections([tmp_path / "d"])[0][0]).notes)


@pytest.mark.parametrize(("n_epochs", "ticks"), [(1, ["1"]), (2, ["1", "2"]), (4, ["1", "2", "3", "4"])])
def test_few_epochs_have_a_number_each(n_epochs: int, ticks: list[str]) -> None:
    series = [Series("a", 0, list(range(1, n_epochs + 1)), [3.0] * n_epochs)]
    root = parse(draw(Figure("title", "note", "epoch", "y", series), "one"))
    assert [each.text for each in root.iter("text") if each.attrib.get("y") == "347"] == ticks


def test_bands_are_told_in_words() -> None:
    series = [Series("a", 0, [1, 2], [5.0, 4.0], [4.0, 3.0], [6.0, 5.0])]
    around_mean = draw(Figure("title", "note", "epoch", "y", series), "one")
    around_median = draw(Figure("title", "note", "epoch", "y", series, edges="quartiles"), "one")
    assert "At the end: a 4 ± 1." in around_mean
    assert "At the end: a median 4, quartiles 3 to 5." in around_median


def test_names_of_points_keep_off_the_axis() -> None:
    """Eleven marks at one place: names have lines to it where they are far away."""
    point = Point(report.Statistic(0.0, None, 1), report.Statistic(1.0, None, 1))
    far = Series("right", 99, point=Point(report.Statistic(9.0, None, 1), report.Statistic(1.0, None, 1)))
    root = parse(draw(Figure("t", "n", "x", "y", [far, *(Series(f"name {i}", i, point=point) for i in range(11))]), "one"))
    names = [(group, text) for group in root.iter("g") for text in group.findall("text")]
    widths = {"start": 0.0, "middle": 0.5, "end": 1.0}
    for _, text in names:
        left = float(text.attrib["x"]) - 6.7 * len(text.text or "") * widths[text.attrib["text-anchor"]]
        assert left > 66
    assert any(path.attrib["class"] == "leader solid" for group, _ in names for path in group.findall("path"))


def test_huge_numbers_are_short(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [1e308] * 3, calls=1e300, test={"accuracy": 1e306})
    page = read(report.write_report([tmp_path], tmp_path / "page.html"))
    assert "1e+308" in page.text
    assert not re.search(r"\d{40}", page.text)


def test_the_setting_without_a_name_is_told(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [-3.0] * 3)
    (section,), _ = report.read_sections([tmp_path])
    (summary,) = section.summaries
    named = dataclasses.replace(summary, setting={"variant": "one"}, validation={})
    both = dataclasses.replace(section, summaries=[summary, named])
    assert "sparse: no variant (of 2)." in page.drawn_settings(both)


def test_defaults_of_methods_are_not_listed(tmp_path: Path) -> None:
    for method, init in (("sparse", None), ("gumbel", None), ("st-gumbel", "normal")):
        folder = RunFolder(tmp_path / method)
        folder.create("signal-game", make_args("signal-game", method, {"epochs": 1, "symbol_init": init}))
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
