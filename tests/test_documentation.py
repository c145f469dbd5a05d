"""What the README and the examples say is executed."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest
import torch
from sparsum_experiments.report import write_report
from sparsum_experiments.runs import Config, EpochMetrics, read_run

import sparsum as sp
from examples import (
    alignment,
    attention,
    captured,
    chain,
    digits,
    estimators,
    knapsack,
    latent_trees,
    matching,
    own_runs,
    pulling,
    segmenter,
    simplex,
    sorting,
)

ROOT = pathlib.Path(__file__).parent.parent


@pytest.mark.parametrize("rate", [3e-3, 1e-2, 3e-2])
def test_the_first_example_of_the_readme_trains(rate: float, capsys: pytest.CaptureFixture[str]) -> None:
    """The loss falls to a fifth and calls fall, at other rates, too; at its own it prints about what is shown."""
    text = (ROOT / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert text[: text.index("```python")].count("\n") < 15
    exec(compile(code.replace("lr=0.01", f"lr={rate}"), "README.md", "exec"), {})
    line = re.compile(r"^loss (\S+), calls per example (\S+)$", flags=re.MULTILINE)
    printed, shown = (
        torch.tensor([[float(x) for x in match] for match in line.findall(t)]) for t in (capsys.readouterr().out, text)
    )
    assert (printed[-1] < printed[0] / torch.tensor([5, 1])).all()
    if rate == 1e-2:  # processors sum in different orders, and 500 steps amplify it
        torch.testing.assert_close(printed, shown, atol=0.05, rtol=0.1)


def test_the_picture_of_the_idea(tmp_path: pathlib.Path) -> None:
    """Sparsemax calls the loss less often than softmax; the picture is drawn, and there for the README."""
    dense, sparse = simplex.main(tmp_path / "simplex.svg")
    assert dense == 3 > 2 > sparse
    assert (tmp_path / "simplex.svg").stat().st_size > 1000
    assert simplex.FIGURE.exists()


def test_the_captured_example_learns() -> None:
    losses = captured.main(epochs=4)
    assert losses[-1] < losses[0] - 5


@pytest.mark.parametrize("method", digits.METHODS)
def test_the_demo_learns(method: str) -> None:
    epochs = []
    model = digits.train(method, digits.Args(epochs=3), lambda epoch, step: epochs.append(epoch))
    assert epochs == [0, 1, 2]
    result = digits.evaluate(model, method, seed=0)
    assert result.loss < 0.5  # before training it is log 2
    assert result.accuracy > 15  # chance is 10
    assert result.calls == {"dense": 64, "sampled": 1}.get(method, result.calls)
    assert result.calls >= 1


def test_every_estimator_trains_the_example() -> None:
    results = estimators.main(steps=100)
    assert len(results) == 19
    assert all(after < before - 10 for before, after, _ in results.values())
    assert round(results["Dense"][2]) == 256
    assert results["Sparse"][2] < 100


def test_the_knapsack_is_a_structure() -> None:
    report = sp.testing.check_structure(knapsack.Knapsack(weights=(3, 4, 2, 10), capacity=6))
    assert report.counts["argmax"] == 20


@pytest.mark.parametrize(
    ("example", "wanted"),
    [
        (knapsack, 0.7),
        (matching, 0.9),
        (latent_trees, 0.7),
        (chain, 0.8),
        (sorting, 0.5),
        (alignment, 0.85),
        (segmenter, 0.8),
    ],
    ids=lambda e: str(e)[-30:],
)
def test_the_examples_learn(example: Any, wanted: float) -> None:
    before, after = example.main()
    assert before < 0.5
    assert after > wanted


def test_the_figure_of_pulling(tmp_path: pathlib.Path) -> None:
    """The expected loss jumps for one solver alone, and the committed figure is the one that is drawn."""
    active_set, pulled = pulling.main(n_points=401, file=tmp_path / "pulling.svg")
    assert active_set > 0.05
    assert pulled < 0.02
    assert (tmp_path / "pulling.svg").stat().st_size > 1000
    assert "pulling.svg" in (ROOT / "docs" / "pulling.md").read_text()
    assert pulling.FIGURE.exists()


def test_the_heads_of_the_attention_example_part(capsys: pytest.CaptureFixture[str]) -> None:
    """It learns, and of its heads one is dense and another sparse, with an alpha that says so."""
    before, after = attention.main()
    assert before < 0.3
    assert after > 0.9
    lines = capsys.readouterr().out.splitlines()[2:]
    alphas, zeros = zip(*((float(line.split()[1]), int(line.split()[2].rstrip("%"))) for line in lines), strict=True)
    assert len(alphas) == attention.N_HEADS
    assert all(1.05 < alpha < 2.5 for alpha in alphas)
    assert alphas[zeros.index(max(zeros))] > 1.5 > 1.3 > alphas[zeros.index(min(zeros))]
    assert max(zeros) > 70
    assert min(zeros) < 20


def test_a_page_of_own_runs(tmp_path: pathlib.Path) -> None:
    for method in own_runs.ESTIMATORS:
        own_runs.train(method, 0, 3, tmp_path / method)
    page = write_report([tmp_path], tmp_path).read_text()
    assert "prototypes on points" in page
    assert all(method in page for method in own_runs.ESTIMATORS)
    assert page.count("<svg") >= 3


def test_the_documented_files_of_a_run_are_valid(tmp_path: pathlib.Path) -> None:
    text = (ROOT / "docs" / "runs.md").read_text()
    config, metrics, evaluation = re.findall(r"```json\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "metrics.jsonl").write_text(metrics)
    (tmp_path / "evaluation.json").write_text(evaluation.replace("100", "1"))
    run = read_run(tmp_path)
    assert (run.experiment, run.criterion, run.calls, run.problem) == ("my-vae", "elbo", 3.2, "")
    assert run.test == {"elbo": -101.3}
    for kind in (Config, EpochMetrics):  # every key of the schema is documented
        assert all(f"`{name}`" in text for name in kind.model_fields)
