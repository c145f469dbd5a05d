"""The page of `sparsum report` as a reader uses it: by mouse, by keyboard, in light and dark, without a network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sparsum_experiments import report
from sparsum_experiments.registry import make_args
from sparsum_experiments.runs import Config, RunArgs, RunFolder
from sparsum_experiments.training.start import run

pytestmark = pytest.mark.browser
RESULTS = Path(__file__).parents[3] / "results"
END = 506 / 666  # where the axis of a figure ends, as a part of its width
ODD = "<img src=x onerror=alert(1)></script><!--\u2028&amp;\"'"


@pytest.fixture
def load(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page, and checks afterwards that it logged nothing and requested nothing."""
    contexts, messages, requests = [], [], []

    def opened(file: Path, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("dialog", lambda dialog: messages.append(dialog.message))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert messages == []
    assert requests
    assert all(url.startswith("file://") for url in requests), requests


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the records that are kept with the source."""
    return report.write_report([RESULTS], tmp_path_factory.mktemp("results") / "page.html")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of three methods and five epochs, whose numbers are known."""
    folder = tmp_path_factory.mktemp("small")
    for method, value in (("sparse", 9.0), ("dense", 80.0), ("sfe", None)):
        make_run(folder / method, method, value)
    return report.write_report([folder], folder / "page.html")


def make_run(path: Path, method: str, value: float | None, data: str = "mnist") -> None:
    """Success at epoch i is i times that at the end over 5, in per cent; there is no evaluation without a value."""
    folder = RunFolder(path)
    args = make_args("signal-game", "sparse", {"epochs": 5, "data": data}).model_dump() | {"method": method}
    folder.create(Config(experiment="signal-game", args=RunArgs(**args)))
    for epoch in range(5):
        calls = {"mean": 2.0, "median": 2.0, "p10": 1.0, "p25": 1.5, "p75": 3.0, "p90": 4.0}
        metrics = {"success": (value or 50.0) * (epoch + 1) / 500, ODD: 1.0}
        folder.add_metrics({"epoch": epoch, "validation": metrics, "calls": calls, "seconds": 1.0})
    if value is not None:
        (path / "evaluation.json").write_text(json.dumps({"success": value / 100}), encoding="utf-8")


def methods(page: Any) -> list[str]:
    """The first column of the first table."""
    found: list[str] = page.locator("table").first.locator("tbody th").all_text_contents()
    return found


OVERLAPS = """svg => {
  const boxes = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
  const found = [];
  boxes.forEach(([name, a], i) => boxes.slice(i + 1).forEach(([other, b]) => {
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (across > 0.5 && down > 0.5) found.push(`${name} / ${other}`);
  }));
  return found;
}"""

OUTSIDE = """svg => {
  const all = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.left < all.left - 1 || box.right > all.right + 1 || box.top < all.top - 1 || box.bottom > all.bottom + 1;
  }).map((text) => text.textContent);
}"""


def no_scrolling(page: Any) -> bool:
    is_narrow: bool = page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    return is_narrow


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_results_are_shown(load: Callable[..., Any], results: Path, scheme: str) -> None:
    page = load(results, color_scheme=scheme)
    assert results.stat().st_size < 4_900_000
    assert page.locator("main > section").count() >= 2
    assert page.locator("figure svg[role=img]").count() >= 6
    assert no_scrolling(page)
    for each in page.locator("details > summary").all():
        each.click()
    assert no_scrolling(page)  # wide tables scroll by themselves


def test_the_page_of_results_decodes_as_bits_are_switched(load: Callable[..., Any], results: Path) -> None:
    page = load(results)
    assert page.locator(".latent").count() == 4
    assert page.locator(".latent-problem").count() == 0
    with_switches = page.locator(".latent", has=page.locator(".latent-switch"))
    assert [view.locator(".latent-switch").count() for view in with_switches.all()] == [32, 128]
    for view in with_switches.all():
        decoded = view.locator(".latent-decoded")
        before = decoded.evaluate("canvas => canvas.toDataURL()")
        view.locator(".latent-switch").first.click()
        assert decoded.evaluate("canvas => canvas.toDataURL()") != before


def test_odd_names_are_text(load: Callable[..., Any], tmp_path: Path) -> None:
    make_run(tmp_path / "a", ODD, 20.0, data="x" * 300)
    make_run(tmp_path / "b", "sparse", 30.0, data="x" * 300)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text(ODD, encoding="utf-8")
    page = load(report.write_report([tmp_path], tmp_path / "page.html"))
    assert ODD in methods(page)
    assert page.locator("img").count() == 0
    assert page.locator(".legend button").count() == 2
    assert no_scrolling(page)
    assert "broken/config.json is not valid JSON" in page.locator("#left-out").inner_text()
    page.locator("figure .plot").first.focus()
    page.keyboard.press("End")
    assert ODD in page.locator(".tip").first.text_content()


def test_tables_are_sorted_by_click_and_by_keyboard(load: Callable[..., Any], small: Path) -> None:
    page = load(small)
    before = methods(page)
    assert before[:3] == ["sparse", "dense", "sfe"]
    heading = page.locator("th", has=page.get_by_role("button", name="success %", exact=True)).first
    button = heading.locator("button")
    button.click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert methods(page)[:2] == ["dense", "sparse"]  # 80 before 9, though not as text
    button.focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert methods(page)[:3] == ["sparse", "dense", "sfe"]  # which has no number, and stays behind
    page.keyboard.press("Space")
    assert heading.get_attribute("aria-sort") == "none"
    assert methods(page) == before
    name = page.locator("table").first.locator("thead button").first
    name.click()
    assert methods(page) == sorted(before)
    assert page.locator("table").first.locator("[aria-sort=ascending]").count() == 1


def test_values_are_shown_where_one_points(load: Callable[..., Any], small: Path) -> None:
    page = load(small)
    plot = page.locator("figure .plot").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] * END, box["y"] + box["height"] / 2)
    tip = plot.locator(".tip")
    assert tip.is_visible()
    assert re.sub(r"\s+", " ", tip.inner_text()) == "epoch 5 dense 80 sfe 50 sparse 9"
    page.mouse.move(0, 0)
    assert tip.is_hidden()
    plot.focus()
    page.keyboard.press("Home")
    assert "epoch 1" in tip.inner_text()
    page.keyboard.press("ArrowRight")
    assert re.sub(r"\s+", " ", tip.inner_text()) == "epoch 2 dense 32 sfe 20 sparse 3.6"
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_points_are_read_by_keyboard(load: Callable[..., Any], small: Path) -> None:
    page = load(small)
    plot = page.locator("figure", has_text="Time and quality").locator(".plot")
    plot.focus()
    seen = set()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
        seen.add(plot.locator(".tip i").first.text_content())
    assert seen == {"sparse", "dense", "sfe"}


def test_methods_are_hidden_and_shown(load: Callable[..., Any], small: Path) -> None:
    page = load(small)
    button = page.locator(".legend button", has_text="dense")
    drawn = page.locator(f".plot [data-series='{button.get_attribute('data-series')}']")
    assert drawn.count() >= 12  # a line or a mark, a leader, and a name with its mark in each of four figures
    assert drawn.first.is_visible()
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert all(each.is_hidden() for each in drawn.all())
    assert page.locator(".plot text", has_text=re.compile("^dense$")).first.is_hidden()
    plot = page.locator("figure .plot").first
    plot.focus()
    page.keyboard.press("End")
    assert "dense" not in plot.locator(".tip").inner_text()
    button.focus()
    page.keyboard.press("Space")
    assert button.get_attribute("aria-pressed") == "true"
    assert drawn.first.is_visible()


def test_light_and_dark_are_chosen(load: Callable[..., Any], small: Path) -> None:
    def background(page: Any) -> str:
        found: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return found

    light, dark = load(small, color_scheme="light"), load(small, color_scheme="dark")
    colours = background(light), background(dark)
    assert colours[0] != colours[1]
    light.get_by_role("button", name="Dark").click()
    assert background(light) == colours[1]
    light.get_by_role("button", name="Light").press("Enter")
    assert background(light) == colours[0]
    light.get_by_role("button", name="Dark").click()
    light.reload()
    assert background(light) == colours[0]  # nothing is remembered
    dark.emulate_media(media="print", color_scheme="dark")
    assert background(dark) == colours[0]


def test_figures_need_no_script(load: Callable[..., Any], small: Path) -> None:
    page = load(small, java_script_enabled=False)
    assert page.locator("figure svg path[data-series]").first.is_visible()
    assert page.get_by_role("button", name="Dark").count() == 0
    assert page.locator(".hint").first.is_hidden()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of a trained run of each experiment, with what its latent variables learned."""
    place = tmp_path_factory.mktemp("trained")
    own: dict[str, tuple[str, dict[str, Any]]] = {
        "bitvector-vae": ("topk", {"bits": 16}),
        "signal-game": ("sparse", {}),
        "ssvae": ("sparse", {"warm_epochs": 0, "batch_size": 1000}),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARSUM_CACHE", str(place / "cache"))
        for experiment, (method, options) in own.items():
            run(experiment, method, {"epochs": 1, "device": "cpu"} | options, out=place / experiment)
        return report.write_report([place], place / "page.html")


def test_all_tables_sort_beside_the_views_of_all_experiments(load: Callable[..., Any], trained: Path) -> None:
    page = load(trained)  # which fails the test if a script does
    assert page.locator(".latent").count() == 3
    assert page.locator(".latent-problem").count() == 0
    assert page.locator(".latent table:not(.sortable)").count() > 0  # whose headings are no buttons
    last = page.locator("table.sortable").last
    heading = last.locator("thead th").first
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    page.set_viewport_size({"width": 400, "height": 800})
    assert no_scrolling(page)
    words = page.locator(".latent thead th")
    assert all(each.evaluate("each => each.getBoundingClientRect().height") < 40 for each in words.all())  # on one line


def test_values_stay_after_a_tap(load: Callable[..., Any], small: Path) -> None:
    page = load(small, has_touch=True)
    plot = page.locator("figure .plot").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] * END, box["y"] + box["height"] / 2)
    assert "epoch 5" in plot.locator(".tip").inner_text()
    assert plot.locator(".tip").is_visible()
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] - 12)
    assert plot.locator(".tip").is_hidden()


def test_narrow_pages_are_readable(load: Callable[..., Any], small: Path) -> None:
    page = load(small)
    page.set_viewport_size({"width": 400, "height": 800})
    assert no_scrolling(page)
    height = page.locator("figure svg text").first.evaluate("each => each.getBoundingClientRect().height")
    assert height > 9  # of letters that are 10 pixels high at least
    plot = page.locator("figure", has_text="Time and quality").locator(".plot")
    plot.focus()
    for _ in range(3):  # what is read is never outside of the box
        page.keyboard.press("ArrowRight")
        tip, outside = plot.locator(".tip").bounding_box(), plot.locator("..").bounding_box()
        assert tip["x"] >= outside["x"] - 1
        assert tip["x"] + tip["width"] <= outside["x"] + outside["width"] + 1
    assert plot.evaluate("each => each.parentElement.scrollHeight <= each.parentElement.clientHeight")
    box = page.locator(".wide", has=page.locator("table")).first
    box.evaluate("each => { each.scrollLeft = 150; }")
    assert page.locator("table tbody th").first.bounding_box()["x"] == pytest.approx(box.bounding_box()["x"], abs=1)


@pytest.mark.parametrize("width", [1280, 400])
def test_labels_of_figures_do_not_overlap(load: Callable[..., Any], results: Path, width: int) -> None:
    page = load(results)
    page.set_viewport_size({"width": width, "height": 900})
    pictures = page.locator("figure svg[role=img]:has(text)").all()
    assert len(pictures) >= 20
    for picture in pictures:
        assert picture.evaluate(OVERLAPS) == []
        assert picture.evaluate(OUTSIDE) == []


@pytest.mark.parametrize("width", [1280, 400])
def test_tables_that_are_cut_off_say_so(load: Callable[..., Any], results: Path, width: int) -> None:
    page = load(results)
    page.set_viewport_size({"width": width, "height": 900})
    for each in page.locator("details > summary").all():
        each.click()
    n_cut = 0
    for box in page.locator(".wide:has(table)").all():
        is_cut = box.evaluate("each => each.scrollWidth > each.clientWidth + 1")
        more = box.locator("xpath=following-sibling::*[1]")
        assert more.is_visible() == is_cut
        assert "linear-gradient" in box.evaluate("each => getComputedStyle(each).backgroundImage")
        assert box.get_attribute("tabindex") == "0"
        if is_cut:
            n_cut += 1
            assert more.inner_text() == "scroll for more columns →"
            box.focus()
            page.keyboard.press("ArrowRight")  # the keyboard scrolls, too
            box.evaluate("each => new Promise((done) => { each.onscroll = done; each.scrollLeft = each.scrollWidth; })")
            more.wait_for(state="hidden")
    assert n_cut >= 2


def test_nothing_is_sent_or_requested(browser: Any, small: Path) -> None:
    page = browser.new_page()
    page.goto(small.as_uri())
    policy = page.locator("meta[http-equiv=Content-Security-Policy]").get_attribute("content")
    assert {"default-src 'none'", "form-action 'none'", "base-uri 'none'"} <= set(policy.split("; "))
    outcome = page.evaluate(
        """() => new Promise((done) => {
          document.addEventListener("securitypolicyviolation", (event) => done(event.effectiveDirective));
          const base = document.createElement("base");
          base.href = "https://example.org/";
          document.head.append(base);
        })"""
    )
    assert outcome == "base-uri"
    injected = page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "document.title = 'injected'";
          document.body.append(script);
          const link = document.createElement("a");
          link.setAttribute("onclick", "document.title = 'injected'");
          link.click();
          return document.title;
        }"""
    )
    assert injected != "injected"
    page.close()


def test_figures_are_described(load: Callable[..., Any], small: Path) -> None:
    page = load(small)
    picture = page.locator("figure svg[role=img]").first
    title, description = picture.get_attribute("aria-labelledby").split()
    assert page.locator(f"#{title}").text_content() == "Validation success over epochs"
    assert "At the end: sparse 9; dense 80; sfe 50." in page.locator(f"#{description}").text_content()
    assert page.locator("figure .plot").first.get_attribute("aria-label").endswith("arrow keys read values")


def test_every_section_opens_with_what_was_found(load: Callable[..., Any], results: Path) -> None:
    page = load(results)
    for section in page.locator("main > section").all():
        assert section.locator("h2 + p.finding").inner_text().endswith(".")


def test_print_keeps_figures_and_drops_controls(load: Callable[..., Any], small: Path) -> None:
    page = load(small)
    page.emulate_media(media="print")
    assert page.locator("figure svg path[data-series]").first.is_visible()
    assert page.locator(".hint").first.is_hidden()
    assert page.locator("button.theme").is_hidden()
    assert page.locator(".more").first.is_hidden()
