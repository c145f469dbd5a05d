"""Pulling for chains of choices, in closed form.

Order sequences by their first different tag. Pulling then takes the first sequence that is left, as much of it as there is,
and so on: the sequences in their order fill the interval from 0 to 1. So the tag at each position is a step function on the
interval, and one pass over the positions finds the steps. The part of the interval in which position i has tag a is divided
among the tags that follow, in their order and in proportion to their transitions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.structures.pulling import ZERO, Decomposition


def pull_chain(
    tags: Tensor,  # shape: (n_rows, length, n_tags), the mean
    transitions: Tensor | None,  # shape: (n_rows, length - 1, n_tags, n_tags), their mean, if they matter
    is_padding: Tensor | None,  # shape: (n_rows, length)
) -> Decomposition:
    """Split the mean vectors of sequences; see the module's description."""
    n_rows, length, n_tags = tags.shape
    widths, tag = tags.new_ones(n_rows, 1), torch.zeros(n_rows, 1, dtype=torch.int64, device=tags.device)
    # How much of each tag each next tag gets. Without transitions, and at the first position, the same tags follow all.
    first, others = tags[:, :1].unsqueeze(2), tags[:, 1:].unsqueeze(2) if transitions is None else transitions
    most = _most_cells(first, others)
    bounds = _bounds(first) + _bounds(others)
    cells: list[tuple[Tensor, Tensor]] = []  # for each position, the cell before and the tag of each cell: (n_rows, n_cells)
    for i in range(length):
        starts, ends = bounds[i]
        overlap = _overlap(widths, tag if ends.shape[1] > 1 else torch.zeros_like(tag), starts, ends)
        if is_padding is not None:  # tag 0 in each cell
            whole = torch.nn.functional.pad(widths.unsqueeze(-1), (0, n_tags - 1))
            overlap = torch.where(is_padding[:, i, None, None], whole, overlap)
        widths, index = _compressed(overlap.flatten(1), most[i])
        tag = index % n_tags
        cells.append((index // n_tags, tag))
    atoms = _traced(cells)
    row = torch.arange(n_rows, device=tags.device).repeat_interleave(widths.shape[1], output_size=widths.numel())
    return Decomposition.of(atoms.flatten(0, 1), widths.flatten(), row, n_rows)


def _most_cells(first: Tensor, others: Tensor) -> list[int]:
    """The largest number of cells at each position; reads all at once.

    A tag with k cells, followed by m tags, is cut into at most k + m - 1 cells.
    """
    counts = [(shares > ZERO / 2).sum(-1).sub_(1).clamp_min_(0).sum(-1) for shares in (first, others)]
    n_cells = 1 + torch.cat(counts, -1).cumsum(-1)  # shape: (n_rows, length)
    most: list[int] = n_cells.amax(0).tolist() if len(n_cells) else [1] * n_cells.shape[1]
    return most


def _bounds(
    shares: Tensor,  # shape: (n_rows, n_positions, n_tags, n_next)
) -> list[tuple[Tensor, Tensor]]:
    """For each position, where the share of each next tag starts and ends: (n_rows, n_tags, n_next) each."""
    ends = shares.cumsum(-1)
    starts = torch.nn.functional.pad(ends[..., :-1], (1, 0))
    return list(zip(starts.unbind(1), ends.unbind(1), strict=True))


def _overlap(
    widths: Tensor,  # shape: (n_rows, n_cells), of consecutive cells of the interval
    tag: Tensor,  # shape: (n_rows, n_cells)
    starts: Tensor,  # shape: (n_rows, n_tags, n_next), where the share of each tag that each next tag gets starts
    ends: Tensor,  # shape: (n_rows, n_tags, n_next), and where it ends
) -> Tensor:
    """How much of each cell each next tag gets: (n_rows, n_cells, n_next)."""
    n_rows, n_cells = widths.shape
    filled = widths.new_zeros(n_rows, n_cells, ends.shape[1]).scatter_(2, tag.unsqueeze(-1), widths.unsqueeze(-1)).cumsum(1)
    end = filled.gather(2, tag.unsqueeze(-1))
    index = tag.unsqueeze(-1).expand(n_rows, n_cells, ends.shape[2])
    upper = torch.minimum(end, ends.gather(1, index))
    return upper - torch.maximum(end - widths.unsqueeze(-1), starts.gather(1, index))


def _compressed(
    widths: Tensor,  # shape: (n_rows, n)
    n_kept: int,
) -> tuple[Tensor, Tensor]:
    """The positive widths of each row, at most ``n_kept``, padded with 0, and their indices: (n_rows, n_kept) each."""
    is_kept = widths > ZERO
    slot = torch.where(is_kept, is_kept.cumsum(-1) - 1, n_kept).clamp_max_(n_kept)
    places = torch.arange(widths.shape[1], device=widths.device).expand_as(slot)
    index = torch.zeros(len(widths), n_kept + 1, dtype=torch.int64, device=widths.device).scatter_(1, slot, places)
    return widths.new_zeros(index.shape).scatter_(1, slot, widths)[:, :-1], index[:, :-1]


def _traced(cells: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The tags of the last cells at all positions: (n_rows, n_cells, length)."""
    before, tag = cells[-1]
    tags = [tag]
    for earlier, tag in reversed(cells[:-1]):
        tags.append(tag.gather(1, before))
        before = earlier.gather(1, before)
    return torch.stack(tags[::-1], -1)
