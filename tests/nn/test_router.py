"""Routers against dense computations, with candidates, duplicates and padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum.nn import Router

K, DIM = 12, 5


def made(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def router_of(**options: Any) -> Router:
    router = Router(DIM, K, **options).double()
    with torch.no_grad():
        router.weight.copy_(made(K, DIM, seed=1))
    return router


def dense(router: Router, x: Tensor, is_candidate: Tensor | None = None) -> Tensor:
    scores = x @ router.weight.T / (router.temperature * DIM**0.5)
    return sp.sparsemax(scores if is_candidate is None else scores.masked_fill(~is_candidate, -torch.inf))


@pytest.mark.parametrize("batch", [(), (4,), (2, 3), (0,), (2, 0)])
def test_all_options(batch: tuple[int, ...]) -> None:
    router, x = router_of(temperature=0.5), made(*batch, DIM)
    q = router(x)
    assert q.batch_shape == batch
    torch.testing.assert_close(q.mean, dense(router, x))


@pytest.mark.parametrize("batch", [(), (4,), (2, 3), (0,)])
def test_candidates_have_the_mass_that_they_have_if_all_others_are_forbidden(batch: tuple[int, ...]) -> None:
    """Repeated options count once, and -1 stands for none."""
    router, x = router_of(temperature=0.5), made(*batch, DIM)
    candidates = torch.randint(-1, K, (*batch, 9), generator=torch.Generator().manual_seed(2))
    is_candidate = torch.zeros(*batch, K + 1, dtype=torch.bool).scatter_(-1, candidates % (K + 1), True)[..., :K]
    q = router(x, candidates)
    torch.testing.assert_close(q.mean, dense(router, x, is_candidate))
    for row in range(len(q.n_atoms_per_row.flatten())):
        atoms = q.atoms[q.row == row]
        assert len(atoms.unique()) == len(atoms)


def test_gradients_flow_to_queries_and_keys() -> None:
    router, x = router_of(temperature=0.3).eval(), made(4, DIM).requires_grad_()
    candidates = torch.tensor([[0, 3, 3, -1], [1, 2, 5, 7], [11, 0, 4, 4], [2, -1, -1, -1]])
    costs = made(K, seed=3)

    def expected(x: Tensor, weight: Tensor) -> Tensor:
        q: sp.SparseDistribution = torch.func.functional_call(router, {"weight": weight}, (x, candidates))
        found: Tensor = q.expect(lambda option: costs[option])
        return found

    assert torch.autograd.gradcheck(expected, (x, router.weight))
    assert bool(torch.autograd.grad(expected(x, router.weight).sum(), x)[0].any())


def test_sparse_gradients_follow_the_candidates() -> None:
    router, x = router_of(sparse=True), made(2, DIM)
    candidates = torch.tensor([[0, 3], [3, 7]])
    router(x, candidates).expect(lambda option: option.double()).sum().backward()
    gradient = router.weight.grad
    assert gradient is not None
    assert gradient.is_sparse
    twin = router_of()
    twin(x, candidates).expect(lambda option: option.double()).sum().backward()
    torch.testing.assert_close(gradient.to_dense(), twin.weight.grad)


def test_usage_is_the_mean_over_the_queries_of_training() -> None:
    router, first, second = router_of(), made(4, DIM), made(2, DIM, seed=5)
    router(first)
    router(second)
    wanted = torch.cat([dense(router, first), dense(router, second)]).mean(0)
    torch.testing.assert_close(router.usage, wanted)
    torch.testing.assert_close(router.perplexity, torch.special.entr(wanted).sum().exp())
    router.eval()(first)
    torch.testing.assert_close(router.usage, wanted)
    router.reset_usage()
    assert not bool(router.usage.any())


def test_large_counts_go_on() -> None:
    """Numbers of at most 1, added one by one, would be lost beside them."""
    router = Router(4, 3)
    router.counts.fill_(2**24)
    router(torch.randn(10_000, 4, generator=torch.Generator().manual_seed(0)))
    assert float(router.counts.sum()) == pytest.approx(3 * 2**24 + 10_000, rel=1e-7)


def test_missing_candidates_give_no_gradient_to_others() -> None:
    router = Router(4, 10, sparse=True)
    q = router(torch.ones(2, 4), torch.tensor([[5, 6, -1], [7, -1, -1]]))
    q.expect(lambda z, row: z.float()).sum().backward()
    assert router.weight.grad is not None
    assert set(router.weight.grad.coalesce().indices().flatten().tolist()) == {5, 6, 7}


def test_at_most_k_options() -> None:
    router, x = router_of(max_atoms=2, temperature=5.0), made(6, DIM)
    for q in (router(x), router(x, torch.arange(K).expand(6, K))):
        assert int(q.n_atoms_per_row.max()) == 2
        assert not bool(q.is_exact.any())
        assert torch.equal(q.mean, dense(router, x)) is False
        best = dense(router, x).topk(2)
        torch.testing.assert_close(q.mean.gather(1, best.indices), best.values / best.values.sum(-1, keepdim=True))


@pytest.mark.parametrize("has_candidates", [True, False])
def test_whole_graphs(has_candidates: bool) -> None:
    torch.compiler.reset()
    ours, theirs = router_of(max_atoms=3), router_of(max_atoms=3)
    candidates = torch.tensor([[0, 3, 3, -1, 8], [1, 2, 5, 7, 9]]) if has_candidates else None
    compiled = torch.compile(lambda x: ours(x, candidates).expect(lambda z: z.double()), fullgraph=True, backend="aot_eager")
    for seed in range(3):
        x = made(2, DIM, seed=seed)
        torch.testing.assert_close(compiled(x), theirs(x, candidates).expect(lambda z: z.double()))
    torch.testing.assert_close(ours.usage, theirs.usage)


def test_a_million_options() -> None:
    """No tensor of the size of batch times options is made: it would have 2^20 * 512 entries, 2 GB."""
    generator = torch.Generator().manual_seed(0)
    router = Router(2, 2**20)
    candidates = torch.randint(2**20, (512, 20), generator=generator)
    q = router(torch.randn(512, 2, generator=generator), candidates)
    assert bool((candidates[q.row] == q.atoms.unsqueeze(-1)).any(-1).all())
    q.expect(lambda option: option.float()).mean().backward()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Router(0, 3), ValueError, "dim must be at least 1, got 0"),
        (lambda: Router(3, 2.0), TypeError, "n_options must be an int, got float"),  # type: ignore[arg-type]
        (lambda: Router(3, 3, temperature=0.0), ValueError, "temperature"),
        (lambda: Router(3, 3, max_atoms=0), ValueError, "max_atoms must be at least 1, got 0"),
        (lambda: Router(3, 3)(torch.zeros(2, 4)), ValueError, r"x must have shape \(\*batch, 3\), got \(2, 4\)"),
        (lambda: Router(3, 3)(torch.zeros(2, 3).long()), TypeError, "x must have a floating-point dtype"),
        (lambda: Router(3, 3)(torch.zeros(2, 3), torch.zeros(2, 1)), TypeError, "candidates must be .* torch.int64, got"),
        (
            lambda: Router(3, 3)(torch.zeros(2, 3), torch.zeros(3, 1).long()),
            ValueError,
            r"candidates must have shape \(2, n_candidates\), at least one each, got \(3, 1\)",
        ),
        (lambda: Router(3, 3)(torch.zeros(1, 3), torch.tensor([[0, 3]])), ValueError, "from -1 to 2, got 3"),
        (lambda: Router(3, 3)(torch.zeros(1, 3), torch.tensor([[0, -2]])), ValueError, "from -1 to 2, got -2"),
        (lambda: Router(3, 3)(torch.zeros(2, 3), torch.tensor([[0], [-1]])), ValueError, "row 1 forbids every assignment"),
        (lambda: Router(3, 3)(torch.tensor([[0.0, 0, 0], [0, torch.nan, 0]])), ValueError, "row 1 has a NaN"),
        (lambda: Router(3, 3, sparse=True)(torch.zeros(2, 3)), ValueError, "candidates must be given"),
    ],
)
def test_bad_input_is_named(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
