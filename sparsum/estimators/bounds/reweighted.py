"""Many samples, each in proportion to its weight."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparsum.estimators.bounds.bound import Bound, calls_of_samples


def wake_wake(
    log_weights: Tensor,  # shape: (n_samples, *batch)
    log_probs: Tensor,  # shape: (n_samples, *batch)
) -> Bound:
    r"""The importance-weighted bound of several samples, towards the best of which the posterior is drawn.

    .. math:: \hat L = \log \frac1S \sum_s w_s, \quad w_s = p(x, z_s) / q(z_s \mid x), \quad z_s \sim q

    is the bound of `vimco`, with another gradient,

    .. math:: \sum_s \frac{w_s}{\sum_r w_r} \nabla \bigl( \log p(x, z_s) + \log q(z_s \mid x) \bigr) :

    q does not climb the bound but learns to be the posterior, by the cross-entropy on weighted samples. That is no score
    function, and needs no baseline. `topk_bound` has the best assignments in the place of samples, and no noise.

    >>> log_joint = torch.tensor([-1.0, -3.0])  # log p(x, z) of two samples of q
    >>> log_q = torch.tensor([-0.7, -0.7], requires_grad=True)
    >>> wake_wake(log_joint - log_q, log_q).surrogate.backward()
    >>> log_q.grad  # their shares
    tensor([0.8808, 0.1192])

    Args:
        log_weights: as for `vimco`.
        log_probs: as for `vimco`.

    Returns:
        The bound in the dtype of the weights, which should be float32 at least.

    References:
        - Reweighted wake-sleep (Bornschein & Bengio, 2015), section 2.3, https://arxiv.org/abs/1406.2751
    """
    calls = calls_of_samples(log_weights, log_probs)
    with torch.no_grad():
        bound = log_weights.logsumexp(0) - math.log(len(log_weights))
        share = log_weights.softmax(0)
        # Where no sample has a weight, there is nothing to learn.
        share = torch.where(bound == -torch.inf, 0.0, share)
    # Twice, since the weights have it with the other sign.
    terms = torch.where(share == 0, 0.0, log_weights + 2 * log_probs)
    return Bound.of(bound, (share * terms).sum(0), calls)
