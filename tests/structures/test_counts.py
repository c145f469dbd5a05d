"""Sums over subsets and budgets against enumeration, an independent dynamic program and chi-square tests."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor
from torch.distributions import kl_divergence

import sparsum as sp
from sparsum.structures import counts
from sparsum.structures.bits import Budget, Subset

Counted = Budget | Subset


def members(structure: Counted) -> Tensor:
    """All bit vectors of the structure: (count, n), float64."""
    rows = torch.tensor(list(itertools.product((0.0, 1.0), repeat=structure.n)), dtype=torch.float64)
    number = rows.sum(-1)
    return rows[number == structure.k if isinstance(structure, Subset) else number <= structure.most]


def scores_of(atoms: Tensor, scores: Tensor) -> Tensor:
    """The score of each atom in each row: (n_rows, n_atoms)."""
    return torch.where(atoms == 0, 0.0, atoms * scores.unsqueeze(1)).sum(-1)


def by_recursion(scores: Tensor, structure: Counted) -> Tensor:
    """Bit by bit in log space: the log-sums over all vectors with each number of ones, O(n k)."""
    most = structure.k if isinstance(structure, Subset) else structure.most
    sums = torch.full((len(scores), most + 1), -torch.inf, dtype=torch.float64)
    sums[:, 0] = 0.0
    for score in scores.double().unbind(1):
        taken = torch.cat([torch.full_like(sums[:, :1], -torch.inf), sums[:, :-1] + score.unsqueeze(1)], 1)
        sums = torch.logaddexp(sums, taken)
    return sums[:, -1] if isinstance(structure, Subset) else sums.logsumexp(-1)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Counted, Tensor]:
    n = draw(st.integers(1, 7))
    kinds: list[type[Counted]] = [Budget, Subset]
    structure = draw(st.sampled_from(kinds))(n, draw(st.integers(0, n)))
    entry = st.one_of(st.just(-math.inf), st.integers(-2, 2), st.floats(-1e4, 1e4))
    rows = draw(st.lists(st.lists(entry, min_size=n, max_size=n), min_size=1, max_size=3))
    return structure, torch.tensor(rows, dtype=torch.float64)


@given(cases())
def test_any_scores_against_enumeration(case: tuple[Counted, Tensor]) -> None:
    structure, scores = case
    atoms = members(structure)
    values = scores_of(atoms, scores)
    wanted = values.logsumexp(-1)
    torch.testing.assert_close(structure.log_partition(scores), wanted, atol=1e-11, rtol=1e-13)
    is_possible = wanted > -torch.inf
    if not bool(is_possible.all()):
        with pytest.raises(sp.NoDistribution, match="forbids every assignment"):
            sp.Gibbs(scores, structure)
    if bool(is_possible.any()):
        p = sp.Gibbs(scores[is_possible], structure)
        torch.testing.assert_close(p.mean, values[is_possible].softmax(-1) @ atoms, atol=1e-9, rtol=0)
        drawn = p.sample((20,), generator=torch.Generator().manual_seed(0))
        assert bool(structure.contains(drawn.flatten(0, 1)).all())
        assert bool((p.log_prob(drawn) > -torch.inf).all())


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3, 1e8])
@pytest.mark.parametrize("structure", [Subset(300, 1), Subset(300, 40), Subset(301, 290), Budget(300, 40), Budget(257, 257)])
def test_many_bits_against_a_recursion(structure: Counted, scale: float) -> None:
    scores = scale * torch.randn(3, structure.n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores[0, :5] = -torch.inf
    torch.testing.assert_close(structure.log_partition(scores), by_recursion(scores, structure), atol=1e-9, rtol=1e-12)
    mean = sp.Gibbs(scores, structure).mean
    assert bool(((mean > -1e-12) & (mean < 1 + 1e-12)).all())
    assert not bool(mean[0, :5].any())
    if isinstance(structure, Subset):
        torch.testing.assert_close(mean.sum(-1), torch.full((3,), float(structure.k), dtype=torch.float64))


def test_underflow_does_not_matter() -> None:
    """One half to the power of 5,000 is not a number of float64."""
    structure = Subset(5000, 20)
    p = sp.Gibbs(torch.zeros(1, 5000, dtype=torch.float64), structure)
    torch.testing.assert_close(p.log_partition.item(), structure.log_count(), rtol=1e-12, atol=0)
    torch.testing.assert_close(p.entropy().item(), structure.log_count(), rtol=1e-12, atol=0)


def test_products_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.randn(2, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def gradient() -> Tensor:
        (found,) = torch.autograd.grad(Budget(40, 17).log_partition(scores).sum(), scores)
        return found

    wanted = gradient()
    monkeypatch.setattr(counts, "MOST_TERMS", 50)
    torch.testing.assert_close(gradient(), wanted)


@pytest.mark.parametrize("structure", [Subset(5, 2), Subset(5, 4), Budget(5, 2), Budget(4, 4)], ids=repr)
def test_samples_pass_a_chi_square_test(structure: Counted) -> None:
    scores = torch.randn(2, structure.n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    drawn = sp.Gibbs(scores, structure).sample((4000,), generator=torch.Generator().manual_seed(0))
    atoms = members(structure)
    observed = (drawn.unsqueeze(2) == atoms).all(-1).sum(0)
    assert observed.sum(-1).tolist() == [4000, 4000]
    probs = scores_of(atoms, scores).softmax(-1)
    for row in range(2):
        assert chisquare(observed[row].numpy(), 4000 * probs[row].numpy()).pvalue > 1e-3


@pytest.mark.parametrize("structure", [Subset(5, 2), Budget(5, 3)], ids=repr)
def test_divergences(structure: Counted) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, others = torch.randn(2, 3, structure.n, dtype=torch.float64, generator=generator)
    p, q = (scores_of(members(structure), tensor).softmax(-1) for tensor in (scores, others))
    found = kl_divergence(sp.Gibbs(scores, structure), sp.Gibbs(others, structure))
    torch.testing.assert_close(found, (p * (p.log() - q.log())).sum(-1))
