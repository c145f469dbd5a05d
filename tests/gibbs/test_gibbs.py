"""Gibbs distributions against sums over all assignments, finite differences, and torch's own distributions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import Bernoulli, Categorical, Independent

import sparsum as sp
from sparsum.segments import Segments
from sparsum.structures.log_space import draw
from sparsum.structures.scores import Scores, as_tuple
from sparsum.structures.sized import AbstractSized

LENGTHS = torch.tensor([3, 1, 2])
VECTORS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [-0.5, 2.0], [1.0, 1.0]], dtype=torch.float64)
STRUCTURES: dict[str, sp.AbstractStructure] = {
    "one of": sp.OneOf(5),
    "bits": sp.Bits(4),
    "budget": sp.Budget(5, 2),
    "budget, all": sp.Budget(3, 3),
    "subset": sp.Subset(5, 2),
    "subset, zeros": sp.Subset(5, 4),
    "groups": sp.Groups(2, 3),
    "tags": sp.Sequence(3, 3),
    "tags, lengths": sp.Sequence(3, 2, lengths=LENGTHS),
    "pairs": sp.Sequence(3, 3),
    "pairs, lengths": sp.Sequence(3, 2, lengths=LENGTHS),
    "pairs, one tag": sp.Sequence(3, 1),
    "pairs, one position": sp.Sequence(1, 3),
    "enumerated": sp.Enumerated(VECTORS),
    "tree": sp.Tree(3),
    "tree, single root": sp.Tree(3, single_root=True),
    "tree, lengths": sp.Tree(3, lengths=LENGTHS),
    "tree, single root, lengths": sp.Tree(3, single_root=True, lengths=LENGTHS),
}
# Others have as many parts in every assignment, so that forbidding all parts forbids all assignments.
ANY_NUMBER = {"bits", "budget", "budget, all", "enumerated"}
every_structure = pytest.mark.parametrize("name", STRUCTURES)
every_device = pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])


class Dense(NamedTuple):
    """All allowed assignments of all rows, and their log-probabilities."""

    structure: sp.AbstractStructure
    atoms: Tensor  # shape: (n, *event_shape)
    row: Tensor  # shape: (n,)
    log_probs: Tensor  # shape: (n,)
    log_partition: Tensor  # shape: (n_rows,)

    def expect(self, values: Tensor) -> Tensor:
        terms = self.log_probs.exp() * values
        return torch.stack([terms[self.row == row].sum() for row in range(len(self.log_partition))])


def random_scores(name: str, seed: int = 0, n_rows: int = 3) -> tuple[Tensor, ...]:
    """Scores of three rows in float64, one tensor or, with transitions, two."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [STRUCTURES[name].score_shape]
    if name.startswith("pairs"):
        length, n_tags = shapes[0]
        shapes.append((length - 1, n_tags, n_tags))
    return tuple(torch.randn(n_rows, *shape, dtype=torch.float64, generator=generator) for shape in shapes)


def forbid(scores: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same, with a part of the first row forbidden in each tensor."""
    masks = [torch.arange(tensor.numel()).reshape(tensor.shape) == 1 for tensor in scores]
    return tuple(torch.where(mask, -torch.inf, tensor) for mask, tensor in zip(masks, scores, strict=True))


def gibbs(name: str, scores: tuple[Tensor, ...], **options: bool) -> sp.Gibbs:
    return sp.Gibbs(scores if len(scores) > 1 else scores[0], STRUCTURES[name], **options)


def by_brute_force(p: sp.Gibbs) -> Dense:
    """The definition, as a sum over all assignments."""
    structure, bound = p.structure, p.bound
    atoms, is_allowed = bound.map(Tensor.detach).kbest(round(math.exp(structure.log_count())))
    row = is_allowed.nonzero()[:, 0]
    scores = bound.score(atoms[is_allowed], row)
    log_partition = torch.stack([scores[row == r].logsumexp(0) for r in range(len(atoms))])
    return Dense(structure, atoms[is_allowed], row, scores - log_partition[row], log_partition)


@every_structure
@pytest.mark.parametrize("forbids", [False, True])
def test_agrees_with_the_sum_over_all_assignments(name: str, forbids: bool) -> None:
    scores = random_scores(name)
    p = gibbs(name, forbid(scores) if forbids and name != "pairs, one tag" else scores)
    dense = by_brute_force(p)
    segments = Segments.from_row(dense.row, 3)
    torch.testing.assert_close(p.log_partition, dense.log_partition)
    torch.testing.assert_close(p.log_prob_of(dense.atoms, dense.row), dense.log_probs)
    torch.testing.assert_close(p.entropy(), dense.expect(-dense.log_probs))
    torch.testing.assert_close(dense.expect(torch.ones(len(dense.row))), torch.ones(3).double())
    wanted = as_tuple(dense.structure.marginals(dense.atoms, dense.log_probs.exp(), segments))
    for mean, tensor in zip(as_tuple(p.mean), wanted, strict=True):
        torch.testing.assert_close(mean, tensor)
    best = [dense.atoms[dense.row == row][dense.log_probs[dense.row == row].argmax()] for row in range(3)]
    assert torch.equal(p.mode, torch.stack(best).to(p.mode.dtype))


@every_structure
@pytest.mark.parametrize("forbids", [False, True])
def test_first_and_second_derivatives(name: str, forbids: bool) -> None:
    """Also where parts are forbidden, which receive a gradient of 0 and hand on no NaN."""
    forbids = forbids and name != "pairs, one tag"
    inputs = tuple(tensor.requires_grad_() for tensor in random_scores(name, n_rows=3 if "lengths" in name else 1))
    dense = by_brute_force(gibbs(name, forbid(inputs) if forbids else inputs))

    def value_of(function: Callable[[sp.Gibbs], Scores]) -> Callable[..., Scores]:
        return lambda *scores: function(gibbs(name, forbid(scores) if forbids else scores))

    for function in (
        value_of(lambda p: p.log_partition),
        value_of(lambda p: p.entropy()),
        value_of(lambda p: p.mean),
        value_of(lambda p: p.log_prob_of(dense.atoms[::3], dense.row[::3])),
    ):
        assert gradcheck(function, inputs)
        assert gradgradcheck(function, inputs)


@every_structure
def test_the_gradient_of_the_log_partition_is_the_mean(name: str) -> None:
    leaves = tuple(tensor.requires_grad_() for tensor in random_scores(name))
    p = gibbs(name, forbid(leaves) if name != "pairs, one tag" else leaves)
    gradients = torch.autograd.grad(p.log_partition.sum(), leaves, materialize_grads=True)
    for mean, gradient in zip(as_tuple(p.mean), gradients, strict=True):
        torch.testing.assert_close(mean, gradient)


@every_structure
def test_frequencies_of_samples_are_probabilities(name: str) -> None:
    """Within 5 standard errors each, and Pearson's statistic too; what is forbidden never comes."""
    n = 20_000
    scores = random_scores(name)
    p = gibbs(name, forbid(scores) if name != "pairs, one tag" else scores)
    dense = by_brute_force(p)
    samples = p.sample((n,), generator=torch.Generator().manual_seed(0))
    assert samples.shape == (n, 3, *p.event_shape)
    assert samples.dtype == dense.atoms.dtype
    for row in range(3):
        atoms, probs = dense.atoms[dense.row == row].reshape(-1, 1, math.prod(p.event_shape)), dense.log_probs.exp()
        probs = probs[dense.row == row]
        count = (samples[:, row].reshape(n, -1) == atoms).all(-1).sum(-1).double()
        assert int(count.sum()) == n  # nothing else came
        assert bool(((count - n * probs).abs() <= 5 * (n * probs * (1 - probs)).sqrt() + 1e-9).all())
        statistic, freedom = float(((count - n * probs).square() / (n * probs)).sum()), len(probs) - 1
        assert statistic <= freedom + 5 * math.sqrt(2 * freedom) + 1e-9


def test_a_choice_without_probability_is_never_drawn() -> None:
    """Neither at the least of the uniform numbers nor where the largest one, times the total, is rounded up."""
    probs = torch.tensor([[0.0, 0.3, 0.0, 0.3, 0.0]])
    assert draw(probs, torch.tensor([[0.0, 0.49, 0.51, 1 - 2.0**-53, 1.0]]).double()).tolist() == [[1, 1, 3, 3, 3]]


def test_of_two_choices_the_same_is_drawn_as_by_a_search() -> None:
    """A third choice that has no probability lets the search decide."""
    values = [0.0, 1e-300, 0.1, 0.5, 1.0]
    probs = torch.tensor([(p, q) for p in values for q in values if p + q], dtype=torch.float64)
    uniform = torch.linspace(0, 1, 41, dtype=torch.float64).expand(len(probs), 41)
    assert torch.equal(draw(probs, uniform), draw(torch.nn.functional.pad(probs, (0, 1)), uniform))


@every_structure
def test_the_same_generator_draws_the_same(name: str) -> None:
    p = gibbs(name, random_scores(name))
    first, again, other = (p.sample((50,), generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert name == "pairs, one tag" or not torch.equal(first, other)
    assert p.sample((0,)).shape == (0, 3, *p.event_shape)


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_agrees_with_torchs_distributions(shape: tuple[int, ...]) -> None:
    scores = torch.randn(*shape, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for p, peer in (
        (sp.Gibbs(scores, sp.OneOf(5)), Categorical(logits=scores)),
        (sp.Gibbs(scores, sp.Bits(5)), Independent(Bernoulli(logits=scores), 1)),
    ):
        assert (p.batch_shape, p.event_shape) == (peer.batch_shape, peer.event_shape)
        values = p.sample((7,), generator=torch.Generator().manual_seed(0))
        assert values.shape == (7, *shape, *peer.event_shape)
        torch.testing.assert_close(p.log_prob(values), peer.log_prob(values))
        torch.testing.assert_close(p.entropy(), peer.entropy())
        assert bool(p.support.check(values).all())
    torch.testing.assert_close(sp.Gibbs(scores, sp.OneOf(5)).mean, scores.softmax(-1))
    torch.testing.assert_close(sp.Gibbs(scores, sp.Bits(5)).mean, scores.sigmoid())


@every_structure
@pytest.mark.parametrize("shape", [(), (2, 3), (0,)])
def test_batches_are_their_rows(name: str, shape: tuple[int, ...]) -> None:
    """In any batch shape, and expanded, each row is what it is in a batch of one dimension."""
    scores, structure = random_scores(name, n_rows=math.prod(shape)), STRUCTURES[name]
    index = torch.arange(len(scores[0])) % 3
    flat = sp.Gibbs(scores if len(scores) > 1 else scores[0], structure.select(index))
    if isinstance(structure, AbstractSized) and structure.lengths is not None:
        structure = dataclasses.replace(structure, lengths=LENGTHS[index].reshape(shape))
    shaped = tuple(tensor.reshape(*shape, *tensor.shape[1:]) for tensor in scores)
    p = sp.Gibbs(shaped if len(shaped) > 1 else shaped[0], structure)
    assert p.batch_shape == shape
    value = flat.mode
    for larger in (p, p.expand((4, *shape))):
        assert larger.event_shape == flat.event_shape
        for result, wanted in (
            (larger.log_partition, flat.log_partition),
            (larger.entropy(), flat.entropy()),
            (larger.log_prob(value.reshape(shape + p.event_shape)), flat.log_prob(value)),
            *zip(as_tuple(larger.mean), as_tuple(flat.mean), strict=True),
        ):
            assert result.shape == (*larger.batch_shape, *wanted.shape[1:])
            torch.testing.assert_close(result, wanted.reshape((*shape, *wanted.shape[1:])).expand(result.shape))
        assert larger.sample((2,)).shape == (2, *larger.batch_shape, *p.event_shape)
        assert larger.mode.shape == (*larger.batch_shape, *p.event_shape)


@every_structure
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision_rounds_the_results_alone(name: str, dtype: torch.dtype) -> None:
    leaves = tuple(tensor.to(dtype).requires_grad_() for tensor in random_scores(name))
    p, exact = gibbs(name, leaves), gibbs(name, tuple(tensor.double() for tensor in leaves))
    value = exact.mode
    tolerance = (8 if dtype == torch.float32 else 1) * torch.finfo(dtype).eps  # half precision is left at once
    for result, wanted in (
        (p.log_partition, exact.log_partition),
        (p.entropy(), exact.entropy()),
        (p.log_prob(value), exact.log_prob(value)),
        *zip(as_tuple(p.mean), as_tuple(exact.mean), strict=True),
    ):
        assert result.dtype == dtype
        torch.testing.assert_close(result, wanted.to(dtype), rtol=tolerance, atol=tolerance)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(p.entropy().sum(), leaves))


def test_scores_of_vectors_are_not_added_in_half_precision() -> None:
    """256 + 1 is no number of bfloat16."""
    p = sp.Gibbs(torch.tensor([256.0, 1.0]).bfloat16(), sp.Enumerated(torch.tensor([[1.0, 0.0], [1.0, 1.0]])))
    assert p.mean.tolist() == pytest.approx([1.0, 1 / (1 + math.exp(-1))], rel=0.01)


@every_structure
def test_huge_scores_lose_no_digits(name: str) -> None:
    """Of scores around 1e4, in float64: the probabilities are those of brute force, whatever they all have added."""
    scores = tuple(1e4 * tensor for tensor in random_scores(name))
    p = gibbs(name, tuple(tensor.requires_grad_() for tensor in scores))
    dense = by_brute_force(p)
    torch.testing.assert_close(p.log_partition, dense.log_partition, rtol=1e-14, atol=0)
    torch.testing.assert_close(p.log_prob_of(dense.atoms, dense.row), dense.log_probs, rtol=1e-13, atol=1e-9)
    torch.testing.assert_close(p.entropy(), dense.expect(-dense.log_probs), rtol=1e-9, atol=1e-9)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(p.entropy().sum(), scores))
    if name not in ANY_NUMBER:
        far, *rest = random_scores(name)
        far = (far + 2.0**14).detach()  # rounded, so that the difference is exact
        shifted, plain = gibbs(name, (far, *rest)), gibbs(name, (far - 2.0**14, *rest))
        torch.testing.assert_close(shifted.entropy(), plain.entropy(), rtol=0, atol=1e-10)
        torch.testing.assert_close(shifted.log_prob(p.mode), plain.log_prob(p.mode), rtol=0, atol=1e-10)


@every_structure
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bad_row_is_named_or_stays_alone(name: str, bad: float) -> None:
    """With validation an error, without it a NaN in that row's results and gradients, and in no other's."""
    leaves = tuple(tensor.requires_grad_() for tensor in random_scores(name))
    spoiled = torch.where(torch.arange(3).reshape(-1, *[1] * (leaves[0].ndim - 1)) == 1, bad, leaves[0])
    scores = (spoiled, *leaves[1:])
    with pytest.raises(ValueError, match=r"row 1 has (a NaN|\+inf) \(of 3\)"):
        gibbs(name, scores)
    p = gibbs(name, scores, validate_args=False)
    assert p.sample((2,)).shape == (2, 3, *p.event_shape)
    results = [p.entropy(), p.log_prob(gibbs(name, leaves).mode), p.log_partition]
    for result in (*results[:2], as_tuple(p.mean)[0].flatten(1).sum(-1), p.expand((2, 3)).entropy()[1]):
        assert result.isnan().tolist() == [False, True, False]
    assert p.log_partition.isfinite().tolist() == [True, False, True]
    (gradient, *_) = torch.autograd.grad(sum(results, torch.zeros(3)).sum(), leaves)
    assert not gradient[[0, 2]].isnan().any()


@pytest.mark.parametrize("name", [name for name in STRUCTURES if name not in ANY_NUMBER])
def test_rows_that_allow_nothing_are_named(name: str) -> None:
    leaves = tuple(tensor.requires_grad_() for tensor in random_scores(name))
    is_forbidden = torch.arange(3).reshape(-1, *[1] * (leaves[0].ndim - 1)) == 2
    scores = (torch.where(is_forbidden, -torch.inf, leaves[0]), *leaves[1:])
    with pytest.raises(ValueError, match=r"a distribution in every row; row 2 forbids every assignment \(of 3\)"):
        gibbs(name, scores)
    p = gibbs(name, scores, validate_args=False)
    gradients = torch.autograd.grad((p.entropy() + p.log_partition).sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_forbidden_transitions_leave_no_way() -> None:
    unary, transition = torch.zeros(2, 3, 2), torch.zeros(2, 2, 2, 2)
    transition[1, 1] = -torch.inf
    with pytest.raises(ValueError, match="row 1 forbids every assignment"):
        sp.Gibbs((unary, transition), sp.Sequence(3, 2))
    transition[1, 1, 0, 1] = 0.0
    p = sp.Gibbs((unary, transition), sp.Sequence(3, 2))
    assert p.sample((100,))[:, 1, 1:].unique(dim=0).tolist() == [[0, 1]]
    assert p.log_prob(torch.tensor([0, 0, 0])).tolist() == [pytest.approx(-3 * math.log(2)), -math.inf]


def test_what_is_no_distribution_and_no_assignment() -> None:
    with pytest.raises(TypeError, match=r"Gibbs does not support Matching.*: define either potentials"):
        sp.Gibbs(torch.zeros(2, 2), sp.Matching(2))
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator or None, got int"):
        sp.Gibbs(torch.zeros(3), sp.OneOf(3)).sample(generator=0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got str"):
        sp.Gibbs(torch.zeros(4), "bits")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shape"):
        sp.Gibbs(torch.zeros(3), sp.OneOf(4))
    with pytest.raises(TypeError, match="floating-point"):
        sp.Gibbs(torch.zeros(4, dtype=torch.int64), sp.OneOf(4))
    padded = sp.Gibbs(torch.zeros(2, 3, 2), sp.Sequence(3, 2, lengths=torch.tensor([3, 1])))
    for p, value in (
        (sp.Gibbs(torch.zeros(4), sp.OneOf(4)), torch.tensor(4)),
        (sp.Gibbs(torch.zeros(4), sp.OneOf(4)), torch.tensor(-1)),
        (sp.Gibbs(torch.zeros(2), sp.Bits(2)), torch.tensor([0.5, 1.0])),
        (sp.Gibbs(torch.zeros(2), sp.Bits(2)), torch.tensor([torch.nan, 1.0])),
        (sp.Gibbs(torch.zeros(2, 2), sp.Groups(2, 2)), torch.tensor([0, 2])),
        (padded, torch.tensor([[0, 1, 1], [0, 1, 0]])),
    ):
        with pytest.raises(ValueError, match="must hold assignments"):
            p.log_prob(value)
    assert padded.log_prob(torch.tensor([[0, 1, 1], [1, 0, 0]])).isfinite().all()
    with pytest.raises(ValueError, match="shape"):
        padded.log_prob(torch.zeros(2, 4, dtype=torch.int64))


@every_device
@every_structure
def test_devices_and_strides(name: str, device: str) -> None:
    """Scores in any layout, on any device, give what contiguous ones on the CPU give, and no warnings."""
    scores = random_scores(name)
    moved = tuple(tensor.to(device).transpose(1, -1).contiguous().transpose(1, -1) for tensor in scores)
    here, there = gibbs(name, scores), gibbs(name, moved)
    samples = there.sample((5,), generator=torch.Generator(device).manual_seed(0))
    torch.testing.assert_close(there.log_prob(samples).cpu(), here.log_prob(samples.cpu()))
    torch.testing.assert_close(there.entropy().cpu(), here.entropy())
    for mean, wanted in zip(as_tuple(there.mean), as_tuple(here.mean), strict=True):
        torch.testing.assert_close(mean.cpu(), wanted)
    assert torch.equal(there.mode.cpu(), here.mode)
    picked = here.bound.select(torch.tensor([2]))
    torch.testing.assert_close(sp.Gibbs.from_bound(picked).entropy(), here.entropy()[2:])
