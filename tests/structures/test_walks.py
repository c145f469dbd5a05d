"""Alignments, segmentations and knapsacks against lists of all, against `Paths`, and alone where sizes differ."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import kl_divergence

import sparsum as sp


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def alignments(n: int, m: int) -> Tensor:
    found = itertools.combinations_with_replacement(range(n), m)
    return torch.tensor([z for z in found if set(z) == set(range(n))])


def segmentations(length: int, max_width: int, n_labels: int) -> Tensor:
    found: list[list[int]] = []

    def extend(atom: list[int]) -> None:
        if len(atom) == length:
            found.append(atom)
        for width, label in itertools.product(range(1, min(max_width, length - len(atom)) + 1), range(n_labels)):
            extend([*atom, (width - 1) * n_labels + label, *[-1] * (width - 1)])

    extend([])
    return torch.tensor(found)


def knapsacks(weights: tuple[int, ...], most: int) -> Tensor:
    bits = torch.tensor(list(itertools.product((0.0, 1.0), repeat=len(weights))), dtype=torch.float64)
    return bits[bits @ torch.tensor(weights, dtype=torch.float64) <= most]


SMALL: list[tuple[sp.AbstractStructure, Tensor]] = [
    (sp.Alignment(1, 3), alignments(1, 3)),
    (sp.Alignment(3, 3), alignments(3, 3)),
    (sp.Alignment(3, 6), alignments(3, 6)),
    (sp.Segmentation(4, 2, 2), segmentations(4, 2, 2)),
    (sp.Segmentation(5, 5, 1), segmentations(5, 5, 1)),
    (sp.Knapsack((3, 4, 2, 10, 0), 6), knapsacks((3, 4, 2, 10, 0), 6)),
    (sp.Knapsack((2, 4, 6), 100), knapsacks((2, 4, 6), 100)),
    (sp.Knapsack((0, 3), 0), knapsacks((0, 3), 0)),
]
every_small = pytest.mark.parametrize(("structure", "members"), SMALL, ids=lambda value: repr(value)[:40])


@every_small
def test_the_members_are_those_of_brute_force(structure: sp.AbstractStructure, members: Tensor) -> None:
    assert round(math.exp(structure.log_count())) == len(members)
    assert structure.contains(members).all()
    sp.testing.check_structure(structure, members=members)
    entries = torch.arange(int(members.min()) - 1, int(members.max()) + 2)
    grid = torch.cartesian_prod(*[entries] * members.shape[1]).reshape(-1, members.shape[1]).to(members)
    is_member = (grid.unsqueeze(1) == members).all(-1).any(-1)
    assert torch.equal(structure.contains(grid), is_member)


@every_small
def test_two_derivatives(structure: sp.AbstractStructure, members: Tensor) -> None:
    scores = randn(2, *structure.score_shape).requires_grad_()
    assert torch.autograd.gradcheck(structure.log_partition, (scores,))
    assert torch.autograd.gradgradcheck(structure.log_partition, (scores,))


@every_small
def test_the_variance_of_parts(structure: sp.AbstractStructure, members: Tensor) -> None:
    scores = randn(1, *structure.score_shape)
    ones = structure.vectors(members).double().flatten(1)
    probs = (ones @ scores.flatten()).softmax(0)
    wanted = probs @ ones.square() - (probs @ ones).square()
    torch.testing.assert_close(sp.Gibbs(scores, structure).variance.flatten(), wanted)


@every_small
def test_sparsemap_has_a_gradient(structure: sp.AbstractStructure, members: Tensor) -> None:
    scores, weights = randn(2, *structure.score_shape, seed=5).requires_grad_(), randn(2, *structure.score_shape, seed=6)
    q = sp.sparsemap(scores, structure)
    assert structure.contains(q.atoms).all()
    assert torch.autograd.gradcheck(lambda t: (sp.sparsemap(t, structure).mean * weights).sum(), (scores,), fast_mode=True)


@st.composite
def sized_alignments(draw: st.DrawFn) -> tuple[sp.Alignment, Tensor]:
    n, m = draw(st.integers(1, 4)), draw(st.integers(4, 7))
    sizes = st.tuples(st.integers(1, n), st.integers(1, m)).filter(lambda s: s[0] <= s[1])
    lengths = draw(st.lists(sizes, min_size=1, max_size=3))
    entry = st.one_of(st.just(-math.inf), st.integers(-2, 2), st.floats(-1e4, 1e4))
    flat = draw(st.lists(entry, min_size=n * m * len(lengths), max_size=n * m * len(lengths)))
    scores = torch.tensor(flat, dtype=torch.float64).reshape(len(lengths), n, m)
    return sp.Alignment(n, m, lengths=[list(each) for each in lengths]), scores


@given(sized_alignments())
def test_alignments_of_any_sizes_against_enumeration(case: tuple[sp.Alignment, Tensor]) -> None:
    structure, scores = case
    found, allowed = structure.bind(scores).kbest(4)
    for row, (n, m) in enumerate(structure.lengths.tolist()):
        members = alignments(n, m)
        values = scores[row, members, torch.arange(m)].sum(-1)
        seen = scores[row, found[row, :, :m], torch.arange(m)].sum(-1)[allowed[row]]
        wanted = values.sort(descending=True).values[:4]
        torch.testing.assert_close(seen, wanted[wanted > -torch.inf], rtol=1e-12, atol=1e-9)
        assert not found[row, :, m:].any()
        total = structure.select(torch.tensor([row])).log_partition(scores[row : row + 1])
        torch.testing.assert_close(total, values.logsumexp(0, keepdim=True), rtol=1e-12, atol=1e-10)


def alone(structure: sp.Alignment | sp.Segmentation, size: list[int] | int) -> sp.AbstractStructure:
    if isinstance(size, list):
        return sp.Alignment(*size)
    assert isinstance(structure, sp.Segmentation)
    return sp.Segmentation(size, min(size, structure.max_width), structure.n_labels)


@pytest.mark.parametrize(
    "structure",
    [
        sp.Alignment(3, 5, lengths=[[3, 5], [1, 5], [2, 2], [1, 1]]),
        sp.Segmentation(4, 3, 2, lengths=[4, 2, 3, 1]),
    ],
    ids=["alignment", "segmentation"],
)
def test_each_row_is_what_it_is_alone(structure: sp.Alignment | sp.Segmentation) -> None:
    scores, weights = randn(4, *structure.score_shape).requires_grad_(), randn(4, *structure.score_shape, seed=1)
    q, p, few = sp.sparsemap(scores, structure), sp.Gibbs(scores, structure), sp.topk_sparsemax(scores, structure, 3)
    assert p.model.bound.structure.contains(q.mode).all()
    drawn = p.sample((50,), generator=torch.Generator().manual_seed(0))
    assert (p.log_prob(drawn) > -torch.inf).all()
    (gradient,) = torch.autograd.grad((q.mean * weights).sum() + p.entropy().sum(), scores, retain_graph=True)
    other = sp.Gibbs(weights, structure)
    divergence = kl_divergence(p, other)
    for row, size in enumerate(structure.lengths.tolist()):
        single = alone(structure, size)
        place = tuple(slice(0, n) for n in single.score_shape)
        own = scores[row][place].detach().requires_grad_()
        own_q, own_p = sp.sparsemap(own, single), sp.Gibbs(own, single)
        for together, by_itself in ((q.mean, own_q.mean), (p.mean, own_p.mean)):
            torch.testing.assert_close(together[row][place], by_itself)
            torch.testing.assert_close(together[row].sum(), by_itself.sum())
        torch.testing.assert_close(few.mean[row][place], sp.topk_sparsemax(own, single, 3).mean)
        total = (own_q.mean * weights[row][place]).sum() + own_p.entropy()
        torch.testing.assert_close(gradient[row][place], torch.autograd.grad(total, own)[0])
        torch.testing.assert_close(divergence[row], kl_divergence(own_p, sp.Gibbs(weights[row][place], single)))
        torch.testing.assert_close(p.log_prob(p.mode)[row], own_p.log_prob(own_p.mode))
    assert q.expand((2, 4)).mean.shape == (2, 4, *structure.score_shape)
    with pytest.raises(ValueError, match="same lengths"):
        kl_divergence(p, sp.Gibbs(scores, type(structure)(*structure.score_shape)))


def test_alignments_are_paths_of_a_grid() -> None:
    """The same sums, marginals and k best by the general program, from the end of the grid to its start."""
    n, m = 4, 9
    cells = [(i, j) for j in range(m) for i in range(n) if i <= j and n - i <= m - j]
    steps = [((i, j), (i + step, j + 1)) for i, j in cells for step in (0, 1) if (i + step, j + 1) in cells]
    edges = [(*(j * n + i for i, j in pair),) for pair in steps]
    edges.append(((m - 1) * n + n - 1, n * m))
    parts = [i * m + j for (i, j), _ in steps] + [n * m - 1]
    structure, general = sp.Alignment(n, m), sp.Paths(edges, parts)
    scores = randn(3, n, m)
    assert general.log_count() == structure.log_count()
    torch.testing.assert_close(structure.log_partition(scores), general.log_partition(scores.flatten(1)))
    ours, theirs = sp.Gibbs(scores, structure), sp.Gibbs(scores.flatten(1), general)
    torch.testing.assert_close(ours.mean.flatten(1), theirs.mean)
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    best, others = structure.topk(scores, 6), general.topk(scores.flatten(1), 6)
    torch.testing.assert_close(
        structure.vectors(best.flatten(0, 1)).flatten(1), general.vectors(others.flatten(0, 1)), rtol=0, atol=0
    )
    assert general.can_pull  # the marginals of an alignment determine its steps
    ours_mean, theirs_mean = sp.sparsemap(scores, structure).mean, sp.sparsemap(scores.flatten(1), general).mean
    torch.testing.assert_close(ours_mean.flatten(1), theirs_mean)


@pytest.mark.parametrize("structure", [sp.Alignment(4, 8), sp.Segmentation(5, 3, 2)], ids=repr)
def test_expected_losses_are_continuous(structure: sp.AbstractStructure) -> None:
    start, end = randn(2, *structure.score_shape)
    line = torch.stack([start + (end - start) * i / 400 for i in range(401)])
    weights = randn(*structure.score_shape, seed=2)
    losses = sp.sparsemap(line, structure).expect(lambda z: (structure.vectors(z) * weights).flatten(1).sum(-1).sin())
    assert losses.diff().abs().max() < 0.05


def test_many_frames_with_large_scores() -> None:
    scores = 1e4 * randn(2, 30, 300)
    structure = sp.Alignment(30, 300)
    p = sp.Gibbs(scores, structure)
    torch.testing.assert_close(p.mean.sum(1), torch.ones(2, 300, dtype=torch.float64))
    best = structure.vectors(p.mode).double()
    torch.testing.assert_close(p.log_partition, (best * scores).sum((-1, -2)), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "structure", [sp.Alignment(2, 3), sp.Segmentation(3, 2, 1), sp.Knapsack((1, 2), 2)], ids=lambda s: type(s).__name__
)
def test_nan_is_reported_and_does_not_spread(structure: sp.AbstractStructure) -> None:
    scores = randn(2, *structure.score_shape)
    alone, sums = structure.topk(scores[1:], 2), structure.log_partition(scores[1:])
    scores[0].flatten()[0] = torch.nan
    assert torch.equal(structure.topk(scores, 2)[1:], alone)
    assert torch.equal(structure.log_partition(scores)[1:], sums)
    for function in (sp.sparsemap, sp.Gibbs):
        with pytest.raises(ValueError, match="row 0 has a NaN"):
            function(scores, structure)
    everything = torch.full((1, *structure.score_shape), -torch.inf)
    if not isinstance(structure, sp.Knapsack):
        with pytest.raises(ValueError, match="row 0 forbids every assignment"):
            sp.Gibbs(everything, structure)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="m must be at least 3, got 2"):
        sp.Alignment(3, 2)
    with pytest.raises(ValueError, match=r"lengths must have at most as many tokens as frames, got \[\[3, 2\]\]"):
        sp.Alignment(3, 4, lengths=[[3, 2]])
    with pytest.raises(ValueError, match=r"lengths must have a last dimension of 2, got shape \(3,\)"):
        sp.Alignment(3, 4, lengths=[3, 2, 1])
    with pytest.raises(ValueError, match=r"lengths must be from 1 to \(3, 4\), got \[\[3, 5\]\]"):
        sp.Alignment(3, 4, lengths=[[3, 4], [3, 5]])
    with pytest.raises(ValueError, match=r"lengths must be from 1 to 4, got \[0, 5\]"):
        sp.Segmentation(4, 2, 1, lengths=[0, 4, 5])
    with pytest.raises(ValueError, match=r"lengths must have the shape of the batch, \(2,\), got \(3,\)"):
        sp.Segmentation(4, 2, 1, lengths=[1, 4, 4]).argmax(torch.zeros(2, 4, 2, 1))
    with pytest.raises(ValueError, match="max_width must be from 1 to 3, got 4"):
        sp.Segmentation(3, 4, 1)
    with pytest.raises(ValueError, match="an item of at most 3, got none: the lightest has 4"):
        sp.Knapsack((5, 4), 3)
    with pytest.raises(ValueError, match="round the weights"):
        sp.Knapsack((1, 10**9), 10**9)
    with pytest.raises(ValueError, match=r"weights\[1\] must be at least 0, got -1"):
        sp.Knapsack((1, -1), 3)
    with pytest.raises(TypeError, match=r"weights\[0\] must be an int, got float"):
        sp.Knapsack((1.5,), 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="weights must be a tuple or a list of ints, got Tensor"):
        sp.Knapsack(torch.ones(2), 3)  # type: ignore[arg-type]
