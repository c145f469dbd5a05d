"""Losses of structures against brute force over all assignments, identities, and finite differences, in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import sparsum as sp
from sparsum.structures.scores import flatten

STRUCTURES: list[sp.AbstractStructure] = [
    sp.OneOf(4),
    sp.Bits(3),
    sp.Bits(3, symmetric=False),
    sp.Budget(4, 2),
    sp.Subset(4, 2),
    sp.Groups(2, 3),
    sp.Sequence(3, 2),
    sp.Tree(3),
    sp.Matching(2, 3),
]
every_structure = pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
SUMMED = [structure for structure in STRUCTURES if structure.has_partition]


def draw(structure: sp.AbstractStructure, n: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n, *structure.score_shape, dtype=torch.float64, generator=generator)


def members(structure: sp.AbstractStructure) -> Tensor:
    """All assignments."""
    return structure.topk(torch.zeros(structure.score_shape, dtype=torch.float64), 100)


def as_target(atoms: Tensor) -> Tensor:
    """Atoms with an integer dtype."""
    return atoms.long()


def regulariser(structure: sp.AbstractStructure, mean: Tensor) -> Tensor:
    """Omega by its definition, of flat mean vectors."""
    if getattr(structure, "symmetric", False):
        return (mean.square() + (1 - mean).square()).sum(-1) / 2
    return mean.square().sum(-1) / 2


@every_structure
def test_definition_and_gradient(structure: sp.AbstractStructure) -> None:
    """Omega*(t) + Omega(y) - <t, y> with the conjugate at the mean, which is at least its value at any mixture."""
    every = members(structure)
    vectors = flatten(structure.vectors(every)).double()
    scores = draw(structure, 6).requires_grad_()
    target = every[torch.arange(6) % len(every)]
    loss = sp.sparsemap_loss(scores, structure, as_target(target), reduction="none")
    (gradient,) = torch.autograd.grad(loss.sum(), scores)
    mean, flat = sp.sparsemap(scores, structure).mean.detach().flatten(1), scores.detach().flatten(1)
    y = flatten(structure.vectors(target)).double()
    conjugate = (flat * mean).sum(-1) - regulariser(structure, mean)
    wanted = conjugate + regulariser(structure, y) - (flat * y).sum(-1)
    torch.testing.assert_close(loss.detach(), wanted)
    torch.testing.assert_close(gradient.flatten(1), mean - y)
    weights = torch.rand(500, len(every), dtype=torch.float64, generator=torch.Generator().manual_seed(1)).pow(8)
    mixtures = torch.cat([weights / weights.sum(-1, keepdim=True) @ vectors, vectors])
    values = flat @ mixtures.T - regulariser(structure, mixtures)
    assert (values <= conjugate.unsqueeze(-1) + 1e-9).all()


@every_structure
def test_zero_with_the_margin_and_at_the_mean(structure: sp.AbstractStructure) -> None:
    target = structure.argmax(draw(structure, 4))
    vectors = structure.vectors(target).double()
    assert not sp.sparsemap_loss(3 * (2 * vectors - 1), structure, as_target(target), reduction="none").any()
    scores = draw(structure, 4, scale=0.3)
    mean = sp.sparsemap(scores, structure).mean
    assert sp.sparsemap_loss(scores, structure, mean) < 1e-12
    assert sp.sparsemap_loss(scores, structure, as_target(target), reduction="none").gt(0).all()


@given(seed=st.integers(0, 10_000), scale=st.floats(0.01, 30.0), part=st.floats(0.0, 1.0), which=st.integers(0, 8))
def test_non_negative_and_convex(seed: int, scale: float, part: float, which: int) -> None:
    structure = STRUCTURES[which]
    first, second = draw(structure, 2, seed, scale), draw(structure, 2, seed + 1, scale)
    target = as_target(structure.argmax(draw(structure, 2, seed + 2)))
    for loss in (sp.sparsemap_loss, sp.structured_nll) if structure.has_partition else (sp.sparsemap_loss,):
        low, high, between = (
            loss(scores, structure, target, reduction="none")
            for scores in (first, second, part * first + (1 - part) * second)
        )
        assert (between >= -1e-9).all()
        assert (between <= part * low + (1 - part) * high + 1e-7 * scale).all()


@every_structure
def test_derivatives(structure: sp.AbstractStructure) -> None:
    scores = draw(structure, 2, scale=0.4).requires_grad_()
    atoms = as_target(structure.argmax(draw(structure, 2, 1)))
    mean = sp.sparsemap(draw(structure, 2, 2), structure).mean
    for loss in (sp.sparsemap_loss, sp.structured_nll) if structure.has_partition else (sp.sparsemap_loss,):
        for target in (atoms, mean):

            def each(x: Tensor, y: Tensor = target, loss: Callable[..., Tensor] = loss) -> Tensor:
                return loss(x, structure, y, reduction="none")

            assert torch.autograd.gradcheck(each, (scores,))
            assert torch.autograd.gradgradcheck(each, (scores,))
        # A mean moves freely as a vector, whether or not it stays the mean of a distribution.
        wanted = mean.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(each(scores, wanted).sum(), wanted)
        flat = scores.detach().flatten(1)
        linear, weight = structure.quadratic(flat) if loss is sp.sparsemap_loss else (flat, torch.zeros_like(flat[0]))
        slope = (weight * mean.flatten(1) - linear).reshape(mean.shape)
        difference = gradient - slope  # up to what all assignments share: a constant of each group
        size = structure.group_size or (mean[0].numel() if structure.is_fixed_size else 1)
        groups = difference.reshape(2, -1, size)
        torch.testing.assert_close(groups, groups[..., :1].expand_as(groups) if size > 1 else torch.zeros_like(groups))


@pytest.mark.parametrize("structure", SUMMED, ids=repr)
def test_likelihood_by_enumeration(structure: sp.AbstractStructure) -> None:
    every = members(structure)
    vectors = flatten(structure.vectors(every)).double()
    scores = draw(structure, 5).requires_grad_()
    index = torch.arange(5) % len(every)
    values = scores.flatten(1) @ vectors.T
    wanted = values.logsumexp(-1) - values[torch.arange(5), index]
    loss = sp.structured_nll(scores, structure, as_target(every[index]), reduction="none")
    torch.testing.assert_close(loss, wanted)
    gradients = [torch.autograd.grad(each.sum(), scores, retain_graph=True)[0] for each in (loss, wanted)]
    torch.testing.assert_close(*gradients)
    means = vectors[index].reshape(scores.shape)
    torch.testing.assert_close(sp.structured_nll(scores, structure, means, reduction="none"), wanted)


def test_over_one_of_they_are_those_of_categories() -> None:
    scores, target = draw(sp.OneOf(5), 8), torch.arange(8) % 5
    soft = torch.softmax(draw(sp.OneOf(5), 8, 1), -1)
    for goal in (target, soft):
        torch.testing.assert_close(sp.sparsemap_loss(scores, sp.OneOf(5), goal), sp.sparsemax_loss(scores, goal))
        wanted = torch.nn.functional.cross_entropy(scores, goal)
        torch.testing.assert_close(sp.structured_nll(scores, sp.OneOf(5), goal), wanted)


def test_a_gradient_where_the_distribution_has_none() -> None:
    scores = torch.tensor([[3.0, -2.0, 0.2]], requires_grad=True)
    q = sp.sparsemap(scores, sp.Bits(3))
    assert not torch.autograd.grad(q.entropy().sum(), scores)[0][0, :2].any()
    loss = sp.sparsemap_loss(scores, sp.Bits(3), torch.full((1, 3), 0.5))
    torch.testing.assert_close(torch.autograd.grad(loss, scores)[0], torch.tensor([[0.5, -0.5, 0.1]]))


@pytest.mark.parametrize("regularise", [True, False])
def test_transitions_and_lengths(regularise: bool) -> None:
    """Shorter examples have the loss of a shorter structure, whatever stands in their padding."""
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(3, 4, 2, dtype=torch.float64, generator=generator)
    transition = torch.randn(3, 3, 2, 2, dtype=torch.float64, generator=generator)
    tags, lengths = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]]), [4, 2, 3]
    structure = sp.Sequence(4, 2, regularise_transitions=regularise)
    for loss, module in ((sp.sparsemap_loss, sp.SparsemapLoss), (sp.structured_nll, sp.StructuredNLL)):
        sized = sp.Sequence(4, 2, regularise_transitions=regularise, lengths=lengths)
        each = loss((unary, transition), sized, tags, reduction="none")
        for row, n in enumerate(lengths):
            few = sp.Sequence(n, 2, regularise_transitions=regularise)
            wanted = loss((unary[row, :n], transition[row, : n - 1]), few, tags[row, :n])
            torch.testing.assert_close(each[row], wanted)
        found = module(structure, reduction="none")((unary, transition), tags, lengths=lengths)
        torch.testing.assert_close(found, each)
        means = sized.bind((unary, transition)).structure.vectors(tags)
        doubles = tuple(mean.double() for mean in means)
        torch.testing.assert_close(loss((unary, transition), sized, doubles, reduction="none"), each)


def test_costs_are_added_to_the_scores() -> None:
    structure, scores = sp.Groups(2, 3), draw(sp.Groups(2, 3), 3)
    target = torch.tensor([[0, 1], [2, 2], [1, 0]])
    cost = 1 - structure.vectors(target).double()
    for loss in (sp.sparsemap_loss, sp.structured_nll):
        torch.testing.assert_close(loss(scores, structure, target, cost=cost), loss(scores + cost, structure, target))
    margin = 1.5 * structure.vectors(target).double()
    assert sp.sparsemap_loss(margin, structure, target) == 0
    assert sp.sparsemap_loss(margin, structure, target, cost=cost) > 0
    pair = (draw(sp.Sequence(3, 2), 1), torch.zeros(2, 2, 2, dtype=torch.float64))
    added = sp.structured_nll(pair, sp.Sequence(3, 2), torch.tensor([[0, 1, 0]]), cost=(None, torch.ones(2, 2, 2).double()))
    torch.testing.assert_close(added, sp.structured_nll(pair, sp.Sequence(3, 2), torch.tensor([[0, 1, 0]])))


@pytest.mark.parametrize("loss", [sp.sparsemap_loss, sp.structured_nll])
def test_forbidden_parts(loss: Callable[..., Tensor]) -> None:
    """Infinite for a target that uses one, with a gradient that is finite; ignored otherwise."""
    scores = torch.tensor([[0.3, -torch.inf, 0.1], [0.3, -torch.inf, 0.1]], dtype=torch.float64, requires_grad=True)
    each = loss(scores, sp.Bits(3), torch.tensor([[1, 0, 0], [0, 1, 0]]), reduction="none")
    assert each[1] == torch.inf
    (gradient,) = torch.autograd.grad(each[0], scores)
    assert gradient.isfinite().all()
    few = loss(scores[:1, ::2], sp.Bits(2), torch.tensor([[1, 0]]))
    torch.testing.assert_close(each[0], few)
    mask = torch.tensor([True, False, True])
    torch.testing.assert_close(
        loss(scores.nan_to_num(neginf=7.0)[:1], sp.Bits(3), torch.tensor([[1, 0, 0]]), mask=mask), few
    )


def test_reductions_batches_and_dtypes() -> None:
    scores = draw(sp.Bits(3), 6).reshape(2, 3, 3)
    target = (draw(sp.Bits(3), 6, 1).reshape(2, 3, 3) > 0).double()
    for loss in (sp.sparsemap_loss, sp.structured_nll):
        each = loss(scores, sp.Bits(3), target, reduction="none")
        assert each.shape == (2, 3)
        torch.testing.assert_close(loss(scores, sp.Bits(3), target), each.mean())
        torch.testing.assert_close(loss(scores, sp.Bits(3), target > 0, reduction="sum"), each.sum())
        torch.testing.assert_close(loss(scores[1, 2], sp.Bits(3), target[1, 2]), each[1, 2])
        assert loss(scores[:0], sp.Bits(3), target[:0]) == 0
        half = loss(scores.bfloat16(), sp.Bits(3), target)
        assert half.dtype == torch.bfloat16
        torch.testing.assert_close(half.double(), each.mean(), atol=0.02, rtol=0.02)


def test_a_large_score_does_not_absorb_the_others() -> None:
    scores, target = draw(sp.Groups(2, 3), 4).float(), torch.tensor([[0, 1], [2, 2], [1, 0], [0, 0]])
    shifted = scores + torch.tensor([2.0**20, 0.0]).unsqueeze(-1)
    exact = (shifted.double() - torch.tensor([2.0**20, 0.0]).unsqueeze(-1)).float()
    wanted = sp.sparsemap_loss(exact, sp.Groups(2, 3), target)
    torch.testing.assert_close(sp.sparsemap_loss(shifted, sp.Groups(2, 3), target), wanted)


X = torch.zeros(2, 3)
INPUTS: list[tuple[Any, type[Exception], str]] = [
    (lambda loss: loss(X, sp.OneOf(3), torch.zeros(2)), ValueError, "must have the shape of the scores, (2, 3), got (2,)"),
    (lambda loss: loss(X, sp.OneOf(3), torch.tensor([[0], [1]])), ValueError, "target of atoms must have shape (2,)"),
    (lambda loss: loss(X, sp.OneOf(3), torch.tensor([0, 3])), ValueError, "not so in 1 of 2 rows: 1"),
    (lambda loss: loss(X, sp.OneOf(3), [0, 1]), TypeError, "target must be a torch.Tensor, got list"),
    (lambda loss: loss(X, sp.Bits(3), X / 0), ValueError, "target must not contain NaN; not so in 2 of 2 rows: 0, 1"),
    (lambda loss: loss(X / 0, sp.Bits(3), X), ValueError, "row 0 has a NaN"),
    (lambda loss: loss(X, sp.Bits(3), X, cost=torch.zeros(4)), ValueError, "cost must broadcast to the shape of scores"),
    (lambda loss: loss(X, sp.Bits(3), X, cost=1.0), TypeError, "cost must be a torch.Tensor, got float"),
    (lambda loss: loss(X, sp.Bits(3), X, reduction="avg"), ValueError, "none, mean, sum, got 'avg'"),
    (lambda loss: loss(X, "bits", X), TypeError, "structure must be an AbstractStructure"),
    (
        lambda loss: loss(X, sp.Subset(3, 1), torch.ones_like(X)),
        ValueError,
        "target of zeros and ones must hold assignments of",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), INPUTS)
@pytest.mark.parametrize("loss", [sp.sparsemap_loss, sp.structured_nll])
def test_bad_input_is_named(loss: Any, call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call(loss)
    assert message in str(caught.value)


def test_modules() -> None:
    scores, target = draw(sp.Bits(3), 2), torch.tensor([[0, 1, 1], [1, 0, 0]])
    torch.testing.assert_close(sp.SparsemapLoss(sp.Bits(3))(scores, target), sp.sparsemap_loss(scores, sp.Bits(3), target))
    torch.testing.assert_close(sp.StructuredNLL(sp.Bits(3))(scores, target), sp.structured_nll(scores, sp.Bits(3), target))
    with pytest.raises(TypeError, match="lengths must be None for Bits"):
        sp.StructuredNLL(sp.Bits(3))(scores, target, lengths=[1, 2])


@pytest.mark.parametrize(
    ("structure", "lengths"),
    [
        (sp.Alignment(2, 4), [[2, 4], [2, 3], [1, 2]]),
        (sp.Segmentation(4, 3, 2), [4, 2, 1]),
        (sp.ProjectiveTree(3), [3, 2, 1]),
    ],
    ids=repr,
)
def test_modules_take_the_lengths_of_a_batch(structure: sp.AbstractStructure, lengths: Any) -> None:
    scores = draw(structure, 3)
    sized = dataclasses.replace(structure, lengths=lengths)  # type: ignore[type-var]
    target = sized.argmax(scores)
    nll = sp.StructuredNLL(structure)(scores, target, lengths=lengths)
    torch.testing.assert_close(nll, sp.structured_nll(scores, sized, target))
    loss = sp.SparsemapLoss(structure)(scores, target, lengths=lengths)
    torch.testing.assert_close(loss, sp.sparsemap_loss(scores, sized, target))
