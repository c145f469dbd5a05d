"""Training leaks nothing: after a cycle of supports from one atom to all and back, as much is alive as before."""

from __future__ import annotations

import pytest

from benchmarks.memory import CYCLE, SLOW, N, Training, usages
from tests.simplex.test_devices import every_device


@every_device
@pytest.mark.parametrize("is_captured", [False, True], ids=["eager", "captured"])
def test_a_cycle_leaves_no_tensors(device: str, is_captured: bool) -> None:
    training = Training(device, is_captured=is_captured)
    before, after = training.run(CYCLE), training.run(CYCLE)
    for usage in (before, after):
        assert usage.fewest == 1
        assert usage.most >= N
    assert after.n_tensors <= before.n_tensors  # fewer: what earlier tests left was collected
    assert after.allocated <= before.allocated


@pytest.mark.slow
@every_device
@pytest.mark.parametrize("is_captured", [False, True], ids=["eager", "captured"])
def test_memory_stays_where_it_is(device: str, is_captured: bool) -> None:
    """After a warm-up with all kinds of steps, 20,000 steps add less than 8 MiB to the memory of the process."""
    first, *rest = usages(Training(device, is_captured=is_captured), 10 * CYCLE * len(SLOW))
    assert len(rest) == 10
    for usage in rest:
        assert usage.n_tensors <= first.n_tensors
        assert usage.allocated <= first.allocated
        assert usage.resident - first.resident < 8 * 2**20
