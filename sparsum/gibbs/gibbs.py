"""Gibbs distributions over structures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from sparsum.arguments import check_generator, check_sample_shape, kind_of
from sparsum.distribution.packing import broadcast_value, validates
from sparsum.gibbs.model import model_of
from sparsum.segments import is_any
from sparsum.structures import AbstractStructure, BoundScores, OneOf, Scores
from sparsum.structures.scores import as_tuple


class Gibbs(Distribution):
    r"""Gibbs distribution over all assignments of a structure; sampling estimators draw from it.

    .. math:: p(z) = \exp(a_z^\top t - \log Z), \quad Z = \sum_{z} \exp(a_z^\top t)

    Over `OneOf` this is the softmax; over `Bits`, independent bits with the scores as logits; over `Groups`, independent
    categorical variables; over `Budget` and `Subset`, independent bits given that their number is allowed, summed by a
    tree of products; over `Sequence`, a linear-chain conditional random field, and over `Segmentation` a semi-Markov
    one, summed by dynamic programming, as all paths are; over `Tree`, a distribution over spanning trees, summed by
    elimination. All results are exact and differentiable in the scores. Custom structures are supported through
    `AbstractStructure.potentials` or `AbstractStructure.log_partition`. Expectations of functions that are not linear need
    samples, or `sparsum.estimators.Dense` where the assignments are few.

    >>> import sparsum as sp
    >>> p = Gibbs(torch.tensor([[1.0, 1.0, 0.0]]), sp.OneOf(3))
    >>> p.mean, p.entropy()
    (tensor([[0.4223, 0.4223, 0.1554]]), tensor([1.0174]))
    >>> p = Gibbs((torch.zeros(3, 2), torch.eye(2)), sp.Sequence(3, 2))  # three tags, neighbours like to agree
    >>> p.log_prob(torch.tensor([[0, 0, 0], [0, 1, 0]])).exp()
    tensor([0.2672, 0.0362])

    Args:
        scores: one score per part of the structure; -inf forbids a part.
        structure: one that `has_partition`: all built-in ones but `Matching` and `Permutation`, and custom ones.
        mask: True where a part is allowed; see `AbstractStructure.bind`.
        temperature: divides the scores; a positive number, or one per example.
        validate_args: whether to check the values; costs one host-device synchronization. Default: True. If False, a row
            that contains a NaN returns NaN, and other rows are not affected.

    Raises:
        TypeError: if the scores are not floating-point, or the structure does not support summation.
        ValueError: if the shape of the scores does not match the structure, or if rows contain a NaN or +inf or forbid
            every assignment; the message names the rows.

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
        mask: Scores | None = None,
        temperature: float | Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        require_partition(structure)  # before it binds the scores
        self._assign(structure.bind(scores, mask=mask, temperature=temperature), validate_args)

    def _assign(self, bound: BoundScores, validate_args: bool | None) -> None:
        require_partition(bound.structure)
        #: The rows of scores, bound to the structure.
        self.bound = bound
        #: The distribution of each row.
        self.model = model_of(bound)
        if validates(validate_args):
            is_bad = bound.is_unusable | self.model.is_empty
            if is_any(is_bad):
                bound.raise_bad(is_bad)
        none = torch.zeros(0, dtype=torch.int64, device=bound.device)
        event_shape = bound.select(none).argmax().shape[1:]
        super().__init__(bound.batch_shape, event_shape, validate_args=False)
        self._validate_args = validates(validate_args)

    @classmethod
    def from_bound(cls, bound: BoundScores, *, validate_args: bool | None = None) -> Gibbs:
        """Create a distribution from scores that are already bound to their structure."""
        instance = cls.__new__(cls)
        instance._assign(bound, validate_args)
        return instance

    @property
    def structure(self) -> AbstractStructure:
        """The set of assignments."""
        return self.bound.structure

    @constraints.dependent_property
    def support(self) -> constraints.Constraint:
        """The torch constraint on values."""
        if isinstance(self.structure, OneOf):
            return constraints.integer_interval(0, self.structure.n - 1)
        return constraints.independent(constraints.real, len(self.event_shape))

    @property
    def log_partition(self) -> Tensor:
        r"""Log of the partition function Z: (*batch_shape,)."""
        return self.shaped(self.model.log_partition)

    def log_prob(
        self,
        value: Tensor,  # shape: (*sample_shape, *batch_shape, *event_shape)
    ) -> Tensor:
        """Log-probability of ``value``, -inf for forbidden assignments: (*sample_shape, *batch_shape)."""
        value = broadcast_value(value, self.batch_shape, self.event_shape)
        sample_shape = value.shape[: value.ndim - len(self.batch_shape) - len(self.event_shape)]
        n_samples, n_rows = math.prod(sample_shape), math.prod(self.batch_shape)
        atoms = value.reshape(n_samples * n_rows, *self.event_shape)
        row = torch.arange(n_rows, device=value.device).repeat(n_samples)
        self.check_members(atoms, row)
        return self.log_prob_of(atoms, row).reshape(sample_shape + self.batch_shape)

    def log_prob_of(
        self,
        atoms: Tensor,  # shape: (n, *event_shape)
        row: Tensor,  # shape: (n,)
    ) -> Tensor:
        """Log-probability of packed assignments, each under its own row, in any order: (n,)."""
        return self.model.log_prob(atoms, row).to(self.bound.dtype)

    def entropy(self) -> Tensor:
        """Shannon entropy in nats: (*batch_shape,)."""
        return self.shaped(self.model.entropy())

    @property
    def mean(self) -> Scores:
        """The mean vector (marginals) of each row, in the form and shape of the scores."""
        mean = self.model.mean()
        shaped = tuple(map(self.shaped, as_tuple(mean)))
        return shaped if isinstance(mean, tuple) else shaped[0]

    @property
    def variance(self) -> Scores:
        """The variance of each part of the vectors, in the form and shape of the scores.

        Raises:
            NotImplementedError: if the vectors of the structure may have entries other than 0 and 1.
        """
        structure, mean = self.structure, self.mean
        if not structure.is_fixed_size and structure.bit_counts() is None and structure.most_parts is None:
            raise NotImplementedError(f"the variance over {structure!r} is not implemented: its vectors may not be 0/1")
        variances = tuple(tensor * (1 - tensor) for tensor in as_tuple(mean))
        return variances if isinstance(mean, tuple) else variances[0]

    @property
    def mode(self) -> Tensor:
        """The most probable assignment: (*batch_shape, *event_shape)."""
        return self.bound.shaped(self.bound.argmax())

    def sample(self, sample_shape: int | Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw independent samples: (*sample_shape, *batch_shape, *event_shape)."""
        check_generator(generator)
        shape = check_sample_shape(sample_shape)
        with torch.no_grad():
            atoms = self.model.sample(math.prod(shape), generator)
        return atoms.reshape(shape + self.batch_shape + self.event_shape)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Gibbs:
        """Expand the batch, as `torch.Tensor.expand` does."""
        shape = torch.Size(batch_shape)
        source = torch.arange(self.bound.n_rows, device=self.bound.device)
        source = source.reshape(self.batch_shape).expand(shape).reshape(-1)
        bound = dataclasses.replace(self.bound.select(source), batch_shape=shape)
        # The values are already checked, or checks are disabled.
        expanded = Gibbs.from_bound(bound, validate_args=False)
        expanded._validate_args = self._validate_args
        return expanded

    def check_members(self, atoms: Tensor, row: Tensor) -> None:
        """Raise a ValueError unless packed atoms are assignments of the structure; no-op if ``validate_args`` is False."""
        if self._validate_args and is_any(~self.structure.select(row).contains(atoms)):
            raise ValueError(f"value must hold assignments of {self.structure!r} only, got at least one other value")

    def shaped(
        self,
        values: Tensor,  # shape: (n_rows, *rest)
    ) -> Tensor:
        """Reshape one value per row to the batch shape, in the dtype of the scores."""
        return self.bound.shaped(values).to(self.bound.dtype)

    def __repr__(self) -> str:
        shapes = f"batch_shape={tuple(self.batch_shape)}, event_shape={tuple(self.event_shape)}"
        return f"Gibbs({self.structure!r}, {shapes}, dtype={self.bound.dtype})"


def require_partition(structure: AbstractStructure) -> None:
    """Raise a TypeError unless `Gibbs` supports a structure."""
    if not isinstance(structure, AbstractStructure):
        raise TypeError(f"structure must be an AbstractStructure such as OneOf(n), got {kind_of(structure)}")
    if not structure.has_partition:
        raise TypeError(
            f"Gibbs does not support {structure!r}: define either potentials, or both log_partition and sample; a subclass "
            "that changes the assignments of its parent must define them again"
        )
