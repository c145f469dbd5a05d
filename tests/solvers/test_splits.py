"""The closed forms: exact marginals, few atoms, all of them members, and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import sparsum as sp
from sparsum.solvers import AbstractSolver, ActiveSet, Nested, Pulled, Systematic

Bitwise = sp.Bits | sp.Budget | sp.Subset


def scores(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def projection_by_root_finding(t: Tensor, structure: Bitwise) -> Tensor:
    """The projection of one row onto the cube and the budget, its shift by Brent's method."""
    target = (t + 1) / 2 if structure.symmetric else t
    clamped = target.clamp(0, 1)
    if isinstance(structure, sp.Bits) or (isinstance(structure, sp.Budget) and clamped.sum() <= structure.most):
        return clamped
    total = structure.most if isinstance(structure, sp.Budget) else structure.k

    def excess(shift: float) -> float:
        return (target - shift).clamp(0, 1).sum().item() - total

    low, high = target.min().item() - 2, target.max().item() + 1
    if excess(low) <= 0:
        return torch.ones_like(t)
    root: float = brentq(excess, low, high, xtol=1e-15)
    return (target - root).clamp(0, 1)


def is_member(atoms: Tensor, structure: Bitwise) -> Tensor:
    count = atoms.sum(-1)
    is_binary = ((atoms == 0) | (atoms == 1)).all(-1)
    if isinstance(structure, sp.Bits):
        return is_binary
    return is_binary & (count <= structure.most if isinstance(structure, sp.Budget) else count == structure.k)


def check_split(t: Tensor, structure: Bitwise, solver: AbstractSolver) -> None:
    q = sp.sparsemap(t, structure, solver=solver)
    expected = torch.stack([projection_by_root_finding(row, structure) for row in t.double()])
    tolerance = 1e-9 if t.dtype == torch.float64 else 1e-5
    torch.testing.assert_close(q.mean.double(), expected, atol=tolerance, rtol=0)
    assert is_member(q.atoms, structure).all()
    n_fractional = ((expected > 0) & (expected < 1)).sum(-1)
    assert (q.n_atoms_per_row <= n_fractional + 1).all()
    torch.testing.assert_close(q._sum(q.probs.double()), torch.ones(len(t)).double(), atol=tolerance, rtol=0)
    assert (q.probs > 0).all()


LARGE: list[tuple[Bitwise, AbstractSolver]] = [
    (sp.Bits(128), Nested()),
    (sp.Bits(128), Systematic()),
    (sp.Bits(128, symmetric=False), Systematic()),
    (sp.Budget(128, 64), Systematic()),
    (sp.Budget(128, 40), Systematic()),
    (sp.Budget(128, 1), Systematic()),
    (sp.Budget(128, 0), Systematic()),
    (sp.Subset(128, 64), Systematic()),
    (sp.Subset(128, 1), Systematic()),
    (sp.Subset(128, 128), Systematic()),
    (sp.Subset(128, 100, symmetric=False), Systematic()),
    (sp.Bits(2000), Nested()),
    (sp.Budget(2000, 500), Systematic()),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("structure", "solver"), LARGE, ids=repr)
def test_many_bits(structure: Bitwise, solver: AbstractSolver, dtype: torch.dtype) -> None:
    n = structure.n
    uniform = torch.rand(4, n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for t in (scores(8, n), uniform, torch.zeros(2, n), torch.ones(2, n), scores(4, n).round(), 0.01 * scores(4, n)):
        check_split(t.to(dtype), structure, solver)


quarters = st.integers(-8, 8).map(lambda n: n / 4)


@given(st.lists(st.one_of(quarters, st.floats(-2, 2)), min_size=1, max_size=8), st.data())
def test_few_bits_with_ties(values: list[float], data: st.DataObject) -> None:
    t = torch.tensor([values], dtype=torch.float64)
    n, symmetric = len(values), data.draw(st.booleans())
    count = data.draw(st.integers(0, n))
    check_split(t, sp.Bits(n, symmetric=symmetric), Nested())
    for structure in (sp.Bits(n, symmetric=symmetric), sp.Budget(n, count, symmetric=symmetric)):
        check_split(t, structure, Systematic())
    check_split(t, sp.Subset(n, count, symmetric=symmetric), Systematic())


def test_symmetric_scores_of_zero_mean_one_half() -> None:
    assert torch.equal(sp.sparsemap(torch.zeros(1, 3), sp.Bits(3)).mean, torch.full((1, 3), 0.5))
    assert torch.equal(sp.sparsemap(torch.zeros(1, 3), sp.Bits(3, symmetric=False)).mean, torch.zeros(1, 3))


@pytest.mark.parametrize(
    ("structure", "solver"),
    [
        (sp.Bits(5), Nested()),
        (sp.Bits(5), Systematic()),
        (sp.Budget(5, 2), Systematic()),
        (sp.Subset(5, 2), Systematic()),
        (sp.Groups(3, 4), Nested()),
        (sp.OneOf(5), None),
    ],
    ids=repr,
)
def test_gradients_of_linear_and_quadratic_losses(structure: sp.AbstractStructure, solver: AbstractSolver | None) -> None:
    t = scores(3, *structure.score_shape).requires_grad_()
    matrix = scores(12, 12, seed=1)

    def linear(t: Tensor) -> Tensor:
        mean: Tensor = sp.sparsemap(t, structure, solver=solver).mean
        return (mean.flatten(1) * matrix[0, : t[0].numel()]).sum(-1)

    def quadratic(t: Tensor) -> Tensor:
        q = sp.sparsemap(t, structure, solver=solver)
        vectors = structure.vectors(q.atoms).double().flatten(1)
        n = vectors.shape[-1]
        expected: Tensor = q.expect(lambda z, row: ((vectors @ matrix[:n, :n]) * vectors).sum(-1))
        return expected

    for function in (linear, quadratic):
        assert gradcheck(function, (t,), eps=1e-5, atol=1e-4)
        assert gradgradcheck(function, (t,), eps=1e-5, atol=1e-4)


def test_expectations_are_continuous_in_the_scores() -> None:
    """Along a line through score space, the expected loss moves in small steps, also where atoms come and go."""
    start, end, loss_matrix = scores(8), scores(8, seed=1), scores(8, 8, seed=2)
    line = torch.lerp(start, end, torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None])
    for structure, solver in ((sp.Bits(8), Nested()), (sp.Bits(8), Systematic()), (sp.Budget(8, 3), Systematic())):
        q = sp.sparsemap(line, structure, solver=solver)
        values = q.expect(lambda z, row: ((z @ loss_matrix) * z).sum(-1))
        assert values.diff().abs().max() < 0.05
        assert q.n_atoms_per_row.unique().numel() > 1


def test_huge_scores_are_as_good_as_infinite_ones() -> None:
    """A soft mask, as -1e30, is no excuse for an atom that is no member."""
    for mask in (torch.finfo(torch.float32).min, -1e30, -1e17, -1e9, -torch.inf):
        m = [mask]
        for values, structure in (
            ([*m, *m, 0.5, 0.4, 0.3, 0.2], sp.Subset(6, 2)),
            ([*m, *m, *m, 0.5, 0.4, 0.3, 0.2], sp.Budget(7, 2)),
            ([*m, 0.5, 0.4, 0.3, 0.2], sp.Subset(5, 4)),
        ):
            q = sp.sparsemap(torch.tensor([values]), structure)
            wanted = sp.sparsemap(torch.tensor([values]).clamp_min(-100.0), structure).mean
            torch.testing.assert_close(q.mean, wanted)
            assert is_member(q.atoms, structure).all()
    for size in (1e17, 1e30):
        q = sp.sparsemap(torch.full((1, 4), size), sp.Subset(4, 2))
        torch.testing.assert_close(q.mean, torch.full((1, 4), 0.5))


def test_forbidden_and_certain_bits() -> None:
    t = torch.tensor([[-torch.inf, 0.0, 0.2, 9.0]])
    for structure in (sp.Bits(4), sp.Budget(4, 2), sp.Subset(4, 2)):
        q = sp.sparsemap(t, structure)
        assert not q.mean[0, 0]
        assert q.mean[0, 3] == 1
        assert q.mean.isfinite().all()
        with pytest.raises(ValueError, match="row 0 has \\+inf"):
            sp.sparsemap(t + torch.tensor([0.0, 0.0, 0.0, torch.inf]), structure)
    with pytest.raises(ValueError, match="row 1 forbids every assignment"):
        sp.sparsemap(torch.tensor([[0.0, 0.0], [-torch.inf, 0.0]]), sp.Subset(2, 2))
    for any_structure in (sp.Bits(2), sp.Budget(2, 1), sp.Subset(2, 1), sp.Groups(1, 2)):
        bad = torch.tensor([[0.0, torch.nan]]).reshape(1, *any_structure.score_shape)
        with pytest.raises(ValueError, match="row 0 has a NaN"):
            sp.sparsemap(bad, any_structure)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes_batches_and_empty_batches(dtype: torch.dtype) -> None:
    for structure in (sp.Bits(6), sp.Budget(6, 2), sp.Subset(6, 2), sp.Groups(2, 3)):
        t = scores(2, 3, *structure.score_shape).to(dtype).requires_grad_()
        q = sp.sparsemap(t, structure)
        assert q.probs.dtype == dtype
        assert q.batch_shape == (2, 3)
        assert q.mean.shape == t.shape
        q.entropy().sum().backward()
        assert t.grad is not None
        assert t.grad.isfinite().all()
        assert sp.sparsemap(t[:0], structure).batch_shape == (0, 3)
        assert sp.sparsemap(t[0, 0], structure).batch_shape == ()


def test_solvers_refuse_structures_that_they_do_not_take() -> None:
    with pytest.raises(TypeError, match="Nested takes Bits and Groups, got Budget"):
        sp.sparsemap(torch.zeros(1, 4), sp.Budget(4, 2), solver=Nested())
    with pytest.raises(TypeError, match="Systematic takes Bits, Budget and Subset, got Groups"):
        sp.sparsemap(torch.zeros(1, 2, 2), sp.Groups(2, 2), solver=Systematic())
    with pytest.raises(TypeError, match="Sparsemax takes OneOf, got Bits"):
        sp.sparsemap(torch.zeros(1, 4), sp.Bits(4), solver=sp.solvers.Sparsemax())
    with pytest.raises(TypeError, match="solver must be a solver such as"):
        sp.sparsemap(torch.zeros(1, 4), sp.Bits(4), solver="nested")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("structure", "kind"),
    [
        (sp.Bits(4), Systematic),
        (sp.Budget(4, 2), Systematic),
        (sp.Subset(4, 2), Systematic),
        (sp.Groups(2, 3), Nested),
        (sp.Sequence(3, 2), Pulled),
        (sp.Tree(3), Pulled),
        (sp.Matching(2, 3), Pulled),
        (sp.Enumerated(torch.eye(3)), ActiveSet),
    ],
    ids=repr,
)
def test_which_solver_a_structure_has_by_default(structure: sp.AbstractStructure, kind: type[AbstractSolver]) -> None:
    t = scores(3, *structure.score_shape)
    q, expected = (sp.sparsemap(t, structure, solver=solver) for solver in (None, kind()))
    assert torch.equal(q.atoms, expected.atoms)
    assert torch.equal(q.probs, expected.probs)


def test_transitions_that_are_not_regularised_have_the_active_set() -> None:
    """The mean of the transitions is not unique, so atoms cannot be a function of it."""
    pair = scores(3, 3, 2), scores(3, 2, 2, 2)
    structure = sp.Sequence(3, 2, regularise_transitions=False)
    q, expected = (sp.sparsemap(pair, structure, solver=solver) for solver in (None, ActiveSet()))
    assert torch.equal(q.atoms, expected.atoms)
    assert torch.equal(q.probs, expected.probs)


@pytest.mark.parametrize("structure", [sp.Bits(5), sp.Budget(5, 2), sp.Subset(5, 2), sp.Subset(32, 2)], ids=repr)
def test_marginals_near_0_and_1(structure: sp.Bits) -> None:
    """Of the marginals, whose sum is an integer up to rounding, no bit alone can make up for what is missing."""
    generator = torch.Generator().manual_seed(0)
    n, n_rows = structure.n, 40_000
    vertices = torch.rand(2, n_rows, n, generator=generator).argsort(-1).lt(2).double()
    size = 10 ** (-13 + 3 * torch.rand(n_rows, 1, dtype=torch.float64, generator=generator))
    scores = 2 * (vertices.mean(0) + size * torch.randn(n_rows, n, dtype=torch.float64, generator=generator)) - 1
    q = sp.sparsemap(scores, structure, solver=Systematic())
    assert bool(structure.contains(q.atoms).all())
    torch.testing.assert_close(q.mean, vertices.mean(0), atol=1e-8, rtol=0)
