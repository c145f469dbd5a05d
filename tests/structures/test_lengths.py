"""Examples of different sizes in one batch: each row is what it would be alone, and padding is nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sparsum as sp

LENGTHS = torch.tensor([4, 2, 3, 1])
KINDS = ["sequence", "tree", "matching"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def padded(kind: str, lengths: Tensor = LENGTHS) -> sp.AbstractStructure:
    if kind == "sequence":
        return sp.Sequence(4, 3, lengths=lengths)
    return sp.Tree(4, lengths=lengths) if kind == "tree" else sp.Matching(4, lengths=lengths)


def alone(kind: str, length: int) -> sp.AbstractStructure:
    if kind == "sequence":
        return sp.Sequence(length, 3)
    return sp.Tree(length) if kind == "tree" else sp.Matching(length)


def scores(kind: str) -> Tensor:
    width = 3 if kind == "sequence" else 4
    return torch.randn(4, 4, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def cut(kind: str, x: Tensor, length: int) -> Tensor:
    return x[:length] if kind == "sequence" else x[:length, :length]


@every_kind
def test_each_row_is_what_it_is_alone(kind: str) -> None:
    t = scores(kind).requires_grad_()
    weight = torch.randn(t.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    together = sp.sparsemap(t, padded(kind))
    (gradient,) = torch.autograd.grad((together.mean * weight).sum(), t)
    best = padded(kind).argmax(t)
    for row, length in enumerate(LENGTHS.tolist()):
        structure, own = alone(kind, length), cut(kind, t[row], length)
        torch.testing.assert_close(cut(kind, together.mean[row], length), sp.sparsemap(own, structure).mean)
        (own_gradient,) = torch.autograd.grad((sp.sparsemap(own, structure).mean * cut(kind, weight[row], length)).sum(), t)
        torch.testing.assert_close(gradient[row], own_gradient[row])
        assert torch.equal(best[row, :length], structure.argmax(own))
        assert not best[row, length:].any()
        assert not together.mean[row, length:].any()
        few = sp.topk_sparsemax(t, padded(kind), 3)
        torch.testing.assert_close(cut(kind, few.mean[row], length), sp.topk_sparsemax(own, structure, 3).mean)
    assert not together.atoms[together.row == 3, 1:].any()


@every_kind
def test_a_batch_of_two_dimensions_and_its_expansion(kind: str) -> None:
    t = scores(kind).reshape(2, 2, *scores(kind).shape[1:])
    q = sp.sparsemap(t, padded(kind, LENGTHS.reshape(2, 2)))
    assert q.batch_shape == (2, 2)
    torch.testing.assert_close(q.mean.flatten(0, 1), sp.sparsemap(scores(kind), padded(kind)).mean)
    torch.testing.assert_close(q.expand((3, 2, 2)).mean[1], q.mean)


@pytest.mark.parametrize("regularise", [True, False])
def test_transitions_into_padding_do_not_count(regularise: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(3, 4, 2, dtype=torch.float64, generator=generator)
    transition = torch.randn(3, 2, 2, dtype=torch.float64, generator=generator)
    lengths = torch.tensor([4, 2, 3])
    structure = sp.Sequence(4, 2, regularise_transitions=regularise, lengths=lengths)
    mean, mean_transition = sp.sparsemap((unary, transition), structure).mean
    for row, length in enumerate(lengths.tolist()):
        own = sp.Sequence(length, 2, regularise_transitions=regularise)
        wanted = sp.sparsemap((unary[row, :length], transition[: length - 1]), own).mean
        torch.testing.assert_close(mean[row, :length], wanted[0])
        if regularise:  # otherwise they are not unique
            torch.testing.assert_close(mean_transition[row, : length - 1], wanted[1])
        assert not mean_transition[row, length - 1 :].any()


@every_kind
def test_lengths_that_do_not_fit_are_named(kind: str) -> None:
    with pytest.raises(ValueError, match="lengths"):
        padded(kind, torch.tensor([4, 2])).argmax(scores(kind))
    for wrong in (0, 5):
        with pytest.raises(ValueError, match="lengths"):
            padded(kind, torch.tensor([4, 2, 3, wrong])).argmax(scores(kind))
