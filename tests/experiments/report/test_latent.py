"""What latent variables learned: that views are true to their models, are kept and read again, and never stop a report."""

from __future__ import annotations

import base64
import copy
import html
import json
import pathlib
import pickle
import re
import shutil
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sparsum_experiments import report
from sparsum_experiments.bitvector_vae import BitvectorVAE
from sparsum_experiments.main import main
from sparsum_experiments.report import page
from sparsum_experiments.report.latent import kept as latent
from sparsum_experiments.report.latent.bits import BitsView, halves
from sparsum_experiments.report.latent.classes import ClassesView
from sparsum_experiments.report.latent.symbols import Concept, SymbolsView
from sparsum_experiments.report.latent.view import AbstractView
from sparsum_experiments.report.recording import record_runs
from sparsum_experiments.runs import RunFolder, find_runs, read_records, read_run, records_file, write_records
from sparsum_experiments.signal_game import SignalGame
from sparsum_experiments.ssvae import SemisupervisedVAE
from sparsum_experiments.training.evaluate import evaluate_run, restore_experiment
from sparsum_experiments.training.start import run

import sparsum as sp

COMMON = {"epochs": 1, "device": "cpu", "lr": 2e-3}
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "classes": ("ssvae", "sparse", {"warm_epochs": 2, "batch_size": 200}),
    "dense-classes": ("ssvae", "dense", {"warm_epochs": 0, "batch_size": 500}),
    "symbols": ("signal-game", "sparse", {}),
    "topk": ("bitvector-vae", "topk", {"bits": 8, "k": 4}),
    "sparsemap": ("bitvector-vae", "sparsemap", {"bits": 16}),
    "sampled": ("bitvector-vae", "sfe", {"bits": 8}),
    "summed": ("bitvector-vae", "dense", {"bits": 6}),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with a run for each name in RUNS."""
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARSUM_CACHE", str(place / "cache"))
        for name, (experiment, method, options) in RUNS.items():
            run(experiment, method, COMMON | options, out=place / name)
    return place


@pytest.fixture
def runs(trained: pathlib.Path, tmp_path: pathlib.Path) -> Callable[..., pathlib.Path]:
    """Copies of some runs, to be changed, in one folder."""

    def copied(*names: str) -> pathlib.Path:
        for name in names:
            shutil.copytree(trained / name, tmp_path / "runs" / name)
        return tmp_path / "runs"

    return copied


def page_of(*places: pathlib.Path, out: pathlib.Path) -> str:
    return report.write_report(places, out).read_text(encoding="utf-8")


def markup_of(view: AbstractView) -> str:
    """How the page shows a view."""
    shown = latent.Shown(view.title, view, "", [])
    return str(page.macros("latent.html.j2").latent(shown))


def text_of(page: str) -> str:
    """What a page says, without scripts and styles."""
    page = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", page))


def decoded(content: dict[str, Any], code: torch.Tensor) -> np.ndarray[Any, Any]:
    """The probabilities (n_pixels, n_levels) of a code, from what is embedded in a page alone."""
    numbers = np.frombuffer(base64.b64decode(content["weights"]), "<f2").astype(np.float32)
    n_pixels, rank = content["height"] * content["width"], content["rank"]
    n_hidden, n_levels = content["n_hidden"], content["n_levels"]
    shapes = [(n_hidden, content["n_bits"]), (n_hidden,), (n_pixels * rank, n_hidden), (n_pixels * rank,)]
    shapes += [(n_levels, rank), (n_levels,)]
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    assert ends[-1] == len(numbers)
    parts = [part.reshape(shape) for part, shape in zip(np.split(numbers, ends[:-1]), shapes, strict=True)]
    hidden = np.maximum(parts[0] @ code.numpy() + parts[1], 0)
    logits = (parts[2] @ hidden + parts[3]).reshape(n_pixels, rank) @ parts[4].T + parts[5]
    weights = np.exp(logits - logits.max(1, keepdims=True))
    probabilities: np.ndarray[Any, Any] = weights / weights.sum(1, keepdims=True)
    return probabilities


def test_every_view_is_made_kept_and_read_again(trained: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for name, (experiment, method, options) in RUNS.items():
        made = latent.latent_of_run(trained / name)
        assert (made.experiment, made.method, made.data, made.seed) == (experiment, method, "digits", 0)
        assert made.bits == options.get("bits")
        (tmp_path / "latent.json").write_text(made.text(), encoding="utf-8")
        assert latent.read_latent(tmp_path / "latent.json") == made
        assert latent.latent_of_run(trained / name) == made  # its noise has a fixed seed


@pytest.mark.parametrize(("name", "mapping"), [("classes", sp.sparsemax), ("dense-classes", torch.softmax)])
def test_class_probabilities_are_the_models(trained: pathlib.Path, name: str, mapping: Callable[..., torch.Tensor]) -> None:
    view = latent.latent_of_run(trained / name).view
    experiment, _ = restore_experiment(trained / name, device="cpu")
    assert isinstance(view, ClassesView)
    assert isinstance(experiment, SemisupervisedVAE)
    assert len(view.samples) == 10 * view.n_columns * 64
    assert len({example.label for example in view.examples[:10]}) == 10
    for example in view.examples:
        x = torch.tensor(list(example.image)) / 255
        assert set(x.tolist()) <= {0.0, 1.0}
        with torch.no_grad():
            pi = mapping(experiment.model.classifier(x), -1)
        torch.testing.assert_close(torch.tensor(example.probabilities), pi, atol=1e-5, rtol=0)
        assert example.reconstructions[0].z == pi.argmax()
        assert all(pi[each.z] >= 0.005 for each in example.reconstructions)


def test_class_pictures_have_alternatives_in_words(trained: pathlib.Path) -> None:
    shown = markup_of(latent.latent_of_run(trained / "classes").view)
    assert shown.count('src="data:image/png;base64,') == shown.count("<img") > 120
    assert "12 samples of class 9" in shown
    assert "test image, digit 3" in shown
    assert re.search(r'aria-label="probabilities of classes, \d: \d+%', shown)


def test_symbols_are_counted(trained: pathlib.Path) -> None:
    view = latent.latent_of_run(trained / "symbols").view
    experiment, _ = restore_experiment(trained / "symbols", device="cpu")
    assert isinstance(view, SymbolsView)
    assert isinstance(experiment, SignalGame)
    with torch.no_grad():
        sent = experiment.model.sender(experiment.games.test.x).argmax(-1).tolist()
    concepts = [experiment.games.names[i] for i in experiment.games.test.concept.tolist()]
    assert (view.n_images, view.n_used) == (len(sent), len(set(sent)))
    for symbol in view.symbols:
        meant = [concept for z, concept in zip(sent, concepts, strict=True) if z == symbol.number]
        assert symbol.count == len(meant)
        assert all(meant.count(concept.name) == concept.count for concept in symbol.concepts)


def test_concepts_with_a_symbol_of_their_own() -> None:
    # Symbol 0 is mostly a, symbol 1 mostly b but few of the b, symbol 2 nothing in particular; symbol 3 is not sent.
    counts = torch.tensor([[8, 1, 0], [1, 3, 0], [1, 5, 5], [0, 0, 0]])
    view = SymbolsView.from_counts(counts, ("a", "b", "c"))
    assert (view.n_images, view.n_concepts, view.n_symbols, view.n_used) == (24, 3, 4, 3)
    assert (view.n_named, view.n_own, view.n_guessed) == (2, 1, 8 + 3 + 5)
    assert [symbol.number for symbol in view.symbols] == [2, 0, 1]
    assert view.symbols[1].concepts == [Concept(name="a", count=8), Concept(name="b", count=1)]


def test_names_of_concepts_are_no_markup() -> None:
    shown = markup_of(SymbolsView.from_counts(torch.tensor([[3]]), ("<img src=x onerror=alert(1)>",)))
    assert "<img" not in shown
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown


@pytest.mark.parametrize("name", ["topk", "sparsemap", "sampled", "summed"])
def test_codes_have_the_probabilities_of_the_posterior(trained: pathlib.Path, name: str) -> None:
    view = latent.latent_of_run(trained / name).view
    experiment, _ = restore_experiment(trained / name, device="cpu")
    assert isinstance(view, BitsView)
    assert isinstance(experiment, BitvectorVAE)
    n_bits = experiment.args.bits
    assert len(view.examples) == 12
    for example in view.examples:
        x = torch.tensor([list(example.image)], dtype=torch.uint8)
        with torch.no_grad():
            q = experiment.model.posterior(x, torch.Generator().manual_seed(1))
            scores = experiment.model.scores(x)
        codes = torch.tensor([[float(bit) for bit in atom.bits] for atom in example.atoms])
        probs = torch.tensor([atom.probability for atom in example.atoms])
        row = torch.zeros(len(codes), dtype=torch.int64)
        torch.testing.assert_close(probs, q.log_prob_of(codes, row).exp(), atol=1e-5, rtol=1e-4)  # type: ignore[attr-defined]
        assert probs.tolist() == sorted(probs.tolist(), reverse=True)
        assert len({atom.bits for atom in example.atoms}) == len(codes)
        if name in {"topk", "sparsemap"}:
            assert example.n_atoms == int(q.n_atoms_per_row)  # type: ignore[attr-defined]
            assert probs.sum().item() == pytest.approx(1, abs=1e-4) or example.n_atoms > len(codes)
        if name == "sampled":
            every = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * n_bits)
            each = (every * scores).sum(-1).softmax(0).topk(len(codes)).values
            torch.testing.assert_close(probs, each, atol=1e-5, rtol=1e-3)
            assert example.n_atoms == 0


def test_embedded_decoder_is_the_models_in_half_precision(trained: pathlib.Path) -> None:
    content = latent.latent_of_run(trained / "topk").view.model_dump(mode="json")
    experiment, _ = restore_experiment(trained / "topk", device="cpu")
    assert isinstance(experiment, BitvectorVAE)
    model = experiment.model
    codes = torch.randint(0, 2, (5, 8), generator=torch.Generator().manual_seed(0)).float()
    for code in codes:
        with torch.no_grad():
            wanted = model.levels(model.generative(code).unflatten(-1, (64, -1))).softmax(-1)
        np.testing.assert_allclose(decoded(content, code), wanted.numpy(), atol=5e-3)


def test_what_does_not_fit_into_half_precision_is_told() -> None:
    assert halves([torch.tensor([1.5]), torch.tensor([[-2.0]])]) == np.array([1.5, -2.0], "<f2").tobytes()
    with pytest.raises(ValueError, match="not finite in half precision"):
        halves([torch.tensor([1e6])])


def test_best_run_of_each_number_of_bits_is_shown(runs: Callable[..., pathlib.Path], tmp_path: pathlib.Path) -> None:
    place = runs("topk", "sampled", "sparsemap", "classes", "symbols")
    page = page_of(place, out=tmp_path / "page.html")
    best = max(("topk", "sampled"), key=lambda name: read_run(place / name).validation["elbo"])
    assert f"{RUNS[best][1]} (" in text_of(page).partition("What the bits learned")[2][:60]
    assert page.count('"weights":') == 2
    assert page.count("class BitsView") == 1
    assert "What the classes learned" in page
    assert "What the symbols stand for" in page
    assert not re.search(r"""(src|href)=["']https?://|url\(["']?http""", page)
    assert len(page) < 5_000_000


def test_first_seed_is_shown(runs: Callable[..., pathlib.Path], tmp_path: pathlib.Path) -> None:
    place = runs("topk")
    for seed in (7, 3):
        shutil.copytree(place / "topk", place / f"seed-{seed}")
        config = json.loads((place / "topk" / "config.json").read_text(encoding="utf-8"))
        config["args"]["seed"] = seed
        (place / f"seed-{seed}" / "config.json").write_text(json.dumps(config), encoding="utf-8")
        folder = RunFolder(place / f"seed-{seed}")
        state = folder.load("last") or {}
        folder.save("last", {name: value for name, value in state.items() if name != "config"})  # of another seed
    (place / "topk" / "checkpoints" / "last.pt").unlink()
    assert "topk, seed 3:" in text_of(page_of(place, out=tmp_path / "page.html"))


def test_without_checkpoints_a_sentence_says_what_is_needed(
    runs: Callable[..., pathlib.Path], tmp_path: pathlib.Path
) -> None:
    place = runs("topk")
    shutil.rmtree(place / "topk" / "checkpoints")
    page = page_of(place, out=tmp_path / "page.html")
    assert "is shown if its folder has a checkpoint" in text_of(page)
    assert '"weights":' not in page


def test_missing_data_is_reported_and_the_report_goes_on(runs: Callable[..., pathlib.Path], tmp_path: pathlib.Path) -> None:
    place = runs("symbols", "classes")
    config = json.loads((place / "symbols" / "config.json").read_text(encoding="utf-8"))
    config["args"]["data"] = str(tmp_path / "moved" / "features")
    (place / "symbols" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    text = text_of(page_of(place, out=tmp_path / "page.html"))
    assert "Views that could not be made" in text
    assert str(tmp_path / "moved" / "features") in text.partition("Views that could not be made")[2]
    assert "12 samples" in page_of(place, out=tmp_path / "page.html")


class _Evil:
    """Unpickled, it would leave a file."""

    def __init__(self, trace: pathlib.Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return pathlib.Path.touch, (self.trace,)


def test_checkpoint_that_would_run_code_does_not(runs: Callable[..., pathlib.Path], tmp_path: pathlib.Path) -> None:
    place = runs("topk")
    (place / "topk" / "checkpoints" / "last.pt").write_bytes(pickle.dumps(_Evil(tmp_path / "trace")))
    text = text_of(page_of(place, out=tmp_path / "page.html"))
    assert "last.pt is corrupted or not a sparsum checkpoint; no code in it was executed" in text
    assert "weights_only" not in text
    assert not (tmp_path / "trace").exists()


def _without_model(file: pathlib.Path) -> None:
    torch.save({"epoch": 0}, file)


def _of_another_shape(file: pathlib.Path) -> None:
    torch.save({"epoch": 0, "model": {"weight": torch.zeros(2)}}, file)


def _cut(file: pathlib.Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])


BAD_CHECKPOINTS: dict[str, tuple[Callable[[pathlib.Path], Any], str]] = {
    "empty": (lambda file: file.write_bytes(b""), "is empty"),
    "cut": (_cut, "is corrupted or not a sparsum checkpoint"),
    "garbage": (lambda file: file.write_bytes(b"no checkpoint"), "is corrupted or not a sparsum checkpoint"),
    "a list": (lambda file: torch.save([1], file), "is not a sparsum checkpoint: it holds a list"),
    "without a model": (_without_model, "does not hold a model"),
    "of another shape": (_of_another_shape, "does not fit the run's config.json: it is of another experiment or shape"),
}


@pytest.mark.parametrize(("spoil", "message"), BAD_CHECKPOINTS.values(), ids=BAD_CHECKPOINTS)
def test_bad_checkpoint_is_one_plain_line(
    runs: Callable[..., pathlib.Path], tmp_path: pathlib.Path, spoil: Callable[[pathlib.Path], Any], message: str
) -> None:
    place = runs("topk")
    file = place / "topk" / "checkpoints" / "last.pt"
    spoil(file)
    text = text_of(page_of(place, out=tmp_path / "page.html"))
    assert f"{file} {message}" in text
    assert "remove it" not in text
    with pytest.raises(ValueError, match=message):
        evaluate_run(place / "topk", n_samples=2)


def test_checkpoint_without_its_epoch_is_not_evaluated(runs: Callable[..., pathlib.Path]) -> None:
    place = runs("topk")
    file = place / "topk" / "checkpoints" / "last.pt"
    torch.save({"model": torch.load(file, weights_only=True)["model"]}, file)
    with pytest.raises(ValueError, match="does not say after which epoch it was written"):
        evaluate_run(place / "topk", n_samples=2)


@pytest.mark.parametrize("name", ["symbols", "topk", "classes"])
def test_weights_that_are_no_numbers_give_no_view(runs: Callable[..., pathlib.Path], name: str) -> None:
    place = runs(name)
    file = place / name / "checkpoints" / "last.pt"
    state = torch.load(file, weights_only=True)
    for weights in state["model"].values():
        weights.fill_(float("nan"))
    torch.save(state, file)
    with pytest.raises(latent.NoView, match=str(place / name)):
        latent.latent_of_run(place / name)


def test_failure_is_told_by_its_kind_where_its_text_says_little(
    trained: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("x")

    monkeypatch.setattr(BitsView, "of", fail)
    with pytest.raises(latent.NoView, match=r"topk: KeyError 'x'"):
        latent.latent_of_run(trained / "topk")


def recorded(place: pathlib.Path, out: pathlib.Path) -> list[pathlib.Path]:
    """Record runs; returns the files of their latent views."""
    for folder in find_runs([place]):
        evaluate_run(folder, n_samples=2)
    record_runs([place], out, latent=True)
    return sorted((out / "latent").rglob("*.json"))


def test_kept_views_need_neither_runs_nor_data(runs: Callable[..., pathlib.Path], tmp_path: pathlib.Path) -> None:
    place = runs("topk", "symbols")
    kept = recorded(place, tmp_path / "results")
    assert {file.relative_to(tmp_path / "results" / "latent").as_posix() for file in kept} == {
        "bitvector-vae/topk-8.json",
        "signal-game/sparse.json",
    }
    assert "/" not in json.loads(kept[0].read_text(encoding="utf-8"))["data"]
    of_runs = page_of(place, out=tmp_path / "runs.html")
    shutil.rmtree(place)
    of_results = page_of(tmp_path / "results", out=tmp_path / "page.html")
    embedded = re.compile(r'type="application/json">([^<]*"weights":[^<]*)</script>')
    assert embedded.findall(of_results) == embedded.findall(of_runs) != []
    assert "topk, seed 0:" in text_of(of_results)
    assert "What the symbols stand for" in of_results


def test_commands(
    runs: Callable[..., pathlib.Path],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place, out = runs("topk"), tmp_path / "results"
    evaluate_run(place / "topk", n_samples=2)
    page = tmp_path / "page.html"
    for words in (["record", str(place), "--latent", "--out", str(out)], ["report", str(out), "--out", str(page)]):
        monkeypatch.setattr(sys, "argv", ["sparsum", *words, "--data-dir", "data"])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert not stopped.value.code
    assert "latent/bitvector-vae/topk-8.json" in capsys.readouterr().out.replace("\n", "")
    assert "What the bits learned" in page.read_text(encoding="utf-8")


def test_nothing_is_kept_of_a_run_without_its_checkpoint(runs: Callable[..., pathlib.Path], tmp_path: pathlib.Path) -> None:
    place = runs("topk")
    evaluate_run(place / "topk", n_samples=2)
    shutil.rmtree(place / "topk" / "checkpoints")
    with pytest.raises(ValueError, match=r"has no checkpoint 'last'(.|\n)*nothing was written"):
        record_runs([place], tmp_path / "results", latent=True)
    assert not (tmp_path / "results").exists()
    assert len(record_runs([place], tmp_path / "results")) == 1


def _set(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: Any) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = to

    return change


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another experiment": (_set("experiment", to="x"), "experiment must be one of"),
    "an experiment that is a list": (_set("experiment", to=[]), "experiment must be one of"),
    "other bits": (_set("bits", to=9), "bits is 9, but 8 in the config"),
    "another config": (_set("config", "method", to="sfe"), "method is 'topk', but 'sfe' in the config"),
    "of an older version": (lambda content: content.pop("config"), "write it again with sparsum record --latent"),
    "no config": (_set("config", to=None), "config .*valid dictionary"),
    "no view": (_set("view", to=[]), "view: .*valid dictionary"),
    "short weights": (_set("view", "weights", to="AAAA"), "weights must be 85068 bytes in base64, got 3"),
    "no base64": (_set("view", "weights", to="<script>"), "weights is not base64"),
    "a huge size": (_set("view", "height", to=10**9), "height must be at most 256"),
    "a size in words": (_set("view", "n_hidden", to="128"), "n_hidden must be an integer"),
    "true is not a size": (_set("view", "rank", to=True), "rank must be an integer"),
    "a name that nobody knows": (_set("view", "more", to=1), "more is unknown"),
    "a small image": (_set("view", "examples", 0, "image", to="AAAA"), "image must be 64 bytes in base64"),
    "wrong levels": (_set("view", "examples", 0, "image", to=base64.b64encode(b"\xff" * 64).decode()), "grey level of 255"),
    "a code of other length": (_set("view", "examples", 0, "atoms", 0, "bits", to="01"), "not of 8 bits"),
    "a code of other signs": (_set("view", "examples", 0, "atoms", 0, "bits", to="0101010x"), "not of 8 bits"),
    "no probability": (_set("view", "examples", 0, "atoms", 0, "probability", to=1.5), "probability must be at most 1"),
    "not finite": (_set("view", "examples", 0, "atoms", 0, "probability", to=float("nan")), "probability must be a finite"),
    "a huge probability": (_set("view", "examples", 0, "atoms", 0, "probability", to=10**400), "probability"),
    "no codes": (_set("view", "examples", 0, "atoms", to=[]), "atoms .*at least 1 item"),
    "a label that is none": (_set("view", "examples", 0, "label", to={"a": 1}), "label must be text"),
    "a long label": (_set("view", "examples", 0, "label", to="a" * 301), "label .*at most 300 characters"),
}


@pytest.mark.parametrize(("change", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_view_is_named(
    trained: pathlib.Path, tmp_path: pathlib.Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    content = json.loads(latent.latent_of_run(trained / "topk").text())
    change(content)
    (tmp_path / "latent.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(latent.NoView, match=rf"latent\.json is not a latent view: .*{message}"):
        latent.read_latent(tmp_path / "latent.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("n_guessed", to=10**5), "n_guessed is larger than n_images"),
        (_set("n_used", to=10**5), "n_used is larger than n_symbols"),
        (_set("n_named", to=10**5), "n_named is larger than n_concepts"),
        (_set("symbols", 0, "symbol", to=10**5), "there is a symbol 100000"),
        (_set("symbols", 0, "count", to=10**5), "more images than there are"),
        (_set("symbols", 0, "concepts", 0, "count", to=10**5), "more images than the symbol"),
    ],
)
def test_counts_of_symbols_agree(
    trained: pathlib.Path, tmp_path: pathlib.Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    content = json.loads(latent.latent_of_run(trained / "symbols").text())
    change(content["view"])
    (tmp_path / "latent.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(latent.NoView, match=message):
        latent.read_latent(tmp_path / "latent.json")


def test_weights_that_are_not_finite_are_refused(trained: pathlib.Path, tmp_path: pathlib.Path) -> None:
    content = json.loads(latent.latent_of_run(trained / "topk").text())
    n_letters = len(content["view"]["weights"])
    numbers = np.frombuffer(base64.b64decode(content["view"]["weights"]), "<f2").copy()
    numbers[100] = np.nan
    content["view"]["weights"] = base64.b64encode(numbers.tobytes()).decode()
    assert len(content["view"]["weights"]) == n_letters
    (tmp_path / "latent.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(latent.NoView, match="finite numbers"):
        latent.read_latent(tmp_path / "latent.json")


@pytest.mark.parametrize("text", ["", "[1", "[]", "3", "[" * 100_000, '{"experiment": "ssvae"}', "\xff"])
def test_what_is_no_view_at_all_is_named(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "latent.json").write_text(text, encoding="latin-1")
    with pytest.raises(latent.NoView, match="is not a latent view"):
        latent.read_latent(tmp_path / "latent.json")


@pytest.mark.parametrize("name", ["classes", "symbols"])
def test_every_part_of_other_views_is_needed(trained: pathlib.Path, tmp_path: pathlib.Path, name: str) -> None:
    whole = json.loads(latent.latent_of_run(trained / name).text())
    n_checked = 0
    for key in whole["view"]:
        content = copy.deepcopy(whole)
        del content["view"][key]
        (tmp_path / "latent.json").write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(latent.NoView, match=key):
            latent.read_latent(tmp_path / "latent.json")
        n_checked += 1
    assert n_checked >= 5


def test_broken_kept_view_does_not_stop_the_report(runs: Callable[..., pathlib.Path], tmp_path: pathlib.Path) -> None:
    files = recorded(runs("topk", "classes"), tmp_path / "results")
    broken = next(file for file in files if "topk" in file.name)
    broken.write_text("{}", encoding="utf-8")
    text = text_of(page_of(tmp_path / "results", out=tmp_path / "page.html"))
    assert f"{broken} is not a latent view" in text
    assert "What the classes learned" in text


def test_kept_view_of_other_runs_is_not_shown(runs: Callable[..., pathlib.Path], tmp_path: pathlib.Path) -> None:
    one, other = recorded(runs("topk", "sampled"), tmp_path / "results")
    one.write_bytes(other.read_bytes())
    other.unlink()
    text = text_of(page_of(tmp_path / "results", out=tmp_path / "page.html"))
    assert f"{one} is not of the runs that are recorded beside it" in text


def test_kept_view_of_another_setting_is_not_shown(runs: Callable[..., pathlib.Path], tmp_path: pathlib.Path) -> None:
    """Records of another setting may take the place of the earlier ones."""
    place, out = runs("topk"), tmp_path / "results"
    (kept,) = recorded(place, out)
    records_file(out, "bitvector-vae").unlink()
    config = json.loads((place / "topk" / "config.json").read_text(encoding="utf-8"))
    config["args"]["lr"] = 0.125
    (place / "topk" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert len(record_runs([place], out)) == 1
    shown = page_of(out, out=tmp_path / "page.html")
    assert f"{kept} is not of the runs that are recorded beside it: lr 0.002 instead of 0.125" in text_of(shown)
    assert '"weights":' not in shown


def test_kept_view_is_of_all_seeds_and_versions(runs: Callable[..., pathlib.Path], tmp_path: pathlib.Path) -> None:
    (kept,) = recorded(runs("topk"), tmp_path / "results")
    file = records_file(tmp_path / "results", "bitvector-vae")
    (record,), _ = read_records(file)
    view = json.loads(kept.read_text(encoding="utf-8"))
    assert view["config"] == record.config.model_dump(exclude_unset=True)
    del view["config"]["score_temperature"]  # as of an older version
    kept.write_text(json.dumps(view), encoding="utf-8")
    config = record.config.model_copy(update={"seed": 5})
    write_records(file, [record.model_copy(update={"seed": 5, "config": config})])
    assert '"weights":' in page_of(tmp_path / "results", out=tmp_path / "page.html")


def test_kept_views_are_written_again_byte_for_byte() -> None:
    files = sorted((pathlib.Path(__file__).parents[3] / "results" / "latent").rglob("*.json"))
    assert len(files) >= 5
    for file in files:
        assert latent.read_latent(file).text().encode() == file.read_bytes()


def test_page_stays_small(
    runs: Callable[..., pathlib.Path], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = runs("topk", "sparsemap")
    whole = page_of(place, out=tmp_path / "page.html")
    assert whole.count('"weights":') == 2
    monkeypatch.setattr(page, "MAX_BYTES", len(whole.encode()) - 50_000)
    small = page_of(place, out=tmp_path / "page.html")
    assert small.count('"weights":') == 1
    assert "What the latent variable learned: left out, so that the page stays small" in small
