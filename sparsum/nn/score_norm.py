"""Scores that stay where a sparse distribution has a gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsum.arguments import check_bool, check_floating, check_int, check_number, check_sizes
from sparsum.tensors import at_least_float32


class ScoreNorm(torch.nn.Module):
    r"""A layer that centres scores over the batch and scales them, to be put between a network and `sparsum.sparsemap`.

    .. math:: y_{ri} = \frac{s}{\tau} \, \frac{t_{ri} - m_i}{\sqrt{v + \epsilon}}, \qquad
        m_i = \frac1n \sum_r t_{ri}, \quad v = \frac{1}{n d} \sum_{r, i} (t_{ri} - m_i)^2

    for n rows and d parts. A sparse distribution has a gradient only inside a window: a bit while its score is between -1
    and 1, a category while it is less than 1 below the best one. The first steps of Adam can move the scores of all rows out
    of the window at once, and what is outside stays there. The largest part of such a step is common to all rows, and
    centring removes it. With a spread s below 1, at least :math:`1 - s^2` of all bits in a batch are inside the window, by
    Chebyshev's inequality: three quarters with the default. See docs/collapse.md for a comparison with other remedies.

    >>> encoder = torch.nn.Sequential(torch.nn.Linear(5, 3), ScoreNorm(3))
    >>> scores = encoder(torch.randn(8, 5))
    >>> scores.mean(0).abs().max() < 1e-6, scores.square().mean().sqrt()
    (tensor(True), tensor(0.5000, grad_fn=<SqrtBackward0>))

    In evaluation mode, mean and variance are running averages over the steps of training, as in
    `torch.nn.BatchNorm1d`; before the first step, scores pass unchanged. So they do for a part that only one row of a
    training batch has, a batch of one row included.

    Scores that are not finite are ignored and returned as they are: -inf forbids a part, and a NaN stays where it is.
    Statistics are computed in at least float32. The result has the dtype of the scores, but is float32 under autocast.
    `torch.compile` traces the module as a whole.

    Args:
        shape: the shape of the scores of one example: an int, as for `torch.nn.LayerNorm`, or e.g. ``(n_groups, n_each)``.
        spread: the standard deviation of the scores, s. A smaller spread keeps more atoms, a larger one fewer: with 2, about
            one in three bits is inside the window.
        learn_temperature: whether to divide by a learned temperature, :math:`\tau`, which starts at 1. The guarantee above
            then holds for the spread :math:`s / \tau`.
        momentum: the weight of a batch in the running averages.
        eps: added to the variance.
        sync: whether the processes of `torch.distributed`, if there are several, compute the statistics of their joint
            batch, as `torch.nn.SyncBatchNorm` does. Costs two collective operations per step.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an argument is out of range.

    References:
        - Batch normalization (Ioffe & Szegedy, 2015), https://arxiv.org/abs/1502.03167
    """

    running_mean: Tensor
    running_var: Tensor
    seen: Tensor

    def __init__(
        self,
        shape: int | Sequence[int],
        *,
        spread: float = 0.5,
        learn_temperature: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
        sync: bool = False,
    ) -> None:
        super().__init__()
        self.shape = (check_int("shape", shape, least=1),) if isinstance(shape, int) else check_sizes("shape", shape)
        self.spread, self.eps = check_number("spread", spread, above=0), check_number("eps", eps, least=0)
        self.momentum = check_number("momentum", momentum, above=0)
        if momentum > 1:
            raise ValueError(f"momentum must be at most 1, got {momentum}")
        self.sync = check_bool("sync", sync)
        is_learned = check_bool("learn_temperature", learn_temperature)
        self.log_temperature = torch.nn.Parameter(torch.zeros(())) if is_learned else None
        self.register_buffer("running_mean", torch.zeros(self.shape))
        self.register_buffer("running_var", torch.zeros(self.shape))
        self.register_buffer("seen", torch.zeros(self.shape))  # the sum of the weights of all batches so far, up to 1

    def forward(
        self,
        scores: Tensor,  # shape: (*batch, *shape)
    ) -> Tensor:
        """Normalize scores.

        Raises:
            TypeError: if the scores are not a floating-point tensor.
            ValueError: if their last dimensions are not ``shape``.
        """
        check_floating("scores", scores)
        n_batch = scores.ndim - len(self.shape)
        if n_batch < 0 or scores.shape[n_batch:] != self.shape:
            wanted = ", ".join(map(str, self.shape))
            raise ValueError(f"scores must have shape (*batch, {wanted}), got {tuple(scores.shape)}")
        wide = at_least_float32(scores)
        mean, variance, is_known = (tensor.to(wide.dtype) for tensor in self._running())
        if self.training:
            count, batch_mean, batch_variance = self._batch_statistics(wide.reshape(-1, *self.shape))
            has_spread = count > 1
            mean = torch.where(has_spread, batch_mean, mean)
            variance = torch.where(has_spread, batch_variance, variance)
            is_known = torch.where(has_spread, 1.0, is_known)
            self._update(count, batch_mean.detach(), batch_variance.detach())
        n_known = is_known.sum()
        total = (variance * is_known).sum() / n_known.clamp_min(1)
        # Without a spread yet, as after a single row, there is nothing to scale by.
        has_scale = total > 0
        scale = torch.where(has_scale, self.spread * torch.where(has_scale, total + self.eps, 1.0).rsqrt(), 1.0)
        if self.log_temperature is not None:
            scale = scale * (-self.log_temperature).exp()
        is_finite = wide.isfinite()  # others would be NaN in the gradient of the scale, as 0 * inf
        result = torch.where(is_finite, (torch.where(is_finite, wide, 0.0) - mean) * scale, wide)
        kind = scores.device.type
        is_mixed = kind != "meta" and torch.is_autocast_enabled(kind)
        return result if is_mixed else result.to(scores.dtype)

    def extra_repr(self) -> str:
        """Format the arguments for printing."""
        return f"{self.shape}, spread={self.spread}, momentum={self.momentum}, sync={self.sync}"

    def _running(self) -> tuple[Tensor, Tensor, Tensor]:
        """Copies of the running mean and variance of each part, and 1 for each part that was seen."""
        return self.running_mean.clone(), self.running_var.clone(), (self.seen > 0).to(self.seen.dtype)

    def _batch_statistics(
        self,
        rows: Tensor,  # shape: (n_rows, *shape)
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The number of finite scores of each part, their mean and their variance."""
        is_finite = rows.isfinite()
        filled = torch.where(is_finite, rows, 0.0)
        count, total = self._reduced(torch.stack([is_finite.sum(0).to(rows.dtype), filled.sum(0)]))
        mean = total / count.clamp_min(1)
        squares = self._reduced(torch.where(is_finite, filled - mean, 0.0).square().sum(0))
        return count.detach(), mean, squares / count.clamp_min(1)

    def _reduced(self, x: Tensor) -> Tensor:
        """The sum over the processes, through which gradients flow to all of them."""
        is_shared = self.sync and torch.distributed.is_available() and torch.distributed.is_initialized()
        if not is_shared or torch.distributed.get_world_size() == 1:
            return x
        from torch.distributed.nn.functional import all_reduce  # not in builds of torch without torch.distributed

        total: Tensor = all_reduce(x)
        return total

    @torch.no_grad()
    def _update(self, count: Tensor, mean: Tensor, variance: Tensor) -> None:
        """Average the statistics of a batch into the running ones, with weights that sum to 1 from the first step on."""
        is_used = (count > 0) & mean.isfinite() & variance.isfinite()
        mean, variance = (torch.where(is_used, tensor, 0.0) for tensor in (mean, variance))
        weight = self.momentum * is_used.to(self.seen.dtype)
        self.seen.lerp_(torch.ones_like(self.seen), weight)
        share = weight / self.seen.clamp_min(self.momentum)
        change = torch.where(is_used, mean - self.running_mean, 0.0)
        # A single row has no variance of its own, but a distance from the rows before.
        between = torch.where(count == 1, (1 - share) * change.square(), 0.0)
        for running, new in (
            (self.running_var, self.running_var + share * (variance + between - self.running_var)),
            (self.running_mean, self.running_mean + share * change),
        ):
            rounded = new.to(running.dtype)
            running.copy_(torch.where(rounded.isfinite(), rounded, running))  # one batch of huge scores spoils nothing
