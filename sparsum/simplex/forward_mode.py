"""Forward mode through autograd functions, nested to any depth."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.autograd import forward_ad


def nestable(jvp: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorate the ``jvp`` of an autograd function, so that forward mode can differentiate it again.

    torch calls a ``jvp`` with forward mode disabled for all levels of `torch.func.jvp`, so that the tangents of the outer
    levels would be dropped without an error. Here it is enabled, and the saved tensors lose their tangents of the innermost
    level, which ``jvp`` receives as arguments.
    """

    @functools.wraps(jvp)
    def enabled(ctx: Any, *tangents: Any) -> Tensor:
        with forward_ad._set_fwd_grad_enabled(True):
            primals = tuple(forward_ad.unpack_dual(tensor).primal for tensor in ctx.saved_tensors)
            return jvp(SimpleNamespace(saved_tensors=primals, alpha=ctx.alpha), *tangents)

    return enabled
