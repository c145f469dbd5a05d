"""Sparse guides in Pyro: values and gradients equal full enumeration, at fewer evaluations of the model."""

from __future__ import annotations

import doctest
import itertools
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO, config_enumerate
from torch import Tensor

import sparsum as sp
import sparsum.pyro
from sparsum.pyro import SparseEnum_ELBO

pytestmark = pytest.mark.integrations

N, K, D = 6, 5, 3  # rows, categories, features


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def parameter(*shape: int) -> Tensor:
    return torch.randn(shape).requires_grad_()


def loss_and_grads(elbo: Any, model: Any, guide: Any, parameters: list[Tensor]) -> tuple[Tensor, ...]:
    loss = elbo.differentiable_loss(model, guide)
    return loss.detach(), *torch.autograd.grad(loss, parameters)


def compare(model: Any, guide: Any, parameters: list[Tensor], **options: Any) -> tuple[Tensor, ...]:
    """Require that the sum over atoms equals the enumeration of all categories, in each way to ask for it."""
    pyro.set_rng_seed(1)
    wanted = loss_and_grads(TraceEnum_ELBO(**options), model, config_enumerate(guide), parameters)
    pyro.set_rng_seed(1)
    found = loss_and_grads(SparseEnum_ELBO(**options), model, guide, parameters)
    assert all(grad.abs().max() > 0 for grad in found[1:])
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    for way in ("loss", "loss_and_grads"):
        pyro.set_rng_seed(1)
        assert getattr(SparseEnum_ELBO(**options), way)(model, guide) == pytest.approx(float(found[0]))
    return found


def mixture(x: Tensor, table: Tensor, seen: list[torch.Size] | None = None) -> Callable[[], None]:
    """A mixture of normal distributions, one category for each row of data."""

    def model() -> None:
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Categorical(torch.ones(K)))
            if seen is not None:
                seen.append(z.shape)
            pyro.sample("x", dist.Normal(table[z], 1.0).to_event(1), obs=x)

    return model


def categories(scores: Tensor) -> Callable[[], None]:
    def guide() -> None:
        with pyro.plate("data", len(scores)):
            pyro.sample("z", sp.sparsemap(scores, sp.OneOf(K)))

    return guide


def test_a_category_equals_enumeration_and_the_expectation() -> None:
    """Against all categories by Pyro, and against `expect` minus entropy."""
    x, scores, table = torch.randn(N, D), parameter(N, K), parameter(K, D)
    found = compare(mixture(x, table), categories(scores), [scores, table])
    q = sp.sparsemap(scores, sp.OneOf(K))
    log_joint = q.expect(lambda z, row: dist.Normal(table[z], 1.0).log_prob(x[row]).sum(-1)) - math.log(K)
    wanted = -(log_joint + q.entropy()).sum()
    torch.testing.assert_close(found, (wanted.detach(), *torch.autograd.grad(wanted, [scores, table])))


def test_the_model_sees_as_many_values_as_the_widest_support() -> None:
    """Not all categories, and no more than the row with the largest support has."""
    x, table = torch.randn(N, D), parameter(K, D)
    scores = torch.zeros(N, K)
    scores[:, 0] = 9.0
    scores[1, 1] = 8.7
    scores[2, 1:3] = 8.7
    seen: list[torch.Size] = []
    SparseEnum_ELBO(max_plate_nesting=1).loss(mixture(x, table, seen), categories(scores))
    assert seen == [(3, N)]


def test_rows_with_one_atom_each() -> None:
    """A table of width one leaves no dimension that Pyro could name."""
    scores, table = 20 * torch.eye(K)[torch.tensor([0, 3, 3, 1, 2, 4])].requires_grad_(), parameter(K, D)
    x = torch.randn(N, D)
    model, guide = mixture(x, table), categories(scores)
    wanted = loss_and_grads(TraceEnum_ELBO(), model, config_enumerate(guide), [table])
    torch.testing.assert_close(loss_and_grads(SparseEnum_ELBO(), model, guide, [table]), wanted)


def test_bits_equal_brute_force() -> None:
    """A structured site: against a sum over all vectors, written out."""
    n_bits = 4
    x, scores, weight = torch.randn(N, D), parameter(N, n_bits), parameter(n_bits, D)

    def model() -> None:
        with pyro.plate("data", N):
            z = pyro.sample("z", dist.Bernoulli(torch.tensor(0.3)).expand([n_bits]).to_event(1))
            pyro.sample("x", dist.Normal((z @ weight).tanh(), 1.0).to_event(1), obs=x)

    def guide() -> None:
        with pyro.plate("data", N):
            pyro.sample("z", sp.sparsemap(scores, sp.Bits(n_bits)))

    found = loss_and_grads(SparseEnum_ELBO(), model, guide, [scores, weight])
    q, total = sp.sparsemap(scores, sp.Bits(n_bits)), torch.tensor(0.0)
    for bits in itertools.product([0.0, 1.0], repeat=n_bits):
        z = torch.tensor(bits).expand(N, n_bits)
        log_q = q.log_prob(z)
        log_p = dist.Bernoulli(0.3).log_prob(z).sum(-1) + dist.Normal((z @ weight).tanh(), 1.0).log_prob(x).sum(-1)
        has_mass = log_q > -torch.inf
        total = total + (log_q[has_mass].exp() * (log_q - log_p)[has_mass]).sum()
    torch.testing.assert_close(found, (total.detach(), *torch.autograd.grad(total, [scores, weight])))


@pytest.mark.parametrize("n_particles", [1, 3])
def test_sites_that_depend_on_each_other(n_particles: int) -> None:
    """Two categories and a normal variable per row; the second category's scores depend on the first and on the normal."""
    x, table, prior = torch.randn(N, D), parameter(K, K, D), parameter(K, K)
    first, second, slope, loc = parameter(N, K), parameter(N, K, K), parameter(K), parameter(N)

    def model() -> None:
        with pyro.plate("data", N):
            u = pyro.sample("u", dist.Normal(0.0, 1.0))
            y = pyro.sample("y", dist.Categorical(torch.ones(K)))
            z = pyro.sample("z", dist.Categorical(logits=prior[y]))
            pyro.sample("x", dist.Normal(table[y, z] + u.unsqueeze(-1), 1.0).to_event(1), obs=x)

    def guide() -> None:
        with pyro.plate("data", N):
            u = pyro.sample("u", dist.Normal(loc, 0.5))
            y = pyro.sample("y", sp.sparsemap(first, sp.OneOf(K)))
            scores = second[torch.arange(N), y] + slope * u.unsqueeze(-1)
            pyro.sample("z", sp.sparsemap(scores, sp.OneOf(K)))

    parameters = [table, prior, first, second, slope, loc]
    compare(model, guide, parameters, max_plate_nesting=1)
    if n_particles > 1:
        compare(model, guide, parameters, num_particles=n_particles)
        compare(model, guide, parameters, num_particles=n_particles, vectorize_particles=True)


def test_sites_in_nested_plates() -> None:
    """One sparse site per group, one per member of a group that depends on it, and one without a plate."""
    x, table = torch.randn(4, 2, D), parameter(K, K, 2, D)
    top, outer, inner = parameter(2), parameter(2, K), parameter(K, 4, 2, K)

    def model() -> None:
        a = pyro.sample("a", dist.Categorical(torch.ones(2)))
        with pyro.plate("groups", 2, dim=-1):
            y = pyro.sample("y", dist.Categorical(torch.ones(K)))
            with pyro.plate("members", 4, dim=-2):
                z = pyro.sample("z", dist.Categorical(torch.ones(K)))
                pyro.sample("x", dist.Normal(table[y, z, a], 1.0).to_event(1), obs=x)

    def guide() -> None:
        pyro.sample("a", sp.sparsemap(top, sp.OneOf(2)))
        with pyro.plate("groups", 2, dim=-1):
            y = pyro.sample("y", sp.sparsemap(outer, sp.OneOf(K)))
            with pyro.plate("members", 4, dim=-2):
                member, group = torch.arange(4).unsqueeze(-1), torch.arange(2)
                pyro.sample("z", sp.sparsemap(inner[y, member, group], sp.OneOf(K)))

    compare(model, guide, [table, top, outer, inner])


def test_subsampling() -> None:
    """Half of the data, whose terms count twice."""
    x, scores, table = torch.randn(N, D), parameter(N, K), parameter(K, D)

    def model() -> None:
        with pyro.plate("data", N, subsample_size=3) as rows:
            z = pyro.sample("z", dist.Categorical(torch.ones(K)))
            pyro.sample("x", dist.Normal(table[z], 1.0).to_event(1), obs=x[rows])

    def guide() -> None:
        with pyro.plate("data", N, subsample_size=3) as rows:
            pyro.sample("z", sp.sparsemap(scores[rows], sp.OneOf(K)))

    loss, of_scores, _ = compare(model, guide, [scores, table], max_plate_nesting=1)
    rows = of_scores.abs().sum(-1).nonzero().squeeze(-1)
    q = sp.sparsemap(scores[rows], sp.OneOf(K))
    log_joint = q.expect(lambda z, row: dist.Normal(table[z], 1.0).log_prob(x[rows][row]).sum(-1)) - math.log(K)
    torch.testing.assert_close(loss, -2 * (log_joint + q.entropy()).sum().detach())


@pytest.mark.parametrize("is_by_distribution", [False, True])
def test_masked_rows_do_not_count(is_by_distribution: bool) -> None:
    """Rows without data, by the handler and by the method `mask`; all rows masked give 0."""
    x, scores, table = torch.randn(N, D), parameter(N, K), parameter(K, D)
    keep = torch.tensor([True, False, True, True, False, True])

    def masked(keep: Tensor) -> tuple[Callable[[], None], Callable[[], None]]:
        def model() -> None:
            with pyro.plate("data", N), poutine.mask(mask=keep):
                z = pyro.sample("z", dist.Categorical(torch.ones(K)))
                pyro.sample("x", dist.Normal(table[z], 1.0).to_event(1), obs=x)

        def guide() -> None:
            q: Any = sp.sparsemap(scores, sp.OneOf(K))
            with pyro.plate("data", N), poutine.mask(mask=True if is_by_distribution else keep):
                pyro.sample("z", q.mask(keep) if is_by_distribution else q)

        return model, guide

    loss, of_scores, _ = compare(*masked(keep), [scores, table])
    assert (of_scores[~keep] == 0).all()
    wanted = loss_and_grads(SparseEnum_ELBO(), mixture(x[keep], table), categories(scores[keep]), [table])
    torch.testing.assert_close(loss, wanted[0])
    assert SparseEnum_ELBO().loss(*masked(torch.zeros(N, dtype=torch.bool))) == 0


def test_scaled_sites_and_sites_that_are_enumerated_sequentially() -> None:
    """A dense site is enumerated sequentially beside the sparse one, and both are scaled."""
    x, scores, logit, table = torch.randn(N, D), parameter(N, K), parameter(), parameter(2, K, D)

    @poutine.scale(scale=0.1)
    def model() -> None:
        a = pyro.sample("a", dist.Bernoulli(0.5)).long()
        with pyro.plate("data", N):
            z = pyro.sample("z", dist.Categorical(torch.ones(K)))
            pyro.sample("x", dist.Normal(table[a, z], 1.0).to_event(1), obs=x)

    @poutine.scale(scale=0.1)
    def guide() -> None:
        pyro.sample("a", dist.Bernoulli(logits=logit), infer={"enumerate": "sequential"})
        with pyro.plate("data", N):
            pyro.sample("z", sp.sparsemap(scores, sp.OneOf(K)))

    compare(model, guide, [scores, logit, table])


def test_dense_sites_beside_sparse_ones() -> None:
    """A dense site that is enumerated before the sparse one, on which it depends, and a site that the model enumerates."""
    x, logits, scores, table = torch.randn(N, D), parameter(N, K), parameter(K, N, K), parameter(K, K, 2, D)

    def model() -> None:
        with pyro.plate("data", N):
            y = pyro.sample("y", dist.Categorical(torch.ones(K)))
            z = pyro.sample("z", dist.Categorical(torch.ones(K)))
            w = pyro.sample("w", dist.Categorical(torch.ones(2)), infer={"enumerate": "parallel"})
            pyro.sample("x", dist.Normal(table[y, z, w], 1.0).to_event(1), obs=x)

    def guide() -> None:
        with pyro.plate("data", N):
            y = pyro.sample("y", dist.Categorical(logits=logits), infer={"enumerate": "parallel"})
            pyro.sample("z", sp.sparsemap(scores[y, torch.arange(N)], sp.OneOf(K)))

    compare(model, guide, [logits, scores, table], max_plate_nesting=1)


def test_no_plates() -> None:
    x, scores, table = torch.randn(D), parameter(K), parameter(K, D)

    def model() -> None:
        z = pyro.sample("z", dist.Categorical(torch.ones(K)))
        pyro.sample("x", dist.Normal(table[z], 1.0).to_event(1), obs=x)

    compare(model, lambda: pyro.sample("z", sp.sparsemap(scores, sp.OneOf(K))), [scores, table])


def test_priors_over_structures() -> None:
    """`UniformOver` and `Gibbs` in the model: of trees, the bound is the expectation minus the divergence."""
    x, scores, potentials = torch.randn(N), parameter(N, 4, 4), parameter(4, 4)
    structure = sp.Tree(4)

    def model_with(prior: Any) -> Callable[[], None]:
        def model() -> None:
            with pyro.plate("data", N):
                z = pyro.sample("z", prior)
                depth = (z == torch.arange(4)).sum(-1)
                pyro.sample("x", dist.Normal(1.0 * depth, 1.0), obs=x)

        return model

    def guide() -> None:
        with pyro.plate("data", N):
            pyro.sample("z", sp.sparsemap(scores, structure))

    q = sp.sparsemap(scores, structure)
    fit = q.expect(lambda z, row: dist.Normal(1.0 * (z == torch.arange(4)).sum(-1), 1.0).log_prob(x[row]))
    uniform, gibbs = sp.UniformOver(structure), sp.Gibbs(potentials, structure)
    for prior, cost in (
        (uniform, torch.distributions.kl_divergence(q, uniform)),
        (gibbs, -q.expect(gibbs.expand((N,)).log_prob_of) - q.entropy()),
    ):
        loss, grad = loss_and_grads(SparseEnum_ELBO(), model_with(prior), guide, [scores])
        wanted = (cost - fit).sum()
        torch.testing.assert_close(
            (loss, grad), (wanted.detach(), *torch.autograd.grad(wanted, [scores], retain_graph=True))
        )


def test_samples_by_other_bounds() -> None:
    """`Trace_ELBO` samples from sparse and from Gibbs guides; its mean over many particles is the exact gradient."""
    x, scores, table = torch.randn(2, D), parameter(2, K), parameter(K, D)
    wanted = loss_and_grads(SparseEnum_ELBO(), mixture(x, table), categories(scores), [scores, table])
    sampled = Trace_ELBO(num_particles=40_000, vectorize_particles=True)
    found = loss_and_grads(sampled, mixture(x, table), categories(scores), [scores, table])
    torch.testing.assert_close(found, wanted, atol=0.1, rtol=0.05)

    def dense() -> None:
        with pyro.plate("data", 2):
            pyro.sample("z", sp.Gibbs(scores, sp.OneOf(K)))

    def softmax() -> None:
        with pyro.plate("data", 2):
            pyro.sample("z", dist.Categorical(logits=scores))

    found = loss_and_grads(sampled, mixture(x, table), dense, [scores, table])
    wanted = loss_and_grads(TraceEnum_ELBO(), mixture(x, table), config_enumerate(softmax), [scores, table])
    torch.testing.assert_close(found, wanted, atol=0.1, rtol=0.05)
    some = Trace_ELBO()
    assert math.isfinite(some.loss(mixture(x, table), categories(scores)))


def test_several_samples_of_a_sparse_site() -> None:
    """A site with ``num_samples`` is sampled, by either bound alike."""
    x, scores, table = torch.randn(N, D), parameter(N, K), parameter(K, D)

    def guide() -> None:
        with pyro.plate("data", N):
            pyro.sample("z", sp.sparsemap(scores, sp.OneOf(K)), infer={"enumerate": "parallel", "num_samples": 7})

    compare(mixture(x, table), guide, [scores, table])


def test_values_outside_of_inference() -> None:
    """A sparse distribution is a stochastic function like Pyro's own."""
    q: Any = sp.sparsemap(torch.randn(N, 4), sp.Bits(4))
    assert pyro.sample("z", q).shape == (N, 4)
    assert (q.event_dim, q.shape(), q.expand_by([2]).batch_shape) == (1, (N, 4), (2, N))
    with pyro.plate("many", 3, dim=-2):
        trace = poutine.trace(lambda: pyro.sample("z", q)).get_trace()
    assert trace.log_prob_sum().isfinite()
    conditioned = poutine.condition(lambda: pyro.sample("z", q), {"z": q.mode})
    torch.testing.assert_close(poutine.trace(conditioned).get_trace().log_prob_sum(), q.log_prob(q.mode).sum())


def test_svi_learns_a_mixture() -> None:
    """The bound reaches its optimum on three separated clusters, each of which is found."""
    centres = torch.tensor([[-4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    truth = torch.arange(60) % 3
    x = centres[truth] + 0.3 * torch.randn(60, 2)
    encoder = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3), sp.nn.ScoreNorm(3))

    def model() -> None:
        table = pyro.param("table", x[:3].clone() + 1.0)
        with pyro.plate("data", 60):
            z = pyro.sample("z", dist.Categorical(torch.ones(3)))
            pyro.sample("x", dist.Normal(table[z], 0.3).to_event(1), obs=x)

    def guide() -> None:
        pyro.module("encoder", encoder)
        with pyro.plate("data", 60):
            pyro.sample("z", sp.sparsemap(encoder(x), sp.OneOf(3)))

    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), SparseEnum_ELBO())
    losses = [svi.step() for _ in range(100)]
    best = -dist.Normal(x.reshape(20, 3, 2).mean(0)[truth], 0.3).log_prob(x).sum() + 60 * math.log(3)
    assert losses[0] > 10 * float(best)
    assert losses[-1] == pytest.approx(float(best), abs=3.0)
    found = sp.sparsemap(encoder(x), sp.OneOf(3)).mode
    assert all(len(found[truth == each].unique()) == 1 for each in range(3))
    assert len(found.unique()) == 3


def test_the_bound_as_a_module() -> None:
    """Pyro's interface of modules, with an optimizer of torch."""

    class Module(torch.nn.Module):
        def __init__(self, function: Callable[[], None], weight: Tensor) -> None:
            super().__init__()
            self.function, self.weight = function, torch.nn.Parameter(weight)

        def forward(self) -> None:
            self.function()

    x, scores, table = torch.randn(N, D), torch.randn(N, K), torch.randn(K, D)
    guide = Module(lambda: categories(guide.weight)(), scores)
    model = Module(lambda: mixture(x, model.weight)(), table)
    elbo = SparseEnum_ELBO()(model, guide)
    optimizer = torch.optim.SGD(elbo.parameters(), lr=0.01)
    before = elbo()
    before.backward()
    optimizer.step()
    assert elbo() < before


def test_a_site_outside_of_a_plate_is_named() -> None:
    scores, table = parameter(N, K), parameter(K, D)
    guide = lambda: pyro.sample("z", sp.sparsemap(scores, sp.OneOf(K)))  # noqa: E731
    for nesting in (0, 1, math.inf):
        with pytest.raises(ValueError, match=r"site 'z' .* shape \(6,\), whose dimension -1 is in no pyro.plate"):
            SparseEnum_ELBO(max_plate_nesting=nesting).loss(mixture(torch.randn(N, D), table), guide)


def test_a_plate_of_another_size_is_named() -> None:
    with pytest.raises(ValueError, match=r"plate\('data'\) at site z dim -1, 6 vs 4"):
        SparseEnum_ELBO().loss(mixture(torch.randn(N, D), parameter(K, D)), lambda: _in_plate(N, torch.zeros(4, K)))


def _in_plate(n: int, scores: Tensor) -> None:
    with pyro.plate("data", n):
        pyro.sample("z", sp.sparsemap(scores, sp.OneOf(K)))


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_rows_without_a_distribution_are_named(value: float) -> None:
    """Rows of NaN, and rows of which all scores are masked."""
    scores = torch.randn(N, K)
    scores[2] = value
    with pytest.raises(ValueError, match=r"\b2\b"):
        SparseEnum_ELBO().loss(mixture(torch.randn(N, D), parameter(K, D)), categories(scores))


def test_empty_plates_are_refused_by_pyro() -> None:
    with pytest.raises(ZeroDivisionError, match="size cannot be zero"):
        SparseEnum_ELBO().loss(mixture(torch.zeros(0, D), parameter(K, D)), categories(torch.zeros(0, K)))


def test_masked_scores_are_not_evaluated() -> None:
    """Where the prior is 0, masked scores keep the guide away; else the error names the site and its rows."""
    x, table, scores = torch.randn(N, D), parameter(K, D), parameter(N, K)
    logits = torch.zeros(K)
    logits[1] = -math.inf

    def model() -> None:
        with pyro.plate("data", N):
            z = pyro.sample("z", dist.Categorical(logits=logits))
            pyro.sample("x", dist.Normal(table[z], 1.0).to_event(1), obs=x)

    with pytest.raises(ValueError, match=r"no mass to a value of site 'z' .* in rows \[\[\d\]") as caught:
        SparseEnum_ELBO().loss(model, categories(scores))
    has_mass = sp.sparsemap(scores, sp.OneOf(K)).to_dense()[:, 1] > 0
    assert str(has_mass.nonzero().tolist()) in str(caught.value)

    def guide() -> None:
        with pyro.plate("data", N):
            pyro.sample("z", sp.sparsemap(scores, sp.OneOf(K), mask=logits == 0))

    found = loss_and_grads(SparseEnum_ELBO(), model, guide, [scores, table])
    assert all(part.isfinite().all() for part in found)
    assert (found[1][:, 1] == 0).all()


def test_sequential_enumeration_of_a_sparse_site_is_refused() -> None:
    def guide() -> None:
        with pyro.plate("data", N):
            pyro.sample("z", sp.sparsemap(torch.randn(N, K), sp.OneOf(K)), infer={"enumerate": "sequential"})

    with pytest.raises(ValueError, match="sparse site 'z'"):
        SparseEnum_ELBO().loss(mixture(torch.randn(N, D), parameter(K, D)), guide)


def test_the_examples_of_the_module() -> None:
    torch.set_default_dtype(torch.float32)
    failed, attempted = doctest.testmod(sparsum.pyro)
    assert (failed, attempted > 0) == (0, True)


def test_the_library_does_not_import_pyro() -> None:
    program = "import sys, sparsum; sys.exit('pyro' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
