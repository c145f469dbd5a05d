"""Edge cases of the scalar map's kernel that `tests.kernels.test_registry` does not cover."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

_scalar_map = pytest.importorskip("sparsum_experiments.kernels.scalar_map")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def plain(x: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
    return ((x.unsqueeze(-1) * inner).sigmoid() @ outer).sigmoid()


@pytest.mark.filterwarnings("ignore:overflow encountered")  # raised by the interpreter
def test_saturated_units_stay_finite() -> None:
    """Their exponentials overflow to infinity, and the reciprocals are 0."""
    x = torch.tensor([-1e4, -200.0, 0.0, 200.0, 1e4], device=DEVICE)
    inner, outer = torch.tensor([1.0, -3.0], device=DEVICE), torch.tensor([50.0, 300.0], device=DEVICE)
    h = _scalar_map.forward(x, inner, outer)
    torch.testing.assert_close(h, plain(x, inner, outer))
    for gradient in _scalar_map.backward(x, inner, outer, h, torch.ones_like(x)):
        assert gradient.isfinite().all()
