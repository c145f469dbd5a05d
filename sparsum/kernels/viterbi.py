"""The best path of each chain in one launch, by the Viterbi algorithm: each program handles one chain."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsum.kernels.launch import next_power_of_2, unwrapped

#: The maximum number of tags: a program keeps a matrix of tags by tags in registers.
MOST_TAGS = 64


@triton.jit(do_not_specialize=["length"])  # the compiler fails on a length known to be 1
def follow(unary, transition, before, path, length, n, TAGS: tl.constexpr):
    """The first of the best paths. ``before`` holds the best tag before each tag of each position."""
    row = tl.program_id(0).to(tl.int64)
    tag, a, b = tl.arange(0, TAGS), tl.arange(0, TAGS)[:, None], tl.arange(0, TAGS)[None, :]
    is_tag, is_pair = tag < n, (a < n) & (b < n)
    unary, transition = unary + row * length * n, transition + row * (length - 1) * n * n
    before, path = before + row * length * n, path + row * length
    best = tl.load(unary + tag, mask=is_tag, other=float("-inf"))
    i = length * 0 + 1
    while i < length:
        step = tl.load(transition + (i - 1) * n * n + a * n + b, mask=is_pair, other=float("-inf"))
        total = best[:, None] + step
        value = tl.max(total, 0)
        way = tl.min(tl.where(total == value[None, :], a, n - 1), 0)
        tl.store(before + i * n + tag, way, mask=is_tag)
        best = value + tl.load(unary + i * n + tag, mask=is_tag, other=float("-inf"))
        i += 1
    tl.debug_barrier()
    end = tl.min(tl.where(is_tag & (best == tl.max(best, 0)), tag, n - 1), 0)
    while i > 0:
        i -= 1
        tl.store(path + i, end.to(tl.int64))
        end = tl.load(before + i * n + end, mask=i > 0, other=0)


def best_path(
    unary: Tensor,  # shape: (n_rows, length, n_tags), float64
    transition: Tensor,  # shape: (n_rows, length - 1, n_tags, n_tags), float64
) -> Tensor:
    """The best path of each chain: (n_rows, length)."""
    n_rows, length, n = unary.shape
    path = torch.empty(n_rows, length, dtype=torch.int64, device=unary.device)
    before = torch.empty(n_rows, length, n, dtype=torch.int32, device=unary.device)
    tags = max(4, next_power_of_2(n))
    if n_rows:
        unwrapped(follow)[(n_rows,)](
            *(unary.contiguous(), transition.contiguous(), before, path, length, n),
            TAGS=tags,
            num_warps=1 if tags <= 16 else 4,
        )
    return path
