"""Latent trees on ListOps: values and trees of the expressions, and the gradients of the surrogates."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sparsum as sp
from benchmarks.tasks.listops import (
    CLOSE,
    DEPTH,
    OPERATORS,
    PAD,
    WORDS,
    Expressions,
    Reader,
    Spigot,
    StraightThrough,
    allowed,
    edges_of,
    expressions,
)


@pytest.fixture(scope="module")
def drawn() -> Expressions:
    return expressions(300)


def test_values_are_those_of_python(drawn: Expressions) -> None:
    """Each expression, written as nested calls of functions, evaluates to its value."""
    functions = {"MIN": min, "MAX": max, "MED": lambda *each: sum(sorted(2 * each)[len(each) - 1 : len(each) + 1]) // 2}
    for tokens, value in zip(drawn.tokens.tolist(), drawn.values.tolist(), strict=True):
        text = "".join(
            ")," if token == CLOSE else f"{OPERATORS[token - 10]}(" if token >= 10 else f"{token},"
            for token in tokens
            if token != PAD
        )
        assert eval(text.rstrip(","), {"__builtins__": {}}, functions) == value


def test_expressions_differ_and_come_from_the_seed(drawn: Expressions) -> None:
    assert len(set(map(tuple, drawn.tokens.tolist()))) == 300
    assert all(torch.equal(a, b) for a, b in zip(drawn, expressions(300), strict=True))
    assert not torch.equal(drawn.tokens, expressions(300, seed=1).tokens)


def test_heads_are_the_open_lists(drawn: Expressions) -> None:
    """Read from left to right, a word's head is the list that was opened last and is not closed."""
    for tokens, words, heads, n in zip(
        *(each.tolist() for each in (drawn.tokens, drawn.words, drawn.heads, drawn.lengths)), strict=True
    ):
        stack: list[int] = []
        found: list[int] = []
        read: list[int] = []
        deepest = 0
        for token in tokens:
            if token == CLOSE:
                stack.pop()
            elif token != PAD:
                found.append(stack[-1] if stack else 0)
                if token >= 10:
                    stack.append(len(read))
                read.append(token)
            deepest = max(deepest, len(stack))
        assert not stack
        assert 1 < deepest <= DEPTH
        assert (found, read) == (heads[:n], words[:n])
        assert heads[n:] == [0] * (WORDS - n)


def test_true_trees_are_atoms(drawn: Expressions) -> None:
    """They are the best trees of scores that like their edges, and have a probability."""
    structure = sp.Tree(WORDS, lengths=drawn.lengths)
    scores = edges_of(drawn.heads).double().masked_fill(~allowed(drawn), -torch.inf)
    assert torch.equal(structure.argmax(scores), drawn.heads)
    assert sp.Gibbs(scores, structure).log_prob(drawn.heads).isfinite().all()


def test_readers_know_the_words_by_their_tree_alone(drawn: Expressions) -> None:
    """Words in another order have the same value if the tree is the same, and another one with another tree."""
    torch.manual_seed(0)
    reader, edges = Reader(8).double(), edges_of(drawn.heads).double()
    order = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + torch.randperm(WORDS - 1)])
    logits = reader(edges, drawn.words)
    torch.testing.assert_close(reader(edges[:, order][:, :, order], drawn.words[:, order]), logits)
    flat = reader(edges_of(torch.zeros_like(drawn.heads)).double(), drawn.words)
    assert ((flat - logits).abs().amax(-1) > 1e-6).all()


def test_surrogates_have_their_gradients() -> None:
    """With a linear loss: of the marginals, and the move of the best tree to the projection."""
    generator = torch.Generator().manual_seed(0)
    structure, scores = sp.Tree(WORDS), torch.randn(4, WORDS, WORDS, dtype=torch.float64, generator=generator)
    cost = torch.randn(WORDS, WORDS, dtype=torch.float64, generator=generator)

    def gradient(estimator: sp.estimators.AbstractEstimator) -> Tensor:
        leaf = scores.clone().requires_grad_()
        estimate = estimator(leaf, structure, lambda z, row: (z * cost).sum((1, 2)))
        best = edges_of(structure.argmax(scores)).double()
        torch.testing.assert_close(estimate.value, (best * cost).sum((1, 2)))
        (found,) = torch.autograd.grad(estimate.surrogate.sum(), leaf)
        return found

    leaf = scores.clone().requires_grad_()
    (expected,) = torch.autograd.grad((sp.Gibbs(leaf, structure).mean * cost).sum(), leaf)
    torch.testing.assert_close(gradient(StraightThrough()), expected)
    best = edges_of(structure.argmax(scores)).double()
    torch.testing.assert_close(gradient(Spigot()), best - sp.sparsemap(best - cost, structure).mean)
