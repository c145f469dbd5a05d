"""Properties of SparseMAP and its solvers, and of the losses of structures."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch

import sparsum as sp
from sparsum.solvers import AbstractSolver, ActiveSet, Nested, NotConverged, Pulled, Systematic
from sparsum.solvers.default import default_solver
from sparsum.structures.scores import Scores, as_tuple, flatten
from tests.properties.drawing import WIDE, Draw
from tests.properties.registry import about
from tests.properties.structures import Case, case_of, some_case, some_rows
from tests.solvers.adversarial import Exact

_BITS = {"Bits", "Bits of the paper"}
_COUNTED = {*_BITS, "Budget", "Subset"}


def some_solver(draw: Draw, case: Case) -> AbstractSolver | None:
    """A solver that takes a structure; None is its own."""
    solvers: list[AbstractSolver | None] = [None, ActiveSet(), Pulled()]
    if case.name in {*_BITS, "Groups"}:
        solvers.append(Nested())
    if case.name in _COUNTED:
        solvers.append(Systematic())
    if case.name == "OneOf":
        solvers.append(sp.solvers.Sparsemax())
    return draw.choice(solvers)


@about(
    *("sparsemap", "NotConverged", "SparseDistribution", "solvers.AbstractSolver", "solvers.ActiveSet", "solvers.Pulled"),
    *("solvers.NotConverged", "solvers.Nested", "solvers.Systematic", "solvers.Sparsemax", "solvers.Solution"),
    weight=16,
)
def sparsemap_is_optimal_or_says_where_it_is_not(draw: Draw) -> None:
    """The duality gap over all members is 0 in exact arithmetic, but in rows that the error names; gradients are finite."""
    case, dtype = some_case(draw), draw.choice(WIDE)
    solver = some_solver(draw, case)
    flat = some_rows(draw, case, draw.integer(0, 2), dtype, most=1e30)
    leaf = flat.clone().requires_grad_()
    named: list[int] = []
    try:
        q = sp.sparsemap(case.scores(leaf), case.structure, solver=solver)
    except NotConverged as error:
        named = error.rows
        used = solver if isinstance(solver, ActiveSet | Pulled) else _default(case)
        q = sp.sparsemap(case.scores(leaf), case.structure, solver=dataclasses.replace(used, strict=False))
        assert named == (~q.is_exact).nonzero().flatten().tolist()
    assert q.probs.dtype == dtype
    index = case.index(q.atoms)
    assert bool((index >= 0).all())
    assert bool((q.probs > 0).all())
    mean = flatten(q.mean)
    assert mean.shape == flat.shape
    (gradient,) = torch.autograd.grad((mean * torch.randn(flat.shape, generator=draw.generator()).to(dtype)).sum(), leaf)
    assert bool(gradient.isfinite().all()), (case.name, flat)
    assert not bool(gradient[flat == -torch.inf].any())
    problem = Exact.of(case.structure, case.vectors, 1.0)
    for row in range(len(flat)):
        if row in named:
            continue
        probs = q.probs[q.row == row].detach().double()
        assert abs(float(probs.sum()) - 1) <= 8 * torch.finfo(dtype).eps
        if len(probs) == 1:
            assert not bool(gradient[row].any())
        b, allowed = problem.linear(flat[row].double())
        vectors = case.vectors[index[q.row == row]]
        gap = float(problem.gap(b, allowed, problem.mean(vectors, probs)))
        assert 0 <= gap <= (1e-7 if dtype == torch.float64 else 1e-5), (case.name, solver, flat[row], gap)


def _default(case: Case) -> ActiveSet | Pulled:
    """The solver of a structure that may not converge."""
    found = default_solver(case.structure)
    assert isinstance(found, ActiveSet | Pulled)
    return found


@about("sparsemap", "topk_sparsemax", "Gibbs", weight=3)
def masks_and_temperatures(draw: Draw) -> None:
    """A mask is a score of -inf, a temperature divides the scores, and a batch of several dimensions is one of rows."""
    case, dtype = some_case(draw), draw.choice(WIDE)
    n = draw.integer(1, 2)
    flat = draw.table(2 * n, case.n_parts, dtype, most=1e3)
    chosen = torch.randint(len(case.atoms), (2 * n,), generator=draw.generator())
    is_allowed = (torch.rand(flat.shape, generator=draw.generator()) < 0.7) | (case.vectors[chosen] != 0)
    temperature = draw.choice([0.5, 1.0, 4.0])  # powers of two, so that quotients are exact
    masked = (flat / temperature).masked_fill(~is_allowed, -torch.inf)

    def tables(rows: torch.Tensor) -> Scores:
        scores = case.scores(rows)
        return tuple(t.unflatten(0, (2, n)) for t in scores) if isinstance(scores, tuple) else scores.unflatten(0, (2, n))

    given = {"mask": tables(is_allowed), "temperature": temperature}
    calls: list[Callable[..., Any]] = [functools.partial(sp.topk_sparsemax, k=3), sp.sparsemap]
    if case.structure.has_partition:
        calls.append(sp.Gibbs)
    for call in calls:
        try:
            found, wanted = call(tables(flat), case.structure, **given), call(case.scores(masked), case.structure)
        except NotConverged:
            continue
        assert found.batch_shape == (2, n)
        means = [flatten(tuple(t.flatten(0, 1) for t in as_tuple(found.mean))), flatten(wanted.mean)]
        torch.testing.assert_close(*means, atol=1e-5 if dtype == torch.float32 else 1e-9, rtol=0)


@about("sparsemap", "topk_sparsemax", weight=3)
def at_most_max_atoms(draw: Draw) -> None:
    """With ``max_atoms``, the most probable atoms stay, and their probabilities sum to 1."""
    case = some_case(draw)
    flat = some_rows(draw, case, draw.integer(0, 3), torch.float64, most=1e4)
    most = draw.integer(1, 4)
    try:
        every = sp.sparsemap(case.scores(flat), case.structure)
        q = sp.sparsemap(case.scores(flat), case.structure, max_atoms=most)
    except NotConverged:
        return
    assert bool((q.n_atoms_per_row <= most).all())
    for row in range(len(flat)):
        probs, full = (each.probs[each.row == row] for each in (q, every))
        probs = probs[probs > 0]
        best = full.sort(descending=True).values[:most]
        assert abs(float(probs.sum()) - 1) < 1e-9
        if case.structure.group_size is None:
            torch.testing.assert_close(probs.sort(descending=True).values, best / best.sum(), atol=1e-9, rtol=1e-6)


@about("sparsemap_loss", "structured_nll", "SparsemapLoss", "StructuredNLL", weight=6)
def losses_of_structures(draw: Draw) -> None:
    """Not negative, the formula in float64, and the gradient: the mean minus the vector of the target."""
    case, dtype = some_case(draw), draw.choice(WIDE)
    n_rows = draw.integer(0, 3)
    flat = draw.table(n_rows, case.n_parts, dtype, most=1e6)
    chosen = torch.randint(len(case.atoms), (n_rows,), generator=draw.generator())
    target = case.atoms[chosen]
    target = target.to(dtype) if target.is_floating_point() else target
    leaf = flat.clone().requires_grad_()
    eps, size = torch.finfo(dtype).eps, 1 + flat.double().abs().amax(-1) if n_rows else torch.zeros(0)
    try:
        loss = sp.sparsemap_loss(case.scores(leaf), case.structure, target, reduction="none")
        mean = flatten(sp.sparsemap(case.scores(flat.double()), case.structure).mean)
    except NotConverged:
        return
    assert torch.equal(sp.SparsemapLoss(case.structure, reduction="none")(case.scores(flat), target), loss.detach())
    assert loss.shape == (n_rows,)
    assert bool((loss >= 0).all())
    y = case.vectors[chosen]
    linear, weight = case.bound_structure.quadratic(flat.double())
    wanted = (linear * (mean - y)).sum(-1) - (weight * (mean.square() - y.square())).sum(-1) / 2
    limit = 64 * eps * size * case.n_parts
    assert bool(((loss.double() - wanted).abs() <= limit + 1e-9).all()), (case.name, flat, loss, wanted)
    (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    if bool((weight > 0).all()):
        torch.testing.assert_close(gradient.double(), mean - y, atol=1e-4 if dtype == torch.float32 else 1e-6, rtol=0)
    if case.structure.has_partition:
        nll = sp.structured_nll(case.scores(leaf), case.structure, target, reduction="none")
        module = sp.StructuredNLL(case.structure, reduction="none")(case.scores(flat), target)
        torch.testing.assert_close(module, nll.detach())
        values = flat.double() @ case.vectors.T
        wanted = -values.log_softmax(-1)[torch.arange(n_rows), chosen]
        assert bool(((nll.double() - wanted).abs() <= limit + 1e-9).all()), (case.name, flat, nll, wanted)


@about("AbstractStructure", weight=1)
def structures_equal_those_that_list_them(draw: Draw) -> None:
    """SparseMAP over a structure is SparseMAP over the list of its vectors."""
    case = case_of(draw.choice(["OneOf", "Groups", "Sequence", "Tree", "Matching", "Paths", "Alignment", "Segmentation"]))
    flat = some_rows(draw, case, draw.integer(1, 2), torch.float64, most=1e3)
    listed = sp.Enumerated(case.vectors)
    try:
        found, wanted = sp.sparsemap(case.scores(flat), case.structure), sp.sparsemap(flat, listed)
    except NotConverged:
        return
    mean = wanted.mean
    assert isinstance(mean, torch.Tensor)
    torch.testing.assert_close(flatten(found.mean), mean, atol=1e-4, rtol=0)
