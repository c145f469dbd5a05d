"""A method that `torch.compile` leaves as it is, without importing the compiler before there is something to compile."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch


def leave_uncompiled(owner: type, name: str) -> None:
    """Let a method run as it is where a compiled function calls it, as if `torch.compiler.disable` decorated it.

    That decorator imports the compiler, which takes as long as importing torch itself. Nothing can be compiled before
    somebody imports it, so the method is decorated at its first call after that.
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

    # What the compiler looks for, so that it stops before this call, and its error with `fullgraph=True` names the method.
    vars(run).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=f"{owner.__name__} runs as it is")
    setattr(owner, name, run)
