"""Kernels over the rows of packed batches, against sums of the rows one by one."""

from __future__ import annotations

import pytest
import torch

_segments = pytest.importorskip("sparsum.kernels.segments")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTHS = [[3, 0, 1, 5], [1], [0, 0], [200, 3, 0, 70], [1] * 300]


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: f"{len(lengths)} rows")
@pytest.mark.parametrize("rest", [(), (3,), (2, 5), (130,)])
def test_padding_counts_in_no_sum(lengths: list[int], rest: tuple[int, ...]) -> None:
    n = sum(lengths)
    values = torch.randn(n + 4, *rest, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    found = _segments.segment_sum(values, torch.tensor(lengths, device=DEVICE))
    wanted = [part.double().sum(0) for part in values[:n].split(lengths)]
    torch.testing.assert_close(found, torch.stack(wanted).float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    values = torch.randn(40, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
    found = _segments.segment_sum(values, torch.tensor([25, 15], device=DEVICE))
    wanted = torch.stack([values[:25].double().sum(), values[25:].double().sum()])
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted.to(dtype))


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: f"{len(lengths)} rows")
def test_tally(lengths: list[int]) -> None:
    assert _segments.tally(torch.tensor(lengths, device=DEVICE)).tolist() == [sum(lengths), lengths.count(0)]
