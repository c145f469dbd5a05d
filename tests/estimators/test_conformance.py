"""Every estimator passes the published conformance test, known mistakes do not, and bad input is refused with advice."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from sparsum_experiments.models.estimators import ModeThrough
from torch import Tensor

import sparsum as sp
from sparsum import estimators as se
from sparsum.estimators import AbstractEstimator, Estimate, Problem
from sparsum.estimators.score_function import sample_losses
from tests.simplex.test_devices import every_device

Make = Callable[[sp.AbstractStructure], AbstractEstimator]

CONTEXT = sp.testing.CONTEXT_SIZE


def relax(structure: sp.AbstractStructure) -> se.Relax:
    return se.Relax(torch.Size(structure.score_shape).numel(), CONTEXT, hidden=(16,))


CASES: dict[str, AbstractEstimator | Make] = {
    "Dense": se.Dense(),
    "Sparse": se.Sparse(),
    "Sparse, alpha 1.5": se.Sparse(1.5),
    "Sparse, alpha 1.3": se.Sparse(1.3),
    "TopK": se.TopK(2),
    "SparseMAP": se.SparseMAP(),
    "SparseMAP, active set": se.SparseMAP(sp.solvers.ActiveSet()),
    "ScoreFunction": se.ScoreFunction(),
    "ScoreFunction, decay": se.ScoreFunction(3, decay=0.9),
    "ScoreFunction, no baseline": se.ScoreFunction(baseline=False),
    "SelfCritic": se.SelfCritic(),
    "SelfCritic, greedy": se.SelfCritic(greedy=True),
    "NVIL": se.NVIL(CONTEXT, hidden=(16, 16)),
    "NVIL, normalised": se.NVIL(CONTEXT, hidden=(16, 16), normalise=True),
    "LeaveOneOut": se.LeaveOneOut(3),
    "SumAndSample": se.SumAndSample(),
    "SumAndSample, two": se.SumAndSample(2),
    "SumAndSample, all": se.SumAndSample(100),
    "UnorderedSet": se.UnorderedSet(3),
    "UnorderedSet, all": se.UnorderedSet(9),
    "Rebar": se.Rebar(),
    "Rebar, fixed": se.Rebar(se.Anneal(1e-2, every=2), scale=0.5, learn_scale=False),
    "Relax": relax,
    "Arm": se.Arm(),
    "Disarm": se.Disarm(),
    "GumbelSoftmax": se.GumbelSoftmax(se.Anneal(1e-2, every=3)),
    "StraightThrough": se.StraightThrough(se.Anneal(1e-2, every=3)),
    "ReinMax": se.ReinMax(samples=2),
    "Simple": se.Simple(),
    "Simple, samples": se.Simple(3),
    "Imle": se.Imle(),
    "Imle, samples": se.Imle(2.0, samples=3),
}

UNBIASED = {name for name in CASES if not name.startswith(("NVIL, norm", "Gumbel", "Straight", "ReinMax", "Simple", "Imle"))}
RELAXED = {name for name in CASES if name.startswith(("Rebar", "Gumbel", "Straight", "ReinMax", "Simple", "Imle"))}


@every_device
@pytest.mark.parametrize("name", CASES)
def test_estimator(name: str, device: str) -> None:
    case = CASES[name]
    report = sp.testing.check_estimator(case, device=device)
    assert set(report.counts) >= {"generator", "state", "form", "calls", "nan"}
    assert ("unbiased" in report.counts) == (name in UNBIASED)
    assert ("biased" in report.counts) == (name not in UNBIASED)
    made = case if isinstance(case, AbstractEstimator) else case(sp.OneOf(3))
    assert made.needs_relaxed_loss == (name in RELAXED)


def test_every_estimator_is_tested_and_has_a_reference() -> None:
    public = {
        kind
        for kind in vars(se).values()
        if inspect.isclass(kind) and issubclass(kind, AbstractEstimator) and not inspect.isabstract(kind)
    }
    assert len(public) == 19
    tested = {type(case if isinstance(case, AbstractEstimator) else case(sp.OneOf(3))) for case in CASES.values()}
    assert tested == public
    for kind in public - {se.Dense, se.TopK, se.SparseMAP}:  # these three say what they sum, elsewhere is its reference
        assert "References:" in (kind.__doc__ or ""), kind


# Mistakes of the paper's published code, each as it was made.


class UndetachedCritic(AbstractEstimator):
    """SelfCritic whose baseline is differentiated, which scales the gradient of the decoder."""

    def n_calls(self, structure: sp.AbstractStructure) -> int:
        return 2

    def estimate(self, problem: Problem) -> Estimate:
        p = problem.gibbs()
        atoms, losses = sample_losses(problem, p, 1)
        _, baseline = sample_losses(problem, p, 1)
        surrogate = losses + (losses.detach() - baseline) * problem.log_probs(p, atoms)
        return Estimate(surrogate.mean(1), losses.mean(1), problem.calls(2), p)


class OverwrittenBaseline(se.SumAndSample):
    """SumAndSample whose baseline is 0 in the sampled term."""

    def estimate(self, problem: Problem) -> Estimate:
        p = problem.gibbs()
        atoms, weights, log_probs = self._terms(problem, p)
        losses = problem.sample_losses(atoms)
        baseline = torch.full((atoms.shape[1],), 3.0)
        baseline[-1] = 0.0
        surrogate = weights * (losses + (losses.detach() - baseline) * log_probs)
        return Estimate(surrogate.sum(1), (weights * losses).sum(1), problem.calls(atoms.shape[1]), p)


def test_an_undetached_baseline_is_found() -> None:
    with pytest.raises(AssertionError, match=r"gradient of the weights is .* standard errors off"):
        sp.testing.check_estimator(UndetachedCritic())


def test_a_baseline_that_is_missing_in_the_sampled_term_is_found() -> None:
    with pytest.raises(AssertionError, match=r"gradient of the scores is .* standard errors off"):
        sp.testing.check_estimator(OverwrittenBaseline())


def seen_bits(estimator: AbstractEstimator, scores: Tensor) -> Tensor:
    """The bit vectors that a loss saw, one per row."""
    seen: list[Tensor] = []

    def loss(z: Tensor, row: Tensor) -> Tensor:
        seen.append(z.detach())
        return z.sum(-1)

    estimator(scores, sp.Bits(scores.shape[-1]), loss, generator=torch.Generator().manual_seed(0))
    return seen[0]


@pytest.mark.parametrize(
    ("estimator", "is_right"), [(se.StraightThrough(), True), (se.ReinMax(), True), (ModeThrough(), False)]
)
def test_straight_through_bits_are_samples(estimator: AbstractEstimator, is_right: bool) -> None:
    scores = torch.tensor([-1.0, 0.3, 2.0], dtype=torch.float64).expand(4000, 3).clone().requires_grad_()
    bits = seen_bits(estimator, scores)
    assert ((bits == 0) | (bits == 1)).all()
    off = (bits.mean(0) - scores[0].sigmoid()).abs() / (bits.std(0) + 1e-3) * 4000**0.5
    assert bool((off < 5).all()) == is_right


@pytest.mark.parametrize("seed", range(8))
def test_chance_does_not_pass_for_certainty(seed: int) -> None:
    """Equal draws in a row say nothing: right estimators pass with every seed, and wrong ones do not."""

    class Half(se.ScoreFunction):
        def estimate(self, problem: Problem) -> Estimate:
            p = problem.gibbs()
            atoms, losses = sample_losses(problem, p, 1)
            surrogate = losses + 0.5 * losses.detach() * problem.log_probs(p, atoms)
            return Estimate(surrogate.mean(1), losses.mean(1), problem.calls(1), p)

    sp.testing.check_estimator(se.ScoreFunction(), structures=(sp.OneOf(3),), draws=3000, seed=seed)
    with pytest.raises(AssertionError, match="standard errors off"):
        sp.testing.check_estimator(Half(), structures=(sp.OneOf(3),), seed=seed)


def test_a_baseline_from_other_rows_is_found() -> None:
    class BatchMean(se.ScoreFunction):
        def estimate(self, problem: Problem) -> Estimate:
            p = problem.gibbs()
            atoms, losses = sample_losses(problem, p, 1)
            signal = losses.detach() - losses.detach().mean()
            surrogate = losses + signal * problem.log_probs(p, atoms)
            return Estimate(surrogate.mean(1), losses.mean(1), problem.calls(1), p)

    with pytest.raises(AssertionError, match="depends on the losses of other rows"):
        sp.testing.check_estimator(BatchMean())


def test_a_baseline_that_is_updated_too_early_is_found() -> None:
    class Hasty(se.ScoreFunction):
        def estimate(self, problem: Problem) -> Estimate:
            p = problem.gibbs()
            atoms, losses = sample_losses(problem, p, 1)
            assert self.baseline is not None
            if self.training:
                self.baseline.update(losses.detach())
            surrogate = losses + (losses.detach() - self.baseline.mean) * problem.log_probs(p, atoms)
            return Estimate(surrogate.mean(1), losses.mean(1), problem.calls(1), p)

    with pytest.raises(AssertionError, match="it sees its own update"):
        sp.testing.check_estimator(Hasty())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # which the compiler itself looks at
def test_compiled_functions_give_the_same_gradient() -> None:
    def gradient(estimator: AbstractEstimator, *, is_compiled: bool) -> Tensor:
        leaf = torch.linspace(-1, 1, 32).reshape(8, 4).requires_grad_()

        def step(scores: Tensor, generator: torch.Generator) -> Tensor:
            loss = estimator(2 * scores, sp.Bits(4), lambda z, row: 100 + z.square().sum(-1), generator=generator)
            return loss.surrogate.mean()

        run = torch.compile(step, backend="aot_eager") if is_compiled else step
        (found,) = torch.autograd.grad(run(leaf, torch.Generator().manual_seed(0)), leaf)
        return found

    for make in (se.ScoreFunction, se.GumbelSoftmax, se.Rebar, se.SumAndSample, se.Sparse):
        plain, compiled = (gradient(make(), is_compiled=is_compiled) for is_compiled in (False, True))
        torch.testing.assert_close(plain, compiled)


def test_a_lie_about_calls_is_found() -> None:
    class Liar(se.ScoreFunction):
        def n_calls(self, structure: sp.AbstractStructure) -> int:
            return 2

    with pytest.raises(AssertionError, match="n_calls declares 2"):
        sp.testing.check_estimator(Liar())


def test_a_bias_that_is_declared_but_absent_is_found() -> None:
    class Modest(se.LeaveOneOut):
        is_unbiased = False

    with pytest.raises(AssertionError, match="no bias was measured"):
        sp.testing.check_estimator(Modest())


def test_state_that_is_kept_elsewhere_is_found() -> None:
    class Forgetful(se.ScoreFunction):
        def __init__(self) -> None:
            super().__init__(baseline=False)
            self.total = 0.0

        def estimate(self, problem: Problem) -> Estimate:
            found = super().estimate(problem)
            if self.training:
                self.total += 1.0
            return Estimate(found.surrogate, found.value + self.total, found.calls, found.distribution)

    with pytest.raises(AssertionError, match="load_state_dict"):
        sp.testing.check_estimator(Forgetful())


def number(z: Tensor, row: Tensor) -> Tensor:
    return z.float() if z.ndim == 1 else z.float().flatten(1).sum(-1)


@pytest.mark.parametrize("name", ["GumbelSoftmax", "StraightThrough", "ReinMax", "Rebar", "Relax"])
def test_relaxations_refuse_sequences_and_say_what_takes_them(name: str) -> None:
    case = CASES[name]
    estimator = case if isinstance(case, AbstractEstimator) else case(sp.OneOf(3))
    with pytest.raises(TypeError, match=rf"{name} takes OneOf, Bits and Groups, got Sequence.*Imle.*ScoreFunction"):
        estimator(torch.zeros(2, 3, 2), sp.Sequence(3, 2), number)


@pytest.mark.parametrize("name", sorted(RELAXED))
def test_relaxations_refuse_losses_that_are_not_differentiable(name: str) -> None:
    estimator = CASES[name]
    assert isinstance(estimator, AbstractEstimator)
    scores, table = torch.zeros(2, 3, requires_grad=True), torch.randn(3, requires_grad=True)

    def cuts(z: Tensor, row: Tensor) -> Tensor:
        return table[z.argmax(-1) if z.is_floating_point() else z]

    with pytest.raises(ValueError, match=r"needs a loss that is differentiable in z.*ScoreFunction"):
        estimator(scores, sp.OneOf(3), cuts)
    with pytest.raises(TypeError, match=r"passes float32 vectors of shape .*, 3\) to the loss, .*sparsum.embed"):
        estimator(scores, sp.OneOf(3), lambda z, row: table[z])


def test_a_loss_over_relaxed_bits_fails_with_its_own_error() -> None:
    with pytest.raises(RuntimeError, match=r"mat1 and mat2"):
        se.GumbelSoftmax()(torch.zeros(2, 3, requires_grad=True), sp.Bits(3), lambda z, row: (z @ torch.ones(4, 1))[:, 0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: se.ScoreFunction(0), "samples must be at least 1, got 0"),
        (lambda: se.ScoreFunction(decay=1.0), "decay must be less than 1, got 1.0"),
        (lambda: se.LeaveOneOut(1), "samples must be at least 2, got 1"),
        (lambda: se.UnorderedSet(1), "samples must be at least 2, got 1"),
        (lambda: se.UnorderedSet(13), "samples must be at most 12"),
        (lambda: se.GumbelSoftmax(samples=0), "samples must be at least 1, got 0"),
        (lambda: se.GumbelSoftmax(0.0), "temperature must be finite and larger than 0.0, got 0.0"),
        (lambda: se.StraightThrough(-1.0), "temperature must be finite and larger than 0.0, got -1.0"),
        (lambda: se.ReinMax(float("nan")), "temperature must be finite and larger than 0.0, got nan"),
        (lambda: se.GumbelSoftmax(10**400), "temperature must be finite and larger than 0.0, got 1000"),
        (lambda: se.Rebar(0.0), "temperature must be finite and larger than 0.0, got 0.0"),
        (lambda: se.Anneal(minimum=0.0), "minimum must be finite and larger than 0.0, got 0.0"),
        (lambda: se.Anneal(-1.0), "rate must be at least 0.0, got -1.0"),
        (lambda: se.Anneal(every=0), "every must be at least 1, got 0"),
        (lambda: se.Imle(0.0), "step must be finite and larger than 0.0, got 0.0"),
        (lambda: se.TopK(0), "k must be at least 1, got 0"),
        (lambda: se.SumAndSample(0), "k must be at least 1, got 0"),
        (lambda: se.Sparse(1.0), "alpha must be finite and larger than 1.0, got 1.0"),
        (lambda: se.Dense(chunk_size=0), "chunk_size must be at least 1, got 0"),
        (lambda: se.NVIL(), "exactly one of context_size"),
        (lambda: se.NVIL(3, network=torch.nn.Linear(3, 1)), "exactly one of context_size"),
    ],
)
def test_settings_out_of_range_are_refused(make: Callable[[], AbstractEstimator], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_settings_of_the_wrong_type_are_refused() -> None:
    with pytest.raises(TypeError, match="samples must be an int, got float"):
        se.ScoreFunction(2.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="temperature must be a number, got str"):
        se.GumbelSoftmax("1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="solver must be a solver"):
        se.SparseMAP("nested")  # type: ignore[arg-type]


def test_calls_that_do_not_fit_are_refused() -> None:
    estimator, scores = se.ScoreFunction(), torch.zeros(2, 3)
    with pytest.raises(TypeError, match="structure must be an AbstractStructure such as OneOf"):
        estimator(scores, 3, number)
    with pytest.raises(TypeError, match="loss must be a function"):
        estimator(scores, sp.OneOf(3), 3)
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator or None, got int"):
        estimator(scores, sp.OneOf(3), number, generator=0)
    with pytest.raises(ValueError, match=r"shape \(\*batch, 4\), got \(2, 3\)"):
        estimator(scores, sp.OneOf(4), number)
    with pytest.raises(ValueError, match=r"one number per atom, shape \(2,\), got \(2, 1\)"):
        estimator(scores, sp.OneOf(3), lambda z, row: z.float().unsqueeze(-1))
    with pytest.raises(TypeError, match=r"floating-point torch.Tensor, got torch.int64"):
        estimator(scores, sp.OneOf(3), lambda z, row: z)
    with pytest.raises(TypeError, match=r"must return a tensor, or a dict, list or tuple of tensors"):
        estimator(scores, sp.OneOf(3), lambda z, row: 1.0)
    with pytest.raises(ValueError, match="NVIL needs a context"):
        se.NVIL(4)(scores, sp.OneOf(3), number)
    with pytest.raises(ValueError, match=r"context must have shape \(2, \*features\), got \(3, 4\)"):
        se.NVIL(4)(scores, sp.OneOf(3), number, context=torch.zeros(3, 4))
    with pytest.raises(ValueError, match="got n_scores=5"):
        se.Relax(5)(scores, sp.OneOf(3), number)
    with pytest.raises(ValueError, match="network must return one number per row"):
        se.NVIL(network=torch.nn.Linear(4, 2))(scores, sp.OneOf(3), number, context=torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"Bits\(n=40.* more than max_count=65536; use TopK or SparseMAP"):
        se.Dense()(torch.zeros(2, 40), sp.Bits(40), number)
