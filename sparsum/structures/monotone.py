r"""Monotone alignments of tokens to frames: sums, best ones and samples, all tokens of a frame at once.

An alignment stays at its token, or moves to the next, from each frame to the next. With the scores of frame j as a vector
over tokens,

.. math:: v_j = t_j + \log(\exp v_{j-1} + \exp S v_{j-1}), \quad (S v)_i = v_{i-1}

sums over all alignments of the frames up to j, and a maximum instead of the logarithm finds the best. All derivatives are
linear recurrences of the same form, which take two operations for each frame. Tensors have frames first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparsum import kernels
from sparsum.tensors import first_k


def log_sum_of_alignments(
    scores: Tensor,  # shape: (n_rows, n_tokens, n_frames), float64
    sizes: Tensor,  # shape: (n_rows, 2)
) -> Tensor:
    """Log of the sum over all alignments of each row, -inf if all are forbidden; twice differentiable: (n_rows,)."""
    total: Tensor = _LogSum.apply(scores.permute(2, 0, 1), sizes)[0]
    return total


def best_alignments(
    scores: Tensor,  # shape: (n_rows, n_tokens, n_frames), float64, without -inf
    sizes: Tensor,  # shape: (n_rows, 2)
    k: int,
) -> Tensor:
    """The k best alignments, best first; if a row has fewer, the last one is repeated: (n_rows, k, n_frames)."""
    if len(scores) == 0:
        return torch.zeros(0, k, scores.shape[2], dtype=torch.int64, device=scores.device)
    if k == 1:
        return best_alignment(scores, sizes).unsqueeze(1)
    frames, last = scores.permute(2, 0, 1).contiguous(), sizes - 1
    return _traced(*_k_best_ways(frames, last, k), last)


def _are_few_tokens(scores: Tensor, _sizes: Tensor) -> bool:
    """At most `MOST_TOKENS` tokens."""
    from sparsum.kernels.alignment import MOST_TOKENS

    return scores.shape[1] <= MOST_TOKENS


def _best_in_one_launch(scores: Tensor, sizes: Tensor) -> Tensor:
    from sparsum.kernels import alignment

    return alignment.best(scores, sizes)


@kernels.operation("best_alignment", kernel=_best_in_one_launch, takes=_are_few_tokens)
def best_alignment(
    scores: Tensor,  # shape: (n_rows, n_tokens, n_frames), float64, without -inf
    sizes: Tensor,  # shape: (n_rows, 2)
) -> Tensor:
    """The best alignment of each row: (n_rows, n_frames)."""
    frames, last = scores.permute(2, 0, 1).contiguous(), sizes - 1
    return _traced(*_best_ways(frames, last), last).squeeze(1)


def _traced(
    ends: Tensor,  # shape: (n_rows, k), the best scores
    ways: Tensor,  # shape: (n_frames, n_rows, n_tokens, k), the best ways to each token; overwritten
    last: Tensor,  # shape: (n_rows, 2)
) -> Tensor:
    """The tokens of the best alignments, from the last frame to the first: (n_rows, k, n_frames)."""
    k = ends.shape[1]
    # A way is the rank of the path before, plus k if it moves: it leads from a state, token * k + rank, to a state.
    first_state = torch.arange(0, ways.shape[2] * k, k, dtype=ways.dtype, device=ways.device).unsqueeze(-1)
    states = ways.sub_((ways >= k) * (2 * k)).add_(first_state).clamp_min_(0).flatten(2)
    is_after = _is_after(ways, last)
    stays = torch.arange(states.shape[2], dtype=ways.dtype, device=ways.device)
    states = torch.where(is_after.unsqueeze(-1), stays, states)
    n_found = (ends > -torch.inf).sum(-1, keepdim=True).clamp_min(1)
    rank = torch.minimum(torch.arange(k, device=ways.device), n_found - 1)
    found = [last[:, :1] * k + rank]
    for step in states[1:].flip(0).unbind(0):
        found.append(step.gather(1, found[-1]).long())
    return torch.stack(found[::-1], -1).masked_fill(is_after.T.unsqueeze(1), 0) // k


def _best_ways(
    frames: Tensor,  # shape: (n_frames, n_rows, n_tokens)
    last: Tensor,  # shape: (n_rows, 2)
) -> tuple[Tensor, Tensor]:
    """The best scores, (n_rows, 1), and whether the best way to a token moves, (n_frames, n_rows, n_tokens, 1)."""
    values = _no_alignments(frames)
    stay, move, scores = values[..., 1:].unbind(0), values[..., :-1].unbind(0), frames.unbind(0)
    for j in range(1, len(frames)):
        torch.maximum(stay[j - 1], move[j - 1], out=stay[j])
        stay[j].add_(scores[j])
    ways = torch.zeros(*frames.shape, 1, dtype=torch.int32, device=frames.device)
    ways[1:, ..., 0] = values[:-1, :, :-1] > values[:-1, :, 1:]
    return values[last[:, 1], torch.arange(len(last), device=last.device), last[:, 0] + 1].unsqueeze(-1), ways


def _k_best_ways(
    frames: Tensor,  # shape: (n_frames, n_rows, n_tokens)
    last: Tensor,  # shape: (n_rows, 2)
    k: int,
) -> tuple[Tensor, Tensor]:
    """The k best scores, (n_rows, k), and the k best ways to each token, (n_frames, n_rows, n_tokens, k)."""
    value = _no_alignments(frames[:1])[0].unsqueeze(-1)  # shape: (n_rows, n_tokens + 1, 1)
    value = torch.nn.functional.pad(value, (0, k - 1), value=-torch.inf)
    ways = torch.zeros(*frames.shape, k, dtype=torch.int32, device=frames.device)
    row = torch.arange(len(last), device=last.device)
    at_last = [value[row, last[:, 0] + 1]]
    for way, score in zip(ways[1:].unbind(0), frames[1:].unbind(0), strict=True):
        found, place = first_k(torch.cat([value[:, 1:], value[:, :-1]], -1), k, 2)
        torch.add(found, score.unsqueeze(-1), out=value[:, 1:])
        way.copy_(place)
        at_last.append(value[row, last[:, 0] + 1])
    return torch.stack(at_last)[last[:, 1], row], ways


def sample_alignments(
    scores: Tensor,  # shape: (n_rows, n_tokens, n_frames), float64
    sizes: Tensor,  # shape: (n_rows, 2)
    n: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Draw n independent alignments per row, from the last frame to the first: (n, n_rows, n_frames)."""
    move = _moves(_sums(scores.permute(2, 0, 1)))
    last = sizes - 1
    is_after = _is_after(move, last)
    move = move.masked_fill(is_after.unsqueeze(-1), 0.0)
    uniform = torch.rand(*move.shape[:2], n, dtype=torch.float64, device=scores.device, generator=generator)
    found = [last[:, :1].expand(-1, n)]
    for probs, drawn in zip(move[1:].flip(0).unbind(0), uniform[1:].flip(0).unbind(0), strict=True):
        found.append(found[-1] - (drawn < probs.gather(1, found[-1])).long())
    return torch.stack(found[::-1], -1).masked_fill(is_after.T.unsqueeze(1), 0).transpose(0, 1)


class _LogSum(torch.autograd.Function):
    """The log-sum over all alignments, and the probabilities of moves, which are not differentiable."""

    @staticmethod
    def forward(frames: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        values, row = _sums(frames), torch.arange(frames.shape[1], device=frames.device)
        return values[sizes[:, 1] - 1, row, sizes[:, 0]], _moves(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None]:
        frames, sizes, total, move = ctx.saved_tensors
        marginals: Tensor = _Marginals.apply(frames, move, _ends(move, sizes, total))
        return gradient.unsqueeze(-1) * marginals, None


class _Marginals(torch.autograd.Function):
    """The probability of each token in each frame, as a function of the scores: (n_frames, n_rows, n_tokens)."""

    @staticmethod
    def forward(frames: Tensor, move: Tensor, ends: Tensor) -> Tensor:
        return _back(ends, move)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """The Hessian of the log-sum is symmetric: multiply by it, as the derivative in the direction of the gradient."""
        move, masses = ctx.saved_tensors
        change = _forth(gradient, move)[:-1]
        # How the probabilities of moves change, and with them what a token gets from the next frame.
        moved = masses[1:] * move[1:] * (1 - move[1:])
        moved[..., 0] = 0.0
        moved[..., 1:] *= change[..., :-1] - change[..., 1:]
        received = torch.zeros_like(masses)
        received[:-1] -= moved
        received[:-1, :, :-1] += moved[..., 1:]
        return _back(received, move), None, None


def _sums(frames: Tensor) -> Tensor:
    """The log-sum over all alignments that are at a token in a frame, after token -1: (n_frames, n_rows, n_tokens + 1)."""
    values = _no_alignments(frames)
    stay, move, scores = values[..., 1:].unbind(0), values[..., :-1].unbind(0), frames.contiguous().unbind(0)
    for j in range(1, len(frames)):
        torch.logaddexp(stay[j - 1], move[j - 1], out=stay[j])
        stay[j].add_(scores[j])
    return values


def _no_alignments(frames: Tensor) -> Tensor:
    """-inf for all tokens, after token -1, but for the first token in the first frame: (n_frames, n_rows, n_tokens + 1)."""
    values = frames.new_full((*frames.shape[:2], frames.shape[2] + 1), -torch.inf)
    values[0, :, 1] = frames[0, :, 0]
    return values


def _is_after(frames: Tensor, last: Tensor) -> Tensor:
    """Which frames follow the last one of each row: (n_frames, n_rows)."""
    return torch.arange(len(frames), device=frames.device).unsqueeze(-1) > last[:, 1]


def _moves(values: Tensor) -> Tensor:
    """The probability that an alignment at a token has just moved there: (n_frames, n_rows, n_tokens)."""
    stay, move = values[:-1, :, 1:], values[:-1, :, :-1]
    probs = torch.where(stay == -torch.inf, 1.0, (move - stay).sigmoid())
    probs = torch.where(move == -torch.inf, 0.0, probs)  # where both are forbidden, nothing ever is
    return torch.cat([torch.zeros_like(values[:1, :, 1:]), probs])


def _ends(move: Tensor, sizes: Tensor, total: Tensor) -> Tensor:
    """1 at the last token in the last frame of each row that has an alignment: (n_frames, n_rows, n_tokens)."""
    ends = torch.zeros_like(move)
    ends[sizes[:, 1] - 1, torch.arange(len(sizes), device=sizes.device), sizes[:, 0] - 1] = (total != -torch.inf).to(move)
    return ends


def _forth(added: Tensor, move: Tensor) -> Tensor:
    r""":math:`x_j = b_j + (1 - p_j) x_{j-1} + p_j S x_{j-1}`, from the first frame to the last."""
    x = added.clone(memory_format=torch.contiguous_format)
    here, after, before = x.unbind(0), x[..., 1:].unbind(0), x[..., :-1].unbind(0)
    stays, moves = (1 - move).unbind(0), move[..., 1:].unbind(0)
    for j in range(1, len(x)):
        here[j].addcmul_(stays[j], here[j - 1])
        after[j].addcmul_(moves[j], before[j - 1])
    return x


def _back(added: Tensor, move: Tensor) -> Tensor:
    r""":math:`x_{j-1} = b_{j-1} + (1 - p_j) x_j + S^\top (p_j x_j)`, from the last frame to the first."""
    x = added.clone(memory_format=torch.contiguous_format)
    here, after, before = x.unbind(0), x[..., 1:].unbind(0), x[..., :-1].unbind(0)
    stays, moves = (1 - move).unbind(0), move[..., 1:].unbind(0)
    for j in range(len(x) - 1, 0, -1):
        here[j - 1].addcmul_(stays[j], here[j])
        before[j - 1].addcmul_(moves[j], after[j])
    return x
