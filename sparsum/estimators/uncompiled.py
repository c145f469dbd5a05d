"""Exclude a method from `torch.compile` without importing the compiler."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch


def leave_uncompiled(owner: type, name: str) -> None:
    """Run a method uncompiled where a compiled function calls it, like `torch.compiler.disable`.

    That decorator imports the compiler, which takes as long as importing torch. Compilation requires this import, so the
    method is decorated only at its first call after the compiler was imported.
    """
    method = getattr(owner, name)

    def decorate() -> None:
        setattr(owner, name, torch.compiler.disable(method))

    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return method(*args, **kwargs)
        decorate()
        return getattr(owner, name)(*args, **kwargs)

    # The compiler checks these attributes: it breaks the graph here, and its error with `fullgraph=True` names the method.
    vars(run).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=f"{owner.__name__} is not compiled")
    setattr(owner, name, run)
