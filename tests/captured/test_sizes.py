"""The sizes to which supports are padded."""

from __future__ import annotations

import pytest

from sparsum.captured.graphs import padded_size


@pytest.mark.parametrize("most", [1, 63, 64, 100, 16384])
def test_padded_sizes_are_few_and_not_much_larger(most: int) -> None:
    sizes = [padded_size(n, most) for n in range(1, most + 1)]
    assert all(n <= size <= min(max(64, 1.25 * n), most) or size == min(64, most) for n, size in enumerate(sizes, 1))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) <= 4 * 8 + 2
