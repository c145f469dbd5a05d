"""Many samples, one bound."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparsum.estimators.bounds.bound import Bound, calls_of_samples


def vimco(
    log_weights: Tensor,  # shape: (n_samples, *batch)
    log_probs: Tensor,  # shape: (n_samples, *batch)
) -> Bound:
    r"""The importance-weighted bound of several samples, with a baseline for each of them from the others.

    .. math:: \hat L = \log \frac1S \sum_s w_s, \quad w_s = p(x, z_s) / q(z_s \mid x), \quad z_s \sim q

    is a lower bound on log p(x) in expectation, the tighter the more samples. The gradient is that of the weights, and the
    score function :math:`\sum_s (\hat L - \hat L_{-s}) \nabla \log q(z_s)`, where :math:`\hat L_{-s}` has the geometric mean
    of the other weights in the place of :math:`w_s`, and is 0 where these are all 0. It is no estimator of an expected loss,
    so it has its own signature.

    >>> import sparsum as sp
    >>> scores = torch.zeros(3, requires_grad=True)
    >>> q = sp.Gibbs(scores, sp.OneOf(3))
    >>> z = q.sample((5,), generator=torch.Generator().manual_seed(0))
    >>> log_joint = torch.tensor([0.2, 0.3, 0.1]).log()[z]  # log p(x, z)
    >>> bound = vimco(log_joint - q.log_prob(z), q.log_prob(z))
    >>> (-bound.surrogate).backward()

    Args:
        log_weights: the logarithms of the weights of independent samples of q, with their gradients; samples come first,
            at least 2, then the batch.
        log_probs: the log-probabilities of the samples under q, with their gradient.

    Returns:
        The bound in the dtype of the weights, which should be float32 at least.

    References:
        - Variational inference for Monte Carlo objectives (Mnih & Rezende, 2016), equations 8 to 10,
          https://arxiv.org/abs/1602.06725
    """
    calls = calls_of_samples(log_weights, log_probs)
    n = len(log_weights)
    # Where no sample has a weight, there is nothing to learn: equal weights have no signal.
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
        # Where all others have weight 0, any number will do that does not depend on the sample.
        signal = bound.detach() - torch.where(baseline == -torch.inf, 0.0, baseline)
    return Bound.of(bound.masked_fill(is_empty, -torch.inf), bound + (signal * log_probs).sum(0), calls)
