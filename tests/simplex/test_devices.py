"""The same results on every device of the machine, with as few waits for it as promised."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum.segments import Segments

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
every_device = pytest.mark.parametrize("device", DEVICES)
#: torch differentiates on threads of its own once a GPU was used, and forks do not have them.
by_fork = pytest.mark.skipif(torch.cuda.is_available(), reason="gradients in a fork, where other tests may have used a GPU")


def scores(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def n_waits(function: Callable[[], object], device: str) -> int:
    """How often a call waits for the device."""
    if device == "cpu":
        function()
        return 0
    function()
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            function()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in caught)


@every_device
@pytest.mark.parametrize("size", [7, 100, 9000])
@pytest.mark.parametrize("mapping", [sp.sparsemax, sp.entmax15, lambda x: sp.entmax(x, 1.3)], ids=["1", "2", "3"])
def test_mappings(mapping: Callable[[Tensor], Tensor], size: int, device: str) -> None:
    x, weight = scores(20, size), scores(20, size, seed=1)
    x[3] = -torch.inf
    x[4, 1] = torch.inf
    results = []
    for place in ("cpu", device):
        leaf = x.to(place).requires_grad_()
        probs = mapping(leaf)
        (gradient,) = torch.autograd.grad((probs * weight.to(place)).sum(), leaf)
        results.append((probs.cpu(), gradient.cpu()))
    for there, here in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(there, here, atol=2e-6, rtol=1e-5)


@every_device
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_autocast(dtype: torch.dtype, device: str) -> None:
    x = scores(50, 300).to(device)
    with torch.autocast(device, dtype=dtype):
        half = torch.nn.Linear(300, 300, device=device)(x)
        assert half.dtype == dtype
        results = [mapping(half) for mapping in (sp.sparsemax, sp.entmax15)]
    for probs in results:
        assert probs.dtype == dtype
        assert torch.distributions.constraints.simplex.check(probs).all()


@every_device
def test_segment_sums_are_deterministic(device: str) -> None:
    lengths = torch.randint(0, 50, (2000,), generator=torch.Generator().manual_seed(0))
    n = int(lengths.sum())
    segments = Segments.from_lengths(lengths.to(device), n)
    for rest in ((), (3,)):
        values = scores(n, *rest).to(device)
        first = segments.sum(values)
        assert all(torch.equal(segments.sum(values), first) for _ in range(5))
        torch.testing.assert_close(first.cpu(), torch.stack([part.sum(0) for part in values.cpu().split(lengths.tolist())]))
        per_row = scores(2000, *rest).to(device).requires_grad_()
        gradients = [torch.autograd.grad((segments.spread(per_row) * values).sum(), per_row)[0] for _ in range(5)]
        assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)


@every_device
def test_a_distribution_waits_once_and_its_use_never(device: str) -> None:
    x = scores(64, 300).to(device)
    for mapping in (sp.sparsemax, sp.entmax15, sp.Entmax(1.3)):
        assert n_waits(functools.partial(mapping, x), device) == 0
    probs = sp.sparsemax(x)
    assert n_waits(lambda: sp.SparseDistribution.from_dense(probs), device) <= 1
    assert n_waits(lambda: sp.sparsemap(x, sp.OneOf(300)), device) <= 1
    q = sp.SparseDistribution.from_dense(probs.requires_grad_())
    table = scores(300, seed=1).to(device)
    z = torch.zeros(64, dtype=torch.int64, device=device)

    def use() -> None:
        value = q.expect(lambda z, _: table[z]) + q.entropy() + q.log_prob(z).clamp_min(-1.0)
        torch.autograd.grad(value.sum(), probs, retain_graph=True)
        q.sample((3,))
        assert q.mode.shape == q.expand((2, 64)).batch_shape[1:]

    assert n_waits(use, device) == 0


@every_device
def test_distributions(device: str) -> None:
    x = scores(30, 50)
    generator = torch.Generator(device).manual_seed(0)
    results = []
    for place in ("cpu", device):
        leaf = x.to(place).requires_grad_()
        q = sp.sparsemap(leaf, sp.OneOf(50))
        noisy = q.expect(lambda z, _: z.float(), chunk_size=16)
        (gradient,) = torch.autograd.grad((noisy + q.entropy()).sum(), leaf)
        results.append((q.atoms.cpu(), q.row.cpu(), q.probs.detach().cpu(), gradient.cpu()))
    for there, here in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(there, here, atol=2e-6, rtol=1e-5)
    assert q.sample((5,), generator=generator).shape == (5, 30)
    weight = torch.ones((), device=device, requires_grad=True)
    noises: list[Tensor] = []

    def loss(z: Tensor, _: Tensor) -> Tensor:
        noises.append(torch.randn(len(z), generator=generator, device=device))
        return (weight * noises[-1]).sin()

    value = q.expect(loss, chunk_size=16, generators=generator)
    noise = torch.cat(noises)
    (gradient,) = torch.autograd.grad(value.sum(), weight)
    torch.testing.assert_close(gradient, (q.probs * noise * noise.cos()).sum())


STRUCTURES: list[sp.AbstractStructure] = [
    sp.OneOf(6),
    sp.Groups(3, 4),
    sp.Bits(40),
    sp.Budget(40, 9),
    sp.Subset(40, 9),
    sp.Sequence(6, 4),
    sp.Tree(5),
    sp.Matching(5),
    sp.Enumerated(torch.eye(6)),
]


@every_device
@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: type(structure).__name__)
def test_structures_have_the_same_atoms_everywhere(structure: sp.AbstractStructure, device: str) -> None:
    t = torch.randn(16, *structure.score_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    solvers: list[sp.solvers.AbstractSolver | None] = [None, sp.solvers.ActiveSet()]
    if isinstance(structure, sp.Bits):
        solvers.append(sp.solvers.Systematic())
    for solver in solvers:
        results, means = [], []
        for place in ("cpu", device):
            leaf = t.to(place).requires_grad_()
            q = sp.sparsemap(leaf, structure, solver=solver)
            (gradient,) = torch.autograd.grad((q.entropy() + q.mean.flatten(1).sin().sum(-1)).sum(), leaf)
            results.append((q.atoms.cpu(), q.row.cpu(), q.probs.detach().cpu(), gradient.cpu()))
            means.append(q.mean.detach().cpu())
        torch.testing.assert_close(*means, atol=1e-7, rtol=1e-6)
        if isinstance(structure, sp.Tree | sp.Matching) and solver is not None:
            continue  # the device decides which of tied assignments is the best, and so which atoms the active set finds
        for there, here in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(there, here, atol=1e-7, rtol=1e-6)
    best = structure.topk(t, 7)
    assert torch.equal(structure.topk(t.to(device), 7).cpu(), best)
    few = sp.topk_sparsemax(t.to(device), structure, 7)
    torch.testing.assert_close(few.probs.cpu(), sp.topk_sparsemax(t, structure, 7).probs)


@every_device
def test_closed_forms_wait_once(device: str) -> None:
    t = torch.randn(64, 128, generator=torch.Generator().manual_seed(0)).to(device)
    for structure in (sp.Bits(128), sp.Budget(128, 64), sp.Subset(128, 64)):
        assert n_waits(functools.partial(sp.sparsemap, t, structure), device) <= 1
    assert n_waits(lambda: sp.sparsemap(t.reshape(64, 8, 16), sp.Groups(8, 16)), device) <= 1
    assert n_waits(lambda: sp.Bits(128).topk(t, 10), device) == 0
