"""The packed distribution against torch's dense ones, loops over the atoms, and its own contract."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck
from torch.distributions import Bernoulli, Categorical, Independent, Normal, kl_divergence

import sparsum as sp
from tests.reference import expect_row_by_row


def sparse_probs(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return sp.sparsemax(2 * torch.randn(shape, dtype=torch.float64, generator=generator))


def bits(seed: int = 0, n_rows: int = 4, n_bits: int = 3, per_row: int = 3) -> sp.SparseDistribution:
    """Different bit vectors with random probabilities."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.stack([torch.randperm(2**n_bits, generator=generator)[:per_row] for _ in range(n_rows)]).reshape(-1)
    atoms = ((codes[:, None] >> torch.arange(n_bits)) & 1).double()
    probs = torch.softmax(torch.randn(n_rows, per_row, generator=generator, dtype=torch.float64), -1).reshape(-1)
    return sp.SparseDistribution(atoms, probs, torch.arange(n_rows).repeat_interleave(per_row))


def test_from_dense_keeps_the_positive_entries() -> None:
    probs = torch.tensor([[[0.0, 0.25, 0.75], [1.0, 0.0, 0.0]]])
    q = sp.SparseDistribution.from_dense(probs)
    assert q.atoms.tolist() == [1, 2, 0]
    assert q.probs.tolist() == [0.25, 0.75, 1.0]
    assert q.row.tolist() == [0, 0, 1]
    assert q.n_atoms_per_row.tolist() == [[2, 1]]
    assert q.batch_shape == (1, 2)
    assert q.event_shape == ()
    assert q.is_exact.tolist() == [[True, True]]
    assert torch.equal(q.to_dense(), probs)
    assert torch.equal(q.mode, torch.tensor([[2, 0]]))


@pytest.mark.parametrize("shape", [(5,), (7, 5), (2, 3, 5), (2, 9000), (0, 5), (2, 0, 5)])
def test_agrees_with_categorical(shape: tuple[int, ...]) -> None:
    probs = sparse_probs(*shape)
    q, dense = sp.SparseDistribution.from_dense(probs), Categorical(probs=probs)
    assert q.batch_shape == dense.batch_shape
    assert torch.equal(q.to_dense(), probs)
    assert torch.equal(q.mean, probs)
    assert torch.equal(q.mode, probs.argmax(-1))
    torch.testing.assert_close(q.entropy(), torch.special.entr(probs).sum(-1))
    values = torch.arange(5).reshape(5, *[1] * len(shape[:-1])).expand(5, *shape[:-1])
    expected = torch.stack([probs[..., z] for z in range(5)]).log()
    torch.testing.assert_close(q.log_prob(values), expected)
    assert q.n_atoms_per_row.shape == shape[:-1]


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 100))
def test_expectation_agrees_with_a_loop_and_with_the_dense_sum(n_rows: int, n: int, seed: int) -> None:
    probs = sparse_probs(n_rows, n, seed=seed)
    table = torch.randn(n_rows, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    q = sp.SparseDistribution.from_dense(probs)

    def loss(z: Tensor, row: Tensor) -> Tensor:
        return table[row, z]

    torch.testing.assert_close(q.expect(loss), (probs * table).sum(-1))
    torch.testing.assert_close(q.expect(loss).float(), expect_row_by_row(q, loss).float())
    for chunk_size in (1, 2, 100):
        torch.testing.assert_close(q.expect(loss, chunk_size=chunk_size), (probs * table).sum(-1))


def test_expectation_differentiates_probabilities_and_the_loss() -> None:
    scores = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    table = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()

    def objective(scores: Tensor, table: Tensor, chunk_size: int | None) -> Tensor:
        q = sp.sparsemap(scores, sp.OneOf(6))
        expected: Tensor = q.expect(lambda z, row: table[row, z].square(), chunk_size=chunk_size)
        return expected - q.entropy()

    for chunk_size in (None, 2):
        assert gradcheck(lambda s, t, c=chunk_size: objective(s, t, c), (scores, table))
        assert torch.autograd.gradgradcheck(lambda s, t, c=chunk_size: objective(s, t, c), (scores, table))


def test_only_atoms_are_evaluated() -> None:
    seen: list[int] = []

    def loss(z: Tensor, row: Tensor) -> Tensor:
        seen.append(len(z))
        return z.double() + row

    probs = sparse_probs(20, 50)
    q = sp.SparseDistribution.from_dense(probs)
    q.expect(loss)
    assert seen == [int((probs > 0).sum())]
    seen.clear()
    q.expect(loss, chunk_size=7)
    assert sum(seen) == int((probs > 0).sum())
    assert max(seen) <= 7
    explicit = sp.SparseDistribution(torch.arange(4), torch.tensor([0.5, 0.0, 0.5, 1.0]), torch.tensor([0, 0, 0, 1]))
    seen.clear()
    explicit.expect(loss)
    assert seen == [3]


class Terms(NamedTuple):
    """What a loss may return."""

    likelihood: Tensor
    rest: list[Tensor]


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_nested_results_and_trailing_dimensions(chunk_size: int | None) -> None:
    probs = sparse_probs(2, 3, 5)
    q = sp.SparseDistribution.from_dense(probs)

    def loss(z: Tensor, row: Tensor) -> dict[str, Any]:
        wide = torch.nn.functional.one_hot(z, 5).double()
        return {"wide": wide, "both": Terms(z.double(), [row.double(), wide[:, None] * torch.ones(2, 1)])}

    result = q.expect(loss, chunk_size=chunk_size)
    torch.testing.assert_close(result["wide"], probs)
    assert isinstance(result["both"], Terms)
    torch.testing.assert_close(result["both"].likelihood, (probs * torch.arange(5)).sum(-1))
    torch.testing.assert_close(result["both"].rest[0], torch.arange(6.0).double().reshape(2, 3))
    assert result["both"].rest[1].shape == (2, 3, 2, 5)


def noisy_loss(weight: Tensor, source: torch.Generator | None, noises: list[Tensor], z: Tensor, row: Tensor) -> Tensor:
    """A loss that draws noise, and remembers it."""
    noises.append(torch.randn(len(z), generator=source, dtype=torch.float64))
    return (weight * noises[-1]).sin()


def test_chunks_replay_their_noise_in_backward() -> None:
    """The gradient of a noisy loss is that of the noise that its value saw, from the global and from given generators."""
    q = sp.SparseDistribution.from_dense(sparse_probs(6, 8))
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    for given_generator in (True, False):
        generator = torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        noises: list[Tensor] = []
        source = generator if given_generator else None
        loss = functools.partial(noisy_loss, weight, source, noises)
        value = q.expect(loss, chunk_size=3, generators=generator if given_generator else ())
        state = generator.get_state()
        first_noise = torch.cat(noises)
        (gradient,) = torch.autograd.grad(value.sum(), weight)
        torch.testing.assert_close(gradient, (q.probs * first_noise * first_noise.cos()).sum())
        assert torch.equal(generator.get_state(), state)  # backward leaves the generator as it found it


def test_chunks_keep_no_intermediate_results() -> None:
    """Of a loss whose intermediate result is a thousand times its value, forward keeps little and backward one chunk."""
    weight = torch.ones((), requires_grad=True)
    q = sp.SparseDistribution.from_dense(torch.full((10, 10), 0.1))
    kept: list[weakref.ref[Tensor]] = []
    peak = 0

    def loss(z: Tensor, row: Tensor) -> Tensor:
        nonlocal peak
        wide = weight * torch.ones(len(z), 1000)
        kept.append(weakref.ref(wide))
        peak = max(peak, sum(tensor.numel() for ref in kept if (tensor := ref()) is not None))
        return wide.sin().mean(-1)

    q.expect(loss).sum().backward()
    assert peak == 100 * 1000
    gradient, weight.grad, peak = weight.grad, None, 0
    kept.clear()
    value = q.expect(loss, chunk_size=10).sum()
    assert not any(ref() is not None for ref in kept)
    value.backward()
    assert len(kept) == 20  # each chunk was computed again
    assert peak <= 2 * 10 * 1000
    torch.testing.assert_close(weight.grad, gradient)


def test_log_prob_of_any_order_and_of_duplicates() -> None:
    q = sp.SparseDistribution(
        torch.tensor([[3, 1], [0, 2], [3, 1], [7, 7]]),
        torch.tensor([0.25, 0.5, 0.25, 1.0], dtype=torch.float64),
        torch.tensor([0, 0, 0, 1]),
        validate_args=False,  # which refuses duplicates
    )
    values = torch.tensor([[[3, 1], [7, 7]], [[0, 2], [7, 8]], [[1, 3], [3, 1]]])
    expected = torch.tensor([[0.5, 1.0], [0.5, 0.0], [0.0, 0.0]]).double().log()
    torch.testing.assert_close(q.log_prob(values), expected)
    torch.testing.assert_close(q.log_prob(values[0]), expected[0])


def test_gradients_are_finite_at_the_boundary_of_the_support() -> None:
    probs = torch.tensor([[1.0, 0.0, 0.0], [1 - 1e-45, 1e-45, 0.0]], requires_grad=True)
    q = sp.SparseDistribution.from_dense(probs)
    uniform = sp.UniformOver(sp.OneOf(3))
    total = (
        q.entropy().sum()
        + kl_divergence(q, uniform).sum()
        + kl_divergence(q, Categorical(logits=torch.zeros(2, 3))).sum()
        + torch.where(q.log_prob(torch.tensor([2, 2])).isfinite(), q.log_prob(torch.tensor([2, 2])), 0.0).sum()
    )
    total.backward()
    assert probs.grad is not None
    assert probs.grad.isfinite().all()


def test_divergences_to_dense_peers() -> None:
    probs = sparse_probs(2, 3, 5)
    q = sp.SparseDistribution.from_dense(probs)
    logits = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    expected = kl_divergence(Categorical(probs=probs), Categorical(logits=logits))
    torch.testing.assert_close(kl_divergence(q, Categorical(logits=logits)), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(kl_divergence(q, Categorical(probs=torch.softmax(logits, -1))), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(kl_divergence(q, sp.UniformOver(sp.OneOf(5))), math.log(5) - q.entropy())
    # A batch of priors for one posterior.
    single = sp.SparseDistribution.from_dense(probs[0, 0])
    expected = kl_divergence(Categorical(probs=probs[0, 0]), Categorical(logits=logits))
    torch.testing.assert_close(kl_divergence(single, Categorical(logits=logits)), expected, atol=1e-12, rtol=0)


def test_divergence_to_independent_bernoullis() -> None:
    q = bits()
    logits = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    for prior in (Bernoulli(logits=logits), Bernoulli(probs=torch.sigmoid(logits))):
        p = Independent(prior, 1)
        cross_entropy = -Independent(Bernoulli(prior.probs[q.row]), 1).log_prob(q.atoms)
        torch.testing.assert_close(kl_divergence(q, p), q._sum(q.probs * cross_entropy) - q.entropy())
    certain = sp.SparseDistribution(torch.tensor([[0.0, 1.0]]), torch.ones(1), torch.tensor([0]))
    assert kl_divergence(certain, Independent(Bernoulli(probs=torch.tensor([[0.0, 1.0]])), 1)).tolist() == [0.0]
    assert kl_divergence(certain, Independent(Bernoulli(probs=torch.tensor([[0.0, 0.0]])), 1)).tolist() == [torch.inf]


def groups(*shape: int, seed: int = 0) -> sp.SparseDistribution:
    """Over three groups of four categories, five atoms per row."""
    scores = torch.randn(*shape, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return sp.topk_sparsemax(0.2 * scores, sp.Groups(3, 4), 5)


@pytest.mark.parametrize("by_probs", [False, True])
def test_divergence_to_independent_categories(by_probs: bool) -> None:
    q = groups(2, 5)
    logits = torch.randn(5, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(6)).requires_grad_()

    def prior(logits: Tensor) -> Independent[Any]:
        return Independent(Categorical(probs=logits.softmax(-1)) if by_probs else Categorical(logits=logits), 1)

    found = kl_divergence(q, prior(logits))
    total = torch.zeros(10, dtype=torch.float64)
    for atom, prob, row in zip(q.atoms, q.probs, q.row, strict=True):
        total[row] += prob * (prob.log() - prior(logits).log_prob(atom)[row % 5])
    torch.testing.assert_close(found, total.reshape(2, 5))
    assert gradcheck(lambda logits: kl_divergence(q, prior(logits)), (logits,))
    assert kl_divergence(q[0, 0], prior(logits[:1])).shape == (1,)
    (gradient,) = torch.autograd.grad(kl_divergence(groups(2, 5), prior(logits)).sum(), logits)
    assert gradient.isfinite().all()


def test_divergence_to_independent_categories_with_zeros() -> None:
    q = sp.SparseDistribution(
        torch.tensor([[0, 1], [1, 1], [1, 0]]),
        torch.tensor([0.5, 0.5, 1.0]),
        torch.tensor([0, 0, 1]),
        structure=sp.Groups(2, 2),
    )
    probs = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    for base in (Categorical(probs=probs), Categorical(logits=probs.log())):
        assert kl_divergence(q, Independent(base, 1)).tolist() == pytest.approx([torch.inf, math.log(2)])
    # Torch computes clamped logits when it is asked for them, and would expand those.
    base = Categorical(probs=probs)
    assert base.logits.isfinite().all()
    assert kl_divergence(q, Independent(base, 1)).tolist() == pytest.approx([torch.inf, math.log(2)])


def test_divergence_to_independent_categories_that_do_not_fit() -> None:
    q = groups(2)
    with pytest.raises(ValueError, match=r"got Groups\(n_groups=3, n_each=4\) and Categoricals over 5 categories"):
        kl_divergence(q, Independent(Categorical(logits=torch.zeros(3, 5)), 1))
    with pytest.raises(ValueError, match=r"event shapes \(3,\) and \(2,\) differ"):
        kl_divergence(q, Independent(Categorical(logits=torch.zeros(2, 4)), 1))
    matching = sp.sparsemap(torch.zeros(2, 2), sp.Matching(2))
    with pytest.raises(NotImplementedError, match=r"over Matching\(n=2, m=2\) to Independent\(Categorical\)"):
        kl_divergence(matching, Independent(Categorical(logits=torch.zeros(2, 2)), 1))


def test_divergence_between_sparse_distributions() -> None:
    first = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    second = torch.tensor([[0.9, 0.1, 0.0], [0.5, 0.5, 0.0], [0.5, 0.0, 0.5]])
    q, p = sp.SparseDistribution.from_dense(first), sp.SparseDistribution.from_dense(second)
    expected = torch.tensor([0.5 * math.log(0.25 / 0.09), torch.inf, math.log(2)])
    torch.testing.assert_close(kl_divergence(q, p), expected)
    assert kl_divergence(bits(), bits()).abs().max() < 1e-12


def test_infinite_where_the_prior_has_no_mass() -> None:
    q = sp.SparseDistribution.from_dense(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    for p in (Categorical(probs=torch.tensor([1.0, 0.0])), Categorical(logits=torch.tensor([0.0, -torch.inf]))):
        assert kl_divergence(q, p).tolist() == [torch.inf, 0.0]


def test_a_single_distribution_without_a_batch() -> None:
    q = sp.sparsemap(torch.tensor([1.0, 0.8, -0.5]), sp.OneOf(3))
    assert q.batch_shape == ()
    torch.testing.assert_close(q.expect(lambda z, row: z.float()), torch.tensor(0.4))
    torch.testing.assert_close(q.expect(lambda z, row: z.float(), chunk_size=1), torch.tensor(0.4))
    assert q.sample((4,)).shape == (4,)
    assert q.mode == 0


def test_a_uniform_over_the_same_assignments_is_accepted() -> None:
    q = sp.sparsemap(torch.zeros(2, 3), sp.Bits(3, symmetric=False))
    torch.testing.assert_close(kl_divergence(q, sp.UniformOver(sp.Bits(3))), torch.full((2,), 3 * math.log(2)))


def test_divergences_that_make_no_sense_say_so() -> None:
    q = bits()
    with pytest.raises(ValueError, match="Categorical over 8 categories"):
        kl_divergence(sp.SparseDistribution.from_dense(torch.eye(3)), Categorical(logits=torch.zeros(8)))
    with pytest.raises(ValueError, match="requires a distribution over category indices"):
        kl_divergence(q, Categorical(torch.ones(3)))
    with pytest.raises(NotImplementedError, match="Independent"):
        kl_divergence(q, Independent(Normal(torch.zeros(3), 1.0), 1))
    with pytest.raises(ValueError, match="structures of both distributions must be equal"):
        kl_divergence(sp.SparseDistribution.from_dense(torch.eye(2)), sp.UniformOver(sp.OneOf(3)))
    with pytest.raises(ValueError, match="event shapes"):
        kl_divergence(q, sp.SparseDistribution.from_dense(torch.eye(4)))


def test_gradients_of_divergences_to_priors_with_zeros() -> None:
    """A zero of the prior where the posterior has no mass either is nobody's business."""
    q = sp.sparsemap(torch.tensor([[1.0, 0.8, -5.0]]), sp.OneOf(3))
    prior = torch.tensor([[0.5, 0.5, 0.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(kl_divergence(q, Categorical(probs=prior)).sum(), prior)
    assert gradient.isfinite().all()
    certain = sp.SparseDistribution(torch.tensor([[0.0, 1.0]]), torch.ones(1), torch.tensor([0]))
    ones = torch.tensor([[0.0, 1.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(kl_divergence(certain, Independent(Bernoulli(probs=ones), 1)).sum(), ones)
    assert gradient.isfinite().all()


def test_long_sums_keep_their_digits() -> None:
    q = sp.SparseDistribution.from_dense(torch.full((1, 1_000_000), 1e-6))
    torch.testing.assert_close(q.expect(lambda z, row: torch.ones(len(z))), torch.ones(1), atol=1e-6, rtol=0)
    torch.testing.assert_close(q.entropy(), torch.full((1,), math.log(1e6)), atol=1e-5, rtol=0)


def test_small_half_precision_probabilities() -> None:
    probs = torch.tensor([[1.0, 2e-5]], dtype=torch.float16)
    q = sp.SparseDistribution.from_dense(probs)
    torch.testing.assert_close(q.log_prob(torch.tensor([1])).float(), probs[0, 1:].float().log(), atol=1e-2, rtol=0)


def test_log_prob_broadcasts_and_mixes() -> None:
    q = sp.SparseDistribution.from_dense(sparse_probs(3, 4))
    torch.testing.assert_close(q.log_prob(torch.tensor(1)), q.to_dense()[:, 1].log())
    mixture = torch.distributions.MixtureSameFamily(Categorical(torch.ones(3)), q)
    torch.testing.assert_close(mixture.log_prob(torch.arange(4)), q.to_dense().mean(0).log())


def test_samples_have_the_right_frequencies(generator: torch.Generator) -> None:
    probs = sparse_probs(3, 6)
    q = sp.SparseDistribution.from_dense(probs)
    draws = q.sample((40_000,), generator=generator)
    assert draws.shape == (40_000, 3)
    frequencies = torch.nn.functional.one_hot(draws, 6).double().mean(0)
    assert not frequencies[probs == 0].any()
    deviation = (frequencies - probs).abs() / (probs * (1 - probs) / 40_000).sqrt().clamp_min(1e-9)
    assert deviation.max() < 4.5  # standard errors
    again = q.sample((40_000,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(draws, again)
    assert bits().sample((2, 5)).shape == (2, 5, 4, 3)
    assert q.sample().shape == (3,)
    assert q.log_prob(q.sample((100,), generator=generator)).isfinite().all()


def test_expand_is_that_of_tensors() -> None:
    probs = sparse_probs(3, 1, 4).requires_grad_()
    q = sp.SparseDistribution.from_dense(probs)
    expanded = q.expand((2, 3, 5))
    assert expanded.batch_shape == (2, 3, 5)
    assert torch.equal(expanded.to_dense(), probs.expand(2, 3, 5, 4))
    assert expanded.is_exact.shape == (2, 3, 5)
    (gradient,) = torch.autograd.grad(expanded.entropy().sum(), probs, retain_graph=True)
    (single,) = torch.autograd.grad(q.entropy().sum(), probs)
    torch.testing.assert_close(gradient, 10 * single)
    assert q.expand((0, 3, 1)).batch_shape == (0, 3, 1)
    scalar = sp.SparseDistribution.from_dense(probs[0, 0])
    assert scalar.expand((2,)).n_atoms_per_row.shape == (2,)


def test_mean_of_atoms_that_are_their_own_vectors() -> None:
    q = bits()
    expected = torch.stack([q.probs[3 * r : 3 * r + 3] @ q.atoms[3 * r : 3 * r + 3] for r in range(4)])
    torch.testing.assert_close(q.mean, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(dtype: torch.dtype) -> None:
    scores = torch.randn(50, 20, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    q = sp.sparsemap(scores, sp.OneOf(20))
    assert q.probs.dtype == dtype
    torch.testing.assert_close(q.to_dense().float(), sp.sparsemax(scores.float()), atol=1e-2, rtol=1e-2)
    dense = sp.SparseDistribution.from_dense(sp.sparsemax(scores))
    (q.expect(lambda z, row: z.to(dtype)) + q.entropy() + dense.entropy()).sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def test_repr_says_what_a_person_wants_to_know() -> None:
    q = sp.SparseDistribution.from_dense(torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]))
    assert repr(q) == (
        "SparseDistribution(OneOf(n=3), batch_shape=(2,), event_shape=(), n_atoms=3, 1 to 2 per row, "
        "dtype=torch.float32, device='cpu')"
    )
    assert "n_atoms=0" in repr(sp.SparseDistribution.from_dense(torch.ones(0, 3)))
    assert repr(sp.UniformOver(sp.OneOf(3))) == "UniformOver(OneOf(n=3))"


def test_the_contract_of_torch_distributions() -> None:
    q = sp.SparseDistribution.from_dense(torch.eye(3), validate_args=True)
    assert isinstance(q, torch.distributions.Distribution)
    assert not q.has_rsample
    assert q.support.check(torch.tensor([0, 2])).all()
    assert not q.support.check(torch.tensor(3))
    assert bits().support.check(torch.zeros(4, 3)).all()
    torch.testing.assert_close(sp.UniformOver(sp.OneOf(4)).entropy(), torch.tensor(math.log(4)))
    torch.testing.assert_close(sp.UniformOver(sp.OneOf(4)).log_prob(torch.tensor([0, 3])), torch.full((2,), -math.log(4)))


def test_validation_can_be_switched_off() -> None:
    bad = torch.tensor([[0.5, 0.6]])
    assert sp.SparseDistribution.from_dense(bad, validate_args=False).probs.tolist() == pytest.approx([0.5, 0.6])
    sp.SparseDistribution(torch.arange(2), bad[0], torch.tensor([0, 0]), validate_args=False)


Q = sp.SparseDistribution.from_dense(torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]))
ATOMS, PROBS, ROW = torch.arange(3), torch.tensor([0.5, 0.5, 1.0]), torch.tensor([0, 0, 1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sp.SparseDistribution(ATOMS, PROBS[:2], ROW), ValueError, "got (3,), (2,) and (3,)"),
        (lambda: sp.SparseDistribution(ATOMS, PROBS.long(), ROW), TypeError, "probs must have a floating-point dtype"),
        (lambda: sp.SparseDistribution(ATOMS, PROBS, ROW.float()), TypeError, "row must have dtype torch.int64"),
        (lambda: sp.SparseDistribution([1], PROBS, ROW), TypeError, "atoms must be a torch.Tensor"),  # type: ignore[arg-type]
        (lambda: sp.SparseDistribution(ATOMS, PROBS, ROW.flip(0)), ValueError, "row must be sorted"),
        (lambda: sp.SparseDistribution(ATOMS, PROBS, ROW - 1), ValueError, "row must be sorted, with values from 0"),
        (lambda: sp.SparseDistribution(ATOMS, PROBS, ROW, batch_shape=(1,)), ValueError, "values from 0 to 0"),
        (lambda: sp.SparseDistribution(ATOMS, PROBS, ROW, batch_shape=(3,)), ValueError, "row 2 sums to 0 (of 3)"),
        (lambda: sp.SparseDistribution(ATOMS, PROBS, 2 * ROW), ValueError, "row 1 sums to 0"),
        (lambda: sp.SparseDistribution(ATOMS, PROBS * 2, ROW), ValueError, "row 0 sums to 2, row 1 sums to 2"),
        (
            lambda: sp.SparseDistribution(ATOMS, torch.tensor([1.5, -0.5, 1.0]), ROW),
            ValueError,
            "probs must be non-negative, without NaN, and sum to 1 in every row; row 0 sums to 1",
        ),
        (lambda: sp.SparseDistribution(ATOMS, PROBS * torch.nan, ROW), ValueError, "row 0 sums to nan"),
        (lambda: sp.SparseDistribution(ATOMS, PROBS, ROW, is_exact=torch.ones(3) > 0), ValueError, "shape (2,), got (3,)"),
        (lambda: sp.SparseDistribution.from_dense(torch.tensor([[0.5, 0.6]])), ValueError, "row 0 sums to 1.1 (of 1)"),
        (lambda: sp.SparseDistribution.from_dense(torch.tensor([[1.5, -0.5]])), ValueError, "non-negative"),
        (lambda: sp.SparseDistribution.from_dense(torch.zeros(9, 2)), ValueError, "row 4 sums to 0 and 4 more (of 9)"),
        (lambda: sp.SparseDistribution.from_dense(torch.eye(2).long()), TypeError, "got torch.int64"),
        (lambda: sp.SparseDistribution.from_dense(torch.ones(2, 0)), ValueError, "n at least 1, got (2, 0)"),
        (lambda: Q.expect(lambda z, row: torch.zeros(2)), ValueError, "a leading dimension of 3, got shape (2,)"),
        (lambda: Q.expect(lambda z, row: z.float().mean()), ValueError, "got shape ()"),
        (lambda: Q.expect(lambda z, row: {"a": 1.0}), TypeError, "got float"),
        (lambda: Q.expect(lambda z, row: None, chunk_size=2), TypeError, "got NoneType"),
        (lambda: Q.expect(lambda z, row: z, chunk_size=0), ValueError, "chunk_size must be at least 1, got 0"),
        (lambda: Q.expect(lambda z, row: z, chunk_size=1.5), TypeError, "chunk_size must be an int or None"),  # type: ignore[arg-type]
        (lambda: Q.log_prob(torch.zeros(3)), ValueError, "or one that broadcasts to it, got (3,)"),
        (lambda: Q.log_prob(2), TypeError, "value must be a torch.Tensor, got int"),  # type: ignore[arg-type]
        (lambda: Q.expect(None), TypeError, "loss must be a function"),  # type: ignore[arg-type]
        (lambda: Q.sample(generator=0), TypeError, "generator must be a torch.Generator or None, got int"),  # type: ignore[arg-type]
        (
            lambda: sp.SparseDistribution(ATOMS + 1, PROBS, ROW, structure=sp.OneOf(3)),
            ValueError,
            "atoms must be assignments of OneOf(n=3), got 3 in row 1",
        ),
        (lambda: sp.SparseDistribution(PROBS, PROBS, ROW, structure=sp.OneOf(3)), TypeError, "must be integers"),
        (lambda: bits().to_dense(), TypeError, "to_dense requires a distribution over OneOf"),
        (lambda: sp.UniformOver(3), TypeError, "structure must be an AbstractStructure, got int"),  # type: ignore[arg-type]
    ],
)
def test_bad_input_is_named(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
