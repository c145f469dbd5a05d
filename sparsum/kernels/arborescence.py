"""The best tree over the words of each matrix in one launch, by the algorithm of Chu, Liu and Edmonds.

Each program handles one matrix, in the way of `sparsum.structures.arborescence`: a path grows from word to head, every node
on it with its best edge, and where it ends in a cycle, the cycle becomes one node. What belongs to a word is in the lanes of
words, what belongs to a node in those of nodes. The edges into each node are in memory: from all words, then from the root.

References:
    - Finding optimum branchings (Tarjan, 1977), https://doi.org/10.1002/net.3230070103
    - Efficient algorithms for finding minimum spanning trees in undirected and directed graphs (Gabow, Galil, Spencer &
      Tarjan, 1986), section 3, on growing a path, https://doi.org/10.1007/BF02579168
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsum.kernels.launch import next_power_of_2, unwrapped

#: The maximum number of words: a program keeps several numbers per word in registers.
MOST_WORDS = 255
# The maximum memory for the edges of one launch.
_MOST_BYTES = 1 << 28


@triton.jit
def _at(values, index, place):
    """The entry of a vector at a place that is known at run time."""
    return tl.sum(tl.where(index == place, values, 0), 0)


@triton.jit
def _node_at(top, place, k):
    """The node at a position of the path."""
    return tl.max(tl.where(place == k, top, -1), 0)


@triton.jit
def span(scores, lengths, edges, heads, first_row, n, SINGLE_ROOT: tl.constexpr, BLOCK: tl.constexpr):
    """The heads of the best tree, or of some tree if there is none; a head of n means the root until the end."""
    program = tl.program_id(0).to(tl.int64)
    example, width = first_row + program, n + 1
    word, node = tl.arange(0, BLOCK), tl.arange(0, 2 * BLOCK)
    length = tl.load(lengths + example).to(tl.int32)
    is_word, is_edge = word < length, word < width
    scores += example * n * n
    edges += program * 2 * n * width
    is_possible, m = length > 0, length * 0
    while m < length:
        row = tl.load(scores + m * n + word, mask=is_word, other=float("-inf"))
        is_possible = is_possible & (tl.min((row < float("inf")).to(tl.int32), 0) > 0)  # neither NaN nor +inf
        root = _at(row, word, m)
        row = tl.where(word == m, float("-inf"), row)
        tl.store(edges + m * width + word, tl.where(word == n, root, row), mask=is_edge)
        m += 1
    tl.debug_barrier()
    # The node of each word, and its position on the path: -1 before, and a large one after.
    top, place, done = tl.where(is_word, word, -2), tl.full([BLOCK], -1, tl.int32), 4 * BLOCK
    head, parent = tl.full([2 * BLOCK], 0, tl.int32), tl.full([2 * BLOCK], -1, tl.int32)
    value = tl.zeros([2 * BLOCK], tl.float64)
    n_nodes, start = length, length * 0
    while is_possible & (start < length):
        is_growing, last = _at(place, word, start) < 0, start * 0
        place = tl.where(is_growing & (top == _at(top, word, start)), 0, place)
        while is_growing:
            current = _node_at(top, place, last)
            row = tl.load(edges + current * width + word, mask=is_edge, other=float("-inf"))
            root, of_words = _at(row, word, n), tl.where(is_word, row, float("-inf"))
            best = tl.max(of_words, 0)
            # With a single root, an edge from the root is only taken if a node has no other.
            takes_root = best == float("-inf") if SINGLE_ROOT else root >= best
            chosen = tl.where(takes_root, n, tl.min(tl.where(is_word & (of_words == best), word, BLOCK), 0))
            best = tl.where(takes_root, root, best)
            head, value = tl.where(node == current, chosen, head), tl.where(node == current, best, value)
            is_possible = best > float("-inf")
            following = tl.where(takes_root, done, _at(place, word, chosen))
            is_cycle = is_possible & (following >= 0) & (following < done)
            if is_cycle:
                joined, k = tl.full([BLOCK], float("-inf"), tl.float64), following
                while k <= last:
                    member = _node_at(top, place, k)
                    row = tl.load(edges + member * width + word, mask=is_edge, other=float("-inf"))
                    joined = tl.maximum(joined, row - _at(value, node, member))
                    parent = tl.where(node == member, n_nodes, parent)
                    k += 1
                is_inside = (place >= following) & (place <= last)
                tl.store(edges + n_nodes * width + word, tl.where(is_inside, float("-inf"), joined), mask=is_edge)
                tl.debug_barrier()
                top, place = tl.where(is_inside, n_nodes, top), tl.where(is_inside, following, place)
                last = following
                n_nodes += 1
            else:
                is_new = following < 0
                last += 1
                place = tl.where(is_new & (top == _at(top, word, chosen)), last, place)
                is_growing = is_possible & is_new
        place = tl.where(place >= 0, done, place)
        start += 1
    # In each cycle, all members keep their edges, except for the one where the cycle is entered. The newest comes first.
    cycle = n_nodes - 1
    while is_possible & (cycle >= length):
        entry, is_member = _at(head, node, cycle), parent == cycle
        into = tl.load(edges + node * width + entry, mask=is_member, other=float("-inf")) - value
        entered = tl.min(tl.where(is_member & (into == tl.max(into, 0)), node, 2 * BLOCK), 0)
        head = tl.where(node == entered, entry, head)
        cycle -= 1
    is_root = (node < length) & (head == n)
    if SINGLE_ROOT:
        is_possible = is_possible & (tl.sum(is_root.to(tl.int32), 0) == 1)
    head = tl.where(is_possible, tl.where(is_root, node, head), tl.maximum(node - 1, 0))
    tl.store(heads + example * n + node, tl.where(node < length, head, 0).to(tl.int64), mask=node < n)


def best(
    scores: Tensor,  # shape: (n_rows, n, n), float64
    lengths: Tensor,  # shape: (n_rows,), int64, from 1 to n
    *,
    single_root: bool,
) -> Tensor:
    """The heads of the best tree over the first words of each matrix, 0 for the others: (n_rows, n).

    If there is none, because all are forbidden or a score is NaN or +inf, each word has the one before as its head.
    """
    n_rows, n, _ = scores.shape
    heads = torch.empty(n_rows, n, dtype=torch.int64, device=scores.device)
    n_together = max(1, min(n_rows, _MOST_BYTES // (16 * n * (n + 1))))
    edges = scores.new_empty(n_together, 2 * n, n + 1)
    block = max(16, next_power_of_2(n + 1))
    scores = scores.contiguous()
    for first in range(0, n_rows, n_together):
        unwrapped(span)[(min(n_together, n_rows - first),)](
            *(scores, lengths, edges, heads, first, n),
            SINGLE_ROOT=single_root,
            BLOCK=block,
            num_warps=1 if block <= 64 else 4,
        )
    return heads
