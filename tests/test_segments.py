"""Reductions over packed rows against loops over the rows, and their derivatives."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from sparsum.segments import Segments


def packed(lengths: list[int], *rest: int) -> tuple[Segments, Tensor]:
    n = sum(lengths)
    values = torch.randn(n, *rest, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    return Segments.from_lengths(torch.tensor(lengths, dtype=torch.int64), n), values


@given(st.lists(st.integers(0, 5), max_size=8))
def test_reductions_agree_with_a_loop(lengths: list[int]) -> None:
    segments, values = packed(lengths)
    parts = values.split(lengths)
    empty = torch.empty(0, dtype=torch.float64)
    assert torch.equal(Segments.from_row(segments.row, len(lengths)).lengths, segments.lengths)
    torch.testing.assert_close(segments.sum(values), torch.stack([*map(torch.sum, parts)]) if parts else empty)
    for row, part in enumerate(parts):
        assert segments.max(values)[row] == (part.max() if len(part) else -torch.inf)
        torch.testing.assert_close(segments.logsumexp(values)[row], part.logsumexp(0))
        if len(part):
            assert segments.argmax(values)[row] == segments.starts[row] + part.argmax()
    assert torch.equal(segments.spread(segments.lengths), segments.lengths[segments.row])
    both = segments.logsumexp_and_softmax(values)
    assert all(map(torch.equal, both, (segments.logsumexp(values), segments.softmax(values))))


def test_the_first_of_equal_maxima_is_taken() -> None:
    segments = Segments.from_lengths(torch.tensor([3, 2]), 5)
    assert segments.argmax(torch.tensor([1.0, 2.0, 2.0, 5.0, 5.0])).tolist() == [1, 3]


def test_logsumexp_of_forbidden_rows() -> None:
    segments = Segments.from_lengths(torch.tensor([2, 1]), 3)
    values = torch.tensor([-torch.inf, -torch.inf, 1.0], requires_grad=True)
    found = segments.logsumexp(values)
    assert found.tolist() == [-torch.inf, 1.0]
    assert torch.autograd.grad(found.sum(), values)[0].tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("rest", [(), (2,), (2, 3)])
def test_wide_values_and_derivatives(rest: tuple[int, ...]) -> None:
    segments, values = packed([2, 0, 3, 1], *rest)
    expected = torch.stack([part.sum(0) for part in values.split([2, 0, 3, 1])])
    torch.testing.assert_close(segments.sum(values), expected)
    values.requires_grad_()
    assert gradcheck(segments.sum, (values,), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(lambda v: segments.sum(v.square()).square(), (values,))
    per_row = expected.detach().requires_grad_()
    assert gradcheck(segments.spread, (per_row,), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(lambda v: segments.spread(v.square()).square(), (per_row,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_single(dtype: torch.dtype) -> None:
    segments = Segments.from_lengths(torch.tensor([4096]), 4096)
    assert segments.sum(torch.ones(4096, dtype=dtype)).item() == 4096  # one by one, it would stick at 256 or 2048
