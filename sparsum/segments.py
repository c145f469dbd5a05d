"""Reductions over the rows of a packed batch.

A packed batch stores the entries of all rows one after the other: ``values`` has shape ``(n, ...)`` and ``row`` of shape
``(n,)``, sorted, says which row each entry belongs to. Because the rows are sorted, a reduction needs no atomic additions:
the same input gives the same output bit for bit, on a GPU too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from sparsum import kernels

__all__ = ["Packed", "Segments", "may_be_padded", "positions_of", "read_size", "read_sizes", "reading_sizes"]

#: Takes the tensor of the sizes, and the largest that the first can be, in the place of `read_sizes`.
Reader = Callable[[Tensor, int], list[int]]
#: Raises an error that names the rows for which the tensor, (n_rows,), is True.
OnBad = Callable[[Tensor], NoReturn]
_reader: ContextVar[Reader | None] = ContextVar("reader", default=None)

# Rows of more entries than this on average count as long.
_LONG = 64
# A launch has a limited number of programs.
_MOST_COLUMNS = 2**22


@dataclass(frozen=True)
class Segments:
    """Which entries of a packed batch belong to which row.

    >>> segments = Segments.from_lengths(torch.tensor([2, 0, 1]), n=3)
    >>> segments.row
    tensor([0, 0, 2])
    >>> segments.sum(torch.tensor([1.0, 2.0, 4.0]))
    tensor([3., 0., 4.])

    Within `reading_sizes` there may be more entries than the lengths add up to. This *padding* at the end counts in no sum,
    and stands in the last row, so that what is looked up by row has a value.

    Args:
        row: the row of each entry, sorted.
        lengths: the number of entries of each row.
        is_padded: whether there may be padding.
    """

    row: Tensor  # shape: (n,), int64
    lengths: Tensor  # shape: (n_rows,), int64
    is_padded: bool = False

    @classmethod
    def from_row(cls, row: Tensor, n_rows: int) -> Segments:
        """Segments of a sorted ``row``; rows that do not occur in it are empty."""
        ones = torch.ones_like(row)
        return cls(row, torch.zeros(n_rows, dtype=torch.int64, device=row.device).index_add_(0, row, ones))

    @classmethod
    def from_lengths(cls, lengths: Tensor, n: int, *, is_padded: bool = False) -> Segments:
        """Segments of the given lengths, which add up to ``n``; with that known, nothing waits for the device.

        They may add up to less where ``is_padded``, or within `reading_sizes`.
        """
        if is_padded or may_be_padded():
            row = torch.searchsorted(lengths.cumsum(0), torch.arange(n, device=lengths.device), right=True)
            return cls(row.clamp_(max=max(len(lengths) - 1, 0)), lengths, is_padded=True)
        rows = torch.arange(len(lengths), device=lengths.device)
        return cls(torch.repeat_interleave(rows, lengths, output_size=n), lengths)

    @property
    def n_rows(self) -> int:
        """The number of rows, empty ones included."""
        return len(self.lengths)

    @property
    def starts(self) -> Tensor:
        """The position of the first entry of each row."""
        return self.lengths.cumsum(0) - self.lengths

    def sum(self, values: Tensor) -> Tensor:
        """Sum over each row: ``(n, *rest) -> (n_rows, *rest)``; an empty row gives 0."""
        result: Tensor = _Sum.apply(values, self.row, self.lengths)
        return result

    def spread(self, per_row: Tensor) -> Tensor:
        """Repeat a value per row for every entry of the row: ``(n_rows, *rest) -> (n, *rest)``; the adjoint of `sum`."""
        result: Tensor = _Spread.apply(per_row, self.row, self.lengths)
        return result

    def clear_padding(self, values: Tensor) -> Tensor:
        """The values of all entries, ``(n, *rest)``, with 0 in the padding and no gradient to it."""
        if not self.is_padded:
            return values
        is_entry = torch.arange(len(self.row), device=values.device) < self.lengths.sum()
        return torch.where(is_entry.reshape(-1, *[1] * (values.ndim - 1)), values, 0.0)

    def max(self, values: Tensor) -> Tensor:
        """Maximum over each row of ``values`` of shape (n,), without gradient; an empty row gives -inf."""
        return torch.segment_reduce(values.detach(), "max", lengths=self.lengths, unsafe=True, initial=-torch.inf)

    def argmax(self, values: Tensor) -> Tensor:
        """Position of the first maximum of each non-empty row of ``values`` of shape (n,)."""
        n = len(values)
        position = torch.arange(n, device=values.device)
        is_largest = values.detach() == self.max(values)[self.row]
        first = torch.full((self.n_rows,), n, device=values.device)
        first.scatter_reduce_(0, self.row, torch.where(is_largest, position, n), "amin")
        return torch.where(first < n, first, self.starts)

    def logsumexp(self, values: Tensor) -> Tensor:
        """Logarithm of the summed exponentials of each row of ``values`` of shape (n,); an empty row gives -inf."""
        peak = self._peak(values)
        total = self.sum((values - peak[self.row]).exp())
        # The logarithm of 0 would have an infinite gradient, and that of what the row consists of would be no number.
        is_empty = total == 0
        return torch.where(is_empty, 1.0, total).log().masked_fill(is_empty, -torch.inf) + peak

    def softmax(self, values: Tensor) -> Tensor:
        """The share of each entry in the summed exponentials of its row: (n,); 0 where all of them are 0."""
        powers = (values - self._peak(values)[self.row]).exp()
        total = self.sum(powers)
        return powers / torch.where(total == 0, 1.0, total)[self.row]

    def _peak(self, values: Tensor) -> Tensor:
        """What to take off so that exponentials are numbers."""
        return torch.nan_to_num(self.max(values), posinf=0.0, neginf=0.0)


@dataclass(frozen=True)
class Packed:
    """Entries of a table (n_rows, width), row after row.

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
        """The entries that are kept. This is the one place where a distribution waits for the device.

        Args:
            is_kept: which entries to pack.
            is_bad: rows that must not be packed; the flag travels with the number of entries, in one transfer.
            is_empty_bad: whether rows of which nothing is kept are bad as well.
            on_bad: called with the bad rows, (n_rows,), if there are any, to raise an error that names them.
            most: the largest number of entries there can be; by default all of the table.
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
        """The entries that are kept, whose numbers in each row and in all have been read before."""
        return cls(positions_of(is_kept.reshape(-1), n), Segments.from_lengths(lengths, n))

    @property
    def row(self) -> Tensor:
        """The row of each entry: (n,)."""
        return self.segments.row

    def take(
        self,
        table: Tensor,  # shape: (n_rows, width, *rest)
    ) -> Tensor:
        """What a table holds for each entry: (n, *rest). Values of padding are those of some entry."""
        entries = table.flatten(0, 1)
        is_all = len(self.flat) == len(entries) and not self.segments.is_padded
        return entries if is_all else entries.index_select(0, self.flat)

    def take_weights(
        self,
        table: Tensor,  # shape: (n_rows, width)
    ) -> Tensor:
        """As `take`, with 0 for padding, and no gradient to it: (n,)."""
        return self.segments.clear_padding(self.take(table))

    def select(
        self,
        chosen: Tensor,  # shape: (n,), bool
    ) -> Packed:
        """Some of the entries."""
        return Packed(self.flat[chosen], Segments.from_row(self.row[chosen], self.segments.n_rows))


def read_size(
    n: Tensor,  # shape: (), int64
    *,
    most: int,
    is_bad: Tensor | None = None,  # shape: (n_rows,), bool
    on_bad: OnBad | None = None,
) -> int:
    """The number of entries to be packed, at most ``most``, after a check of bad rows: one transfer for both."""
    if is_bad is None:
        return read_sizes(n, most=most)[0]
    size, n_bad = read_sizes(n, is_bad.sum(), most=most)
    if n_bad and on_bad is not None:
        on_bad(is_bad)
    return size


def read_sizes(*sizes: Tensor, most: int) -> list[int]:
    """Numbers that the host has to know, in one transfer: how many entries are to be packed, at most ``most``, and others.

    Nothing else in the library waits for a GPU when it makes a sparse distribution. Within `reading_sizes` the first number
    may come out larger, and what is packed is then padded. A single tensor of shape (n_sizes,) is read as it is.
    """
    stacked = sizes[0] if sizes[0].ndim else torch.stack(sizes)
    reader = _reader.get()
    if reader is not None:
        return reader(stacked, most)
    # Within a function transform, torch 2.8 reads single numbers alone.
    is_transformed = torch._C._are_functorch_transforms_active()
    return [int(size) for size in stacked] if is_transformed else stacked.tolist()


def may_be_padded() -> bool:
    """Whether the sizes that are read now may be larger than they are."""
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
    """The positions of the ``count`` entries that are True; as their number is known, nothing waits for the device."""
    if mask.is_cuda or may_be_padded():  # on a GPU torch.nonzero_static does wait
        positions = torch.searchsorted(mask.cumsum(0), torch.arange(1, count + 1, device=mask.device))
        return positions.clamp_(max=max(len(mask) - 1, 0))  # those of the padding
    return torch.nonzero_static(mask, size=count).squeeze(-1)


def _is_narrow_and_here(values: Tensor, _row: Tensor, lengths: Tensor) -> bool:
    """Up to `MOST_ROWS` rows and `_MOST_COLUMNS` columns, on the current device."""
    from sparsum.kernels.segments import MOST_ROWS

    is_here = not values.is_cuda or values.get_device() == torch.cuda.current_device()
    return is_here and math.prod(values.shape[1:]) <= _MOST_COLUMNS and 0 < len(lengths) <= MOST_ROWS


def _sum_in_one_launch(values: Tensor, _row: Tensor, lengths: Tensor) -> Tensor:
    from sparsum.kernels.segments import segment_sum

    return segment_sum(values.contiguous(), lengths)


@kernels.operation("segment_sum", kernel=_sum_in_one_launch, takes=_is_narrow_and_here)
def _reduce(values: Tensor, row: Tensor, lengths: Tensor) -> Tensor:
    """Sum sorted rows with whichever deterministic routine is the fastest for this device and shape.

    They add one entry after the other, so long rows are added in float64 to keep their digits.
    """
    if values.dtype == torch.float32 and (values.ndim == 1 or len(values) > _LONG * len(lengths)):
        return _reduce(values.double(), row, lengths).float()
    if values.ndim == 1 or values.is_cuda:
        return torch.segment_reduce(values, "sum", lengths=lengths, unsafe=True, initial=0.0)
    # On the CPU, adding one entry after the other is deterministic and, for wide entries, several times faster.
    return values.new_zeros(len(lengths), *values.shape[1:]).index_add_(0, row, values)


class _Sum(torch.autograd.Function):
    """Sum of sorted rows. Its own Function because torch's has no second derivative."""

    @staticmethod
    def forward(values: Tensor, row: Tensor, lengths: Tensor) -> Tensor:
        if values.dtype in (torch.float16, torch.bfloat16):
            return _reduce(values.float(), row, lengths).to(values.dtype)
        return _reduce(values, row, lengths)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Spread.apply(grad, *ctx.saved_tensors), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        result: Tensor = _Sum.apply(tangent, *ctx.saved_tensors)
        return result

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        return _apply_batched_last(_Sum, in_dims, *inputs)


class _Spread(torch.autograd.Function):
    """Repetition of a value per row. Its own Function because the gradient of indexing is not deterministic on a GPU."""

    @staticmethod
    def forward(per_row: Tensor, row: Tensor, lengths: Tensor) -> Tensor:
        return per_row.index_select(0, row)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Sum.apply(grad, *ctx.saved_tensors), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        result: Tensor = _Spread.apply(tangent, *ctx.saved_tensors)
        return result

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        return _apply_batched_last(_Spread, in_dims, *inputs)


def _apply_batched_last(
    function: type[torch.autograd.Function], in_dims: tuple[int | None, ...], values: Tensor, row: Tensor, lengths: Tensor
) -> tuple[Tensor, int]:
    """Batch a linear map of the first dimension: the batch becomes one more trailing dimension."""
    if in_dims[0] is None or in_dims[1] is not None:
        raise ValueError("vmap over packed batches needs the same rows for every element of the batch")
    result: Tensor = function.apply(values.movedim(in_dims[0], -1), row, lengths)
    return result, result.ndim - 1
