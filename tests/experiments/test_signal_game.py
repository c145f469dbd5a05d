"""The signal game: networks and loss by hand, 0/1 losses by enumeration, a step of every method, learning an easy game."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import pytest
import torch
from sparsum_experiments import signal_game
from sparsum_experiments.data import Features, Games
from sparsum_experiments.experiment import Step
from sparsum_experiments.models.estimators import ZeroOne
from sparsum_experiments.registry import make_args
from sparsum_experiments.signal_game import Args, Model, Play, Receiver, Sender, SignalGame
from torch import Tensor

import sparsum as sp

CPU = torch.device("cpu")
METHODS = SignalGame.methods
CALLS = {"dense": 6, "sfe-plus": 2, "sum-and-sample": 3, "sfe-plus-01": 2}  # with 6 symbols and k = 2; else 1
SUMS = {"sparse", "dense", "entmax15"}


def small_args(method: str, **others: Any) -> Args:
    small: dict[str, Any] = {"n_symbols": 6, "embedding": 5, "n_filters": 4, "batch_size": 7, "k": 2}
    return Args(method=method, **small | {"sender_temperature": 1.0} | others)


def easy_features(n: int) -> Features:
    """Eight concepts, each marked by one feature."""
    concept = torch.arange(n) % 8
    noise = torch.rand(n, 12, generator=torch.Generator().manual_seed(n))
    return Features.from_unsorted(torch.eye(8, 12)[concept] + 0.1 * noise, concept)


@pytest.fixture(autouse=True)
def games(monkeypatch: pytest.MonkeyPatch) -> Games:
    torch.manual_seed(0)  # for weights and inputs created in tests
    games = Games("easy", easy_features(80), easy_features(24), easy_features(16), tuple("abcdefgh"), 4)
    monkeypatch.setattr(signal_game, "load_games", lambda name, data_dir, *, device: games)
    return games


def train(experiment: SignalGame, n_steps: int, seed: int = 0) -> list[Step]:
    """Run some steps like the training loop."""
    optimiser, generator = experiment.optimiser(), torch.Generator().manual_seed(seed)
    steps: list[Step] = []
    experiment.model.train()
    for i in range(n_steps):
        if i % experiment.n_steps == 0:
            order = experiment.start_epoch(generator)
        step = experiment.model(experiment.batch(order, i % experiment.n_steps, generator), generator)
        optimiser.zero_grad()
        step.objective.backward()
        optimiser.step()
        steps.append(step)
    experiment.model.eval()
    return steps


def shapes_of(module: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}


def test_networks_have_the_sizes_of_the_paper() -> None:
    model = Model(Args(method="nvil"), 4096)
    assert shapes_of(model.sender) == {
        "image.weight": (256, 4096),
        "coordinate.inner.weight": (512, 1),
        "coordinate.outer.weight": (1, 512),
        "symbol.weight": (256, 256),
    }
    assert shapes_of(model.receiver) == {"image.weight": (256, 4096), "symbol.weight": (256, 256)}
    baseline = [(512, 4096), (512,), (512, 512), (512,), (512, 512), (512,), (1, 512), (1,)]
    assert list(shapes_of(model.estimator).values()) == baseline
    assert sum(map(math.prod, shapes_of(model.sender).values())) == 1_115_136
    assert sum(map(math.prod, shapes_of(model.receiver).values())) == 1_114_112


@pytest.mark.parametrize(
    ("method", "symbol_init", "is_uniform"),
    [("sparse", None, False), ("sparse", "uniform", True), ("gumbel", None, True), ("st-gumbel", "normal", False)],
)
def test_symbols_are_initialised_as_in_the_paper(
    method: str, symbol_init: Literal["normal", "uniform"] | None, is_uniform: bool
) -> None:
    weight = Receiver(Args(method=method, symbol_init=symbol_init), 3).symbol.weight
    assert (weight.abs().max().item() <= 1 / 16) == is_uniform
    assert weight.std().item() == pytest.approx(1 / 16 / math.sqrt(3) if is_uniform else 1.0, rel=0.02)


def test_invalid_options() -> None:
    with pytest.raises(ValueError, match="--sender-temperature must be greater than 0, got 0"):
        make_args("signal-game", "sparse", {"sender_temperature": 0})
    with pytest.raises(ValueError, match="--symbol-init must be one of 'normal' or 'uniform', got 'zero'"):
        make_args("signal-game", "sparse", {"symbol_init": "zero"})


def test_sender_by_hand() -> None:
    sender = Sender(small_args("sparse", sender_temperature=10.0), 3)
    x = torch.randn(19, 3)  # more than one block
    first, filters, merge, last = (parameter.detach() for parameter in sender.parameters())
    expected = torch.zeros(19, 6)
    for n in range(19):
        e = first @ x[n]
        h = torch.stack([torch.sigmoid(merge[0] @ torch.sigmoid(filters[:, 0] * e[i])) for i in range(5)])
        expected[n] = last @ h / 10
    torch.testing.assert_close(sender(x), expected)


@pytest.mark.parametrize("row", [[0, 0, 0, 1, 2, 2], [0, 1, 2], [1, 1, 1, 1]])
def test_receiver_by_hand(row: list[int]) -> None:
    receiver = Receiver(small_args("sparse"), 3).double()
    embedded = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    z, games = torch.arange(len(row)) % 6, torch.tensor(row)
    slow = torch.stack([embedded[game] @ receiver.symbol.weight[symbol] for symbol, game in zip(z, row, strict=True)])
    weights = torch.randn(len(row), 4, dtype=torch.float64)
    expected = torch.autograd.grad((slow.log_softmax(-1) * weights).sum(), [embedded, receiver.symbol.weight])
    for given in (z, torch.nn.functional.one_hot(z, 6).double()):  # relaxed symbols are float vectors
        fast = receiver(embedded, given, games)
        torch.testing.assert_close(fast, slow.log_softmax(-1))
        found = torch.autograd.grad((fast * weights).sum(), [embedded, receiver.symbol.weight])
        torch.testing.assert_close(found, expected)


def by_hand(model: Model, images: Tensor, target: Tensor, mapping: Callable[[Tensor], Tensor]) -> dict[str, list[float]]:
    """The metrics of each game, one game and one symbol at a time."""
    found: dict[str, list[float]] = {"loss": [], "success": [], "expected_success": [], "entropy": [], "calls": []}
    for n, y in enumerate(target.tolist()):
        pi = mapping(model.sender(images[n, y].unsqueeze(0)))[0]
        answers = [(model.receiver.image(images[n]) @ v).log_softmax(0) for v in model.receiver.symbol.weight]
        is_right = [float(answer.argmax() == y) for answer in answers]
        found["loss"].append(sum(p.item() * -answer[y].item() for p, answer in zip(pi, answers, strict=True)))
        found["success"].append(is_right[int(pi.argmax())])
        found["expected_success"].append(sum(p.item() * right for p, right in zip(pi, is_right, strict=True)))
        found["entropy"].append(-sum(p.item() * math.log(p.item()) for p in pi if p > 0))
        found["calls"].append(float((pi > 0).sum()))
    return found


@pytest.mark.parametrize("method", ["sparse", "entmax15", "dense", "sfe", "gumbel", "sfe-01"])
def test_loss_and_measures_by_hand(method: str) -> None:
    model = Model(small_args(method, entropy=0.3, sender_temperature=0.05), 3)
    images, target = torch.randn(5, 4, 3), torch.tensor([0, 3, 1, 1, 2])
    mapping = {"sparse": sp.sparsemax, "entmax15": sp.entmax15}.get(method, lambda scores: scores.softmax(-1))
    expected = by_hand(model, images, target, mapping)
    batch = {"images": images, "target": target}
    measures = model.measures(batch)
    assert set(measures) == set(expected)
    for name, values in expected.items():
        torch.testing.assert_close(measures[name].float(), torch.tensor(values))
    step = model(batch, torch.Generator().manual_seed(0))
    mean = {name: sum(values) / len(values) for name, values in expected.items()}
    assert step.terms["success"].item() == pytest.approx(mean["success"])
    assert step.terms["entropy"].item() == pytest.approx(mean["entropy"], rel=1e-5)
    if method in SUMS:
        assert step.objective.item() == pytest.approx(mean["loss"] - 0.3 * mean["entropy"], rel=1e-5)
        assert step.terms["loss"].item() == pytest.approx(mean["loss"], rel=1e-5)
        assert step.terms["expected_success"].item() == pytest.approx(mean["expected_success"], rel=1e-5)
        assert step.calls.tolist() == expected["calls"]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_does_a_step(method: str) -> None:
    experiment = SignalGame(small_args(method), CPU)
    embedded: list[torch.Size] = []
    experiment.model.receiver.image.register_forward_hook(lambda module, inputs, output: embedded.append(output.shape))
    before = {name: value.clone() for name, value in experiment.model.named_parameters()}
    (step,) = train(experiment, 1)
    assert embedded == [(7, 4, 5)]  # once per game, for any number of symbols
    assert set(step.terms) == {"loss", "entropy", "success"} | ({"expected_success"} if method in SUMS else set())
    for value in (step.objective, *step.terms.values()):
        assert value.shape == ()
        assert value.isfinite()
    assert not any(value.requires_grad for value in step.terms.values())
    assert step.calls.shape == (experiment.n_calls_per_step,)
    assert method in {"sparse", "entmax15"} or step.calls.tolist() == 7 * [CALLS.get(method, 1)]
    for name, value in experiment.model.named_parameters():
        assert value.grad is not None, name
        assert not value.equal(before[name]), name


@pytest.mark.parametrize("method", ["sparse", "dense", "gumbel"])
def test_an_easy_game_is_learned(method: str) -> None:
    sizes = {"n_symbols": 16, "embedding": 24, "n_filters": 16, "batch_size": 32}
    experiment = SignalGame(small_args(method, lr=0.01, entropy=0.05, **sizes), CPU)
    before = experiment.validate(torch.Generator())
    train(experiment, 300)
    after = experiment.validate(torch.Generator())
    assert before["success"] < 0.45  # chance level is a quarter
    assert after["success"] > 0.6
    assert after["expected_success"] > 0.6
    assert after["loss"] < 0.7 < before["loss"]
    assert after["calls"] < 4 if method == "sparse" else after["calls"] == 16


def state_after(method: str, seed: int, noise: int) -> Mapping[str, Tensor]:
    experiment = SignalGame(small_args(method, seed=seed), CPU)
    train(experiment, 3, noise)
    return experiment.model.state_dict()


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_result(method: str) -> None:
    first = state_after(method, 0, 0)
    torch.manual_seed(123)  # nothing depends on torch's global generator
    again = state_after(method, 0, 0)
    assert all(first[name].equal(again[name]) for name in first)
    for other in (state_after(method, 1, 0), state_after(method, 0, 1)):
        assert not first["sender.image.weight"].equal(other["sender.image.weight"])


def test_used_symbols_are_the_best_ones_of_games() -> None:
    experiment = SignalGame(small_args("sparse"), CPU)
    generator = torch.Generator()
    batches = list(experiment.evaluated("validation", 100))
    best = torch.cat([experiment.model.play(batch).scores.argmax(-1) for batch in batches])
    assert len(best) == 100
    assert experiment.usage(generator, "validation", 100) == {"used_symbols": len(set(best.tolist()))}
    with torch.no_grad():
        experiment.model.sender.symbol.weight.zero_()
    assert experiment.usage(generator, "validation", None) == {"used_symbols": 1.0}


def test_validation_games_are_the_same_for_all_runs(games: Games) -> None:
    experiments = [SignalGame(small_args("sparse", seed=seed), CPU) for seed in (0, 1)]
    experiments[1].model.load_state_dict(experiments[0].model.state_dict())
    first, second = (experiment.validate(torch.Generator().manual_seed(i)) for i, experiment in enumerate(experiments))
    assert first == second
    assert first.keys() == {"loss", "success", "expected_success", "entropy", "calls", "used_symbols"}
    assert SignalGame.criterion in first
    played: list[Tensor] = []
    measures = experiments[0].model.measures

    def spy(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        played.append(batch["images"])
        return measures(batch)

    experiments[0].model.measures = spy  # type: ignore[method-assign]
    for split, limit, n in (("validation", None, 1024), ("test", None, 10_000), ("test", 130, 130)):
        played.clear()
        experiments[0].validate(torch.Generator(), split=split, limit=limit)
        images = torch.cat(played)
        assert images.shape == (n, 4, 12)
        known = {tuple(x) for x in getattr(games, split).x.tolist()}
        assert {tuple(x) for x in images.flatten(0, 1).tolist()} <= known


def test_scores_keep_their_precision_in_mixed_precision() -> None:
    for method in METHODS:
        model = Model(small_args(method), 3)
        with torch.autocast("cpu", torch.bfloat16):
            batch = {"images": torch.randn(7, 4, 3), "target": torch.zeros(7, dtype=torch.int64)}
            step = model(batch, torch.Generator().manual_seed(0))
            assert model.play(batch).scores.dtype == torch.float32
        step.objective.backward()
        assert step.objective.dtype == torch.float32


@dataclasses.dataclass
class Tabular:
    """A tabular game of 4 symbols and 3 images, and its exact gradient."""

    scores: Tensor  # shape: (4,)
    answers: Tensor  # shape: (4, 3), logits
    target: int = 1
    entropy: float = 0.2

    def log_probs(self, z: Tensor, row: Tensor) -> Tensor:
        return self.answers.log_softmax(-1)[z]

    def gradient(self) -> tuple[Tensor, ...]:
        """Sum over all symbols and answers; the receiver's entropy has no gradient for the sender."""
        pi, p = self.scores.softmax(-1), self.answers.softmax(-1)
        losses = [-pi[z] * p[z, a] * (a == self.target) for z in range(4) for a in range(3)]
        bonuses = [self.entropy * pi[z].detach() * -(p[z] * p[z].log()).sum() for z in range(4)]
        return torch.autograd.grad(torch.stack(losses).sum() - torch.stack(bonuses).sum(), [self.scores, self.answers])


@pytest.mark.parametrize("is_self_critic", [False, True])
def test_zero_one_gradient_by_enumeration(is_self_critic: bool, generator: torch.Generator) -> None:
    scores, answers = torch.randn(4, generator=generator).double(), torch.randn(4, 3, generator=generator).double()
    game = Tabular(scores.requires_grad_(), answers.requires_grad_())
    estimator = ZeroOne(game.entropy, is_self_critic=is_self_critic).eval()
    if estimator.baseline is not None:
        estimator.baseline.update(torch.tensor([-0.4]))
    n, batches = 4000, []
    for _ in range(40):
        estimate = estimator(scores.expand(n, 4), game.log_probs, torch.full((n,), game.target), generator)
        batches.append(torch.cat([g.flatten() for g in torch.autograd.grad(estimate.surrogate.mean(), [scores, answers])]))
    drawn = torch.stack(batches)
    expected = torch.cat([g.flatten() for g in game.gradient()])
    assert expected.abs().max() > 0.05
    error = (drawn.mean(0) - expected) / (drawn.std(0) / math.sqrt(len(drawn)))
    assert error.abs().max() < 4


def test_zero_one_baseline_and_value(generator: torch.Generator) -> None:
    game = Tabular(torch.zeros(4, dtype=torch.float64), torch.zeros(4, 3, dtype=torch.float64))
    estimator = ZeroOne(0.0, is_self_critic=False)
    values = [estimator(game.scores.expand(6, 4), game.log_probs, torch.ones(6).long(), generator).value for _ in range(5)]
    assert estimator.baseline is not None
    assert set(torch.cat(values).tolist()) == {0.0, -1.0}
    torch.testing.assert_close(estimator.baseline.mean, torch.cat(values).mean())
    assert "baseline.mean" in estimator.state_dict()


def test_zero_one_baseline_uses_earlier_steps_only(generator: torch.Generator) -> None:
    sure = torch.tensor([0.0, 100.0, 0.0], dtype=torch.float64).expand(4, 3)  # always right
    scores, estimator = torch.zeros(4, dtype=torch.float64, requires_grad=True), ZeroOne(0.0, is_self_critic=False)
    game, sizes = Tabular(scores, sure), []
    for _ in range(2):
        estimate = estimator(scores.expand(6, 4), game.log_probs, torch.ones(6).long(), generator)
        sizes.append(torch.autograd.grad(estimate.surrogate.sum(), scores)[0].norm().item())
    assert sizes[0] > 0.5
    assert sizes[1] == pytest.approx(0)


def test_success_counts_only_the_most_probable_symbol() -> None:
    log_probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log()  # symbol 0 means the first image, symbol 1 the second
    scores = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.9]])
    play = Play(scores, scores, lambda z, row: log_probs[z], torch.tensor([0, 0, 0]))
    assert play.success().tolist() == [1.0, 0.0, 1.0]
    torch.testing.assert_close(play.outcome(torch.tensor([1]), torch.tensor([2]))[0], -torch.tensor([0.2]).log())
