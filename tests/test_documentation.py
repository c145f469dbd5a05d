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
    sorting,
)

ROOT = pathlib.Path(__file__).parent.parent


def test_the_readme_runs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "README.md").read_text()
    (tmp_path / "results").symlink_to(ROOT / "results")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 9
    assert text[: text.index("```python")].count("\n") < 30
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert isinstance(names["encoder"], torch.nn.Sequential)
    assert names["encoder"][0].weight.grad is not None


@pytest.mark.parametrize("rate", [1e-4, 1e-3, 1e-2])
def test_the_first_example_of_the_readme_trains(rate: float) -> None:
    """In a loop with Adam the objective falls, while rows keep several atoms and bits stay in use."""
    block = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)[0]
    at = block.index("\nq = ")
    setup, step = (compile(part, "README.md", "exec") for part in (block[:at], block[at:]))
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(setup, names)
    optimizer = torch.optim.Adam([*names["encoder"].parameters(), *names["decoder"].parameters()], lr=rate)
    objectives, atoms, means = [], [], []
    for _ in range(500):
        optimizer.zero_grad()
        exec(step, names)
        optimizer.step()
        objectives.append(float(names["objective"].detach().mean()))
        atoms.append(float(names["q"].n_atoms_per_row.float().mean()))
        means.append(names["q"].mean.detach().mean(0))
    assert objectives[-1] < objectives[0] - 0.1
    assert atoms[100] > 5
    for mean in (means[100], means[-1]):
        assert float(((mean > 0.01) & (mean < 0.99)).float().mean()) > 0.9


def test_the_page_on_captured_steps_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "capture.md").read_text(), flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(block, "capture.md", "exec"), names)
    loss = names["loss"]
    assert isinstance(loss, torch.Tensor)
    assert loss.isfinite()


def test_the_captured_example_learns() -> None:
    losses = captured.main(epochs=4)
    assert losses[-1] < losses[0] - 5


def test_the_numbers_in_the_readme() -> None:
    scores = torch.tensor([[2.0, 1.6, 0.1], [0.3, 0.2, 0.1]])
    printed = re.search(r"sp.sparsemax\(scores\) +# (.*)\n", (ROOT / "README.md").read_text())
    assert printed is not None
    torch.testing.assert_close(sp.sparsemax(scores), torch.tensor(eval(printed[1])), atol=1e-4, rtol=0)


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
