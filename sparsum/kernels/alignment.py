"""The best monotone alignment of each row in one launch.

Each program handles one row: it goes through the frames with one number per token in registers, which it hands to the next
token through memory, and then back through the frames along the moves that it wrote.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsum.kernels.launch import next_power_of_2, unwrapped

#: The maximum number of tokens: a program keeps one number per token in registers.
MOST_TOKENS = 4096


@triton.jit
def align(scores, sizes, moves, scratch, tokens, n, m, BLOCK: tl.constexpr):
    """The token of each frame; the scratch memory has two vectors per row, with -inf before the first token."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.arange(0, BLOCK)
    is_token = token < n
    scores += row * m * n
    moves += row * m * n
    scratch += row * 2 * (BLOCK + 1)
    tokens += row * m
    last = tl.load(sizes + 2 * row).to(tl.int32) - 1
    n_frames = tl.load(sizes + 2 * row + 1).to(tl.int32)
    stay = tl.where(token == 0, tl.load(scores + token, mask=is_token, other=0.0), float("-inf"))
    frame = n_frames * 0 + 1
    while frame < n_frames:
        # Two vectors in turn: a lane may still read one of them when another writes the next.
        here = scratch + (frame % 2) * (BLOCK + 1)
        tl.store(here + token + 1, stay)
        score = tl.load(scores + frame * n + token, mask=is_token, other=0.0)
        tl.debug_barrier()
        move = tl.load(here + token)
        is_move = move > stay
        tl.store(moves + frame * n + token, is_move.to(tl.int8), mask=is_token)
        stay = tl.where(is_move | (move != move), move, stay) + score  # NaN is kept, as in the twin
        frame += 1
    tl.debug_barrier()
    current = last
    while frame > 1:
        frame -= 1
        tl.store(tokens + frame, current.to(tl.int64))
        current = tl.maximum(current - tl.load(moves + frame * n + current).to(tl.int32), 0)
    tl.store(tokens, current.to(tl.int64))


def best(
    scores: Tensor,  # shape: (n_rows, n_tokens, n_frames), float64
    sizes: Tensor,  # shape: (n_rows, 2), int64
) -> Tensor:
    """The token of each frame of the best alignments, 0 after the last frame: (n_rows, n_frames)."""
    n_rows, n, m = scores.shape
    tokens = torch.zeros(n_rows, m, dtype=torch.int64, device=scores.device)
    block = max(32, next_power_of_2(n))
    moves = torch.empty(n_rows, m, n, dtype=torch.int8, device=scores.device)
    scratch = scores.new_full((n_rows, 2, block + 1), -torch.inf)
    if n_rows:
        frames = scores.transpose(1, 2).contiguous()  # lanes are tokens
        arguments = (frames, sizes.contiguous(), moves, scratch, tokens, n, m)
        unwrapped(align)[(n_rows,)](*arguments, BLOCK=block, num_warps=max(1, min(8, block // 128)))
    return tokens
