"""What a loss may be, what it may do, and what is said when it forgot to index by row."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum.distribution.loss import call_for_numbers, call_loss, takes_row

Q = sp.SparseDistribution.from_dense(torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5]]))  # 3 rows, 6 atoms
X = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
chunked = pytest.mark.parametrize("chunk_size", [None, 4])


class OfAssignments(torch.nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z.double()


class OfBoth(torch.nn.Module):
    def forward(self, z: Tensor, row: Tensor) -> Tensor:
        return z.double() + row


class Callables:
    def __call__(self, z: Tensor) -> Tensor:
        return z.double()

    def method(self, z: Tensor) -> Tensor:
        return z.double()


def with_default(z: Tensor, row: Tensor | None = None) -> Tensor:
    assert row is not None
    return z.double() + row


def of_any(*arguments: Tensor) -> Tensor:
    z, row = arguments
    return z.double() + row


def with_keyword(z: Tensor, *, scale: float = 1.0) -> Tensor:
    return scale * z.double()


def scaled(scale: float, z: Tensor) -> Tensor:
    return scale * z.double()


ALONE: dict[str, Callable[..., Any]] = {
    "lambda": lambda z: z.double(),
    "module": OfAssignments(),
    "sequential": torch.nn.Sequential(OfAssignments()),
    "object": Callables(),
    "method": Callables().method,
    "partial": functools.partial(scaled, 1.0),
    "keyword": with_keyword,
    "compiled function": torch.compile(with_keyword, backend="eager"),
    "compiled module": torch.compile(OfAssignments(), backend="eager"),
}
BOTH: dict[str, Callable[..., Any]] = {
    "lambda": lambda z, row: z.double() + row,
    "module": OfBoth(),
    "default": with_default,
    "any": of_any,
    "compiled module": torch.compile(OfBoth(), backend="eager"),
}


@chunked
@pytest.mark.parametrize("loss", ALONE.values(), ids=ALONE)
def test_a_loss_of_assignments_alone(loss: Callable[..., Any], chunk_size: int | None) -> None:
    assert not takes_row(loss)
    wanted = (Q.to_dense().double() * torch.arange(3)).sum(-1)
    torch.testing.assert_close(Q.expect(loss, chunk_size=chunk_size), wanted)


@chunked
@pytest.mark.parametrize("loss", BOTH.values(), ids=BOTH)
def test_a_loss_of_both(loss: Callable[..., Any], chunk_size: int | None) -> None:
    assert takes_row(loss)
    wanted = (Q.to_dense().double() * torch.arange(3)).sum(-1) + torch.arange(3)
    torch.testing.assert_close(Q.expect(loss, chunk_size=chunk_size).double(), wanted)


def target_class(n: int) -> Tensor:
    return torch.zeros(n, dtype=torch.int64)


FORGOTTEN: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda z: z.unsqueeze(-1) + X,
    "cat": lambda z: torch.cat([z.unsqueeze(-1).float(), X], -1),
    "stack": lambda z: torch.stack([z.float(), X[:, 0]]),
    "mse": lambda z: torch.nn.functional.l1_loss(z.float(), X[:, 0], reduction="none"),
    "bce": lambda z: torch.nn.functional.binary_cross_entropy(z.float() / 2, X[:, 0] / 9, reduction="none"),
    "cross entropy": lambda z: torch.nn.functional.cross_entropy(torch.zeros(len(z), 2), target_class(3)),
    "in place": lambda z: torch.zeros(3).add_(z),
    "mask": lambda z: z[torch.ones(3) > 0],
    "bmm": lambda z: torch.bmm(torch.zeros(len(z), 2, 2), torch.zeros(3, 2, 2)),
    "einsum": lambda z: torch.einsum("i,ij->i", z.float(), X),
    "expand": lambda z: X[:, :1].expand(len(z), 7),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("loss", FORGOTTEN.values(), ids=FORGOTTEN)
def test_a_loss_that_forgot_to_index(loss: Callable[[Tensor], Any]) -> None:
    with pytest.raises(ValueError, match=r"size mismatch between 3 rows and 6 atoms.*x\[row\]") as caught:
        Q.expect(loss)
    assert isinstance(caught.value.__cause__, RuntimeError | ValueError | IndexError)
    assert str(caught.value.__cause__) in str(caught.value)


def test_in_chunks_it_is_the_chunk_that_meets_the_batch() -> None:
    with pytest.raises(ValueError, match=r"size mismatch between 3 rows and 4 atoms"):
        Q.expect(FORGOTTEN["sum"], chunk_size=4)


def test_a_loss_that_returns_one_entry_per_row() -> None:
    with pytest.raises(
        ValueError, match=r"a leading dimension of 6, got shape \(3, 2\), one entry for each of 3 rows; .*x\["
    ):
        Q.expect(lambda z: X)
    with pytest.raises(ValueError, match=r"got shape \(3, 6\), one entry for each of 3 rows"):
        Q.expect(lambda z: {"nested": [X[:, :1] + z]})


OTHERS: dict[str, Callable[[Tensor], Any]] = {
    "other sizes": lambda z: torch.zeros(6) + torch.zeros(4),
    "features": lambda z: torch.zeros(6, 3) @ torch.zeros(2, 3),
    "dimensions": lambda z: torch.zeros(1, 1, 1, 6) + torch.zeros(1, 1, 1, 5),
    "an own error": lambda z: int("3 and 6"),
    "a wrong dtype": lambda z: z.float() @ z.double(),
}


@pytest.mark.parametrize("loss", OTHERS.values(), ids=OTHERS)
def test_other_errors_are_left_alone(loss: Callable[[Tensor], Any]) -> None:
    with pytest.raises((RuntimeError, ValueError)) as caught:
        Q.expect(loss)
    assert "x[row]" not in str(caught.value)


def test_sizes_of_features_that_cannot_be_multiplied_are_left_alone() -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        Q.expect(lambda z: torch.zeros(6, 2) @ torch.zeros(3, 6))


def test_what_a_loss_within_a_loss_has_said_is_not_said_again() -> None:
    def outer(z: Tensor, row: Tensor) -> Any:
        return call_loss("loss", FORGOTTEN["sum"], z, row, 3)

    with pytest.raises(ValueError, match=r"^loss failed because of a size mismatch") as caught:
        Q.expect(outer)
    assert str(caught.value).count("x[row]") == 1


@chunked
def test_changes_in_place_reach_nobody(chunk_size: int | None) -> None:
    """Neither the distribution nor what backward computes again; in the first and in the second argument."""
    weight = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    q = sp.sparsemap(torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), sp.Bits(5))
    atoms, row = q.atoms.clone(), q.row.clone()

    def honest(z: Tensor, row: Tensor) -> Tensor:
        return (weight * (2 * z - 1)).sin().sum(-1) * (row + 1) * weight

    def careless(z: Tensor, row: Tensor) -> Tensor:
        signs, counts = z.mul_(2).sub_(1).clone(), row.add_(1).clone()
        z.numpy()[:] = 7  # which no version counter sees
        row.zero_()
        return (weight * signs).sin().sum(-1) * counts * weight

    def objective(loss: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        value = q.expect(loss, chunk_size=chunk_size)
        (gradient,) = torch.autograd.grad(value.sum(), weight, retain_graph=True)
        (again,) = torch.autograd.grad(value.sum(), weight)
        torch.testing.assert_close(again, gradient)
        return value, gradient

    wanted = objective(honest)
    for ours, theirs in zip(objective(careless), wanted, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert torch.equal(q.atoms, atoms)
    assert torch.equal(q.row, row)


def test_numbers() -> None:
    z, row = torch.tensor([[1.0], [2.0]]), torch.tensor([0, 0])
    assert call_for_numbers("log_joint", lambda z: z[:, 0].bfloat16(), z, row, 1).dtype == torch.float32
    assert call_for_numbers("log_joint", lambda z, row: z[:, 0].double() + row, z, row, 1).dtype == torch.float64
    for loss, error, message in (
        (lambda z: z, ValueError, r"log_joint must return one number per atom, shape \(2,\), got \(2, 1\)"),
        (lambda z: z[:1, 0], ValueError, "log_joint must return one entry per atom"),
        (lambda z: z[:, 0].long(), TypeError, r"log_joint must return a floating-point torch.Tensor, got torch.int64"),
        (lambda z: [z[:, 0]], TypeError, "got list"),
        (lambda z: 1.0, TypeError, "got float"),
        (None, TypeError, "log_joint must be a function"),
    ):
        with pytest.raises(error, match=message):
            call_for_numbers("log_joint", loss, z, row, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "loss",
    [
        lambda z, scale=1.0: z * scale,
        functools.partial(torch.nn.Linear(1, 1)),
        torch.nn.DataParallel(torch.nn.Linear(1, 1)),
        torch.exp,
        torch.Tensor.double,
        torch.nn.functional.softplus,
    ],
)
def test_optional_arguments_are_not_rows(loss: Any) -> None:
    assert not takes_row(loss)


def test_an_optional_row_is_a_row() -> None:
    assert takes_row(lambda z, row=None: z)
