"""Reductions over the rows of a packed batch.

A packed batch stores the entries of all rows consecutively: ``values`` has shape ``(n, ...)``, and the sorted ``row`` of
shape ``(n,)`` gives the row of each entry. Because the rows are sorted, a reduction does not need atomic additions: results
are bitwise reproducible, also on a GPU.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from sparsum import kernels
from sparsum.tensors import number

__all__ = ["Packed", "Segments", "is_any", "may_be_padded", "positions_of", "read_size", "read_sizes", "reading_sizes"]

#: Replaces `read_sizes`: takes the tensor of sizes and the largest possible value of the first size.
Reader = Callable[[Tensor, int], list[int]]
#: Raises an error that lists the rows for which the tensor, (n_rows,), is True.
OnBad = Callable[[Tensor], NoReturn]
_reader: ContextVar[Reader | None] = ContextVar("reader", default=None)

# Rows with more entries than this on average are long.
_LONG = 64
# The grid of a launch has a limited size.
_MOST_COLUMNS = 2**22


@dataclass(frozen=True)
class Segments:
    """The partition of a packed batch into rows.

    >>> segments = Segments.from_lengths(torch.tensor([2, 0, 1]), n=3)
    >>> segments.row
    tensor([0, 0, 2])
    >>> segments.sum(torch.tensor([1.0, 2.0, 4.0]))
    tensor([3., 0., 4.])

    Within `reading_sizes` there may be more entries than the lengths sum to. This *padding* at the end is excluded from all
    sums, and gets no gradient from them. Its row is the last row, so that lookups by row are valid. Its values are those of
    some entry, except for the probabilities of a `SparseDistribution`, which are 0.

    Args:
        row: the row of each entry, sorted.
        lengths: the number of entries in each row.
        is_padded: whether there may be padding.
        n_each: the number of entries of every row, if it is the same and known without reading it; see `regular`.
    """

    row: Tensor  # shape: (n,), int64
    lengths: Tensor  # shape: (n_rows,), int64
    is_padded: bool = False
    n_each: int | None = None

    @classmethod
    def of_kernel(cls, row: Tensor, lengths: Tensor) -> Segments:
        """Create segments from what a kernel has packed, with a size that was read; it fills the padding as well."""
        return cls(row, lengths, is_padded=may_be_padded())

    @classmethod
    def from_row(cls, row: Tensor, n_rows: int) -> Segments:
        """Create segments from a sorted ``row``; rows that do not occur in it are empty."""
        ones = torch.ones_like(row)
        return cls(row, torch.zeros(n_rows, dtype=torch.int64, device=row.device).index_add_(0, row, ones))

    @classmethod
    def from_lengths(cls, lengths: Tensor, n: int, *, like: Segments | None = None) -> Segments:
        """Create segments from lengths that sum to ``n``; passing ``n`` avoids a host-device synchronization.

        The sum may be smaller within `reading_sizes`, and if the entries come from segments ``like`` these with padding.
        """
        if may_be_padded() or (like is not None and like.is_padded):
            row = torch.searchsorted(lengths.cumsum(0), torch.arange(n, device=lengths.device), right=True)
            return cls(row.clamp_(max=max(len(lengths) - 1, 0)), lengths, is_padded=True)
        rows = torch.arange(len(lengths), device=lengths.device)
        return cls(torch.repeat_interleave(rows, lengths, output_size=n), lengths)

    @classmethod
    def regular(cls, n_rows: int, n_each: int, device: torch.device) -> Segments:
        """Create segments of the same length: a table, whose sums `torch.compile` can trace.

        >>> Segments.regular(2, 2, torch.device("cpu")).row
        tensor([0, 0, 1, 1])
        """
        row = torch.arange(n_rows, device=device).unsqueeze(-1).expand(n_rows, n_each).reshape(-1)
        return cls(row, torch.full((n_rows,), n_each, device=device), n_each=n_each)

    @property
    def n_rows(self) -> int:
        """The number of rows, including empty rows."""
        return len(self.lengths)

    @property
    def starts(self) -> Tensor:
        """The position of the first entry of each row."""
        return self.lengths.cumsum(0) - self.lengths

    def sum(self, values: Tensor) -> Tensor:
        """Sum each row: ``(n, *rest) -> (n_rows, *rest)``; 0 for an empty row."""
        if self.n_each is not None:
            return self._table(values).sum(1)
        result: Tensor = _Sum.apply(values, self.row, self.lengths, self._mask)
        return result

    def spread(self, per_row: Tensor) -> Tensor:
        """Repeat the value of each row for its entries: ``(n_rows, *rest) -> (n, *rest)``.

        This is the adjoint of `sum`, except for padding, which has the value of the last row.
        """
        if self.n_each is not None:
            return per_row.unsqueeze(1).expand(-1, self.n_each, *per_row.shape[1:]).flatten(0, 1)
        result: Tensor = _Spread.apply(per_row, self.row, self.lengths, self._mask, False)
        return result

    def clear(self, values: Tensor, value: float = 0.0) -> Tensor:
        """Set the padding of values, ``(n, *rest)``, to a number, without gradient."""
        return _cleared(values, self._mask, value)

    def order(self, values: Tensor) -> Tensor:
        """Positions of ``values``, (n,), in descending order within each row, the first one on ties, and padding last."""
        # Sort all by value, then by row: the second sort is stable, so it keeps the order of the first.
        by_value = self.clear(values, -torch.inf).argsort(descending=True, stable=True)
        return by_value[self.row[by_value].argsort(stable=True)]

    def max(self, values: Tensor) -> Tensor:
        """Maximum of each row of ``values``, of shape (n,), without gradient; -inf for an empty row."""
        if self.n_each is not None:
            return self._table(values.detach()).amax(1)
        return torch.segment_reduce(values.detach(), "max", lengths=self.lengths, unsafe=True, initial=-torch.inf)

    def argmax(self, values: Tensor) -> Tensor:
        """Position of the first maximum of each non-empty row of ``values``, of shape (n,)."""
        if self.n_each is not None:
            return self._table(values.detach()).argmax(1) + self.starts
        n = len(values)
        position = torch.arange(n, device=values.device)
        is_largest = values.detach() == self.max(values)[self.row]
        first = torch.full((self.n_rows,), n, device=values.device)
        first.scatter_reduce_(0, self.row, torch.where(is_largest, position, n), "amin")
        return torch.where(first < n, first, self.starts)

    def logsumexp(self, values: Tensor) -> Tensor:
        """Log of the summed exponentials of each row of ``values``, of shape (n,); -inf for an empty row."""
        peak = self._peak(values)
        return _log(self.sum(self._powers(values, peak))) + peak

    def softmax(self, values: Tensor) -> Tensor:
        """Softmax over each row of ``values``, of shape (n,); 0 if all exponentials of the row are 0."""
        powers = self._powers(values, self._peak(values))
        return powers / _nonzero(self.sum(powers))[self.row]

    def logsumexp_and_softmax(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """`logsumexp` and `softmax`, whose exponentials are the same."""
        peak = self._peak(values)
        powers = self._powers(values, peak)
        total = self.sum(powers)
        return _log(total) + peak, powers / _nonzero(total)[self.row]

    @property
    def _mask(self) -> Tensor | None:
        """Which entries are not padding, (n,); None if all are."""
        return self._is_entry if self.is_padded else None

    @functools.cached_property
    def _is_entry(self) -> Tensor:
        return torch.arange(len(self.row), device=self.row.device) < self.lengths.sum()

    def _powers(self, values: Tensor, peak: Tensor) -> Tensor:
        """Exponentials of the values relative to the peak of their row; 0 for padding."""
        return self.clear(values - peak[self.row], -torch.inf).exp()

    def _table(self, values: Tensor) -> Tensor:
        """Values of rows of the same length: (n_rows, n_each, *rest)."""
        return values.reshape(self.n_rows, self.n_each or 0, *values.shape[1:])

    def _peak(self, values: Tensor) -> Tensor:
        """The finite shift of each row that keeps exponentials finite."""
        return torch.nan_to_num(self.max(values), posinf=0.0, neginf=0.0)


@dataclass(frozen=True)
class Packed:
    """Selected entries of a table (n_rows, width), row by row.

    >>> table = torch.tensor([[0.0, 0.7, 0.3], [1.0, 0.0, 0.0]])
    >>> packed = Packed.of(table > 0)
    >>> packed.take(table), packed.row
    (tensor([0.7000, 0.3000, 1.0000]), tensor([0, 0, 1]))
    """

    flat: Tensor  # shape: (n,), int64, sorted, positions in the flattened table
    segments: Segments

    @classmethod
    def of(
        cls,
        is_kept: Tensor,  # shape: (n_rows, width), bool
        *,
        is_bad: Tensor | None = None,  # shape: (n_rows,), bool
        is_empty_bad: bool = False,
        on_bad: OnBad | None = None,
        most: int | None = None,
    ) -> Packed:
        """Pack the entries that are kept. This is the only host-device synchronization of a distribution.

        Args:
            is_kept: which entries to pack.
            is_bad: rows that must not be packed; read in the same transfer as the number of entries.
            is_empty_bad: whether rows without kept entries are bad as well.
            on_bad: called with the bad rows, (n_rows,), if there are any, to raise an error that lists them.
            most: the maximum number of entries; by default the size of the table.
        """
        lengths = is_kept.sum(-1)
        if is_empty_bad:
            is_bad = lengths == 0 if is_bad is None else is_bad | (lengths == 0)
        most = is_kept.numel() if most is None else most
        return cls.with_size(is_kept, lengths, read_size(lengths.sum(), is_bad=is_bad, on_bad=on_bad, most=most))

    @classmethod
    def with_size(
        cls,
        is_kept: Tensor,  # shape: (n_rows, width), bool
        lengths: Tensor,  # shape: (n_rows,), int64
        n: int,
    ) -> Packed:
        """Pack the entries that are kept, given their number per row and their total number."""
        flat = positions_of(is_kept.reshape(-1), n)
        if may_be_padded():  # by places, those of the padding at the end of the table
            return cls(flat, Segments(flat // max(is_kept.shape[1], 1), lengths, is_padded=True))
        return cls(flat, Segments.from_lengths(lengths, n))

    @property
    def row(self) -> Tensor:
        """The row of each entry: (n,)."""
        return self.segments.row

    def take(
        self,
        table: Tensor,  # shape: (n_rows, width, *rest)
    ) -> Tensor:
        """The value of each entry in a table: (n, *rest). Padding has the value of an arbitrary entry."""
        entries = table.flatten(0, 1)
        is_all = len(self.flat) == len(entries) and not self.segments.is_padded
        return entries if is_all else entries.index_select(0, self.flat)

    def put(
        self,
        values: Tensor,  # shape: (n,)
        width: int,
    ) -> Tensor:
        """The inverse of `take`: a table with the entries, and 0 elsewhere, (n_rows, width)."""
        table = values.new_zeros(self.segments.n_rows * width)
        return table.index_add(0, self.flat, self.segments.clear(values)).view(-1, width)

    def select(
        self,
        chosen: Tensor,  # shape: (n,), bool
    ) -> Packed:
        """Select a subset of the entries."""
        return Packed(self.flat[chosen], Segments.from_row(self.row[chosen], self.segments.n_rows))


def read_size(
    n: Tensor,  # shape: (), int64
    *,
    most: int,
    is_bad: Tensor | None = None,  # shape: (n_rows,), bool
    on_bad: OnBad | None = None,
) -> int:
    """Read the number of entries to pack, at most ``most``, and check for bad rows, in one transfer."""
    if is_bad is None:
        return read_sizes(n, most=most)[0]
    size, n_bad = read_sizes(n, is_bad.sum(), most=most)
    if n_bad and on_bad is not None:
        on_bad(is_bad)
    return size


def read_sizes(*sizes: Tensor, most: int) -> list[int]:
    """Read sizes on the host in one transfer: first the number of entries to pack, at most ``most``, then any others.

    This is the only host-device synchronization when the library creates a sparse distribution. Within `reading_sizes` the
    first number may be larger than the tensor's value; the packed entries are then padded. A single tensor of shape
    (n_sizes,) is read directly.
    """
    stacked = sizes[0] if sizes[0].ndim else torch.stack(sizes)
    reader = _reader.get()
    if reader is not None:
        return reader(stacked, most)
    # Within a function transform, torch 2.8 can only read single numbers.
    is_transformed = torch._C._are_functorch_transforms_active()
    return [int(size) for size in stacked] if is_transformed else stacked.tolist()


def is_any(flags: Tensor) -> bool:
    """Whether any flag is True, read like a size: for what hardly ever is, such as a row without a distribution."""
    if _reader.get() is None:
        return bool(flags.any())
    n = flags.sum()
    return read_sizes(torch.zeros_like(n), n, most=0)[1] > 0


def may_be_padded() -> bool:
    """Whether sizes are currently read through `reading_sizes`, and may therefore include padding."""
    return _reader.get() is not None


@contextmanager
def reading_sizes(reader: Reader) -> Iterator[None]:
    """Override how sizes are read, for example to pad them to a few sizes for CUDA-graph capture."""
    token = _reader.set(reader)
    try:
        yield
    finally:
        _reader.reset(token)


def positions_of(
    mask: Tensor,  # shape: (n,), bool
    count: int,
) -> Tensor:
    """Positions of the ``count`` entries that are True; passing ``count`` avoids a host-device synchronization."""
    if mask.is_cuda or may_be_padded():  # on a GPU torch.nonzero_static synchronizes with the device
        positions = torch.searchsorted(mask.cumsum(0), torch.arange(1, count + 1, device=mask.device))
        return positions.clamp_(max=max(len(mask) - 1, 0))  # positions of the padding
    return torch.nonzero_static(mask, size=count).squeeze(-1)


def _is_narrow_and_here(values: Tensor, _row: Tensor, lengths: Tensor) -> bool:
    """At most `MOST_ROWS` rows and `_MOST_COLUMNS` columns, on the current device."""
    from sparsum.kernels.segments import MOST_ROWS

    is_here = not values.is_cuda or values.get_device() == torch.cuda.current_device()
    return is_here and math.prod(values.shape[1:]) <= _MOST_COLUMNS and 0 < len(lengths) <= MOST_ROWS


def _sum_in_one_launch(values: Tensor, _row: Tensor, lengths: Tensor) -> Tensor:
    from sparsum.kernels.segments import segment_sum

    return segment_sum(values.contiguous(), lengths)


@kernels.operation("segment_sum", kernel=_sum_in_one_launch, takes=_is_narrow_and_here)
def _reduce(values: Tensor, row: Tensor, lengths: Tensor) -> Tensor:
    """Sum sorted rows with the fastest deterministic routine for this device and shape.

    These routines add entries sequentially, so long rows are summed in float64 to limit rounding errors.
    """
    if values.dtype == torch.float32 and (values.ndim == 1 or len(values) > _LONG * len(lengths)):
        return _reduce(values.double(), row, lengths).float()
    if values.ndim == 1 or values.is_cuda:
        return torch.segment_reduce(values, "sum", lengths=lengths, unsafe=True, initial=0.0)
    # On the CPU, sequential addition is deterministic and, for wide entries, several times faster.
    return values.new_zeros(len(lengths), *values.shape[1:]).index_add_(0, row, values)


class _Sum(torch.autograd.Function):
    """Sum of sorted rows. A custom Function because `torch.segment_reduce` does not support second derivatives."""

    @staticmethod
    def forward(values: Tensor, row: Tensor, lengths: Tensor, is_entry: Tensor | None) -> Tensor:
        if values.dtype in (torch.float16, torch.bfloat16):
            return _reduce(values.float(), row, lengths).to(values.dtype)
        return _reduce(values, row, lengths)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _Spread.apply(grad, *ctx.saved_tensors, True), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        result: Tensor = _Sum.apply(tangent, *ctx.saved_tensors)
        return result

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        return _apply_batched_last(_Sum, in_dims, *inputs)


class _Spread(torch.autograd.Function):
    """Repetition of a value per row. A custom Function because the gradient of indexing is nondeterministic on a GPU."""

    @staticmethod
    def forward(per_row: Tensor, row: Tensor, lengths: Tensor, is_entry: Tensor | None, is_cleared: bool) -> Tensor:
        spread = per_row.index_select(0, row)
        return _cleared(spread, is_entry) if is_cleared else spread

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:4])
        ctx.save_for_forward(*inputs[1:4])
        ctx.is_cleared = inputs[4]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        return _Sum.apply(grad, *ctx.saved_tensors), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        result: Tensor = _Spread.apply(tangent, *ctx.saved_tensors, ctx.is_cleared)
        return result

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        return _apply_batched_last(_Spread, in_dims, *inputs)


def _cleared(values: Tensor, is_entry: Tensor | None, value: float = 0.0) -> Tensor:
    """Values, (n, *rest), with a number where they are padding."""
    if is_entry is None:
        return values
    return torch.where(is_entry.reshape(-1, *[1] * (values.ndim - 1)), values, number(value, values))


def _nonzero(total: Tensor) -> Tensor:
    """Sums of exponentials, 1 instead of 0."""
    return torch.where(total == 0, number(1.0, total), total)


def _log(total: Tensor) -> Tensor:
    """The logarithm of sums of exponentials; that of 0 without its infinite gradient, which would become NaN in the row."""
    return torch.where(total == 0, number(-torch.inf, total), _nonzero(total).log())


def _apply_batched_last(
    function: type[torch.autograd.Function], in_dims: tuple[int | None, ...], values: Tensor, *others: Any
) -> tuple[Tensor, int]:
    """Batch a linear map over the first dimension: the batch becomes an additional trailing dimension."""
    if in_dims[0] is None or in_dims[1] is not None:
        raise ValueError("vmap over packed batches requires the same rows for every element of the batch")
    result: Tensor = function.apply(values.movedim(in_dims[0], -1), *others)
    return result, result.ndim - 1
