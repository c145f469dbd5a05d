"""Chains: fast paths beside what they stand for, and derivatives that are written out beside those that autograd finds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum.gibbs.chain import Chain
from sparsum.segments import Segments
from sparsum.structures import Potentials
from sparsum.structures.log_space import FORBIDDEN, draw


def by_definition(unary: Tensor, pairwise: Tensor) -> tuple[Tensor, Tensor]:
    """The log-partition function, and the log-probabilities of choices given the previous one, position by position."""
    to_come, steps = torch.zeros_like(unary[:, -1]), []
    for i in range(unary.shape[1] - 1, 0, -1):
        values = pairwise[:, i - 1] + (unary[:, i] + to_come).unsqueeze(1)
        steps.append(values.log_softmax(-1))
        to_come = values.logsumexp(-1)
    return (unary[:, 0] + to_come).logsumexp(-1), torch.stack(steps[::-1], 1)


def test_three_derivatives_of_all_results() -> None:
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(2, 4, 3, dtype=torch.float64, generator=generator).requires_grad_()
    pairwise = torch.randn(2, 3, 3, 3, dtype=torch.float64, generator=generator).requires_grad_()
    weights = torch.randn(2, 3, 3, 3, dtype=torch.float64, generator=generator)
    chain = Chain.from_potentials(Potentials(unary, pairwise))
    found = []
    for log_partition, steps in ((chain.log_partition, chain.steps), by_definition(unary, pairwise)):
        value = (log_partition.sin() + (weights * steps.sin()).sum((-1, -2, -3))).sum()
        results = [log_partition, steps]
        for _ in range(3):
            gradients = torch.autograd.grad(value, (unary, pairwise), create_graph=True)
            results += gradients
            value = torch.stack([((each + 0.5).square() * each.detach().cos()).sum() for each in gradients]).sum()
        found.append(results)
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    assert torch.autograd.gradgradcheck(
        lambda u, v: Chain.from_potentials(Potentials(u, v)).entropy(), (unary[:1], pairwise[:1]), fast_mode=True
    )


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("is_padded", [False, True])
def test_log_probabilities_of_bits_in_segments(n: int, is_padded: bool, generator: torch.Generator) -> None:
    """Those that are looked up, and their gradient, without what padding would add to it."""
    scores = torch.randn(3, n, dtype=torch.float64, generator=generator)
    scores[1, 0] = -torch.inf
    scores.requires_grad_()
    chain = Chain.from_potentials(sp.Bits(n).potentials(scores))
    lengths = torch.tensor([2, 0, 3])
    row = torch.tensor([0, 0, 2, 2, 2, *[2] * 4 * is_padded])
    choices = torch.randint(2, (len(row), n), generator=generator)
    found = chain.log_prob(choices, row, Segments(row, lengths, is_padded=is_padded))
    wanted = chain.log_prob(choices, row)
    assert torch.equal(found, wanted)
    weights = torch.arange(1.0, 6.0, dtype=torch.float64)
    gradients = [torch.autograd.grad((weights * each[:5]).sum(), scores, retain_graph=True)[0] for each in (found, wanted)]
    torch.testing.assert_close(*gradients)


def test_bits_are_drawn_as_other_choices_are() -> None:
    """By a comparison in place of a search, also at the ends, where one choice has no mass or almost none."""
    shares = torch.tensor([0.0, 5e-324, 1e-300, 1e-17, 0.3, 0.5, 1 - 2**-53, 1.0], dtype=torch.float64)
    probs = torch.cartesian_prod(shares, shares)
    probs = probs[probs.sum(-1) > 0]
    ends = torch.tensor([0.0, 2**-53, 0.3, 0.5, 1 - 2**-53], dtype=torch.float64)
    uniform = ends.expand(len(probs), -1)
    bits = draw(probs, uniform)
    third = draw(torch.cat([probs, torch.zeros(len(probs), 1, dtype=torch.float64)], -1), uniform)
    assert torch.equal(bits, third)
    assert not (probs.gather(1, bits) == 0).any()


@pytest.mark.parametrize("n_choices", [2, 3])
def test_chains_without_transitions_are_empty_if_a_choice_is(n_choices: int) -> None:
    scores = torch.zeros(5, 4, n_choices)
    scores[1, 2] = -torch.inf
    scores[2, 2, :-1] = -torch.inf
    scores[3, 0] = 2 * FORBIDDEN
    scores[4] = -torch.inf
    chain = Chain.from_potentials(sp.Groups(4, n_choices).potentials(scores))
    assert chain.is_empty.tolist() == [False, True, False, False, True]


def test_no_trees_are_found_for_no_rows() -> None:
    found: Tensor = sp.Tree(4).argmax(torch.zeros(0, 4, 4))
    assert (found.shape, found.dtype) == ((0, 4), torch.int64)
