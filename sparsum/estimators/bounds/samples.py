r"""Importance-weighted bounds from independent samples.

.. math:: \hat L = \log \frac1S \sum_s w_s, \quad w_s = p(x, z_s) / q(z_s \mid x), \quad z_s \sim q

is a lower bound on log p(x) in expectation, tighter with more samples. `vimco` and `wake_wake` differ in the gradient.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparsum.distribution.loss import Loss, call_for_numbers
from sparsum.estimators.bounds.bound import Bound, bind, shaped
from sparsum.gibbs import Gibbs
from sparsum.structures import AbstractStructure, BoundScores, Scores


def vimco(
    scores: Scores,  # shape: (*batch, *score_shape)
    structure: AbstractStructure,
    log_joint: Loss,
    k: int,
    *,
    mask: Scores | None = None,  # shape: broadcasts to that of scores
    temperature: float | Tensor | None = None,  # shape: broadcasts to (*batch,)
    generator: torch.Generator | None = None,
) -> Bound:
    r"""The importance-weighted bound of k samples; the baseline of each sample is computed from the others.

    .. math:: \hat L = \log \frac1k \sum_s w_s, \quad w_s = p(x, z_s) / q(z_s \mid x), \quad z_s \sim q

    with q the `sparsum.Gibbs` distribution of the scores. The gradient is that of the weights plus the score function
    :math:`\sum_s (\hat L - \hat L_{-s}) \nabla \log q(z_s)`, where :math:`\hat L_{-s}` uses the geometric mean of the
    other weights instead of :math:`w_s`, and is 0 where these are all 0.

    >>> import sparsum as sp
    >>> scores, joint = torch.zeros(1, 3, requires_grad=True), torch.tensor([0.2, 0.3, 0.1]).log()
    >>> bound = sp.estimators.vimco(scores, sp.OneOf(3), lambda z, row: joint[z], k=5)
    >>> (-bound.surrogate).sum().backward()
    >>> bound.calls
    tensor([5])

    Args:
        scores: one score per part of the structure; -inf forbids the part.
        structure: a structure that `sparsum.Gibbs` supports.
        log_joint: called as ``log_joint(z, row)`` with packed assignments and the row of each, (n,); returns log p(x, z) of
            each, (n,).
        k: the number of samples, at least 2.
        mask: True where a part is allowed; see `sparsum.AbstractStructure.bind`.
        temperature: divides the scores; a positive number, or one per example.
        generator: the source of randomness, on the device of the scores; by default torch's global generator.

    Returns:
        The bound, in at least float32, and its surrogate, whose second derivatives are meaningless.

    Raises:
        TypeError: if `sparsum.Gibbs` does not support the structure, k is not an int, or ``log_joint`` does not return a
            floating-point tensor.
        ValueError: if shapes do not match, k < 2, or a row contains NaN or +inf or is fully masked.

    References:
        - Variational inference for Monte Carlo objectives (Mnih & Rezende, 2016), equations 8 to 10,
          https://arxiv.org/abs/1602.06725
    """
    bound = bind(scores, structure, log_joint, k, least=2, mask=mask, temperature=temperature, generator=generator)
    return shaped(vimco_from_weights(*_weigh(bound, log_joint, k, generator)), bound)


def wake_wake(
    scores: Scores,  # shape: (*batch, *score_shape)
    structure: AbstractStructure,
    log_joint: Loss,
    k: int,
    *,
    mask: Scores | None = None,  # shape: broadcasts to that of scores
    temperature: float | Tensor | None = None,  # shape: broadcasts to (*batch,)
    generator: torch.Generator | None = None,
) -> Bound:
    r"""The importance-weighted bound of k samples, with the posterior fitted to the weighted samples.

    The bound is that of `vimco`, but the gradient is

    .. math:: \sum_s \frac{w_s}{\sum_r w_r} \nabla \bigl( \log p(x, z_s) + \log q(z_s \mid x) \bigr) :

    q does not maximise the bound but is fitted to the posterior, by the cross-entropy on weighted samples. This is not a
    score function and does not need a baseline. `topk_bound` uses the best assignments instead of samples, without noise.

    >>> import sparsum as sp
    >>> scores, joint = torch.zeros(1, 3, requires_grad=True), torch.tensor([0.2, 0.3, 0.1]).log()
    >>> bound = sp.estimators.wake_wake(scores, sp.OneOf(3), lambda z, row: joint[z], k=5)
    >>> (-bound.surrogate).sum().backward()

    Args:
        scores: one score per part of the structure; -inf forbids the part.
        structure: a structure that `sparsum.Gibbs` supports.
        log_joint: called as ``log_joint(z, row)`` with packed assignments and the row of each, (n,); returns log p(x, z) of
            each, (n,).
        k: the number of samples, at least 2.
        mask: True where a part is allowed; see `sparsum.AbstractStructure.bind`.
        temperature: divides the scores; a positive number, or one per example.
        generator: the source of randomness, on the device of the scores; by default torch's global generator.

    Returns:
        The bound, in at least float32, and its surrogate, whose second derivatives are meaningless.

    Raises:
        TypeError: if `sparsum.Gibbs` does not support the structure, k is not an int, or ``log_joint`` does not return a
            floating-point tensor.
        ValueError: if shapes do not match, k < 2, or a row contains NaN or +inf or is fully masked.

    References:
        - Reweighted wake-sleep (Bornschein & Bengio, 2015), section 2.3, https://arxiv.org/abs/1406.2751
    """
    bound = bind(scores, structure, log_joint, k, least=2, mask=mask, temperature=temperature, generator=generator)
    return shaped(wake_wake_from_weights(*_weigh(bound, log_joint, k, generator)), bound)


def vimco_from_weights(
    log_weights: Tensor,  # shape: (n_samples, *batch)
    log_probs: Tensor,  # shape: (n_samples, *batch)
) -> Bound:
    """`vimco` from the weights of given samples of any posterior q.

    >>> import sparsum as sp
    >>> q = sp.Gibbs(torch.zeros(3, requires_grad=True), sp.OneOf(3))
    >>> z = q.sample((5,), generator=torch.Generator().manual_seed(0))
    >>> log_joint = torch.tensor([0.2, 0.3, 0.1]).log()[z]  # log p(x, z)
    >>> bound = vimco_from_weights(log_joint - q.log_prob(z), q.log_prob(z))
    >>> (-bound.surrogate).backward()

    Args:
        log_weights: the logarithms of the weights p(x, z) / q(z | x) of independent samples of q, with their gradients;
            the first dimension holds the samples, at least 2, the others are the batch.
        log_probs: the log-probabilities of the samples under q, with their gradient.

    Returns:
        The bound in the dtype of the weights, which should be at least float32.
    """
    calls = _calls(log_weights, log_probs)
    n = len(log_weights)
    # Where all weights are 0, use equal weights, whose signal is 0.
    is_empty = (log_weights.detach() == -torch.inf).all(0)
    log_weights = log_weights.masked_fill(is_empty, 0.0)
    bound = log_weights.logsumexp(0) - math.log(n)
    with torch.no_grad():
        fixed = log_weights.detach()
        # One row of weights for each sample that is replaced.
        is_own = torch.eye(n, dtype=torch.bool, device=fixed.device).reshape(n, n, *[1] * (fixed.ndim - 1))
        others = torch.where(is_own, 0.0, fixed.unsqueeze(0)).sum(1) / (n - 1)
        replaced = torch.where(is_own, others.unsqueeze(1), fixed.unsqueeze(0))
        baseline = replaced.logsumexp(1) - math.log(n)
        # Where all other weights are 0, any baseline that does not depend on the sample is valid.
        signal = bound.detach() - torch.where(baseline == -torch.inf, 0.0, baseline)
    return Bound.of(bound.masked_fill(is_empty, -torch.inf), bound + (signal * log_probs).sum(0), calls)


def wake_wake_from_weights(
    log_weights: Tensor,  # shape: (n_samples, *batch)
    log_probs: Tensor,  # shape: (n_samples, *batch)
) -> Bound:
    """`wake_wake` from the weights of given samples of any posterior q.

    >>> log_joint = torch.tensor([-1.0, -3.0])  # log p(x, z) of two samples of q
    >>> log_q = torch.tensor([-0.7, -0.7], requires_grad=True)
    >>> wake_wake_from_weights(log_joint - log_q, log_q).surrogate.backward()
    >>> log_q.grad  # their shares
    tensor([0.8808, 0.1192])

    Args:
        log_weights: the logarithms of the weights p(x, z) / q(z | x) of independent samples of q, with their gradients;
            the first dimension holds the samples, at least 2, the others are the batch.
        log_probs: the log-probabilities of the samples under q, with their gradient.

    Returns:
        The bound in the dtype of the weights, which should be at least float32.
    """
    calls = _calls(log_weights, log_probs)
    with torch.no_grad():
        bound = log_weights.logsumexp(0) - math.log(len(log_weights))
        share = log_weights.softmax(0)
        # Where all weights are 0, the gradient is 0.
        share = torch.where(bound == -torch.inf, 0.0, share)
    # log q enters twice, since the weights contain it with the opposite sign.
    terms = torch.where(share == 0, 0.0, log_weights + 2 * log_probs)
    return Bound.of(bound, (share * terms).sum(0), calls)


def _weigh(bound: BoundScores, log_joint: Loss, k: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """The log-weights and log-probabilities of k samples for each row: (k, n_rows) each."""
    q = Gibbs.from_bound(bound)
    atoms, row = q.model.sample(k, generator).transpose(0, 1).flatten(0, 1), bound.row(k)
    joint = call_for_numbers("log_joint", log_joint, atoms, row, bound.n_rows)
    log_probs = q.model.log_prob(atoms, row).to(joint.dtype)
    weights = joint - log_probs
    return weights.reshape(bound.n_rows, k).T, log_probs.reshape(bound.n_rows, k).T


def _calls(
    log_weights: Tensor,  # shape: (n_samples, *batch)
    log_probs: Tensor,  # shape: (n_samples, *batch)
) -> Tensor:
    """The number of samples for each element of the batch: (*batch,).

    Raises a TypeError or ValueError unless both arguments hold the same number of samples, at least 2.
    """
    for name, value in (("log_weights", log_weights), ("log_probs", log_probs)):
        if not isinstance(value, Tensor) or not value.is_floating_point():
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"{name} must be a floating-point torch.Tensor, got {kind}")
    if log_weights.shape != log_probs.shape or log_weights.ndim == 0 or len(log_weights) < 2:
        raise ValueError(
            "log_weights and log_probs must have the same shape (n_samples, *batch) with at least 2 samples, "
            f"got {tuple(log_weights.shape)} and {tuple(log_probs.shape)}"
        )
    return torch.full(log_weights.shape[1:], len(log_weights), device=log_weights.device)
