"""A warning when all scores of a model have lost their gradient."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from sparsum.arguments import check_int
from sparsum.distribution import SparseDistribution
from sparsum.tensors import is_capturing


class SaturationMonitor(torch.nn.Module):
    """A layer that passes distributions through, and warns once if all their rows are saturated for many steps in a row.

    A saturated row has a single atom, so that no function of the distribution has a gradient in its scores. If this is so
    for every row of every batch, the network that computes the scores has stopped learning, without any other sign.

    >>> import sparsum as sp
    >>> monitor = SaturationMonitor(patience=10)
    >>> q = monitor(sp.sparsemap(torch.randn(4, 8), sp.Bits(8)))

    The steps are counted on the device. The count is read once in ``patience`` steps, which on a GPU waits for it, so the
    warning comes between ``patience`` and twice as many steps after the last sign of life. It is not read inside
    `torch.compile` and while a CUDA graph is captured: call `check` there, once in a while. Batches in evaluation mode and
    empty ones are not counted.

    Args:
        patience: the number of steps in a row.

    Raises:
        TypeError: if ``patience`` is not an int.
        ValueError: if it is less than 1.
    """

    n_saturated: Tensor

    def __init__(self, patience: int = 100) -> None:
        super().__init__()
        self.patience = check_int("patience", patience, least=1)
        self.register_buffer("n_saturated", torch.zeros((), dtype=torch.int64), persistent=False)
        self._n_unread, self._has_warned = 0, False

    def forward(self, q: SparseDistribution) -> SparseDistribution:
        """Count a batch, and return it unchanged."""
        if not isinstance(q, SparseDistribution):
            raise TypeError(f"q must be a SparseDistribution, got {type(q).__name__}")
        if self.training and q.batch_shape.numel():
            is_saturated = (q.n_atoms_per_row == 1).all()
            self.n_saturated.add_(1).mul_(is_saturated)
            if not _is_recorded():
                self._n_unread += 1
                if self._n_unread >= self.patience:
                    self.check()
        return q

    def check(self) -> int:
        """Read how many steps in a row were saturated up to now, and warn if these are ``patience`` or more."""
        self._n_unread = 0
        count = int(self.n_saturated)
        if count >= self.patience and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"in the last {count} steps every row had a single atom: their scores get no gradient, and what computes "
                "them does not learn. Put sparsum.nn.ScoreNorm between the network and sparsemap, or restart with a smaller "
                "learning rate; see docs/collapse.md",
                UserWarning,
                stacklevel=2,
            )
        return count

    def extra_repr(self) -> str:
        """Format the arguments for printing."""
        return f"patience={self.patience}"


def _is_recorded() -> bool:
    """Whether operations are traced or captured, so that no number can be read."""
    # Asked first, because torch 2.11 cannot trace the other question.
    return torch.compiler.is_compiling() or is_capturing()
