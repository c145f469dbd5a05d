"""Batches of discrete distributions with a few atoms each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from sparsum.arguments import check_generator, check_sample_shape
from sparsum.distribution.expectation import expect
from sparsum.distribution.lookup import draw_places, log_of, log_probs_at
from sparsum.distribution.loss import Loss
from sparsum.distribution.moments import mean_of, variance_of
from sparsum.distribution.packing import (
    broadcast_value,
    check_distinct,
    check_members,
    check_packed,
    check_structure_or_none,
    n_rows_of,
    pack_dense,
    validates,
)
from sparsum.distribution.selection import keep_best, pad, take_rows, to_device
from sparsum.segments import Segments
from sparsum.structures import AbstractStructure, OneOf, Scores


class SparseDistribution(Distribution):
    r"""A batch of discrete distributions, each with its own few atoms, packed one row after the other.

    Expectations are exact sums that evaluate the loss only at the atoms,

    .. math:: \mathbb{E}[\ell]_r = \sum_{i : \mathrm{row}_i = r} \mathrm{probs}_i \, \ell(\mathrm{atoms}_i, r) .

    Instances are usually created by `sparsum.sparsemap`, `sparsum.topk_sparsemax` or `from_dense`.

    >>> import sparsum as sp
    >>> q = sp.sparsemap(torch.tensor([[1.0, 0.8, -0.5], [3.0, 0.0, 0.0]]), sp.OneOf(3))
    >>> q.atoms, q.probs, q.row
    (tensor([0, 1, 0]), tensor([0.6000, 0.4000, 1.0000]), tensor([0, 0, 1]))
    >>> q.expect(lambda z, row: z.float() + 10 * row)
    tensor([ 0.4000, 10.0000])

    Args:
        atoms: the assignments with mass, distinct within each row.
        probs: the probability of each atom; they sum to 1 in every row. Atoms with probability 0 are dropped.
        row: the row of each atom, sorted; every row has at least one atom. A batch with several dimensions is flattened into
            rows.
        batch_shape: the shape of the batch; by default ``(n_rows,)``.
        structure: the structure that the atoms belong to; None if each atom is its own vector.
        is_exact: one boolean per row, True if no atom was cut off; by default True for all rows.
        validate_args: whether to check the values, which synchronizes with a GPU. Default: True.

    Raises:
        TypeError: if a dtype is wrong.
        ValueError: if shapes do not match, rows are unsorted or missing, probabilities are negative, NaN or do not sum to 1,
            or atoms are not assignments of the structure or occur twice in a row; the message names the rows.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(
        self,
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
        probs: Tensor,  # shape: (n_atoms,)
        row: Tensor,  # shape: (n_atoms,)
        *,
        batch_shape: Sequence[int] | None = None,
        structure: AbstractStructure | None = None,
        is_exact: Tensor | None = None,  # shape: batch_shape
        validate_args: bool | None = None,
    ) -> None:
        n_rows = n_rows_of(atoms, probs, row, batch_shape)
        check_structure_or_none(structure)
        shape = torch.Size([n_rows] if batch_shape is None else batch_shape)
        if is_exact is not None and (not isinstance(is_exact, Tensor) or is_exact.dtype != torch.bool):
            kind = is_exact.dtype if isinstance(is_exact, Tensor) else type(is_exact).__name__
            raise TypeError(f"is_exact must be a tensor of dtype torch.bool, got {kind}")
        if is_exact is not None and is_exact.shape != shape:
            raise ValueError(f"is_exact must have the batch shape {tuple(shape)}, got {tuple(is_exact.shape)}")
        if validates(validate_args):
            atoms, probs, row = check_packed(atoms, probs, row, n_rows)
            if structure is not None:
                check_members(structure, atoms, row)
            check_distinct(atoms, row)
        self._assign(atoms, probs, Segments.from_row(row, n_rows), shape, structure, is_exact, validate_args)

    def _assign(
        self,
        atoms: Tensor,
        probs: Tensor,
        segments: Segments,
        batch_shape: torch.Size,
        structure: AbstractStructure | None,
        is_exact: Tensor | None,
        validate_args: bool | None,
    ) -> None:
        self.atoms, self.probs = atoms, probs
        self.structure = structure
        self.is_exact = torch.ones(batch_shape, dtype=torch.bool, device=probs.device) if is_exact is None else is_exact
        self._segments = segments
        self.has_enumerate_support = isinstance(structure, OneOf)  # a class attribute in torch, per instance here
        super().__init__(batch_shape, atoms.shape[1:], validate_args=False)
        self._validate_args = validates(validate_args)

    @classmethod
    def from_segments(
        cls,
        atoms: Tensor,
        probs: Tensor,
        segments: Segments,
        batch_shape: torch.Size,
        structure: AbstractStructure | None,
        *,
        is_exact: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> SparseDistribution:
        """Create a distribution from segments, without checking the values. The probabilities of padding become 0."""
        instance = cls.__new__(cls)
        instance._assign(atoms, segments.clear(probs), segments, batch_shape, structure, is_exact, validate_args)
        return instance

    @classmethod
    def from_dense(
        cls,
        probs: Tensor,  # shape: (*batch, n)
        *,
        validate_args: bool | None = None,
    ) -> SparseDistribution:
        """Create a distribution over `OneOf(n)` whose atoms are the positive entries of dense probabilities.

        >>> SparseDistribution.from_dense(torch.tensor([[0.0, 0.25, 0.75], [1.0, 0.0, 0.0]])).atoms
        tensor([1, 2, 0])
        """
        atoms, packed_probs, segments = pack_dense(probs, checks=validates(validate_args))
        return cls.from_segments(
            atoms, packed_probs, segments, probs.shape[:-1], OneOf(probs.shape[-1]), validate_args=validate_args
        )

    @property
    def row(self) -> Tensor:
        """The row of each atom, sorted: (n_atoms,)."""
        return self._segments.row

    @property
    def n_atoms_per_row(self) -> Tensor:
        """The number of atoms of each row, that is, of loss evaluations per expectation: (*batch_shape,)."""
        if self._segments.n_each is not None:  # a table, in which entries without mass fill the rows
            return self._sum((self.probs.detach() > 0).long())
        return self._segments.lengths.reshape(self.batch_shape)

    @property
    def saturation(self) -> Tensor:
        """The share of rows with a single atom, a number from 0 to 1 without gradient; 0 for an empty batch.

        Such a row does not change with small changes of the scores, so that no function of the distribution has a gradient
        in them. If all rows are saturated, training by exact sums stands still: see `sparsum.nn.SaturationMonitor`.

        >>> SparseDistribution.from_dense(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).saturation
        tensor(0.5000)
        """
        is_single = self.n_atoms_per_row == 1
        return is_single.sum() / max(is_single.numel(), 1)

    @property
    def usage(self) -> Scores:
        """How often each part is used: the mean of the batch, in the form of the scores of one example; differentiable.

        Bits whose usage is close to 0 or 1, and categories whose usage is 0, carry no information. 0 for an empty batch.

        >>> SparseDistribution.from_dense(torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])).usage
        tensor([0.7500, 0.2500, 0.0000])
        """
        n_rows, n_batch = self._segments.n_rows, len(self.batch_shape)

        def average(part: Tensor) -> Tensor:
            return part.reshape(n_rows, *part.shape[n_batch:]).sum(0) / max(n_rows, 1)

        mean = self.mean
        return tuple(map(average, mean)) if isinstance(mean, tuple) else average(mean)

    @constraints.dependent_property
    def support(self) -> constraints.Constraint:
        """The torch constraint on values; the atoms with mass are in ``atoms``, ``probs`` and ``row``."""
        if isinstance(self.structure, OneOf):
            return constraints.integer_interval(0, self.structure.n - 1)
        return constraints.independent(constraints.real, len(self.event_shape))

    def expect(
        self, loss: Loss, *, chunk_size: int | None = None, generators: torch.Generator | Sequence[torch.Generator] = ()
    ) -> Any:
        """Exact expectation of a loss, differentiable in the probabilities and in everything the loss closes over.

        Args:
            loss: called as ``loss(z, row)`` with packed atoms, (n, *event_shape), and the row of each atom, (n,), or as
                ``loss(z)`` if it takes one argument. Returns a tensor with a leading dimension of n, or a nested dict, list
                or tuple of these. Index per-example tensors by row, as in ``x[row]``; in a batch with several dimensions,
                row indexes the flattened batch: ``x.flatten(0, 1)[row]``. The arguments are copies, so the loss may modify
                them in place.
            chunk_size: the largest number of atoms per call of the loss. Backward recomputes the intermediate results chunk
                by chunk, so peak memory is that of one chunk and of the returned values. The loss is called twice per
                chunk, which affects modules that track running statistics.
            generators: with ``chunk_size``, all generators that the loss draws noise from, other than torch's global ones.
                Their state is restored when backward recomputes a chunk. A generator that is not listed would produce new
                noise in backward, and the gradient would be wrong. Different chunk sizes draw different noise.

        Returns:
            The expectation per batch element: shape (*batch_shape, *rest) for each returned tensor of shape (n, *rest).

        Raises:
            TypeError: if the loss returns anything other than tensors.
            ValueError: if a returned tensor does not have one entry per atom, if the loss fails because of a size mismatch
                between rows and atoms, or if ``chunk_size`` is less than 1.
        """
        if isinstance(generators, torch.Generator):
            generators = (generators,)
        elif not isinstance(generators, Sequence) or not all(isinstance(each, torch.Generator) for each in generators):
            raise TypeError(f"generators must be a torch.Generator or a sequence of them, got {generators!r}")
        return expect(loss, self.atoms, self.probs, self._segments, self.batch_shape, chunk_size, generators)

    def entropy(self) -> Tensor:
        """Shannon entropy in nats, with 0 log 0 = 0 and a finite gradient there: (*batch_shape,)."""
        return -self._sum((self.probs * log_of(self.probs)).to(self.probs.dtype))

    def log_prob(
        self,
        value: Tensor,  # shape: (*sample_shape, *batch_shape, *event_shape)
    ) -> Tensor:
        """Log-probability of ``value``, -inf where it is not an atom: (*sample_shape, *batch_shape)."""
        value = broadcast_value(value, self.batch_shape, self.event_shape)
        sample_shape = value.shape[: value.ndim - len(self.batch_shape) - len(self.event_shape)]
        n_samples, n_rows = math.prod(sample_shape), self._segments.n_rows
        queries = value.reshape(n_samples * n_rows, *self.event_shape)
        row = torch.arange(n_rows, device=value.device).repeat(n_samples)
        return self.log_prob_of(queries, row, n_samples * len(self.atoms)).reshape(sample_shape + self.batch_shape)

    def log_prob_of(
        self,
        queries: Tensor,  # shape: (n_queries, *event_shape)
        row: Tensor,  # shape: (n_queries,)
        n_pairs: int | None = None,
    ) -> Tensor:
        """Log-probability of packed assignments, each under its own row: (n_queries,).

        Args:
            queries: the assignments.
            row: the row of each assignment, in any order.
            n_pairs: the total number of atoms in these rows, if known; saves a host-device synchronization.
        """
        return log_probs_at(self.atoms, self.probs, self._segments, queries, row, n_pairs)

    @property
    def mean(self) -> Scores:
        """The mean vector (marginals) of each row, in the form and shape of the scores."""
        return self._shaped(mean_of(self.structure, self.atoms, self.probs, self._segments))

    @property
    def variance(self) -> Scores:
        """The variance of each part, non-negative, in the form and shape of the mean.

        >>> SparseDistribution.from_dense(torch.tensor([[0.25, 0.75, 0.0], [0.0, 1.0, 0.0]])).variance
        tensor([[0.1875, 0.1875, 0.0000],
                [0.0000, 0.0000, 0.0000]])
        """
        return self._shaped(variance_of(self.structure, self.atoms, self.probs, self._segments))

    @property
    def mode(self) -> Tensor:
        """The most probable atom of each row, the first one on ties: (*batch_shape, *event_shape).

        It need not be the best assignment, which is `structure.argmax(scores)`: solvers whose atoms are continuous often
        give another one the largest probability.
        """
        best = self._segments.argmax(self.probs)
        return self.atoms[best].reshape(self.batch_shape + self.event_shape)

    def sample(self, sample_shape: int | Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw independent samples: (*sample_shape, *batch_shape, *event_shape)."""
        check_generator(generator)
        shape = check_sample_shape(sample_shape)
        places = draw_places(self.probs, self._segments, math.prod(shape), generator)
        return self.atoms.detach()[places].reshape(shape + self.batch_shape + self.event_shape)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All categories of a distribution over `OneOf(n)`, with or without mass, as for `torch.distributions.Categorical`.

        Returns:
            Indices of shape (n, *batch_shape), or (n, 1, ..., 1) if ``expand`` is False.

        Raises:
            NotImplementedError: for other structures, whose assignments are too numerous or unknown.
        """
        if not isinstance(self.structure, OneOf):
            raise NotImplementedError(
                f"enumerate_support requires a distribution over OneOf, got one over {self.structure!r}; the atoms with "
                "mass are in q.atoms, q.probs and q.row, and q.expect sums over them"
            )
        n, n_batch = self.structure.n, len(self.batch_shape)
        values = torch.arange(n, device=self.atoms.device).reshape(n, *[1] * n_batch)
        return values.expand(n, *self.batch_shape) if expand else values

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> SparseDistribution:
        """Expand the batch, as `torch.Tensor.expand` does."""
        if torch.Size(batch_shape) == self.batch_shape:
            return self._like(self.atoms, self.probs, self._segments)
        source, n_rows = self._positions().expand(torch.Size(batch_shape)), self._segments.n_rows
        # Every row occurs equally often, so the number of atoms is known without a host-device synchronization.
        n_atoms = len(self.atoms) * (source.numel() // n_rows) if n_rows else 0
        return self._taken(source, self.is_exact.expand(source.shape), n_atoms)

    def __getitem__(self, index: Any) -> SparseDistribution:
        """Index the batch like a tensor of shape batch_shape; differentiable.

        On a GPU, reading the number of atoms costs one host-device synchronization.

        >>> q = SparseDistribution.from_dense(torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 0.1, 0.9]]))
        >>> q[1:].atoms, q[-1].probs, q[torch.tensor([True, False, False])].batch_shape
        (tensor([0, 1, 2]), tensor([0.1000, 0.9000]), torch.Size([1]))
        """
        return self._taken(self._positions()[index], self.is_exact[index])

    def __iter__(self) -> Iterator[SparseDistribution]:
        """Iterate over the first dimension of the batch."""
        if not self.batch_shape:
            raise TypeError("cannot iterate over a distribution without a batch dimension")
        return (self[i] for i in range(self.batch_shape[0]))

    def truncate(self, k: int) -> SparseDistribution:
        """Keep the k most probable atoms of each row, the first ones on ties, and renormalize their probabilities.

        A row that loses atoms is marked as not exact; a row with at most k atoms is unchanged. On a GPU, reading the number
        of atoms costs one host-device synchronization.

        >>> q = SparseDistribution.from_dense(torch.tensor([[0.5, 0.1, 0.3, 0.1], [0.0, 1.0, 0.0, 0.0]])).truncate(2)
        >>> q.atoms, q.probs, q.is_exact
        (tensor([0, 2, 1]), tensor([0.6250, 0.3750, 1.0000]), tensor([False,  True]))

        Args:
            k: the largest number of atoms per row, at least 1.

        Raises:
            TypeError: if k is not an int.
            ValueError: if k is less than 1.
        """
        parts = keep_best(self.atoms, self.probs, self._segments, k)
        return self._like(*parts, is_exact=self.is_exact & (self.n_atoms_per_row <= k))

    def with_atoms(
        self,
        atoms: Tensor,  # shape: (n_atoms, *event_shape)
        structure: AbstractStructure | None = None,
    ) -> SparseDistribution:
        """The same probabilities for other atoms, in the same order: positions in a list become what the list contains.

        >>> import sparsum as sp
        >>> q = sp.sparsemap(torch.tensor([[1.0, 0.8, -0.5]]), sp.OneOf(3))
        >>> documents = torch.tensor([[17, 4, 90]])
        >>> q.with_atoms(documents[q.row, q.atoms], sp.OneOf(100)).atoms
        tensor([17,  4])

        Args:
            atoms: one for each atom of the distribution, distinct within each row, which is not checked.
            structure: the structure that they belong to; None if each is its own vector.
        """
        if not isinstance(atoms, Tensor):
            raise TypeError(f"atoms must be a torch.Tensor, got {type(atoms).__name__}")
        check_structure_or_none(structure)
        if atoms.shape[:1] != self.probs.shape:
            raise ValueError(f"atoms must have shape ({len(self.probs)}, *event_shape), got {tuple(atoms.shape)}")
        return SparseDistribution.from_segments(
            atoms, self.probs, self._segments, self.batch_shape, structure, is_exact=self.is_exact
        )

    def detach(self) -> SparseDistribution:
        """Detach the distributions from the autograd graph."""
        return self._like(self.atoms.detach(), self.probs.detach(), self._segments)

    def to(self, *args: Any, **kwargs: Any) -> SparseDistribution:
        """Move to another device or dtype; the dtype applies to the probabilities and to floating-point atoms.

        Takes the arguments of `torch.Tensor.to`. Returns ``self`` if nothing changes.

        >>> SparseDistribution.from_dense(torch.tensor([[0.25, 0.75]])).to(torch.float64).probs
        tensor([0.2500, 0.7500], dtype=torch.float64)

        Raises:
            TypeError: if the dtype is not floating-point.
        """
        probs = self.probs.to(*args, **kwargs)
        if not probs.is_floating_point():
            raise TypeError(f"dtype must be floating-point, got {probs.dtype}; integer atoms keep their dtype")
        device, options = probs.device, {key: kwargs[key] for key in ("non_blocking", "copy") if key in kwargs}
        atoms = self.atoms.to(*args, **kwargs) if self.atoms.is_floating_point() else self.atoms.to(device, **options)
        if probs is self.probs and atoms is self.atoms:
            return self
        segments = dataclasses.replace(
            self._segments, row=self._segments.row.to(device), lengths=self._segments.lengths.to(device)
        )
        structure, is_exact = to_device(self.structure, device), self.is_exact.to(device)
        return self._like(atoms, probs, segments, structure=structure, is_exact=is_exact)

    def to_dense(self) -> Tensor:
        """Dense probabilities of a distribution over `OneOf(n)`: (*batch_shape, n)."""
        if not isinstance(self.structure, OneOf):
            raise TypeError(f"to_dense requires a distribution over OneOf, got one over {self.structure!r}")
        dense: Tensor = self.mean
        return dense

    def to_padded(self) -> tuple[Tensor, Tensor]:
        """Tables of atoms, (*batch_shape, n, *event_shape), and of probabilities, (*batch_shape, n), for code without rows.

        n is the largest number of atoms of a row. The last atom of a shorter row is repeated, with probability 0. On a GPU,
        reading n costs one host-device synchronization.

        >>> q = SparseDistribution.from_dense(torch.tensor([[0.25, 0.75, 0.0], [0.0, 1.0, 0.0]]))
        >>> q.to_padded()
        (tensor([[0, 1],
                [1, 1]]), tensor([[0.2500, 0.7500],
                [1.0000, 0.0000]]))
        """
        atoms, probs = pad(self.atoms, self.probs, self._segments)
        return atoms.reshape(self.batch_shape + atoms.shape[1:]), probs.reshape(self.batch_shape + probs.shape[1:])

    def _sum(self, values: Tensor) -> Tensor:
        result = self._segments.sum(values)
        return result.reshape(self.batch_shape + result.shape[1:])

    def _shaped(self, parts: Scores) -> Scores:
        if isinstance(parts, tuple):
            return tuple(map(self._shaped, parts))
        return parts.reshape(self.batch_shape + parts.shape[1:])

    def _positions(self) -> Tensor:
        """The index of each row: (*batch_shape,)."""
        return torch.arange(self._segments.n_rows, device=self.probs.device).reshape(self.batch_shape)

    def _taken(self, source: Tensor, is_exact: Tensor, n_atoms: int | None = None) -> SparseDistribution:
        """Select the rows ``source``, whose shape becomes the batch shape."""
        rows = source.reshape(-1)
        parts = take_rows(self.atoms, self.probs, self._segments, rows, n_atoms)
        structure = None if self.structure is None else self.structure.select(rows)
        return self._like(*parts, batch_shape=source.shape, structure=structure, is_exact=is_exact)

    def _like(self, atoms: Tensor, probs: Tensor, segments: Segments, **changes: Any) -> SparseDistribution:
        """Create a distribution from valid parts, keeping the fields that are not given."""
        fields = {"batch_shape": self.batch_shape, "structure": self.structure, "is_exact": self.is_exact, **changes}
        return self.from_segments(atoms, probs, segments, validate_args=self._validate_args, **fields)

    def __repr__(self) -> str:
        lengths = self._segments.lengths
        is_known = len(lengths) and not lengths.is_meta
        spread = f", {int(lengths.min())} to {int(lengths.max())} per row" if is_known else ""
        over = "" if self.structure is None else f"{self.structure!r}, "
        return (
            f"SparseDistribution({over}batch_shape={tuple(self.batch_shape)}, event_shape={tuple(self.event_shape)}, "
            f"n_atoms={len(self.atoms)}{spread}, dtype={self.probs.dtype}, device='{self.probs.device}')"
        )
