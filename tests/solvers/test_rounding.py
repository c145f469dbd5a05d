"""What is done to scores and residuals changes no solution, and hides no better assignment: in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum.solvers import ActiveSet, Pulled
from sparsum.solvers.rounding import GRID, centred, doubted, relative_to, without_swamps


def exact_gap(members: Tensor, mean: Tensor, residual: Tensor) -> Fraction:
    """The largest product of the residual with an assignment minus the mean."""
    r, m = ([Fraction(x) for x in values.tolist()] for values in (residual, mean))
    return max(sum(((Fraction(a) - y) * x for a, y, x in zip(v, m, r, strict=True)), Fraction(0)) for v in members.tolist())


def cases(seed: int, n: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Some bit vectors, a mean of a few of them, and residuals of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    members = torch.randint(2, (6, n), generator=generator).double()
    # Quarters, so that the mean is exact.
    mean = members[torch.randint(6, (4,), generator=generator)].mean(0, keepdim=True)
    size = 10 ** torch.randint(-3, 17, (1, n), generator=generator).double()
    return members, mean, size * torch.randn(1, n, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("seed", range(200))
def test_no_better_assignment_is_hidden(seed: int) -> None:
    members, mean, residual = cases(seed)
    n_used = members.sum(-1).max().reshape(1, 1)
    before = exact_gap(members, mean[0], residual[0])
    assert exact_gap(members, mean[0], without_swamps(residual, mean, n_used)[0]) >= before
    found, noise = doubted(residual, mean, n_used)
    distance = (members - mean).abs().sum(-1).max()
    slack = Fraction(float((noise.clamp_min(GRID) * distance).item()))
    assert exact_gap(members, mean[0], found[0]) >= before - slack


def test_moderate_residuals_are_multiples_of_the_grid() -> None:
    _, mean, _ = cases(0)
    residual = torch.randn(1, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(without_swamps(residual, mean, torch.ones(1, 1, dtype=torch.float64)), residual)
    found, noise = doubted(residual, mean, torch.ones(1, 1, dtype=torch.float64))
    assert torch.equal((found / GRID).round(), found / GRID)
    torch.testing.assert_close(found, residual, atol=GRID, rtol=0)
    assert noise.item() == GRID


def test_scores_are_relative_to_their_group() -> None:
    unary = torch.tensor([[[3.0, 1e15], [0.5, -torch.inf]]], dtype=torch.float64, requires_grad=True)
    transition = torch.tensor([[[[1.0, 2.0], [4.0, 3.0]]]], dtype=torch.float64)
    rows = sp.Sequence(2, 2).bind((unary, transition))
    found = centred(rows)
    assert found.tolist() == [[3 - 1e15, 0.0, 0.0, -torch.inf, -3.0, -2.0, 0.0, -1.0]]
    (gradient,) = torch.autograd.grad(found[:, 1].sum(), unary)
    assert gradient.flatten().tolist() == [0.0, 1.0, 0.0, 0.0]
    used = torch.tensor([[1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]])
    relative = relative_to(rows.flat, used, rows)
    assert relative.tolist() == [[0.0, 1e15 - 3, 0.0, -torch.inf, 0.0, 1.0, 3.0, 2.0]]


@pytest.mark.parametrize(("first", "wanted"), [(2.0, [0.0, -1.0, -4.0]), (1e15, [1e15 - 1, 0.0, -3.0])])
def test_subsets_are_relative_to_their_last_bit_if_the_best_is_far_above(first: float, wanted: list[float]) -> None:
    rows = sp.Subset(3, 2).bind(torch.tensor([[first, 1.0, -2.0]], dtype=torch.float64))
    assert centred(rows).tolist() == [wanted]
    free = sp.Budget(3, 2).bind(rows.scores)
    assert torch.equal(centred(free), free.flat)


@pytest.mark.parametrize("size", [1e5, 1e17, 1e30])
def test_tied_bits_of_any_size_share_the_limit(size: float) -> None:
    """Three equal scores for at most two bits: each has 2/3, and no bit is left out because 4 is nothing beside 1e17."""
    rows = sp.Budget(4, 2).bind(torch.tensor([[size, -size, size, size]], dtype=torch.float64))
    assert centred(rows)[0, [0, 2, 3]].tolist() == [4.0, 4.0, 4.0]
    for solver in (None, ActiveSet()):
        q = sp.sparsemap(rows.scores, rows.structure, solver=solver)
        torch.testing.assert_close(q.mean, torch.tensor([[2 / 3, 0, 2 / 3, 2 / 3]], dtype=torch.float64))
        assert q.is_exact.all()


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_pulled_atoms_share_what_is_0_or_1_in_the_mean(sign: float) -> None:
    """However small the mass of an atom, it does not use a bit with a score of -1e29, or lack one with 1e29."""
    x = torch.tensor([[1e3, 2e-11, sign * 1e29]], dtype=torch.float64)
    q = sp.sparsemap(x, sp.Bits(3, symmetric=False), solver=Pulled())
    assert q.atoms[:, [0, 2]].tolist() == [[1.0, float(sign > 0)]] * len(q.atoms)


@pytest.mark.parametrize("solver", [ActiveSet(), Pulled()])
def test_what_large_unused_scores_hide_is_not_called_solved(solver: ActiveSet | Pulled) -> None:
    """Two words that want each other, a cycle: the scores of their other heads are lost beside 1e19, and not beside 1e6."""
    x = torch.tensor([[[-0.4, 0.3, 0.7], [0.8, -0.7, 0.0], [0.1, 0.0, 0.9]]], dtype=torch.float64)
    means = []
    for size in (1e3, 1e6):
        x[0, 1, 2], x[0, 2, 1] = size, 2 * size
        means.append(sp.sparsemap(x, sp.Tree(3), solver=solver).mean)
    torch.testing.assert_close(*means, atol=1e-8, rtol=0)
    x[0, 1, 2], x[0, 2, 1] = 1e19, 2e19
    with pytest.raises(sp.solvers.NotConverged) as caught:
        sp.sparsemap(x, sp.Tree(3), solver=solver)
    assert caught.value.rows == [0]
