"""The best assignments, summed exactly, and how they become better."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.distribution.loss import Loss, call_for_numbers
from sparsum.estimators.bounds.bound import Bound, bind, shaped
from sparsum.inference import best_assignments
from sparsum.segments import Packed
from sparsum.simplex import sparsemax
from sparsum.structures import AbstractStructure, Scores


def topk_bound(
    scores: Scores,  # shape: (*batch, *score_shape)
    structure: AbstractStructure,
    log_joint: Loss,
    k: int,
    *,
    mask: Scores | None = None,  # shape: broadcasts to that of scores
    temperature: float | Tensor | None = None,  # shape: broadcasts to (*batch,)
    generator: torch.Generator | None = None,
) -> Bound:
    r"""The log-likelihood as far as the k best assignments explain it, which learn to be the ones that do.

    .. math:: L = \log \sum_{z \in S} p(x, z) \le \log p(x), \quad S = \operatorname{top-k}_z \; a_z^\top t

    For models of an observation x with a latent z, in the place of the ELBO of `TopK`: among all distributions over S the
    posterior :math:`w(z) \propto p(x, z)` has the highest ELBO, and that is L. So the parameters of p follow the exact
    gradient of L, at the same k calls. No small step of the scores changes S. They learn by the Fenchel-Young loss of
    `sparsum.sparsemax` over S, with w as its target: their gradient is :math:`\sum_{z \in S} (w(z) - \xi(z)) \, a_z`, where
    :math:`\xi` is `sparsum.topk_sparsemax`. Assignments rise that explain x better than their score tells, and bring their
    neighbours into S.

    The best assignments differ in the parts that scores are least sure of. A part they are sure of is the same in all of S,
    and learns nothing from this example, be it right or wrong. The network must learn these parts from less certain
    examples; scores that are certain of the same in all examples stay as they are.

    >>> import sparsum as sp
    >>> scores = torch.tensor([[0.2, -0.1, 3.0]], requires_grad=True)
    >>> log_joint = lambda z, row: -4.0 * (z - torch.tensor([0.0, 1.0, 1.0])).abs().sum(-1)
    >>> bound = sp.estimators.topk_bound(scores, sp.Bits(3), log_joint, k=4)
    >>> bound.value
    tensor([0.0363])
    >>> (-bound.surrogate).sum().backward()
    >>> scores.grad.round(decimals=1)  # the first bit is to fall and the second to rise; of the third S has one value
    tensor([[ 0.7000, -0.6000,  0.0000]])

    Args:
        scores: one score per part of the structure; -inf forbids.
        structure: the set of assignments.
        log_joint: called as ``log_joint(z, row)`` with packed assignments and the row of each, (n,), as the loss of an
            estimator; returns log p(x, z) of each, (n,). What is no number stays in its row.
        k: how many of the best assignments; each row has as many as it allows, if these are fewer.
        mask: True where a part is allowed; see `sparsum.AbstractStructure.bind`.
        temperature: divides the scores; a positive number, or one per example.
        generator: not used, since nothing is drawn; here so that all bounds have one signature.

    Returns:
        The bound, in float32 at least, and its surrogate, whose second derivatives mean nothing.

    Raises:
        TypeError: if scores are not floating-point, k is no int, or ``log_joint`` returns no tensor of floats.
        ValueError: if shapes do not fit, k < 1, or rows hold a NaN or +inf or allow nothing.

    References:
        - Reweighted wake-sleep (Bornschein & Bengio, 2015), which has samples in the place of the best and the
          cross-entropy in that of the Fenchel-Young loss, https://arxiv.org/abs/1406.2751
        - Learning with Fenchel-Young losses (Blondel, Martins & Niculae, 2020), https://arxiv.org/abs/1901.02324
    """
    bound = bind(scores, structure, log_joint, k, least=1, mask=mask, temperature=temperature, generator=generator)
    best, values = best_assignments(bound, k)
    allowed = values.detach() > -torch.inf  # shape: (n_rows, n_best)
    packed = Packed.of(allowed, is_bad=bound.is_unusable, is_empty_bad=True, on_bad=bound.raise_bad)
    segments = packed.segments
    log_probs = segments.clear_padding(call_for_numbers("log_joint", log_joint, packed.take(best), packed.row, bound.n_rows))
    value = segments.logsumexp(log_probs)
    lead = _posterior(log_probs.detach(), allowed) - sparsemax(values.detach())
    learned = (lead * values.masked_fill(~allowed, 0.0)).sum(-1).to(value.dtype)
    return shaped(Bound.of(value, value + learned, segments.lengths), bound)


def _posterior(
    log_probs: Tensor,  # shape: (n,)
    allowed: Tensor,  # shape: (n_rows, n_best)
) -> Tensor:
    """The posterior over the best assignments of each row, 0 for what is not allowed: (n_rows, n_best)."""
    place = (allowed.reshape(-1).cumsum(0) - 1).clamp_min_(0).reshape(allowed.shape)
    terms = torch.where(allowed, log_probs[place], -torch.inf)
    # Where nothing has mass, it is 0 everywhere, so that all that was thought to have some falls.
    return torch.where((terms == -torch.inf).all(-1, keepdim=True), 0.0, terms.softmax(-1))
