"""Tensors of kinds that no mapping takes: errors name the argument, what was seen, and what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import sparsum as sp

X = torch.zeros(2, 3)


def unusual_tensors() -> dict[str, tuple[Tensor, str]]:
    """Tensors of shape (2, 3) of kinds that cannot be mapped, and what is said about them."""
    x = torch.eye(2, 3)
    with warnings.catch_warnings(action="ignore"):  # torch: "in beta state", "prototype", "deprecated"
        return {
            "float8": (x.to(torch.float8_e4m3fn), "must have at least 16 bits per number, got torch.float8_e4m3fn; call"),
            "float8, no sign": (x.to(torch.float8_e8m0fnu), "got torch.float8_e8m0fnu"),
            "complex": (x.to(torch.complex64), "must be real, got torch.complex64; pass e.g."),
            "coo": (x.to_sparse(), "must be a dense tensor, got layout torch.sparse_coo; call"),
            "csr": (x.to_sparse_csr(), "must be a dense tensor, got layout torch.sparse_csr; call"),
            "jagged": (
                torch.nested.nested_tensor([x[0], x[0, :1]], layout=torch.jagged),
                "must be a dense tensor, got a nested tensor (layout torch.jagged); pad it first",
            ),
            "nested": (
                torch.nested.nested_tensor([x[0], x[1]], layout=torch.strided),
                "got a nested tensor (layout torch.s",
            ),
            "quantized": (
                torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
                "must not be quantized, got torch.qint8; call",
            ),
        }


UNUSUAL = unusual_tensors()
TAKERS: dict[str, tuple[str, Callable[[Tensor], object]]] = {
    "sparsemax": ("x", sp.sparsemax),
    "sparsemax, k": ("x", lambda x: sp.sparsemax(x, k=2)),
    "sparsemax, temperature": ("x", lambda x: sp.sparsemax(x, temperature=2.0)),
    "entmax15": ("x", sp.entmax15),
    "entmax": ("x", lambda x: sp.entmax(x, 1.3)),
    "alpha": ("alpha", lambda x: sp.entmax(X, x)),
    "temperature": ("temperature", lambda x: sp.sparsemax(X, temperature=x)),
    "sparsemax_loss": ("x", lambda x: sp.sparsemax_loss(x, torch.tensor([0, 1]))),
    "entmax15_loss": ("x", lambda x: sp.entmax15_loss(x, torch.tensor([0, 1]))),
    "entmax_loss": ("x", lambda x: sp.entmax_loss(x, torch.tensor([0, 1]), 1.3)),
    "target": ("target", lambda x: sp.sparsemax_loss(X, x)),
    "sparsemap": ("scores", lambda x: sp.sparsemap(x, sp.OneOf(3))),
}


@pytest.mark.parametrize("kind", UNUSUAL)
@pytest.mark.parametrize("taker", TAKERS)
def test_tensors_that_cannot_be_mapped_are_named(kind: str, taker: str) -> None:
    (tensor, message), (name, call) = UNUSUAL[kind], TAKERS[taker]
    with pytest.raises(TypeError) as caught:
        call(tensor)
    assert str(caught.value).startswith(f"{name} must ")
    assert message in str(caught.value) or (name, kind) == ("target", "complex")


def test_a_sparse_mask_is_named() -> None:
    with pytest.raises(TypeError, match=r"mask must be a dense tensor, got layout torch.sparse_coo"):
        sp.sparsemax(X, mask=(torch.ones(2, 3) > 0).to_sparse())
