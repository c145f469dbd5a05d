"""The distribution in which every assignment has mass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from sparsum.distribution.generator import check_generator
from sparsum.distribution.packing import broadcast_value, validates
from sparsum.gibbs.chain import FORBIDDEN
from sparsum.gibbs.choices import CHAINS, keeps_to
from sparsum.gibbs.model import AbstractModel, ChainModel
from sparsum.gibbs.tree import TreeModel
from sparsum.structures import AbstractStructure, OneOf, Tree
from sparsum.structures.bad_rows import is_unusable, raise_bad_rows
from sparsum.structures.parts import Scores, flatten_parts, select_rows, tensors_of

#: The structures that a Gibbs distribution can be over.
GIBBS_STRUCTURES: tuple[type[AbstractStructure], ...] = (*CHAINS, Tree)


class Gibbs(Distribution):
    r"""The dense distribution over the assignments of a structure: what samplers draw from.

    .. math:: p(z) = \exp(a_z^\top t - \log Z), \quad Z = \sum_{z} \exp(a_z^\top t)

    Over `OneOf` it is the softmax, over `Bits` independent bits with the scores as logits, over `Groups` independent
    categories, over `Sequence` a linear-chain conditional random field, summed by dynamic programming, and over `Tree` a
    distribution over spanning trees, summed by elimination. Exact everywhere, and differentiable in the scores.

    >>> import sparsum as sp
    >>> p = Gibbs(torch.tensor([[1.0, 1.0, 0.0]]), sp.OneOf(3))
    >>> p.mean, p.entropy()
    (tensor([[0.4223, 0.4223, 0.1554]]), tensor([1.0174]))
    >>> p = Gibbs((torch.zeros(3, 2), torch.eye(2)), sp.Sequence(3, 2))  # three tags, neighbours like to agree
    >>> p.log_prob(torch.tensor([[0, 0, 0], [0, 1, 0]])).exp()
    tensor([0.2672, 0.0362])

    Args:
        scores: one score per part of the structure; -inf forbids.
        structure: one of `OneOf`, `Bits`, `Groups`, `Sequence`, `Enumerated` and `Tree`.
        validate_args: whether to check the values, at the price of one wait for the device; by default True. Without it, a
            row with a NaN gives NaN, and no other row does.

    Raises:
        TypeError: if the scores are not floating-point, or nobody knows how to sum over the structure.
        ValueError: if the shape of the scores does not fit, or rows hold a NaN or +inf or allow nothing; rows are named.

    References:
        - Conditional random fields (Lafferty, McCallum & Pereira, 2001), on chains
        - Structured prediction models via the matrix-tree theorem (Koo, Globerson, Carreras & Collins, 2007), on trees,
          https://aclanthology.org/D07-1015
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(
        self,
        scores: Scores,  # shape: (*batch, *score_shape)
        structure: AbstractStructure,
        *,
        validate_args: bool | None = None,
    ) -> None:
        check_gibbs(structure)  # before it is asked for its rows
        self._assign(*structure.rows(scores), validate_args)

    def _assign(
        self, structure: AbstractStructure, rows: Scores, batch_shape: torch.Size, validate_args: bool | None
    ) -> None:
        check_gibbs(structure)
        self.structure, self._rows = structure, rows
        self._model: AbstractModel = (
            TreeModel(structure, rows) if isinstance(structure, Tree) else ChainModel(structure, rows)
        )
        self._dtype = tensors_of(rows)[0].dtype
        if validates(validate_args):
            _check_rows(rows, self._model.log_partition.detach())
        none = torch.zeros(0, dtype=torch.int64, device=self._model.log_partition.device)
        event_shape = structure.select(none).argmax(select_rows(rows, none)).shape[1:]
        super().__init__(batch_shape, event_shape, validate_args=False)
        self._validate_args = validates(validate_args)

    @classmethod
    def _from_rows(
        cls, structure: AbstractStructure, rows: Scores, batch_shape: torch.Size, *, validate_args: bool | None = None
    ) -> Gibbs:
        """A distribution from what `AbstractStructure.rows` returns."""
        instance = cls.__new__(cls)
        instance._assign(structure, rows, batch_shape, validate_args)
        return instance

    @constraints.dependent_property
    def support(self) -> constraints.Constraint:
        """Torch's constraint on single values."""
        if isinstance(self.structure, OneOf):
            return constraints.integer_interval(0, self.structure.n - 1)
        return constraints.independent(constraints.real, len(self.event_shape))

    @property
    def log_partition(self) -> Tensor:
        r"""The logarithm of the normalising sum Z: (*batch_shape,)."""
        return self._shaped(self._model.log_partition)

    def log_prob(
        self,
        value: Tensor,  # shape: (*sample_shape, *batch_shape, *event_shape)
    ) -> Tensor:
        """Logarithm of the probability, -inf for what is forbidden: (*sample_shape, *batch_shape)."""
        value = broadcast_value(value, self.batch_shape, self.event_shape)
        sample_shape = value.shape[: value.ndim - len(self.batch_shape) - len(self.event_shape)]
        n_samples, n_rows = math.prod(sample_shape), math.prod(self.batch_shape)
        atoms = value.reshape(n_samples * n_rows, *self.event_shape)
        row = torch.arange(n_rows, device=value.device).repeat(n_samples)
        self._check_members(atoms, row)
        return self.log_prob_of(atoms, row).reshape(sample_shape + self.batch_shape)

    def log_prob_of(
        self,
        atoms: Tensor,  # shape: (n, *event_shape)
        row: Tensor,  # shape: (n,)
    ) -> Tensor:
        """Log-probability of packed assignments, each under its own row, in any order: (n,)."""
        return self._model.log_prob(atoms, row).to(self._dtype)

    def entropy(self) -> Tensor:
        """Shannon entropy in nats: (*batch_shape,)."""
        return self._shaped(self._model.entropy())

    @property
    def mean(self) -> Scores:
        """The mean vector of each row, the marginals, in the form and shape of the scores."""
        mean = self._model.mean()
        return tuple(map(self._shaped, mean)) if isinstance(mean, tuple) else self._shaped(mean)

    @property
    def mode(self) -> Tensor:
        """The most probable assignment: (*batch_shape, *event_shape)."""
        return self.structure.argmax(self._rows).reshape(self.batch_shape + self.event_shape)

    def sample(self, sample_shape: int | Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws: (*sample_shape, *batch_shape, *event_shape)."""
        check_generator(generator)
        shape = torch.Size([sample_shape] if isinstance(sample_shape, int) else sample_shape)
        with torch.no_grad():
            atoms = self._model.sample(math.prod(shape), generator)
        return atoms.reshape(shape + self.batch_shape + self.event_shape)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Gibbs:
        """The same distributions in a larger batch, as `torch.Tensor.expand` does it."""
        shape, device = torch.Size(batch_shape), tensors_of(self._rows)[0].device
        source = torch.arange(math.prod(self.batch_shape), device=device)
        source = source.reshape(self.batch_shape).expand(shape).reshape(-1)
        # What was checked, or was not to be, stays so.
        expanded = Gibbs._from_rows(
            self.structure.select(source), select_rows(self._rows, source), shape, validate_args=False
        )
        expanded._validate_args = self._validate_args
        return expanded

    def _check_members(self, atoms: Tensor, row: Tensor) -> None:
        if self._validate_args and not bool(self._model.is_member(atoms, row)):
            raise ValueError(f"value must hold assignments of {self.structure!r}, got others")

    def _shaped(self, values: Tensor) -> Tensor:
        return values.reshape(self.batch_shape + values.shape[1:]).to(self._dtype)

    def __repr__(self) -> str:
        shapes = f"batch_shape={tuple(self.batch_shape)}, event_shape={tuple(self.event_shape)}"
        return f"Gibbs({self.structure!r}, {shapes}, dtype={self._dtype})"


def check_gibbs(structure: AbstractStructure) -> None:
    """Raise a TypeError unless a Gibbs distribution over a structure is known."""
    if not keeps_to(structure, GIBBS_STRUCTURES):
        known = ", ".join(kind.__name__ for kind in GIBBS_STRUCTURES)
        seen = repr(structure) if isinstance(structure, AbstractStructure) else type(structure).__name__
        raise TypeError(
            f"a Gibbs distribution must be over one of {known}, got {seen}; a derived class must not change its assignments"
        )


def _check_rows(
    rows: Scores,  # shape: (n_rows, *score_shape)
    log_partition: Tensor,  # shape: (n_rows,)
) -> None:
    """Raise a ValueError that names rows without a distribution."""
    flat = flatten_parts(rows).detach()
    is_bad = is_unusable(flat) | ~(log_partition > FORBIDDEN / 2)
    if bool(is_bad.any()):
        raise_bad_rows(is_bad, flat)
