"""The uniform distribution over all assignments of a structure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from sparsum.arguments import check_generator, check_sample_shape
from sparsum.distribution.packing import broadcast_value
from sparsum.structures import AbstractStructure
from sparsum.structures.uniform import sample_uniform


class UniformOver(Distribution):
    r"""Uniform distribution over the assignments of a structure: the usual prior of a discrete latent variable.

    Log-probabilities and divergences only need the number of assignments, however large:
    :math:`\mathrm{KL}(q \Vert u) = \log |Z| - H(q)`.

    >>> import sparsum as sp
    >>> q = sp.sparsemap(torch.tensor([[1.0, 1.0, -5.0, -5.0]]), sp.OneOf(4))
    >>> torch.distributions.kl_divergence(q, UniformOver(sp.OneOf(4)))  # log 4 - log 2
    tensor([0.6931])
    >>> UniformOver(sp.Tree(5)).expand((3,)).sample((2,)).shape
    torch.Size([2, 3, 5])

    Args:
        structure: the set of assignments; must define `log_count`.

    Raises:
        TypeError: if ``structure`` is not a structure.
        ValueError: if the structure has lengths, so that examples do not share one set of assignments.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, structure: AbstractStructure) -> None:
        if not isinstance(structure, AbstractStructure):
            raise TypeError(f"structure must be an AbstractStructure, got {type(structure).__name__}")
        if getattr(structure, "lengths", None) is not None:
            raise ValueError(f"UniformOver does not support examples of different lengths, got {structure!r} with lengths")
        self.structure = structure
        self._event: torch.Size | None = None
        super().__init__(validate_args=False)

    @property
    def event_shape(self) -> torch.Size:
        """The shape of an atom; requires the structure to define ``score_shape``."""
        if self._event is None:
            scores = torch.zeros(1, *self.structure.score_shape, device="cpu")
            self._event = self.structure.argmax(scores).shape[1:]
        return self._event

    def entropy(self) -> Tensor:
        """Log of the number of assignments, on torch's default device: (*batch_shape,)."""
        return torch.full(self.batch_shape, self.log_count(), device=torch.get_default_device())

    def log_prob(
        self,
        value: Tensor,  # shape: (*sample_shape, *batch_shape, *event_shape)
    ) -> Tensor:
        """Log-probability: minus the entropy for assignments, -inf for other values: (*sample_shape, *batch_shape)."""
        value = broadcast_value(value, self.batch_shape, self.event_shape)
        shape = value.shape[: value.ndim - len(self.event_shape)]
        dtype = value.dtype if value.is_floating_point() else torch.get_default_dtype()
        is_member = self.structure.contains(value.reshape(-1, *self.event_shape)).reshape(shape)
        return torch.where(is_member, -self.log_count(), -torch.inf).to(dtype)

    def sample(self, sample_shape: int | Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw independent samples: (*sample_shape, *batch_shape, *event_shape).

        Samples are on the device of the generator, or on torch's default device if it is None; bits have the default dtype.

        Raises:
            TypeError: if no sampler is registered for the structure; see ``sparsum.structures.uniform.sample_uniform``.
        """
        check_generator(generator)
        shape = check_sample_shape(sample_shape) + self.batch_shape
        device = torch.get_default_device() if generator is None else generator.device
        dtype = torch.get_default_dtype()
        atoms = sample_uniform(self.structure, math.prod(shape), generator=generator, device=device, dtype=dtype)
        return atoms.reshape(shape + atoms.shape[1:])

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> UniformOver:
        """Expand the batch, as `torch.Tensor.expand` does."""
        expanded = UniformOver(self.structure)
        expanded._event = self._event
        expanded._batch_shape = torch.empty(self.batch_shape, device="meta").expand(torch.Size(batch_shape)).shape
        return expanded

    def log_count(self) -> float:
        """Log of the number of assignments, in double precision."""
        log_count = self.structure.log_count()
        if math.isinf(log_count):
            raise TypeError(f"{self.structure!r} must define log_count(), the log of the number of its assignments")
        return log_count

    def __repr__(self) -> str:
        batch = f", batch_shape={tuple(self.batch_shape)}" if self.batch_shape else ""
        return f"UniformOver({self.structure!r}{batch})"
