"""The uniform distribution over all assignments of a structure."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from sparsum.structures import AbstractStructure


class UniformOver(Distribution):
    r"""Every assignment of a structure with the same probability: the usual prior of a discrete latent variable.

    It needs nothing but the number of assignments, however many: :math:`\mathrm{KL}(q \Vert u) = \log |Z| - H(q)`.

    >>> import sparsum as sp
    >>> q = sp.sparsemap(torch.tensor([[1.0, 1.0, -5.0, -5.0]]), sp.OneOf(4))
    >>> torch.distributions.kl_divergence(q, UniformOver(sp.OneOf(4)))  # log 4 - log 2
    tensor([0.6931])

    Args:
        structure: the set of assignments, with a `log_count`.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, structure: AbstractStructure) -> None:
        if not isinstance(structure, AbstractStructure):
            raise TypeError(f"structure must be an AbstractStructure, got {type(structure).__name__}")
        self.structure = structure
        super().__init__(validate_args=False)

    def entropy(self) -> Tensor:
        """Logarithm of the number of assignments."""
        return torch.tensor(self.log_count())

    def log_prob(self, value: Tensor) -> Tensor:
        """Minus the entropy for each of the atoms ``value``, which must be members: (n, *event_shape) -> (n,)."""
        return torch.full(value.shape[:1], -self.log_count(), device=value.device)

    def log_count(self) -> float:
        """The logarithm of the number of assignments, in full precision."""
        log_count = self.structure.log_count()
        if math.isinf(log_count):
            raise TypeError(f"{self.structure!r} does not say how many assignments it has: define its log_count()")
        return log_count

    def __repr__(self) -> str:
        return f"UniformOver({self.structure!r})"
