"""Masks and temperatures, wherever scores go in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import sparsum as sp
from sparsum import estimators as se

SCORES = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([True, True, False, True])


def loss(z: Tensor, row: Tensor) -> Tensor:
    return (z.double() * torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)).sum(-1) + row


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


CALLS: dict[str, Callable[..., Any]] = {
    "sparsemap": lambda t, **o: sp.sparsemap(t, sp.Bits(4), **o).mean,
    "active set": lambda t, **o: sp.sparsemap(t, sp.Bits(4), solver=sp.solvers.ActiveSet(), **o).mean,
    "topk_sparsemax": lambda t, **o: sp.topk_sparsemax(t, sp.Bits(4), 5, **o).mean,
    "Gibbs": lambda t, **o: sp.Gibbs(t, sp.Bits(4), **o).mean,
    "TopK": lambda t, **o: se.TopK(5)(t, sp.Bits(4), loss, **o).value,
    "LeaveOneOut": lambda t, **o: se.LeaveOneOut(2)(t, sp.Bits(4), loss, generator=seeded(), **o).value,
    "topk_bound": lambda t, **o: se.topk_bound(t, sp.Bits(4), loss, 5, **o).value,
    "distinct_bound": lambda t, **o: se.distinct_bound(t, sp.Bits(4), loss, 5, generator=seeded(), **o).value,
    "vimco": lambda t, **o: se.vimco(t, sp.Bits(4), loss, 5, generator=seeded(), **o).value,
    "wake_wake": lambda t, **o: se.wake_wake(t, sp.Bits(4), loss, 5, generator=seeded(), **o).value,
    "diagnose": lambda t, **o: torch.tensor(sp.diagnose(t, sp.Bits(4), loss, [se.TopK(3)], draws=2, **o)["TopK"].calls),
    "sparsemax": sp.sparsemax,
    "entmax15": sp.entmax15,
}
every_call = pytest.mark.parametrize("name", CALLS)


@every_call
def test_a_mask_is_as_scores_of_minus_infinity(name: str) -> None:
    wanted = CALLS[name](SCORES.masked_fill(~MASK, -torch.inf))
    torch.testing.assert_close(CALLS[name](SCORES, mask=MASK), wanted)
    torch.testing.assert_close(CALLS[name](SCORES, mask=MASK.expand(2, 3, 4)), wanted)


@every_call
def test_a_temperature_divides_the_scores(name: str) -> None:
    torch.testing.assert_close(CALLS[name](SCORES, temperature=0.5), CALLS[name](SCORES / 0.5))
    each = torch.tensor([[0.5, 1.0, 2.0], [3.0, 0.2, 1.5]], dtype=torch.float64)
    torch.testing.assert_close(CALLS[name](SCORES, temperature=each), CALLS[name](SCORES / each.unsqueeze(-1)))


def test_a_temperature_has_a_gradient() -> None:
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: sp.sparsemap(SCORES, sp.Bits(4), temperature=t).entropy(), temperature)


@pytest.mark.parametrize("structure", [sp.OneOf(4), sp.Bits(4)], ids=repr)
def test_a_temperature_has_a_gradient_beside_forbidden_parts(structure: sp.AbstractStructure) -> None:
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: sp.Gibbs(SCORES, structure, mask=MASK, temperature=t).entropy(), temperature)
    lengths = sp.Sequence(3, 4, lengths=[3, 1])
    assert torch.autograd.gradcheck(lambda t: sp.Gibbs(SCORES, lengths, temperature=t).entropy(), temperature)


def test_half_precision_is_divided_in_single() -> None:
    scores = torch.tensor([[300.0, 299.0]]).half()
    assert sp.sparsemap(scores, sp.OneOf(2), temperature=4e-3).probs.tolist() == [1.0]
    assert sp.Gibbs(scores, sp.Bits(2), temperature=4e-3).mean.tolist() == [[1.0, 1.0]]


def test_masks_of_pairs_and_of_padding() -> None:
    unary, transition = torch.randn(3, 4, 2), torch.randn(3, 2, 2)
    structure, allowed = sp.Sequence(4, 2), torch.tensor([[True, False], [True, True]])
    p = sp.Gibbs((unary, transition), structure, mask=(None, allowed))
    assert (p.mean[1][..., 0, 1] == 0).all()
    torch.testing.assert_close(
        p.mean[0], sp.Gibbs((unary, transition), structure, mask=(torch.ones(2) > 0, allowed)).mean[0]
    )
    # False for padding, as masks of a batch often are.
    lengths = torch.tensor([4, 1, 2])
    padded = torch.arange(4)[:, None] < lengths[:, None, None]
    q = sp.sparsemap(unary, sp.Sequence(4, 2, lengths=lengths), mask=padded)
    torch.testing.assert_close(q.mean, sp.sparsemap(unary, sp.Sequence(4, 2, lengths=lengths)).mean)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mask": torch.ones(4)}, TypeError, "mask must be a tensor of dtype torch.bool, .* got torch.float32"),
        ({"mask": torch.ones(5) > 0}, ValueError, r"mask must broadcast to the shape of scores, \(2, 3, 4\), got \(5,\)"),
        ({"mask": (MASK, MASK)}, ValueError, "at most as many tensors as scores, 1, got 2"),
        ({"mask": torch.ones(5, 2, 3, 4) > 0}, ValueError, r"mask must broadcast to the shape of scores, \(2, 3, 4\)"),
        ({"temperature": 0.0}, ValueError, "temperature must be a positive finite number, got 0.0"),
        ({"temperature": torch.tensor(-1.0)}, ValueError, "temperature must be positive and finite everywhere"),
        ({"temperature": torch.tensor(1)}, TypeError, "temperature must have a floating-point dtype, got torch.int64"),
        ({"temperature": "1"}, TypeError, "temperature must be a number or a tensor, got str"),
        ({"temperature": torch.ones(4)}, ValueError, r"temperature must broadcast to the batch shape, \(2, 3\), got \(4,\)"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sp.sparsemap(SCORES, sp.Bits(4), **options)


def test_bad_rows_have_a_public_error() -> None:
    with pytest.raises(sp.NoDistribution, match="row 1 forbids every assignment"):
        sp.sparsemap(SCORES[0], sp.OneOf(4), mask=torch.tensor([[True], [False], [True]]))
