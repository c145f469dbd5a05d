"""The numbers of `sparsum.diagnosis` mean what they say, and nothing is changed by measuring."""

from __future__ import annotations

import copy
import dataclasses
import math
import pathlib
import statistics
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum.diagnosis import Diagnosis, Measurement, exact
from sparsum.diagnosis.moments import Moments
from sparsum.estimators import AbstractEstimator, Estimate, Problem

es = sp.estimators

SCORES = torch.tensor([[1.0, 0.5, -1.0], [0.0, 0.3, 2.0]], dtype=torch.float64)
TABLE = torch.tensor([[3.0, 1.0, 2.0], [0.5, 4.0, 1.0]], dtype=torch.float64)


def normal(*shape: int) -> Tensor:
    """The same random numbers at every call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def table_loss(z: Tensor, row: Tensor) -> Tensor:
    """A number for each category and row, between categories a weighted square."""
    vectors = z if z.is_floating_point() else torch.nn.functional.one_hot(z, 3).double()
    return (vectors.square() * TABLE[row]).sum(-1)


class Inflated(AbstractEstimator):
    """The exact sum, with a gradient that is a given factor too large."""

    is_unbiased = False

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def n_calls(self, structure: sp.AbstractStructure) -> int:
        return es.Dense().n_calls(structure)

    def estimate(self, problem: Problem) -> Estimate:
        found = es.Dense().estimate(problem)
        return Estimate(self.factor * found.surrogate, found.value, found.calls, found.distribution)


def run(*estimators: AbstractEstimator, **options: Any) -> Diagnosis:
    return sp.diagnose(SCORES, sp.OneOf(3), table_loss, list(estimators), **options)


def test_the_variance_is_that_of_all_samples() -> None:
    probs = SCORES.softmax(-1)
    gradients = TABLE.unsqueeze(-1) * (torch.eye(3, dtype=torch.float64) - probs.unsqueeze(1))  # of row, sample and score
    mean = (probs.unsqueeze(-1) * gradients).sum(1, keepdim=True)
    squares = (gradients - mean).square().sum(-1)  # of row and sample
    variance = (probs * squares).sum(1)
    spread = ((probs * squares.square()).sum(1) - variance.square()).sum().sqrt() / 2
    draws = 3000
    row = run(es.ScoreFunction(baseline=False), draws=draws).rows[0]
    assert abs(row.variance - variance.mean()) < 4 * spread / math.sqrt(draws)
    assert row.variance_times_calls == row.variance
    assert row.variance_times_milliseconds == row.variance * row.milliseconds


@pytest.mark.parametrize(
    ("estimator", "calls"), [(es.Dense(), 3), (es.Sparse(), 1.5), (es.TopK(2), 1.5), (es.SparseMAP(), 1.5)]
)
def test_sums_have_neither_variance_nor_bias(estimator: AbstractEstimator, calls: float) -> None:
    n_draws = []
    row = run(estimator, draws=500, progress=lambda what, done, total: n_draws.append((what, done))).rows[0]
    assert (row.variance, row.noise, row.calls, row.is_biased) == (0.0, 0.0, calls, False)
    assert row.bias < 1e-12
    assert max(done for what, done in n_draws if what == row.name) == 10  # more would tell nothing new


@pytest.mark.parametrize("factor", [1.5, 0.0, -1.0])
def test_the_bias_is_relative_to_the_exact_gradient(factor: float) -> None:
    row = run(Inflated(factor)).rows[0]
    assert row.variance == 0
    assert row.bias == pytest.approx(abs(factor - 1))
    assert row.is_biased


def test_bias_is_told_from_noise() -> None:
    unbiased = [es.ScoreFunction(), es.SelfCritic(), es.LeaveOneOut(), es.SumAndSample(), es.UnorderedSet(2), es.Rebar()]
    diagnosis = run(*unbiased, es.GumbelSoftmax(), es.StraightThrough(), draws=300)
    for row in diagnosis.rows[:-2]:
        assert not row.is_biased, row
        assert row.bias < row.noise < 1
    for row in diagnosis.rows[-2:]:
        assert row.is_biased, row


def test_the_bias_of_draws_with_a_known_one() -> None:
    generator = torch.Generator().manual_seed(0)
    scale, bias = torch.tensor([3.0, 1.0, 0.5, 0.1], dtype=torch.float64), 0.5
    squares, errors = [], []
    for repeat in range(400):
        moments = Moments()
        for _ in range(20):
            moments.add(scale * torch.randn(4, generator=generator, dtype=torch.float64))
        truth = torch.full((4,), bias / 2 if repeat % 2 else 0.0, dtype=torch.float64)
        squares.append(moments.squared_distance(truth))
        errors.append(moments.noise)
    unbiased, biased = squares[::2], squares[1::2]
    for estimates, wanted in ((unbiased, 0.0), (biased, bias**2)):
        spread = statistics.stdev(estimates)
        assert abs(statistics.mean(estimates) - wanted) < 3 * spread / math.sqrt(200)
    assert statistics.mean(errors) == pytest.approx(statistics.stdev(unbiased), rel=0.25)


@pytest.mark.parametrize(
    ("structure", "scores"),
    [
        (sp.OneOf(5), normal(2, 3, 5)),
        (sp.Bits(4), torch.tensor([[1.0, -torch.inf, 0.5, 0.1]])),
        (sp.Groups(2, 3), normal(3, 2, 3)),
        (sp.Sequence(3, 2), (normal(4, 3, 2), normal(2, 2, 2))),
        (sp.Sequence(3, 2, lengths=torch.tensor([1, 3])), normal(2, 3, 2)),
        (sp.Tree(3), normal(2, 3, 3)),
        (sp.Tree(3, lengths=torch.tensor([2, 3])), normal(2, 3, 3)),
        (sp.Enumerated(torch.eye(4)), normal(2, 4)),
        (sp.Budget(4, 2), normal(2, 4)),
        (sp.Matching(2, 3), normal(2, 2, 3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_exact_gradient_is_that_of_the_dense_sum(
    structure: sp.AbstractStructure, scores: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "CHUNK_SIZE", 7)
    weights = torch.tensor([1.0, -2.0, 0.7, 3.0])

    def loss(z: Tensor, row: Tensor) -> Tensor:
        return (1 + row) * (z.reshape(len(z), -1) * weights[: z[0].numel()]).sum(-1).cos()

    diagnosis = sp.diagnose(scores, structure, loss, [es.Dense()], draws=2)
    row = diagnosis.rows[0]
    assert row.reason == ""
    assert row.bias < 1e-5
    assert row.distance < 1e-5
    assert row.cosine == pytest.approx(1)
    assert diagnosis.reference is not None
    assert (diagnosis.reference.n_samples, diagnosis.reference.relative_error) == (0, 0.0)


def by_hand(mapping: Any) -> Tensor:
    """The gradient of the expected table under a mapping, by automatic differentiation: (6,)."""
    scores = SCORES.clone().requires_grad_()
    return torch.autograd.grad((mapping(scores, -1) * TABLE).sum(), scores)[0].flatten()


def test_all_methods_are_compared_with_one_gradient() -> None:
    """Also those whose own distribution is another one, which show no bias."""
    dense, sparse = by_hand(torch.softmax), by_hand(sp.sparsemax)
    diagnosis = run(es.Dense(), es.Sparse(), es.ScoreFunction(), Inflated(-2.0), draws=500)
    assert diagnosis.reference is not None
    torch.testing.assert_close(diagnosis.reference.gradient, dense)
    distance = float((sparse - dense).norm() / dense.norm())
    cosine = float(torch.cosine_similarity(sparse, dense, dim=0))
    row = diagnosis["Sparse"]
    assert row.bias < 1e-12
    assert row.distance == pytest.approx(distance)
    assert row.cosine == pytest.approx(cosine)
    assert diagnosis["Dense"].distance < 1e-12
    assert diagnosis["Inflated"].distance == pytest.approx(3)
    assert diagnosis["Inflated"].cosine == pytest.approx(-1)
    sampled = diagnosis["ScoreFunction"]
    assert sampled.distance == pytest.approx(sampled.bias)
    assert sampled.distance_noise == pytest.approx(sampled.noise)
    assert sampled.cosine > 0.95


def test_a_reference_from_samples() -> None:
    """If assignments are too many to sum: its standard error is that over seeds, and part of the noise of the distance."""
    dense = by_hand(torch.softmax)
    squares, errors, n_noise = [], [], 0
    for seed in range(60):
        diagnosis = run(es.Sparse(), Inflated(1.0), max_terms=5, reference_samples=640, draws=2, seed=seed)
        reference = diagnosis.reference
        assert reference is not None
        assert reference.n_samples == 640
        squares.append(float((reference.gradient - dense).square().sum()))
        errors.append(reference.error)
        row = diagnosis["Inflated"]  # the exact sum, which is unknown to the reference
        n_noise += row.distance <= row.distance_noise
    assert n_noise >= 55
    assert statistics.mean(squares) == pytest.approx(statistics.mean(errors), rel=0.4)
    assert reference is not None
    assert reference.relative_error == pytest.approx(math.sqrt(errors[-1]) / float(dense.norm()), rel=0.1)
    assert "from 640 samples per example with" in " ".join(str(diagnosis).split())
    few = run(es.Sparse(), max_terms=5, reference_samples=4, draws=2)
    assert few.reference is not None
    assert few.reference.n_samples == 4


def test_the_distance_of_two_means_with_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    squares, cosines = [], []
    for _ in range(400):
        ours, theirs = Moments(), Moments()
        for _ in range(20):
            first, second = torch.randn(2, 4, generator=generator, dtype=torch.float64)
            ours.add(first + torch.tensor([2.0, 0.0, 0.0, 0.0]))
            theirs.add(3 * second + torch.tensor([2.0, 2.0, 0.0, 0.0]))
        squares.append(ours.squared_distance(theirs.mean, theirs.variance / theirs.count))
        cosines.append(ours.cosine(theirs.mean, 8**0.5))
    assert abs(statistics.mean(squares) - 4) < 3 * statistics.stdev(squares) / math.sqrt(400)
    assert statistics.mean(cosines) == pytest.approx(0.5**0.5, abs=0.03)


def test_without_a_reference() -> None:
    """A loss of vectors alone, or no samples where there are too many assignments."""
    relaxed = sp.diagnose(SCORES, sp.OneOf(3), lambda z, row: (z @ TABLE.T)[:, 0], [es.GumbelSoftmax()], draws=5)
    unsummed = run(es.Sparse(), max_terms=5, reference_samples=0, draws=2)
    for diagnosis in (relaxed, unsummed):
        assert diagnosis.reference is None
        assert math.isnan(diagnosis.rows[0].distance)
        assert "distance, cosine: unknown" in str(diagnosis)


def test_a_gradient_of_nan_has_no_direction() -> None:
    diagnosis = sp.diagnose(
        torch.tensor([[1.0, 0.5, -1.0]]),
        sp.OneOf(3),
        lambda z, row: z * math.nan,
        [sp.estimators.Sparse()],
        draws=4,
        warm_up=0,
    )
    assert "1.000" not in str(diagnosis)


def test_a_gradient_of_zero_has_no_direction() -> None:
    row = sp.diagnose(SCORES, sp.OneOf(3), lambda z, row: 0.0 * z, [es.Dense()], draws=2).rows[0]
    assert (row.bias, row.distance) == (0.0, 0.0)
    assert math.isnan(row.cosine)


def test_what_is_too_long_or_unknown_has_no_bias() -> None:
    diagnosis = run(es.LeaveOneOut(), es.Sparse(), draws=5, max_terms=5, reference_samples=0)
    assert math.isnan(diagnosis["LeaveOneOut"].bias)
    assert diagnosis["Sparse"].bias < 1e-12  # its own sum is short
    assert str(diagnosis).splitlines()[1].split()[-5:] == ["-"] * 5
    matching = sp.diagnose(normal(1, 2, 2), sp.Matching(2), lambda z, row: z.sum((-1, -2)), [es.Imle()], draws=5)
    assert math.isnan(matching.rows[0].bias)
    assert not matching.rows[0].reason


def test_nothing_is_changed() -> None:
    context, decoder = normal(2, 4), torch.nn.Linear(3, 1, dtype=torch.float64)
    scores = SCORES.clone().requires_grad_()
    estimators = [es.ScoreFunction(), es.NVIL(4, hidden=(8,), normalise=True), es.Relax(3, 4), es.GumbelSoftmax(es.Anneal())]
    estimators[0].eval()
    before, noise = [copy.deepcopy(estimator.state_dict()) for estimator in estimators], torch.get_rng_state()
    diagnosis = sp.diagnose(
        scores, sp.OneOf(3), lambda z, row: sp.embed(z, decoder.weight.T).squeeze(-1), estimators, context=context, draws=5
    )
    assert not any(row.reason for row in diagnosis.rows)
    for estimator, state in zip(estimators, before, strict=True):
        assert state.keys() == estimator.state_dict().keys()
        assert all(torch.equal(state[key], value) for key, value in estimator.state_dict().items())
        assert all(parameter.grad is None for parameter in estimator.parameters())
    assert [estimator.training for estimator in estimators] == [False, True, True, True]
    assert scores.grad is None
    assert decoder.weight.grad is None
    assert torch.equal(torch.get_rng_state(), noise)


def test_every_draw_is_of_the_same_step() -> None:
    # The baseline would move on at every call in training, and with it the variance.
    few, many = (run(es.ScoreFunction(decay=0.5), draws=draws, warm_up=0).rows[0] for draws in (200, 400))
    plain = run(es.ScoreFunction(baseline=False), draws=400).rows[0]
    assert many.variance == plain.variance
    assert few.variance == pytest.approx(many.variance, rel=0.3)


@pytest.mark.parametrize("kind", ["ScoreFunction", "NVIL", "Relax"])
def test_warming_up_lowers_the_variance(kind: str) -> None:
    torch.manual_seed(0)  # for the first weights of the networks
    networks: dict[str, AbstractEstimator] = {"NVIL": es.NVIL(4, hidden=(64,)), "Relax": es.Relax(3, hidden=(64,))}
    estimator = networks.get(kind, es.ScoreFunction())

    def loss(z: Tensor, row: Tensor) -> Tensor:
        return 10 + table_loss(z, row)

    cold, warm = (
        sp.diagnose(SCORES, sp.OneOf(3), loss, [estimator], context=torch.ones(2, 4), draws=50, warm_up=steps).rows[0]
        for steps in (0, 600)
    )
    assert warm.variance < 0.5 * cold.variance


def test_the_loss_may_have_a_graph_of_its_own() -> None:
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    outside = (weight * TABLE).exp().log()
    rows = sp.diagnose(SCORES, sp.OneOf(3), lambda z, row: outside[row, z], [es.Dense(), es.LeaveOneOut()], draws=5).rows
    assert [row.reason for row in rows] == ["", ""]


def test_who_cannot_be_measured_says_why() -> None:
    diagnosis = run(es.Disarm(), es.ScoreFunction(), es.NVIL(4), draws=5)
    assert "Disarm takes Bits" in diagnosis["Disarm"].reason
    assert "needs a context" in diagnosis["NVIL"].reason
    assert diagnosis["ScoreFunction"].variance > 0
    text = str(diagnosis)
    assert "Disarm: TypeError: Disarm takes Bits, got OneOf(n=3)" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_loss_for_some_only() -> None:
    both = [es.GumbelSoftmax(), es.ScoreFunction()]
    vectors = sp.diagnose(SCORES, sp.OneOf(3), lambda z, row: (z @ TABLE.T)[:, 0], both, draws=5)
    assert vectors["GumbelSoftmax"].variance > 0
    assert math.isnan(vectors["GumbelSoftmax"].bias)  # nobody can sum over atoms
    assert vectors["ScoreFunction"].reason
    atoms = sp.diagnose(SCORES, sp.OneOf(3), lambda z, row: TABLE[row, z], both, draws=5)
    assert "use sparsum.embed, which accepts" in atoms["GumbelSoftmax"].reason
    assert atoms["ScoreFunction"].variance > 0


def test_the_same_seed_gives_the_same_numbers() -> None:
    first = run(es.LeaveOneOut(), es.ScoreFunction(), draws=20, seed=3)
    again = run(es.ScoreFunction(), draws=20, seed=3)  # whoever else is there
    other = run(es.ScoreFunction(), draws=20, seed=4)
    numbers = [
        [getattr(diagnosis["ScoreFunction"], name) for name in ("calls", "variance", "bias", "noise")]
        for diagnosis in (first, again, other)
    ]
    assert numbers[0] == numbers[1] != numbers[2]


def test_names() -> None:
    diagnosis = run(es.TopK(1), es.Dense(), es.TopK(2), draws=2)
    assert [row.name for row in diagnosis.rows] == ["TopK(k=1)", "Dense", "TopK(k=2)"]
    named = sp.diagnose(SCORES, sp.OneOf(3), table_loss, {"all": es.Dense()}, draws=2)
    assert named["all"].calls == 3
    with pytest.raises(KeyError, match="unknown estimator 'TopK 3'; available: TopK\\(k=1\\), Dense, TopK\\(k=2\\)"):
        diagnosis["TopK 3"]


def test_the_table_is_aligned() -> None:
    rows = (
        dataclasses.replace(
            Measurement(name="a", calls=1.0, milliseconds=1.2, variance=1234.5, bias=0.5, noise=0.1, is_biased=True),
            distance=1.25,
            distance_noise=0.25,
            cosine=-0.7,
        ),
        Measurement(name="longer", calls=256.0, milliseconds=12.34, variance=0.0, bias=0.0, noise=0.0),
    )
    lines = str(Diagnosis(rows)).splitlines()
    assert lines[:4] == [
        "method  calls     ms  variance  var x calls  var x ms    bias  noise  distance  noise  cosine",
        "a           1   1.20  1.23e+03     1.23e+03  1.48e+03  0.500*  0.100     1.250  0.250  -0.700",
        "longer    256  12.34         0            0         0  0.000   0.000         -      -       -",
        "* biased: the bias is larger than the noise of the draws",
    ]
    assert max(map(len, lines)) <= 100
    assert [line.split(":")[0] for line in lines[4:] if not line.startswith(" ")] == ["bias", "distance, cosine", "noise"]


def test_the_plot(tmp_path: pathlib.Path) -> None:
    diagnosis = run(es.Dense(), es.ScoreFunction(), es.GumbelSoftmax(), es.Disarm(), draws=50)
    ax = diagnosis.plot(tmp_path / "variance.png")
    assert (tmp_path / "variance.png").read_bytes()[:4] == b"\x89PNG"
    assert [text.get_text() for text in ax.texts] == ["Dense", "GumbelSoftmax", "ScoreFunction"]  # from below
    assert [line.get_marker() for line in ax.lines] == ["v", "o", "o"]
    assert [line.get_markerfacecolor() == "none" for line in ax.lines] == [False, False, True]
    heights = [np.asarray(line.get_ydata()).item() for line in ax.lines]
    assert heights[1:] == [diagnosis["ScoreFunction"].variance, diagnosis["GumbelSoftmax"].variance]
    assert 0 < heights[0] < min(heights[1:])
    assert diagnosis.plot(ax=ax) is ax
    assert run(es.Dense(), draws=2).plot() is not None  # without any variance
    assert "matplotlib.pyplot" not in sys.modules


def test_the_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        Diagnosis(()).plot()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"draws": 1}, ValueError, "draws must be at least 2, got 1"),
        ({"draws": 2.5}, TypeError, "draws must be an int, got float"),
        ({"warm_up": -1}, ValueError, "warm_up must be at least 0, got -1"),
        ({"max_terms": None}, TypeError, "max_terms must be an int, got NoneType"),
        ({"reference_samples": -1}, ValueError, "reference_samples must be at least 0, got -1"),
        ({"reference_samples": 3}, ValueError, "reference_samples must be 0 or at least 4, got 3"),
        ({"seed": "a"}, TypeError, "seed must be an int, got str"),
        ({"estimators": []}, ValueError, r"estimators must contain at least one estimator, got \[\]"),
        ({"estimators": es.Dense()}, TypeError, "estimators must be a list, or a dict with names as keys, got Dense"),
        ({"estimators": [es.Dense]}, TypeError, "estimators such as ScoreFunction.., got the class Dense as"),
        ({"estimators": {"x": 3}}, TypeError, "estimators such as ScoreFunction.., got int as 'x'"),
        ({"scores": [1.0, 2.0, 3.0]}, TypeError, r"scores for OneOf\(n=3\) must be a torch.Tensor, got list"),
        ({"scores": torch.zeros(2, 4)}, ValueError, r"must have shape \(\*batch, 3\), got \(2, 4\)"),
        ({"scores": torch.zeros(0, 3)}, ValueError, r"at least one example, got a batch of shape \(0,\)"),
        ({"structure": 3}, TypeError, r"structure must be an AbstractStructure such as OneOf\(n\), got int"),
        ({"loss": None}, TypeError, "loss must be a function of assignments and their rows, got NoneType"),
    ],
)
def test_bad_input(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {"scores": SCORES, "structure": sp.OneOf(3), "loss": table_loss, "estimators": [es.Dense()]} | change
    with pytest.raises(error, match=message):
        sp.diagnose(**arguments)  # type: ignore[arg-type]
