r"""Losses for training with sparse probabilities.

The Fenchel-Young loss of a mapping :math:`p(x) = \arg\max_{p \in \triangle} p^\top x + H(p)` is

.. math:: L(x, y) = p(x)^\top x + H(p(x)) - y^\top x - H(y) \ge 0 ,

which is 0 if and only if :math:`p(x) = y`, convex in x, and has the gradient :math:`p(x) - y`. For softmax it is the
cross-entropy; for a sparse mapping it is exactly 0 once the score of the target class exceeds the others by a margin.

References:
    - Learning with Fenchel-Young losses (Blondel, Martins & Niculae, 2020), equation 14, https://arxiv.org/abs/1901.02324
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsum.arguments import check_dense, check_floating, check_int
from sparsum.simplex.arguments import apply_mask, can_look_at, check_scores, compute_dtype, rows_of_alpha
from sparsum.simplex.entropy import entropy_slope, tsallis_entropy
from sparsum.simplex.forward_mode import nestable
from sparsum.simplex.mappings import entmax

Alpha = float | Tensor

_REDUCTIONS = ("none", "mean", "sum")
_SHOWN_ROWS = 5


def sparsemax_loss(
    x: Tensor, target: Tensor, *, mask: Tensor | None = None, reduction: str = "mean", ignore_index: int = -100
) -> Tensor:
    """Fenchel-Young loss of `sparsemax`, the counterpart of cross-entropy for softmax.

    The classes are always the last dimension of ``x``, unlike in `torch.nn.functional.cross_entropy`. The loss is a mean,
    unlike that of the function of this name in the `entmax` package, which is ``reduction="none"`` here.

    >>> x = torch.tensor([[2.0, 0.5, 0.0], [0.4, 0.0, 0.0]])
    >>> sparsemax_loss(x, torch.tensor([0, 0]), reduction="none")
    tensor([0.0000, 0.1200])
    >>> sparsemax_loss(x, torch.tensor([0, 0]), mask=torch.tensor([True, False, True]), reduction="none")
    tensor([0.0000, 0.0900])

    Args:
        x: scores of shape (*batch, n).
        target: class indices of shape (*batch,), or probabilities of shape (*batch, n).
        mask: True where a class is allowed, broadcastable to the shape of ``x``; all other classes are excluded and get zero
            gradient. A masked target raises an error; on a GPU and under `torch.compile` its loss is infinite instead,
            because the check would need a host-device synchronization.
        reduction: "mean" (over the rows that are not ignored; 0 if all rows are ignored), "sum" or "none".
        ignore_index: rows with this class index have loss 0 and zero gradient.

    Returns:
        A scalar, or a tensor of shape (*batch,) if ``reduction`` is "none".

    Raises:
        TypeError: if ``x`` is not a dense tensor of floating-point numbers of 16 bits or more, ``target`` is a boolean,
            complex, sparse, nested or quantized tensor, or ``mask`` is not a boolean tensor.
        ValueError: if the shape of ``target`` or ``mask`` does not match ``x``, if a class index is out of range, if a
            target is masked, or if ``reduction`` is unknown.

    References:
        - From softmax to sparsemax (Martins & Astudillo, 2016), section 3, https://arxiv.org/abs/1602.02068
    """
    return entmax_loss(x, target, 2.0, mask=mask, reduction=reduction, ignore_index=ignore_index)


def entmax15_loss(
    x: Tensor, target: Tensor, *, mask: Tensor | None = None, reduction: str = "mean", ignore_index: int = -100
) -> Tensor:
    """Fenchel-Young loss of `entmax15`; arguments and errors as for `sparsemax_loss`.

    In the `entmax` package, the function of this name is ``reduction="none"``.

    >>> entmax15_loss(torch.tensor([[3.0, 0.5, 0.0]]), torch.tensor([0]))
    tensor(0.)
    """
    return entmax_loss(x, target, 1.5, mask=mask, reduction=reduction, ignore_index=ignore_index)


def entmax_loss(
    x: Tensor,
    target: Tensor,
    alpha: float | Tensor,
    *,
    mask: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Tensor:
    """Fenchel-Young loss of `entmax`; for alpha = 1 this is the cross-entropy.

    ``entmax_bisect_loss`` of the `entmax` package is ``reduction="none"``, and its alpha gets no gradient.

    >>> x, target = torch.tensor([[1.0, 0.0]]), torch.tensor([1])
    >>> entmax_loss(x, target, 1.0), torch.nn.functional.cross_entropy(x, target)
    (tensor(1.3133), tensor(1.3133))

    Args:
        x: scores of shape (*batch, n).
        target: class indices of shape (*batch,), or probabilities of shape (*batch, n).
        alpha: as for `entmax`; a tensor receives a gradient.
        mask: as for `sparsemax_loss`.
        reduction: "mean" (over the rows that are not ignored; 0 if all rows are ignored), "sum" or "none".
        ignore_index: rows with this class index have loss 0 and zero gradient.

    Returns:
        A scalar, or a tensor of shape (*batch,) if ``reduction`` is "none".

    Raises:
        TypeError: as for `sparsemax_loss` and `entmax`.
        ValueError: as for `sparsemax_loss` and `entmax`.
    """
    check_reduction(reduction)
    check_scores(x)
    alpha = rows_of_alpha(alpha, x, x.ndim - 1)
    scores = (x if mask is None else apply_mask(x, mask)).to(compute_dtype(x))
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a torch.Tensor, got {type(target).__name__}")
    check_dense("target", target)
    if target.is_floating_point():
        _check_probability_target(x, target)
        is_counted = torch.ones_like(x[..., 0], dtype=torch.bool)
    else:
        is_counted = _check_class_target(x, target, ignore_index)
        scores = torch.where(is_counted.unsqueeze(-1), scores, 0.0)  # also ignore a NaN in an ignored row
    if mask is not None and can_look_at(target) and can_look_at(mask):
        _check_masked_target(target, mask.expand(x.shape), is_counted)
    peak = scores.detach().amax(-1, keepdim=True)
    scores = scores - torch.where(peak == -torch.inf, 0.0, peak)  # reduces rounding error; the loss is shift-invariant
    loss = _conjugate(scores, alpha) - _gain(scores, target, alpha, is_counted)
    loss = loss - loss.detach().clamp_max(0.0)  # clamp rounding errors below 0 without blocking the gradient
    return reduce_rows(torch.where(is_counted, loss, 0.0), reduction, is_counted).to(x.dtype)


def check_reduction(reduction: str) -> None:
    """Raise unless ``reduction`` is one that the losses know."""
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(_REDUCTIONS)}, got {reduction!r}")


def _gain(scores: Tensor, target: Tensor, alpha: Alpha, is_counted: Tensor) -> Tensor:
    """The score of the target plus its entropy, per row."""
    if target.is_floating_point():
        target = target.to(scores.dtype)
        # Avoid 0 * -inf: a target of 0 on a masked class contributes nothing and has zero gradient.
        gain = target * torch.where(target == 0, 0.0, scores)
        # A target of 0 contributes nothing for any alpha, so it gets no gradient.
        moving = torch.where(target > 0, target, target.detach())
        return gain.sum(-1) + tsallis_entropy(moving, alpha)
    chosen = torch.where(is_counted, target.long(), 0).unsqueeze(-1)
    return scores.gather(-1, chosen).squeeze(-1)


def _conjugate(scores: Tensor, alpha: Alpha) -> Tensor:
    r"""The value of :math:`\max_p p^\top x + H(p)` per row, for rows whose maximum is 0."""
    probs = entmax(scores, alpha.squeeze(-1) if isinstance(alpha, Tensor) else alpha)
    if not torch.compiler.is_compiling():
        result: Tensor = _Conjugate.apply(scores, probs, alpha)
        return result
    # A graph only has first derivatives: add a term whose value is 0 and whose derivative is that of the conjugate.
    probs = probs.detach()
    fixed_alpha = alpha.detach() if isinstance(alpha, Tensor) else alpha
    moved = torch.where(probs > 0, scores - scores.detach(), 0.0)
    value = _conjugate_value(scores.detach(), probs, fixed_alpha) + (probs * moved).sum(-1)
    if isinstance(alpha, Tensor):
        value = value + (entropy_slope(probs, alpha.detach()) * (alpha - alpha.detach())).squeeze(-1)
    return value


def _conjugate_value(scores: Tensor, probs: Tensor, alpha: Alpha) -> Tensor:
    return torch.where(probs > 0, probs * scores, 0.0).sum(-1) + tsallis_entropy(probs, alpha)


class _Conjugate(torch.autograd.Function):
    r"""The maximum :math:`p^\top x + H(p)` for given maximizers p.

    Its gradient with respect to x is p (the envelope theorem). Differentiating through p would add a term that is 0 only up
    to rounding error, which scales with the magnitude of the scores.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, probs: Tensor, alpha: Alpha) -> Tensor:
        return _conjugate_value(scores, probs, alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Alpha], output: Tensor) -> None:
        _, probs, alpha = inputs
        saved = (probs, alpha) if isinstance(alpha, Tensor) else (probs,)
        ctx.alpha = None if isinstance(alpha, Tensor) else alpha
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor | None]:
        probs, *rest = ctx.saved_tensors
        grad = grad.unsqueeze(-1)
        return grad * probs, None, grad * entropy_slope(probs, rest[0]) if rest else None

    @staticmethod
    @nestable
    def jvp(ctx: Any, scores_tangent: Tensor | None, _: Tensor | None, alpha_tangent: Tensor | None) -> Tensor:
        probs, *rest = ctx.saved_tensors
        result = torch.zeros_like(probs[..., 0])
        if scores_tangent is not None:
            result = result + (probs * scores_tangent).sum(-1)
        if rest and alpha_tangent is not None:
            result = result + (entropy_slope(probs, rest[0]) * alpha_tangent).squeeze(-1)
        return result


def _check_probability_target(x: Tensor, target: Tensor) -> None:
    check_floating("target", target)
    if target.shape != x.shape:
        raise ValueError(
            f"target of probabilities must have the shape of x, {tuple(x.shape)}, got {tuple(target.shape)}; "
            f"convert class indices to an integer dtype"
        )
    if can_look_at(target) and not bool(((target >= 0).all(-1) & ((target.sum(-1) - 1).abs() < 1e-2)).all()):
        raise ValueError("target must hold probabilities: non-negative, with rows that sum to 1")


def _check_class_target(x: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    """Check class indices; return which rows are not ignored."""
    check_int("ignore_index", ignore_index)
    if target.dtype == torch.bool or target.is_complex():
        raise TypeError(f"target must hold class indices (integers) or probabilities (floats), got {target.dtype}")
    if target.shape != x.shape[:-1]:
        raise ValueError(
            f"target of class indices must have shape {tuple(x.shape[:-1])} for x of shape {tuple(x.shape)}, "
            f"got {tuple(target.shape)}"
        )
    target = target.long()  # a narrow integer dtype may not be able to represent ignore_index
    is_counted = target != ignore_index
    n = x.shape[-1]
    if can_look_at(target) and bool((is_counted & ((target < 0) | (target >= n))).any()):
        wrong = target[is_counted & ((target < 0) | (target >= n))].unique().tolist()
        raise ValueError(f"target must hold class indices from 0 to {n - 1} or ignore_index={ignore_index}, got {wrong}")
    return is_counted


def _check_masked_target(target: Tensor, mask: Tensor, is_counted: Tensor) -> None:
    """Raise if a target is masked. Where values cannot be checked, the score of -inf makes the loss infinite."""
    if target.is_floating_point():
        is_wrong = ((target > 0) & ~mask).any(-1)
    else:
        chosen = torch.where(is_counted, target.long(), 0).unsqueeze(-1)
        is_wrong = is_counted & ~mask.gather(-1, chosen).squeeze(-1)
    if bool(is_wrong.any()):
        rows = is_wrong.reshape(-1).nonzero().squeeze(-1).tolist()
        shown = ", ".join(map(str, rows[:_SHOWN_ROWS])) + (", ..." if len(rows) > _SHOWN_ROWS else "")
        raise ValueError(
            f"target must be allowed by mask, which must be True for the target class; it is False in {len(rows)} of "
            f"{is_wrong.numel()} rows: {shown}"
        )


def reduce_rows(loss: Tensor, reduction: str, is_counted: Tensor | None = None) -> Tensor:
    """The losses of all rows, their sum, or their mean, which is 0 if there are none."""
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    return loss.sum() / (max(loss.numel(), 1) if is_counted is None else is_counted.sum().clamp_min(1))
