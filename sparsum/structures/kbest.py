"""The exact k best assignments of a batch of rows, without a loop over rows.

For bits, sort the possible changes to the best assignment by their cost. A set of changes is *dominated* by another set if
the other one is at least as good for all costs. A set that is dominated by k others is not needed among the k best. The
remaining sets form a fixed, short table that is the same for all rows: 16 sets for k = 10, 473 for k = 100.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, chain, repeat
from math import comb, inf, nan
from typing import NamedTuple

import torch
from torch import Tensor

from sparsum import kernels
from sparsum.tensors import tensor_cache


class Smallest(NamedTuple):
    """The smallest entries along the last dimension, in ascending order, and their indices."""

    values: Tensor
    indices: Tensor


def smallest(
    values: Tensor,  # shape: (*batch, n)
    k: int,
) -> Smallest:
    """The k smallest entries; the result for a row does not depend on the rest of the batch."""
    if values.is_cuda:  # the order of ties in topk depends on the shape of the batch
        ordered = values.sort(dim=-1, stable=True)
        return Smallest(ordered.values[..., :k], ordered.indices[..., :k])
    return Smallest(*values.topk(k, -1, largest=False))


def clamp_infinities(scores: Tensor) -> Tensor:
    """Convert scores to float64, and infinite scores to very large numbers, so that sums do not become NaN."""
    return scores.double().nan_to_num(nan=nan, posinf=1e300, neginf=-1e300)


@dataclass(frozen=True)
class Sets:
    """The non-empty sets of positions, sorted by cost, that are dominated by fewer than k other sets.

    They are organised in levels, one for each size, smallest first. The sets of a level extend sets of the previous level by
    one position at the end, so the cost of each set takes one addition.

    Args:
        levels: for each size, the sets of the previous level that are extended, and the positions that are added.
        members: the positions in each set; the last one is repeated up to the common length.
    """

    levels: tuple[tuple[Tensor, Tensor], ...]  # shape: (n_sets_of_this_size,) each, int64
    members: Tensor  # shape: (n_sets, largest_size), int64

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of sets of each size."""
        return tuple(len(positions) for _, positions in self.levels)

    def costs(
        self,
        costs: Tensor,  # shape: (n_rows, width)
    ) -> list[Tensor]:
        """The summed costs of all sets, for each size: (n_rows, n_sets_of_this_size)."""
        sums = [costs.new_zeros(len(costs), 1)]
        for parents, positions in self.levels:
            sums.append(sums[-1].index_select(1, parents) + costs.index_select(1, positions))
        return sums[1:]


@tensor_cache
def undominated_sets(k: int, width: int, device: torch.device) -> Sets:
    r"""The table of subsets of 1, ..., width that are dominated by fewer than k others.

    S is dominated by T if T has at most as many elements as S, and the i-th largest element of T is at most the i-th largest
    of S, for all i. Count the sets that dominate S, including S, by their largest element v: :math:`h_\emptyset(0) = 1`, and
    with one more element p above all others in S

    .. math:: h_{S \cup p}(0) = 1, \qquad h_{S \cup p}(v) = \sum_{u < v} h_S(u) \quad (1 \le v \le p).

    The count grows with p and with every added element, so the search stops as soon as it exceeds k.
    """
    level = [(0, [1])]  # the largest element of a set, and the cumulative sums of its h
    members = torch.zeros(1, 0, dtype=torch.int64, device=device)
    levels, tables = [], []
    while True:
        parents, positions, extended = [], [], []
        for index, (largest, sums) in enumerate(level):
            if not sums:
                continue
            count = 1 + sum(sums[:-1])
            for position in range(largest + 1, width + 1):
                count += sums[-1]
                if count > k:
                    break
                parents.append(index)
                positions.append(position)
                # One more element at least doubles the count: if that exceeds k, h is not needed.
                h = [1, *sums, *[sums[-1]] * (position - 1 - largest)] if 2 * count <= k else []
                extended.append((position, list(accumulate(h))))
        if not parents:
            break
        level = extended
        new, source = torch.tensor(positions, device=device) - 1, torch.tensor(parents, device=device)
        members = torch.cat([members[source], new.unsqueeze(1)], 1)
        levels.append((source, new))
        tables.append(members)
    size = len(tables)
    filled = [torch.cat([table, table[:, -1:].expand(-1, size - table.shape[1])], 1) for table in tables]
    return Sets(tuple(levels), torch.cat(filled or [members]))


@tensor_cache
def _sets_as_bits(k: int, width: int, device: torch.device) -> Tensor:
    """The table of `undominated_sets`, with the positions of each set as the bits of an integer: (n_sets,), int64."""
    members = undominated_sets(k, width, torch.device("cpu")).members
    return torch.tensor([sum(1 << position for position in set(row)) for row in members.tolist()], device=device)


def _are_few_bits(scores: Tensor, k: int) -> bool:
    """From 2 to `MOST_BEST` vectors of at most `MOST_BITS` bits."""
    from sparsum.kernels.best_bits import MOST_BEST, MOST_BITS

    return 1 < k <= MOST_BEST and scores.shape[-1] <= MOST_BITS


def _best_in_one_launch(scores: Tensor, k: int) -> Tensor:
    from sparsum.kernels import best_bits

    return best_bits.best(scores, _sets_as_bits(k, min(k - 1, scores.shape[-1]), scores.device), k)


@kernels.operation("best_bits", kernel=_best_in_one_launch, takes=_are_few_bits)
def best_bits(
    scores: Tensor,  # shape: (n_rows, n)
    k: int,
) -> Tensor:
    """The k best bit vectors, best first, as 0/1 in the dtype of the scores: (n_rows, k, n).

    Flipping a bit of the best vector costs the absolute value of its score, so only the k - 1 bits with the smallest cost
    matter. This takes a table of sets, one top-k over the bits, and one top-k over the sets.
    """
    best = (scores > 0).to(scores.dtype)
    if k == 1:
        return best.unsqueeze(1)
    near = smallest(scores.abs(), min(k - 1, scores.shape[-1]))
    sets = undominated_sets(k, near.values.shape[-1], scores.device)
    costs = torch.cat(sets.costs(clamp_infinities(near.values)), -1)
    chosen = smallest(costs, k - 1).indices
    members = sets.members[chosen]  # shape: (n_rows, k - 1, largest_size)
    return _flip(best, near.indices.gather(1, members.flatten(1)).view_as(members))


def _flip(
    best: Tensor,  # shape: (n_rows, n), 0/1
    positions: Tensor,  # shape: (n_rows, k - 1, n_flips), may contain duplicates
) -> Tensor:
    """The best bits, followed by copies with the bits at the given positions flipped: (n_rows, k, n)."""
    atoms = best.unsqueeze(1).repeat(1, positions.shape[1] + 1, 1)
    flipped = (1 - best).gather(1, positions.flatten(1)).view_as(positions)
    atoms[:, 1:].scatter_(2, positions, flipped)
    return atoms


def best_counted_bits(
    scores: Tensor,  # shape: (n_rows, n)
    best: Tensor,  # shape: (n_rows, n), the best bits
    most: int,
    k: int,
    *,
    exactly: bool,
) -> Tensor:
    """The k best bit vectors with at most (or exactly) ``most`` ones, best first: (n_rows, k, n).

    With the scores sorted, best first, the best vector takes the first m bits. Any other vector drops a set D of these bits
    and adds a set A of the remaining ones. With ``exactly``, A and D have the same size; otherwise A may be larger than D by
    at most the rest of the budget. If D has fewer elements, or elements closer to m, there is still an A for which the
    result is at least as good, and vice versa. Therefore, both sets come from the same table as for `best_bits`, with costs
    that start at m and go in either direction. For each size of D, the sets A that go with it are one list, sorted by cost;
    the i-th best D and the j-th best A only matter for a few (i, j).
    """
    if k == 1:
        return best.unsqueeze(1)
    n = scores.shape[-1]
    ordered = scores.sort(dim=-1, descending=True, stable=True)
    m = best.sum(-1, keepdim=True, dtype=torch.int64)  # shape: (n_rows, 1)
    widths = min(k - 1, most), min(k - 1, n - most if exactly else n)
    dropped = m - 1 - torch.arange(widths[0], device=scores.device)
    added = m + torch.arange(widths[1], device=scores.device)
    sides = []
    for positions, sign in ((dropped, 1), (added, -1)):
        inside = positions.clamp(0, n - 1)
        costs = (sign * clamp_infinities(ordered.values.gather(1, inside))).masked_fill(positions != inside, inf)
        sides.append(_Side.of(costs, ordered.indices.gather(1, inside), k))
    drop, add = sides
    lists = add.each() if exactly else add.up_to(k)
    pairs, all_pairs = _pairs(k, drop.lengths, lists.indices.shape[-1], len(lists.indices), exactly, scores.device)
    # The list of sets to add that each number of dropped bits goes with: as many, or as many and the rest of the budget.
    size = torch.arange(len(pairs), device=scores.device)
    place = size.expand(len(m), -1) if exactly else (size + most - m).clamp_max(len(lists.indices) - 1)
    pair_costs = []
    for d, (left, right) in enumerate(pairs):
        added_costs = _rows_of(lists.values, place[:, d])
        if d == 0:  # not the best vector itself, which drops and adds nothing
            added_costs = added_costs.masked_fill(_rows_of(lists.indices, place[:, d]) == 0, inf)
        pair_costs.append(drop.costs.index_select(1, left) + added_costs.index_select(1, right))
    chosen = smallest(torch.cat(pair_costs, 1), k - 1).indices
    sizes, left, right = all_pairs[:, chosen]
    row = torch.arange(len(m), device=scores.device).unsqueeze(1)
    down, up = drop.members(left), add.members(lists.indices[place.gather(1, sizes), row, right])
    # An empty set repeats a flip of the other set; the two are never both empty.
    down, up = torch.where(down < 0, up[..., :1], down), torch.where(up < 0, down[..., :1], up)
    return _flip(best, torch.cat([down, up], -1))


def _rows_of(
    lists: Tensor,  # shape: (n_lists, n_rows, width)
    place: Tensor,  # shape: (n_rows,)
) -> Tensor:
    """One of the lists for each row: (n_rows, width)."""
    return lists[place, torch.arange(len(place), device=place.device)]


@dataclass(frozen=True)
class _Side:
    """The sets of bits to drop or to add: the empty set first, then the sets of each size, sorted by cost."""

    costs: Tensor  # shape: (n_rows, n_ranked)
    order: Tensor  # shape: (n_rows, n_ranked), the index of each in the table of sets, -1 for the empty set
    lengths: tuple[int, ...]  # the number of ranked sets of each size
    table: Tensor  # shape: (n_sets, largest_size), positions
    bits: Tensor  # shape: (n_rows, width), the bit at each position

    @classmethod
    def of(
        cls,
        costs: Tensor,  # shape: (n_rows, width), of single bits
        bits: Tensor,  # shape: (n_rows, width)
        k: int,
    ) -> _Side:
        sets = undominated_sets(k, costs.shape[1], costs.device)
        nothing = bits.new_full((len(bits), 1), -1)
        ranked_costs, order, lengths, start = [torch.zeros_like(nothing, dtype=costs.dtype)], [nothing], [1], 0
        for size, sums in enumerate(sets.costs(costs), 1):
            ranked = smallest(sums, min(sums.shape[1], k + 1 - 2**size))
            ranked_costs.append(ranked.values)
            order.append(ranked.indices + start)
            lengths.append(ranked.values.shape[1])
            start += sums.shape[1]
        return cls(torch.cat(ranked_costs, 1), torch.cat(order, 1), tuple(lengths), sets.members, bits)

    def each(self) -> Smallest:
        """The ranked sets of each size, and their places among all: (n_sizes, n_rows, most_of_a_size), padded with inf."""
        width, starts = max(self.lengths), [0, *accumulate(self.lengths)]
        blocks = self.costs.split(self.lengths, 1)
        values = [torch.nn.functional.pad(block, (0, width - block.shape[1]), value=inf) for block in blocks]
        place = torch.arange(width, device=self.costs.device)
        indices = [(place + start).clamp_max(self.costs.shape[1] - 1).expand_as(values[0]) for start in starts[:-1]]
        return Smallest(torch.stack(values), torch.stack(indices))

    def up_to(self, k: int) -> Smallest:
        """The k best sets of at most each size, and their places among all: (n_sizes, n_rows, k), padded with inf."""
        starts, lists = [0, *accumulate(self.lengths)], [Smallest(self.costs[:, :1], self.order[:, :1] + 1)]
        for block, start in zip(self.costs.split(self.lengths, 1)[1:], starts[1:], strict=False):
            here = torch.arange(start, start + block.shape[1], device=block.device).expand(len(block), -1)
            values, places = torch.cat([lists[-1].values, block], 1), torch.cat([lists[-1].indices, here], 1)
            kept = smallest(values, min(k, values.shape[1]))
            lists.append(Smallest(kept.values, places.gather(1, kept.indices)))
        width = lists[-1].values.shape[1]
        padded = [torch.nn.functional.pad(each.values, (0, width - each.values.shape[1]), value=inf) for each in lists]
        indices = [torch.nn.functional.pad(each.indices, (0, width - each.indices.shape[1])) for each in lists]
        return Smallest(torch.stack(padded), torch.stack(indices))

    def members(
        self,
        chosen: Tensor,  # shape: (n_rows, k - 1)
    ) -> Tensor:
        """The bits in the chosen ranked sets of each row, -1 for the empty set: (n_rows, k - 1, largest_size)."""
        if not len(self.table):
            return torch.full_like(chosen, -1).unsqueeze(-1)
        place = self.order.gather(1, chosen)
        positions = self.table[place.clamp(min=0)]
        bits = self.bits.gather(1, positions.flatten(1)).view_as(positions)
        return bits.masked_fill(place.unsqueeze(-1) < 0, -1)


@tensor_cache
def _pairs(
    k: int, n_left: tuple[int, ...], n_right: int, n_lists: int, same_size: bool, device: torch.device
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """For each size of D, the pairs of ranked sets D and places in the list of A that can be among the k best.

    Also all of them together, below their sizes of D: (3, n_pairs).

    For the i-th best D of a size and the j-th best A of its list, counting from 0, (i + 1)(j + 1) pairs are at least as
    good, including the pair itself, and so are the pairs of smaller sets that these contain.
    """
    starts, pairs = [0, *accumulate(n_left)], []
    for d in range(min(len(n_left), n_lists) if same_size else len(n_left)):
        left, right = _staircase(k + 1 - (comb(2 * d, d) if same_size else 2**d), n_left[d], n_right)
        ranks = [torch.tensor(column, dtype=torch.int64, device=device) for column in (left, right)]
        pairs.append((ranks[0] + starts[d], ranks[1]))
    all_pairs = [torch.stack([torch.full_like(pair[0], d), *pair]) for d, pair in enumerate(pairs)]
    return pairs, torch.cat(all_pairs, 1)


def _staircase(k: int, n_left: int, n_right: int) -> tuple[list[int], list[int]]:
    """The pairs (i, j) of ranks that can be among the k best sums of two sorted lists, (0, 0) first."""
    counts = [min(k // (i + 1), n_right) for i in range(min(k, n_left))]
    left = chain.from_iterable(repeat(i, count) for i, count in enumerate(counts))
    return list(left), list(chain.from_iterable(map(range, counts)))


def best_choices(
    scores: Tensor,  # shape: (n_rows, n_groups, n_each)
    k: int,
) -> Tensor:
    """The k best combinations of one choice per group, best first: (n_rows, k, n_groups).

    Merges neighbouring groups, then pairs of groups and so on, keeping the k best combinations of each.
    """
    n_groups, n_each = scores.shape[1:]
    ordered = scores.sort(dim=-1, descending=True, stable=True)
    width = min(k, n_each)
    values = clamp_infinities(ordered.values[..., :width])
    costs = values[..., :1] - values  # shape: (n_rows, n_merged, width)
    choices = ordered.indices[..., :width].unsqueeze(-1)  # shape: (n_rows, n_merged, width, n_groups_each)
    while costs.shape[1] > 1:
        if costs.shape[1] % 2:  # pad with a group of one choice, which is removed at the end
            costs = torch.cat([costs, torch.full_like(costs[:, :1], inf)], 1)
            costs[:, -1, 0] = 0
            choices = torch.cat([choices, torch.zeros_like(choices[:, :1])], 1)
        left, right = _merges(k, costs.shape[-1], scores.device)
        sums = costs[:, 0::2].index_select(2, left) + costs[:, 1::2].index_select(2, right)
        kept = smallest(sums[..., 1:], min(k, sums.shape[-1]) - 1)
        # The pair of the two best stays first, also on ties.
        costs = torch.cat([sums[..., :1], kept.values], -1)
        index = torch.nn.functional.pad(kept.indices + 1, (1, 0))
        halves = [
            half.gather(2, places[index].unsqueeze(-1).expand(-1, -1, -1, half.shape[-1]))
            for half, places in ((choices[:, 0::2], left), (choices[:, 1::2], right))
        ]
        choices = torch.cat(halves, -1)
    return choices[:, 0, :k, :n_groups]


@tensor_cache
def _merges(k: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The indices in two sorted lists of the same width whose sums can be among the k best, (0, 0) first."""
    left, right = (torch.tensor(column, device=device) for column in _staircase(k, width, width))
    return left, right
