"""A batch of distributions, each with a few atoms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from sparsum.distribution.expectation import Loss, expect
from sparsum.distribution.generator import check_generator
from sparsum.distribution.packing import broadcast_value, check_indices, check_packed, n_rows_of, pack_dense, validates
from sparsum.segments import Segments
from sparsum.structures import AbstractStructure, OneOf, Scores


class SparseDistribution(Distribution):
    r"""A batch of discrete distributions, each over its own few atoms, packed one row after the other.

    Expectations are exact sums that evaluate a loss on the atoms alone,

    .. math:: \mathbb{E}[\ell]_r = \sum_{i : \mathrm{row}_i = r} \mathrm{probs}_i \, \ell(\mathrm{atoms}_i, r) .

    Usually made by `sparsum.inference`, `sparsum.topk_sparsemax` or `from_dense`.

    >>> import sparsum as sp
    >>> q = sp.sparsemap(torch.tensor([[1.0, 0.8, -0.5], [3.0, 0.0, 0.0]]), sp.OneOf(3))
    >>> q.atoms, q.probs, q.row
    (tensor([0, 1, 0]), tensor([0.6000, 0.4000, 1.0000]), tensor([0, 0, 1]))
    >>> q.expect(lambda z, row: z.float() + 10 * row)
    tensor([ 0.4000, 10.0000])

    Args:
        atoms: the assignments that have mass, different ones within a row.
        probs: their probabilities, which sum to 1 in every row. Atoms with probability 0 are dropped.
        row: the row of each, sorted; every row occurs. A batch of several dimensions is flattened into rows.
        batch_shape: the shape of the batch; by default one dimension, as many as the rows.
        structure: what the atoms are assignments of; None if they are their own vectors.
        is_exact: one boolean per row, whether nothing was cut off; by default True.
        validate_args: whether to check the values, at the price of one wait for the device; by default True.

    Raises:
        TypeError: on wrong dtypes.
        ValueError: on shapes that do not fit, rows that are unsorted or missing, or probabilities that are negative, NaN or
            do not sum to 1; rows are named.
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
        if structure is not None and not isinstance(structure, AbstractStructure):
            raise TypeError(f"structure must be an AbstractStructure or None, got {type(structure).__name__}")
        shape = torch.Size([n_rows] if batch_shape is None else batch_shape)
        if is_exact is not None and is_exact.shape != shape:
            raise ValueError(f"is_exact must have the batch's shape {tuple(shape)}, got {tuple(is_exact.shape)}")
        if validates(validate_args):
            atoms, probs, row = check_packed(atoms, probs, row, n_rows)
            if isinstance(structure, OneOf):
                check_indices(atoms, structure.n)
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
        """A distribution from parts that are known to be right."""
        instance = cls.__new__(cls)
        instance._assign(atoms, probs, segments, batch_shape, structure, is_exact, validate_args)
        return instance

    @classmethod
    def from_dense(
        cls,
        probs: Tensor,  # shape: (*batch, n)
        *,
        validate_args: bool | None = None,
    ) -> SparseDistribution:
        """The distribution over `OneOf(n)` with the positive entries of dense probabilities as atoms.

        >>> SparseDistribution.from_dense(torch.tensor([[0.0, 0.25, 0.75], [1.0, 0.0, 0.0]])).atoms
        tensor([1, 2, 0])
        """
        atoms, packed_probs, segments = pack_dense(probs, checks=validates(validate_args))
        return cls.from_segments(
            atoms, packed_probs, segments, probs.shape[:-1], OneOf(probs.shape[-1]), validate_args=validate_args
        )

    @property
    def row(self) -> Tensor:
        """The row of each atom, (n_atoms,), sorted."""
        return self._segments.row

    @property
    def n_atoms_per_row(self) -> Tensor:
        """How many atoms each row has, in the batch's shape: the calls of the loss that an expectation costs."""
        return self._segments.lengths.reshape(self.batch_shape)

    @constraints.dependent_property
    def support(self) -> constraints.Constraint:
        """Torch's constraint on single values; what has mass is in ``atoms``, ``probs`` and ``row``."""
        if isinstance(self.structure, OneOf):
            return constraints.integer_interval(0, self.structure.n - 1)
        return constraints.independent(constraints.real, len(self.event_shape))

    def expect(
        self, loss: Loss, *, chunk_size: int | None = None, generators: torch.Generator | Sequence[torch.Generator] = ()
    ) -> Any:
        """The exact expectation of a loss, differentiable in the probabilities and in all that the loss closes over.

        Args:
            loss: called as ``loss(z, row)`` with packed atoms, (n, *event_shape), and the row of each, (n,); returns a
                tensor with a leading dimension of n, or a nested dict, list or tuple of such. In a batch of several
                dimensions, row counts the flattened batch: index ``x.flatten(0, 1)[row]``.
            chunk_size: at most this many atoms at a time, with the intermediate results computed again in backward, so
                that the memory is that of one chunk and of the returned values. The loss is then called twice per chunk,
                which counts for modules that keep statistics.
            generators: with ``chunk_size``, all generators that the loss draws noise from, other than torch's global ones.
                Backward then sees the noise of its own forward; from a generator that is not named it would see new noise,
                and its gradient would be wrong. Different chunk sizes draw different noise.

        Returns:
            The expectation per batch element: for each returned tensor of shape (n, *rest), one of (*batch_shape, *rest).

        Raises:
            TypeError: if the loss returns something that is no tensor.
            ValueError: if a returned tensor has not one entry per atom, or ``chunk_size`` is less than 1.
        """
        if chunk_size is not None and (isinstance(chunk_size, bool) or not isinstance(chunk_size, int)):
            raise TypeError(f"chunk_size must be an int or None, got {type(chunk_size).__name__}")
        if not callable(loss):
            raise TypeError(f"loss must be a function of atoms and rows, got {type(loss).__name__}")
        if isinstance(generators, torch.Generator):
            generators = (generators,)
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
        return expect(loss, self.atoms, self.probs, self._segments, self.batch_shape, chunk_size, generators)

    def entropy(self) -> Tensor:
        """Shannon entropy of each row, in nats; 0 log 0 is 0, and its gradient is finite."""
        return -self._sum((self.probs * log_of(self.probs)).to(self.probs.dtype))

    def log_prob(
        self,
        value: Tensor,  # shape: (*sample_shape, *batch_shape, *event_shape)
    ) -> Tensor:
        """Logarithm of the probability, -inf for what is no atom: (*sample_shape, *batch_shape)."""
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
            row: the row of each, in any order.
            n_pairs: the number of atoms in all these rows together, if known; it saves a wait for the device.
        """
        lengths = self._segments.lengths[row]
        is_padded = self._segments.is_padded
        pairs = Segments.from_lengths(lengths, int(lengths.sum()) if n_pairs is None else n_pairs, is_padded=is_padded)
        offset = torch.arange(len(pairs.row), device=row.device) - pairs.starts[pairs.row]
        atom = self._segments.starts[row][pairs.row] + offset
        atom = atom.clamp(max=len(self.atoms) - 1) if is_padded else atom
        is_equal = self.atoms[atom] == queries[pairs.row]
        for _ in self.event_shape:
            is_equal = is_equal.all(-1)
        total = pairs.sum(torch.where(is_equal, self.probs.index_select(0, atom), 0.0))
        return torch.where(total > 0, log_of(total), -torch.inf).to(self.probs.dtype)

    @property
    def mean(self) -> Scores:
        """The mean vector of each row, the marginals, in the form and shape of the scores."""
        if self.structure is None:
            vectors = self.atoms.to(self.probs.dtype)
            return self._sum(vectors * self.probs.reshape(-1, *[1] * len(self.event_shape)))
        marginals = self.structure.marginals(self.atoms, self.probs, self._segments)
        if isinstance(marginals, tuple):
            return tuple(tensor.reshape(self.batch_shape + tensor.shape[1:]) for tensor in marginals)
        return marginals.reshape(self.batch_shape + marginals.shape[1:])

    @property
    def mode(self) -> Tensor:
        """The most probable atom of each row, the first among equals: (*batch_shape, *event_shape)."""
        best = self._segments.argmax(self.probs)
        return self.atoms[best].reshape(self.batch_shape + self.event_shape)

    def sample(self, sample_shape: int | Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws: (*sample_shape, *batch_shape, *event_shape)."""
        check_generator(generator)
        segments = self._segments
        shape = torch.Size([sample_shape] if isinstance(sample_shape, int) else sample_shape)
        with torch.no_grad():
            uniform = torch.rand(
                (math.prod(shape), segments.n_rows), generator=generator, dtype=torch.float64, device=self.probs.device
            )
            # One cumulative sum over all rows: row r owns the stretch from its first atom's start to its last one's end.
            ends = self.probs.double().cumsum(0)
            last = segments.starts + segments.lengths - 1
            begin = (ends - self.probs.double())[segments.starts]
            chosen = torch.searchsorted(ends, begin + uniform * (ends[last] - begin), right=True)
            chosen = torch.minimum(torch.maximum(chosen, segments.starts), last)
            return self.atoms[chosen].reshape(shape + self.batch_shape + self.event_shape)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> SparseDistribution:
        """The same distributions in a larger batch, as `torch.Tensor.expand` does it."""
        shape = torch.Size(batch_shape)
        segments, device = self._segments, self.probs.device
        source = torch.arange(segments.n_rows, device=device).reshape(self.batch_shape).expand(shape).reshape(-1)
        # Every row occurs equally often, so the number of atoms is known without asking the device.
        n_atoms = len(self.atoms) * (len(source) // segments.n_rows) if segments.n_rows else 0
        expanded = Segments.from_lengths(segments.lengths[source], n_atoms, is_padded=segments.is_padded)
        offset = torch.arange(n_atoms, device=device) - expanded.starts[expanded.row]
        atom = segments.starts[source][expanded.row] + offset
        atom = atom.clamp(max=len(self.atoms) - 1) if segments.is_padded else atom
        return self.from_segments(
            self.atoms[atom],
            expanded.clear_padding(self.probs.index_select(0, atom)),
            expanded,
            shape,
            None if self.structure is None else self.structure.select(source),
            is_exact=self.is_exact.expand(shape),
            validate_args=self._validate_args,
        )

    def to_dense(self) -> Tensor:
        """The dense probabilities of a distribution over `OneOf(n)`: (*batch_shape, n)."""
        if not isinstance(self.structure, OneOf):
            raise TypeError(f"only a distribution over OneOf has dense probabilities, this one is over {self.structure!r}")
        dense: Tensor = self.mean
        return dense

    def _sum(self, values: Tensor) -> Tensor:
        result = self._segments.sum(values)
        return result.reshape(self.batch_shape + result.shape[1:])

    def __repr__(self) -> str:
        lengths = self._segments.lengths
        spread = f", {int(lengths.min())} to {int(lengths.max())} per row" if len(lengths) else ""
        over = "" if self.structure is None else f"{self.structure!r}, "
        return (
            f"SparseDistribution({over}batch_shape={tuple(self.batch_shape)}, event_shape={tuple(self.event_shape)}, "
            f"n_atoms={len(self.atoms)}{spread}, dtype={self.probs.dtype}, device='{self.probs.device}')"
        )


def log_of(probs: Tensor) -> Tensor:
    """Logarithm with a finite value and gradient at 0, in float32 or better: half precision has numbers below its tiny."""
    probs = probs.float() if torch.finfo(probs.dtype).bits == 16 else probs
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
