"""Digits from sums: the rule allows what arithmetic allows, and the objectives are sums over it."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import sparsum as sp
from benchmarks.tasks.digit_sums import OBJECTIVES, K, Rule

RULES = {"N=1": (1, operator.add), "N=2": (2, operator.add), "product": (1, operator.mul)}


@pytest.fixture(params=RULES)
def rule(request: pytest.FixtureRequest) -> Rule:
    return Rule(*RULES[request.param])


def _digits(n: int) -> Tensor:
    """All pairs of numbers, from the last digit to the first: (100^n, 2, n)."""
    return torch.tensor(list(itertools.product(range(10), repeat=2 * n))).reshape(-1, 2, n)


def _value(digits: Tensor) -> Tensor:
    """The number that digits from the last to the first are."""
    return (digits * 10 ** torch.arange(digits.shape[-1])).sum(-1)


@pytest.mark.parametrize("name", RULES)
def test_results_are_those_of_arithmetic(name: str) -> None:
    """What the columns show, put together, is the sum or the product of the numbers."""
    n, combine = RULES[name]
    digits = _digits(n)
    first, second = _value(digits).unbind(-1)
    assert torch.equal(_value(Rule(n, combine).results(digits)), combine(first, second))


def test_as_many_paths_as_pairs_of_numbers(rule: Rule) -> None:
    """Each choice of digits is one path; with a result, so many are left as have it."""
    digits = _digits(rule.n)
    assert rule.structure.graph.counts.n_paths[rule.structure.graph.source] == len(digits)
    counts = Counter(map(tuple, rule.results(digits).tolist()))
    results = torch.tensor(list(counts))
    scores = torch.zeros(len(results), rule.structure.n_parts, dtype=torch.float64)
    left = sp.Gibbs(scores, rule.structure, mask=rule.mask(results)).log_partition.exp()
    torch.testing.assert_close(left, torch.tensor(list(counts.values())).double())


def test_sums_of_two_digits_are_as_frequent_as_is_known() -> None:
    """The sum s of two digits has min(s, 18 - s) + 1 pairs."""
    rule, sums = Rule(1), torch.arange(19)
    left = sp.Gibbs(torch.zeros(19, rule.structure.n_parts), rule.structure, mask=rule.mask(sums.unsqueeze(-1)))
    torch.testing.assert_close(left.log_partition.exp(), torch.minimum(sums, 18 - sums) + 1.0)


def _batch(rule: Rule, n_rows: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities, digits, and log-probabilities of all pairs of numbers with the result of the digits."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(n_rows, 2, rule.n, 10, generator=generator, dtype=torch.float64)
    log_probs = scores.log_softmax(-1).requires_grad_()
    digits, every = torch.randint(10, (n_rows, 2, rule.n), generator=generator), _digits(rule.n)
    values = log_probs.unsqueeze(1).expand(-1, len(every), -1, -1, -1)
    values = values.gather(-1, every.expand(n_rows, -1, -1, -1).unsqueeze(-1)).flatten(2).sum(-1)
    is_right = (rule.results(every) == rule.results(digits).unsqueeze(1)).all(-1)
    return log_probs, digits, values.masked_fill(~is_right, -torch.inf)


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("exact", lambda values: -values.logsumexp(-1).mean()),
        ("top-k", lambda values: -values.topk(K, -1).values.logsumexp(-1).mean()),
    ],
)
def test_losses_are_sums_over_all_digits(rule: Rule, name: str, by_hand: Callable[[Tensor], Tensor]) -> None:
    """The loss and its gradient, in float64, by listing all pairs of numbers."""
    log_probs, digits, values = _batch(rule)
    wanted, found = by_hand(values), OBJECTIVES[name](rule)(log_probs, digits)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(each, log_probs)[0] for each in (found, wanted)))


def test_the_sparse_loss_is_a_difference_of_maxima() -> None:
    """For two digits the pairs with a sum share no digit: their best distribution is the sparsemax of half their scores."""
    rule = Rule(1)
    log_probs, digits, values = _batch(rule)

    def largest(scores: Tensor) -> Tensor:
        p = sp.sparsemax(scores)
        return (p * scores.masked_fill(p == 0, 0.0)).sum(-1) - p.square().sum(-1) / 2

    wanted = (largest(log_probs).sum((1, 2)) - 2 * largest(values / 2)).mean()
    found = OBJECTIVES["SparseMAP"](rule)(log_probs, digits)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(each, log_probs)[0] for each in (found, wanted)))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_nothing_is_lost_once_all_digits_are_certain(name: str) -> None:
    """A reader that is certain of the right digits has a loss of 0."""
    rule, digits = Rule(2), torch.tensor([[[3, 9], [8, 4]]])
    log_probs = torch.nn.functional.one_hot(digits, 10).mul(60.0).log_softmax(-1)
    torch.testing.assert_close(OBJECTIVES[name](rule)(log_probs.requires_grad_(), digits), torch.tensor(0.0))
