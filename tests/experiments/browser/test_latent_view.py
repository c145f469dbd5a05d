"""The switches of a bit-vector VAE in a browser: what they show is what the model says."""

from __future__ import annotations

import base64
import importlib.resources
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from sparsum_experiments import report
from sparsum_experiments.bitvector_vae import BitvectorVAE, Model
from sparsum_experiments.report import page as pages
from sparsum_experiments.report.latent import kept as latent
from sparsum_experiments.report.latent.bits import BitsView
from sparsum_experiments.training.evaluate import restore_experiment
from sparsum_experiments.training.start import run
from torch import Tensor

pytestmark = pytest.mark.browser

N_BITS = 20
PIXELS = "canvas => Array.from(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A trained run."""
    options = {"bits": N_BITS, "epochs": 3, "lr": 2e-3, "device": "cpu"}
    return run("bitvector-vae", "topk", options, out=tmp_path_factory.mktemp("runs") / "topk")[0].path


@pytest.fixture(scope="module")
def view(folder: pathlib.Path) -> BitsView:
    found = latent.latent_of_run(folder).view
    assert isinstance(found, BitsView)
    return found


@pytest.fixture(scope="module")
def model(folder: pathlib.Path) -> Model:
    experiment, _ = restore_experiment(folder, device="cpu")
    assert isinstance(experiment, BitvectorVAE)
    return experiment.model


@pytest.fixture
def page(browser: Any, folder: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Any]:
    """The report, opened from the disk; whatever it logs as an error, or requests from the network, fails the test."""
    file = report.write_report([folder], tmp_path / "report.html")
    opened = browser.new_page(viewport={"width": 1200, "height": 900})
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda request: complaints.append(request.url) if request.url.startswith("http") else None)
    opened.goto(file.as_uri())
    yield opened
    opened.close()
    assert not complaints


def shown(page: Any) -> Tensor:
    """The decoded picture, grey levels of 0 to 255."""
    data = page.locator(".latent-decoded").evaluate(PIXELS)
    return torch.tensor(data).reshape(-1, 4)[:, 0]


def switched(page: Any) -> list[int]:
    """The code that the switches show."""
    pressed = page.locator(".latent-switch").evaluate_all("all => all.map(each => each.getAttribute('aria-pressed'))")
    return [int(each == "true") for each in pressed]


def probabilities(model: Model, code: list[int]) -> Tensor:
    """Of the levels of each pixel: (n_pixels, n_levels)."""
    with torch.no_grad():
        features = model.generative(torch.tensor(code).float()).unflatten(-1, (model.n_pixels, -1))
        levels: Tensor = model.levels(features).softmax(-1)
    return levels


def expected(model: Model, code: list[int]) -> Tensor:
    """The expected grey levels of the pixels, 0 to 255."""
    return probabilities(model, code) @ torch.arange(model.n_levels).float() * 255 / (model.n_levels - 1)


def test_the_first_image_and_its_first_code_are_there(page: Any, view: BitsView, model: Model) -> None:
    assert page.locator(".latent-thumbnails button").count() == len(view.examples)
    assert page.locator(".latent-switch").count() == N_BITS
    assert switched(page) == [int(bit) for bit in view.examples[0].atoms[0].bits]
    original = torch.tensor(page.locator(".latent-picture").first.evaluate(PIXELS)).reshape(-1, 4)[:, 0]
    wanted = torch.tensor(list(view.examples[0].image)) * 255 / (view.n_levels - 1)
    assert (original - wanted).abs().max() <= 0.5
    assert page.locator(".latent-switch.is-moved").count() == 0


def test_pixels_are_those_of_the_model(page: Any, view: BitsView, model: Model) -> None:
    """Up to the rounding to whole grey levels and to half precision."""
    n_checked = 0
    for bit in [None, 0, 7, 19, 3]:
        if bit is not None:
            page.locator(".latent-switch").nth(bit).click()
        code = switched(page)
        assert (shown(page) - expected(model, code)).abs().max() <= 1.0
        image = torch.tensor(list(view.examples[0].image))
        bits = -probabilities(model, code)[torch.arange(model.n_pixels), image].log2().mean().item()
        text = page.locator(".latent-pictures figcaption").nth(1).text_content()
        found = re.search(r"[\d.]+(?= bits per pixel)", text)
        assert found is not None
        assert float(found[0]) == pytest.approx(bits, abs=2e-3)
        n_checked += 1
    assert n_checked == 5


def test_most_probable_values(page: Any, model: Model) -> None:
    page.get_by_label("most probable value").check()
    levels = probabilities(model, switched(page))
    found = (shown(page) * (model.n_levels - 1) / 255).round().long()
    # Half precision may choose another of two values that are as probable.
    chosen = levels.gather(1, found.unsqueeze(1)).squeeze(1)
    assert (levels.amax(1) - chosen).max() < 2e-3
    page.get_by_label("expected value").check()
    assert (shown(page) - expected(model, switched(page))).abs().max() <= 1.0


def test_a_switch_changes_the_picture_and_is_marked(page: Any) -> None:
    before, code = shown(page), switched(page)
    page.locator(".latent-switch").nth(4).click()
    assert [i for i in range(N_BITS) if code[i] != switched(page)[i]] == [4]
    assert not torch.equal(before, shown(page))
    marked = page.locator(".latent-switch.is-moved")
    assert marked.count() == 1
    assert marked.get_attribute("aria-label") == "bit 5, switched away from the code"
    assert "Switched away from the chosen code: 5." in page.locator(".latent-status").text_content()
    page.get_by_role("button", name="back to the chosen code").click()
    assert page.evaluate("document.activeElement.closest('.latent-atoms') !== null")  # the button itself is off now
    assert torch.equal(before, shown(page))
    assert switched(page) == code
    assert page.locator(".latent-switch.is-moved").count() == 0


def test_images_and_codes_set_the_switches(page: Any, view: BitsView, model: Model) -> None:
    n_checked = 0
    for i, example in enumerate(view.examples):
        page.locator(".latent-thumbnails button").nth(i).click()
        assert page.locator(".latent-thumbnails button[aria-pressed=true]").count() == 1
        buttons = page.locator(".latent-atoms button")
        assert buttons.count() == len(example.atoms)
        for j, atom in enumerate(example.atoms):
            buttons.nth(j).click()
            assert switched(page) == [int(bit) for bit in atom.bits]
            assert f"{100 * atom.probability:.1f}".rstrip("0").rstrip(".") in buttons.nth(j).text_content()
            assert page.locator(".latent-atoms button[aria-pressed=true]").count() == 1
            n_checked += 1
        assert (shown(page) - expected(model, switched(page))).abs().max() <= 1.0
    assert n_checked == sum(len(example.atoms) for example in view.examples)


def test_the_keyboard_is_enough(page: Any) -> None:
    code = switched(page)
    page.locator(".latent-switch").first.focus()
    for key, place in [("ArrowRight", 1), ("ArrowDown", 17), ("ArrowLeft", 16), ("ArrowUp", 0), ("End", 19), ("Home", 0)]:
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.textContent") == str(place + 1)
    page.keyboard.press("ArrowLeft")  # there is nothing before the first
    assert page.evaluate("document.activeElement.textContent") == "1"
    page.keyboard.press("Space")
    assert switched(page) == [1 - code[0], *code[1:]]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert switched(page) == [1 - code[0], 1 - code[1], *code[2:]]
    # The switches are one stop of the tab key.
    assert page.locator(".latent-switch[tabindex='0']").count() == 1
    page.locator(".latent-thumbnails button").nth(2).focus()
    page.keyboard.press("Enter")
    assert page.locator(".latent-thumbnails button").nth(2).get_attribute("aria-pressed") == "true"


def test_a_narrow_window_is_wide_enough(page: Any) -> None:
    page.set_viewport_size({"width": 360, "height": 800})
    overflow = page.evaluate(
        "Array.from(document.querySelectorAll('.latent *')).filter(each => each.getBoundingClientRect().right > 361).length"
    )
    assert overflow == 0


def test_labels_of_a_kept_view_are_text(browser: Any, view: BitsView, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    evil = "</script><img src=x onerror='document.title = 1'>\u2028"
    content = view.model_dump(mode="json")
    content["examples"][0]["label"] = evil
    assert base64.b64decode(content["weights"]) == view.weights
    changed = pages.macros("latent.html.j2").bits(BitsView.model_validate(content))
    file = tmp_path / "page.html"
    script = (importlib.resources.files("sparsum_experiments.report") / "page" / "latent.js").read_text(encoding="utf-8")
    file.write_text(f'<!doctype html><meta charset="utf-8"><body>{changed}<script>{script}</script>', encoding="utf-8")
    opened = browser.new_page()
    opened.goto(file.as_uri())
    assert opened.locator(".latent-bits figcaption").first.text_content() == f"test image: {evil}"
    assert opened.locator(".latent-bits img").count() == 0
    assert opened.title() == ""
    opened.close()
