"""Distributions whose packed atoms are padded, so that steps of training can be recorded, are the same distributions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum.segments import reading_sizes
from tests.captured.training import CASES, EAGER, batches, rounded_up, training

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Make = Callable[[Tensor], sp.SparseDistribution]
MAKES: dict[str, tuple[Make, int]] = {
    "from_dense": (lambda t: sp.SparseDistribution.from_dense(sp.sparsemax(t)), 9),
    "sparsemap, one of n": (lambda t: sp.sparsemap(t, sp.OneOf(9)), 9),
    "sparsemap, bits, nested": (lambda t: sp.sparsemap(t, sp.Bits(6)), 6),
    "sparsemap, bits, systematic": (lambda t: sp.sparsemap(t, sp.Bits(6), solver=sp.solvers.Systematic()), 6),
    "sparsemap, bits, active set": (lambda t: sp.sparsemap(t, sp.Bits(6), solver=sp.solvers.ActiveSet()), 6),
    "sparsemap, budget, active set": (lambda t: sp.sparsemap(t, sp.Budget(6, 2), solver=sp.solvers.ActiveSet()), 6),
    "sparsemap, budget": (lambda t: sp.sparsemap(t, sp.Budget(6, 2)), 6),
    "sparsemap, subset": (lambda t: sp.sparsemap(t, sp.Subset(6, 2)), 6),
    "top-k": (lambda t: sp.topk_sparsemax(t, sp.Bits(6), 5), 6),
}


def add_seven(sizes: Tensor, most: int) -> list[int]:
    """A reader that asks for more than there is, as one does that rounds up."""
    n, *others = sizes.tolist()
    assert n <= most
    return [n + 7, *others]


def scores(n: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, n, generator=generator, dtype=torch.float64).to(DEVICE).requires_grad_()


def measures(q: sp.SparseDistribution) -> dict[str, Tensor]:
    weight = torch.linspace(1, 2, q.atoms[:1].numel(), device=DEVICE, dtype=torch.float64)

    def loss(z: Tensor, row: Tensor) -> Tensor:
        return (z.reshape(len(row), -1) * weight).sum(-1).sin() * (1 + row)

    assert isinstance(q.mean, Tensor)
    return {
        "expectation": q.expect(loss),
        "entropy": q.entropy(),
        "mean": q.mean,
        "mode": q.mode.double(),
        "log_prob of the mode": q.log_prob(q.mode),
        "atoms per row": q.n_atoms_per_row.double(),
        "is_exact": q.is_exact.double(),
    }


@pytest.mark.parametrize("name", MAKES)
def test_padding_changes_no_value_and_no_gradient(name: str) -> None:
    make, n = MAKES[name]
    t = scores(n)
    plain = make(t)
    with reading_sizes(add_seven):
        padded = make(t)
        found = measures(padded)
    assert len(padded.atoms) == len(plain.atoms) + 7
    assert torch.equal(padded.probs[-7:], torch.zeros(7, dtype=torch.float64, device=DEVICE))
    assert torch.equal(padded.row[-7:], torch.full((7,), 4, device=DEVICE))
    for (key, value), wanted in zip(found.items(), measures(plain).values(), strict=True):
        torch.testing.assert_close(value, wanted, msg=key)
        if value.requires_grad:
            ours, theirs = (torch.autograd.grad(each.square().sum(), t, retain_graph=True)[0] for each in (value, wanted))
            torch.testing.assert_close(ours, theirs, msg=key)


@pytest.mark.parametrize("estimator", [sp.estimators.Dense(), sp.estimators.Sparse(), sp.estimators.Sparse(1.5)])
def test_estimators_pad_what_is_forbidden_away(estimator: sp.estimators.AbstractEstimator) -> None:
    """Forbidden categories make fewer atoms than all, so that padding has room in Dense as well."""
    t = scores(9)
    masked = t.masked_fill(torch.arange(9, device=DEVICE) > 6, -torch.inf)

    def loss(z: Tensor, row: Tensor) -> Tensor:
        return (z.double() + row).cos()

    plain = estimator(masked, sp.OneOf(9), loss)
    with reading_sizes(lambda sizes, most: [min(sizes.tolist()[0] + 4, most), *sizes.tolist()[1:]]):
        padded = estimator(masked, sp.OneOf(9), loss)
    torch.testing.assert_close(padded.value, plain.value)
    assert torch.equal(padded.calls, plain.calls)
    ours, theirs = (torch.autograd.grad(each.surrogate.sum(), t, retain_graph=True)[0] for each in (padded, plain))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("method", "structure"), [case for case in CASES if case not in EAGER])
def test_padding_changes_no_gradient_of_what_can_be_captured(method: str, structure: str) -> None:
    """Estimators, bounds, structures and solvers, with the sizes of captured steps."""
    (x,) = batches(1, DEVICE, torch.float64)
    found = []
    for reader in (rounded_up, None):
        one = training(method, structure, device=DEVICE, dtype=torch.float64)
        with contextlib.nullcontext() if reader is None else reading_sizes(reader):
            objective, calls = one.model(x, one.generator)
        objective.backward()
        gradients = [parameter.grad for parameter in one.model.parameters() if parameter.grad is not None]
        found.append([objective.detach(), calls, *gradients, one.generator.get_state()])
    for padded, plain in zip(*found, strict=True):
        torch.testing.assert_close(padded, plain)


def test_dense_sums_whose_padding_fills_all_places() -> None:
    """As many places as there are assignments, one of which is forbidden."""
    t = torch.tensor([[0.0, -torch.inf, 1.0, 2.0], [0.0, 1.0, 2.0, 3.0]], device=DEVICE)

    def loss(z: Tensor, row: Tensor) -> Tensor:
        return (z + 1.0) * 10.0**row

    plain = sp.estimators.Dense()(t, sp.OneOf(4), loss)
    with reading_sizes(lambda sizes, most: [most, *sizes.tolist()[1:]]):
        padded = sp.estimators.Dense()(t, sp.OneOf(4), loss)
    torch.testing.assert_close(padded.value, plain.value)


@pytest.mark.parametrize("is_within", [True, False])
def test_padded_distributions_are_expanded_and_looked_up(is_within: bool) -> None:
    """Several samples at a time, within the reader's reach and after it."""
    t = scores(9)
    with reading_sizes(add_seven):
        padded = sp.sparsemap(t, sp.OneOf(9))
        if is_within:
            expanded, samples = padded.expand((4, 5)), padded.sample((3,), generator=torch.Generator(DEVICE).manual_seed(0))
            found = padded.log_prob(samples)
    if not is_within:
        expanded, samples = padded.expand((4, 5)), padded.sample((3,), generator=torch.Generator(DEVICE).manual_seed(0))
        found = padded.log_prob(samples)
    plain = sp.sparsemap(t, sp.OneOf(9))
    torch.testing.assert_close(found, plain.log_prob(samples))
    torch.testing.assert_close(expanded.to_dense(), plain.expand((4, 5)).to_dense())


def test_reader_is_gone_afterwards() -> None:
    with pytest.raises(ZeroDivisionError), reading_sizes(add_seven):
        _ = 1 / 0
    assert sp.sparsemap(scores(9), sp.OneOf(9)).probs[-1] > 0
