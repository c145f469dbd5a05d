"""The kernel for sums over subsets and budgets: enumeration, a recursion in log space, derivatives, and odd rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum.structures.bits import Budget, Subset
from tests.kernels.serving import serving
from tests.structures.test_counts import Counted, by_recursion, members, scores_of

pytest.importorskip("triton")
# Said by the interpreter, where scores are infinite or far from the threshold.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero):RuntimeWarning")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INF = torch.inf


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(DEVICE)


def sums(structure: Counted, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Log-sums and their gradient."""
    leaf = scores.clone().requires_grad_()
    total = structure.log_partition(leaf)
    return total.detach(), torch.autograd.grad(total.sum(), leaf)[0]


def every(*sizes: int) -> list[Counted]:
    kinds: tuple[type[Counted], ...] = (Subset, Budget)
    return [kind(n, k) for kind in kinds for n in sizes for k in range(n + 1)]


@pytest.mark.parametrize("structure", every(1, 2, 5), ids=repr)
def test_against_enumeration(structure: Counted) -> None:
    scores, atoms = 3 * normal(4, structure.n), members(structure).to(DEVICE)
    scores[1], scores[2], scores[3, 0] = 1.0, scores[2].round(), -INF
    values = scores_of(atoms, scores)
    with serving(True):
        total, mean = sums(structure, scores)
        without = structure.log_partition(scores)
    torch.testing.assert_close(total, values.logsumexp(-1), atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(without, total, atol=0, rtol=0)
    is_possible = total > -INF
    torch.testing.assert_close(mean[is_possible], values[is_possible].softmax(-1) @ atoms, atol=1e-12, rtol=1e-12)
    assert not bool(mean[~is_possible].any())


@pytest.mark.parametrize("structure", [Subset(150, 40), Subset(150, 130), Budget(130, 70)], ids=repr)
def test_many_bits_in_several_launches(structure: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsum.kernels import counts

    monkeypatch.setattr(counts, "MOST_BYTES", 1)  # one row at a time
    scores = normal(3, structure.n) * torch.tensor([[1.0], [1e3], [0.0]], device=DEVICE, dtype=torch.float64)
    with serving(True):
        total, mean = sums(structure, scores)
    torch.testing.assert_close(total.cpu(), by_recursion(scores.cpu(), structure), atol=1e-9, rtol=1e-12)
    torch.testing.assert_close(mean, sums(structure, scores)[1], atol=1e-12, rtol=1e-9)


def odd(n: int) -> Tensor:
    """Ties, very large and very low scores, forbidden ones, and rows that a NaN or +inf makes unusable: (12, n)."""
    x = normal(12, n)
    x[0], x[1], x[2], x[3], x[4] = 0.0, x[1].round(), 1e30, -1e30, 1e30 * x[4].sign()
    x[5], x[6], x[7, ::2], x[8], x[8, 0] = 1e30 * x[5], 700 * x[6], -INF, -INF, 1.0
    x[9], x[10, 0], x[11, 0] = -INF, torch.nan, INF
    return x


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("structure", [*every(2), Subset(5, 2), Subset(5, 4), Budget(5, 2), Budget(12, 7)], ids=repr)
def test_odd_rows_as_the_twin(structure: Counted, dtype: torch.dtype) -> None:
    x = odd(structure.n).to(dtype)
    with serving(True):
        mine = sums(structure, x)
    for here, there in zip(mine, sums(structure, x), strict=True):
        torch.testing.assert_close(
            here, there, atol=1e-11, rtol=1e-11 if there.dtype == torch.float64 else 1e-3, equal_nan=True
        )
    assert not bool(mine[0][(x < INF).all(-1)].isnan().any())


def test_most_of_many_ties_at_a_large_score() -> None:
    """Rounding of 1e30 leaves no threshold near it, and a half to the power of 1,200 is not a number of float64."""
    with serving(True):
        total, mean = sums(Subset(1200, 3), torch.full((1, 1200), 1e30, dtype=torch.float64, device=DEVICE))
    torch.testing.assert_close(total.item(), 3e30)
    torch.testing.assert_close(mean, torch.full_like(mean, 3 / 1200))


def test_empty_batches_and_views() -> None:
    structure, scores = Subset(6, 2), normal(6, 3).T
    with serving(True):
        total, mean = sums(structure, scores)
        assert [tuple(x.shape) for x in sums(structure, scores[:0])] == [(0,), (0, 6)]
    torch.testing.assert_close((total, mean), sums(structure, scores.contiguous()))


@pytest.mark.parametrize("structure", [Subset(5, 2), Subset(5, 4), Budget(5, 2)], ids=repr)
def test_derivatives_by_finite_differences(structure: Counted) -> None:
    leaf = normal(2, 5).requires_grad_()
    with serving(True):
        assert torch.autograd.gradcheck(structure.log_partition, leaf)
        assert torch.autograd.gradgradcheck(structure.log_partition, leaf)
        assert torch.autograd.gradcheck(lambda scores: sp.Gibbs(scores, structure).entropy(), leaf)


def test_derivatives_by_every_way() -> None:
    total, jacobian, hessian = (
        Subset(5, 2).log_partition,
        torch.autograd.functional.jacobian,
        torch.autograd.functional.hessian,
    )
    scores = normal(2, 5)
    wanted = jacobian(total, scores)

    def gradient(x: Tensor) -> Tensor:
        return torch.autograd.grad(total(x).square().sum(), x, create_graph=True)[0]

    with serving(True):
        torch.testing.assert_close(jacobian(total, scores), wanted)
        torch.testing.assert_close(jacobian(total, scores, vectorize=True), wanted)
        torch.testing.assert_close(torch.func.jacrev(total)(scores), wanted)
        second, third = jacobian(gradient, scores), hessian(lambda x: gradient(x).square().sum(), scores)
    torch.testing.assert_close(second, jacobian(gradient, scores))
    torch.testing.assert_close(third, hessian(lambda x: gradient(x).square().sum(), scores))
