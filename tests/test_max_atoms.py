"""At most k atoms per row: the truncation of what is found without a limit, also as a table within a compiled graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sparsum as sp
from sparsum.segments import reading_sizes

CASES: dict[str, tuple[sp.AbstractStructure, sp.solvers.AbstractSolver | None]] = {
    "one of n": (sp.OneOf(7), None),
    "bits, systematic": (sp.Bits(7), None),
    "bits, nested": (sp.Bits(7), sp.solvers.Nested()),
    "groups": (sp.Groups(3, 4), None),
    "budget": (sp.Budget(7, 3), None),
    "subset": (sp.Subset(7, 3), None),
}
OTHERS: dict[str, tuple[sp.AbstractStructure, sp.solvers.AbstractSolver | None]] = {
    "bits, active set": (sp.Bits(7), sp.solvers.ActiveSet()),
    "sequence": (sp.Sequence(3, 3), None),
}


def scores(structure: sp.AbstractStructure, seed: int = 0, n_rows: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (n_rows, *structure.score_shape)
    # The last row is far outside the window, so that it has one atom.
    scale = torch.ones(n_rows, *[1] * len(structure.score_shape), dtype=torch.float64)
    scale[-1:] = 100.0
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 0.6 * scale).requires_grad_()


def loss(z: Tensor, row: Tensor) -> Tensor:
    weight = torch.arange(1, z[:1].numel() + 1, dtype=torch.float64)
    return (z.reshape(len(row), -1) * weight).sum(-1).sin() * (1 + row)


@pytest.mark.parametrize("name", [*CASES, *OTHERS])
@settings(max_examples=12, deadline=None)
@given(k=st.integers(1, 15), seed=st.integers(0, 1000))
def test_max_atoms_is_truncation(name: str, k: int, seed: int) -> None:
    structure, solver = (CASES | OTHERS)[name]
    t = scores(structure, seed)
    ours, theirs = sp.sparsemap(t, structure, solver=solver, max_atoms=k), sp.sparsemap(t, structure, solver=solver)
    is_cut = theirs.n_atoms_per_row > k
    theirs = theirs.truncate(k)
    torch.testing.assert_close(ours.atoms, theirs.atoms)
    torch.testing.assert_close(ours.probs, theirs.probs)
    assert torch.equal(ours.row, theirs.row)
    assert torch.equal(ours.is_exact, ~is_cut)
    gradients = [torch.autograd.grad(q.expect(loss).sum() - q.entropy().sum(), t)[0] for q in (ours, theirs)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_truncated_sums(name: str) -> None:
    structure, solver = CASES[name]
    t = scores(structure, 3)
    n_atoms = sp.sparsemap(t, structure, solver=solver).n_atoms_per_row
    k = int(n_atoms.max()) - 1
    assert bool((n_atoms > k).any())
    assert torch.autograd.gradcheck(lambda t: sp.sparsemap(t, structure, solver=solver, max_atoms=k).expect(loss), t)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("k", [2, 40])
def test_whole_graphs_are_tables_with_the_values_of_eager_mode(name: str, k: int) -> None:
    structure, solver = CASES[name]

    def measure(t: Tensor) -> tuple[Tensor, ...]:
        q = sp.sparsemap(t, structure, solver=solver, max_atoms=k)
        mean, usage = q.mean, q.usage
        return q.expect(loss), q.entropy(), mean, q.mode, q.n_atoms_per_row, q.is_exact, q.saturation, usage

    def table(t: Tensor) -> tuple[Tensor, Tensor]:
        q = sp.sparsemap(t, structure, solver=solver, max_atoms=k)
        return q.atoms, q.probs.view(len(t), k)

    torch.compiler.reset()  # the compiler limits how often it compiles a function anew
    t = scores(structure, 5)
    compiled = torch.compile(measure, fullgraph=True, backend="aot_eager")
    ours, theirs = compiled(t), measure(t)
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, check_dtype=False)
    gradients = [torch.autograd.grad(values[0].sum() - values[1].square().sum(), t)[0] for values in (ours, theirs)]
    torch.testing.assert_close(*gradients)
    atoms, probs = torch.compile(table, fullgraph=True, backend="aot_eager")(t)
    assert len(atoms) == probs.numel()
    torch.testing.assert_close(probs.sum(-1), torch.ones(len(t), dtype=torch.float64))
    is_member = structure.contains(atoms)
    assert bool(is_member.all())


def test_rows_without_a_distribution() -> None:
    t = torch.tensor([[0.0, 0.5, 0.2], [0.0, torch.nan, 0.0]])

    def probs(t: Tensor, structure: sp.AbstractStructure) -> Tensor:
        return sp.sparsemap(t, structure, max_atoms=2).probs.view(-1, 2)

    for structure in (sp.OneOf(3), sp.Bits(3)):
        with pytest.raises(sp.NoDistribution, match="row 1 has a NaN"):
            probs(t, structure)
        found = torch.compile(probs, fullgraph=True, backend="aot_eager")(t, structure)
        assert torch.equal(found.isnan(), torch.tensor([[False, False], [True, True]]))


@pytest.mark.parametrize("bad", [0, -1, 2.0, True])
def test_max_atoms_is_a_positive_int(bad: int) -> None:
    makes: list[Callable[[], object]] = [
        lambda: sp.sparsemap(torch.zeros(1, 3), sp.Bits(3), max_atoms=bad),
        lambda: sp.estimators.SparseMAP(max_atoms=bad),
    ]
    for make in makes:
        with pytest.raises((TypeError, ValueError), match="max_atoms must be"):
            make()


def test_the_estimator_counts_the_calls_that_are_left() -> None:
    t = scores(sp.Groups(3, 4))
    estimate = sp.estimators.SparseMAP(max_atoms=2)(t, sp.Groups(3, 4), loss)
    assert int(estimate.calls.max()) == 2
    torch.testing.assert_close(estimate.value, sp.sparsemap(t, sp.Groups(3, 4), max_atoms=2).expect(loss).detach())


@pytest.mark.parametrize("name", CASES)
def test_padded_sizes_change_no_value(name: str) -> None:
    structure, solver = CASES[name]
    t = scores(structure)
    plain = sp.sparsemap(t, structure, solver=solver, max_atoms=2)
    with reading_sizes(lambda sizes, most: [sizes.tolist()[0] + 5, *sizes.tolist()[1:]]):
        padded = sp.sparsemap(t, structure, solver=solver, max_atoms=2)
        torch.testing.assert_close(padded.expect(loss), plain.expect(loss))
        torch.testing.assert_close(padded.saturation, plain.saturation)


def test_saturation_and_usage() -> None:
    t = torch.tensor([[[0.2, -5.0], [9.0, -9.0]], [[9.0, 9.0], [0.0, 0.0]]])
    q = sp.sparsemap(t, sp.Bits(2))
    assert float(q.saturation) == 0.5
    torch.testing.assert_close(q.usage, q.mean.mean((0, 1)))
    empty = sp.sparsemap(torch.zeros(0, 2), sp.Bits(2))
    assert float(empty.saturation) == 0.0
    assert empty.usage.tolist() == [0.0, 0.0]
    chain = sp.sparsemap((torch.randn(4, 3, 2), torch.randn(2, 2, 2)), sp.Sequence(3, 2))
    assert [tuple(part.shape) for part in chain.usage] == [tuple(part.shape[1:]) for part in chain.mean]
