"""A bound from the exact sum over the k best assignments."""

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
    r"""The log-likelihood of the k best assignments; the scores learn which assignments explain x best.

    .. math:: L = \log \sum_{z \in S} p(x, z) \le \log p(x), \quad S = \operatorname{top-k}_z \; a_z^\top t

    For models of an observation x with a latent z, instead of the ELBO of `TopK`: among all distributions over S the
    posterior :math:`w(z) \propto p(x, z)` has the highest ELBO, and this ELBO is L. The parameters of p receive the exact
    gradient of L, at the same cost of k calls. Small changes of the scores do not change S, so the scores are trained by
    the Fenchel-Young loss of `sparsum.sparsemax` over S with target w. Their gradient is
    :math:`\sum_{z \in S} (w(z) - \xi(z)) \, a_z`, where :math:`\xi` is `sparsum.topk_sparsemax`. The scores of assignments
    that explain x better than predicted rise, which brings similar assignments into S.

    The best assignments differ in the parts with the least certain scores. A part with a certain score is the same in all
    of S, and does not receive a gradient from this example, whether it is right or wrong. The network must learn these
    parts from less certain examples; a part that is equally certain in all examples never changes.

    **Not for many bits.** The bound lacks the assignments outside of S,

    .. math:: \log p(x) - L = -\log \sum_{z \in S} p(z \mid x) ,

    about as many nats as the entropy of the posterior exceeds log k. In log p(x) a bit that x does not decide costs nothing;
    in L it costs log 2. With a uniform prior over n bits, L is at most :math:`\log k - n \log 2` for discrete x, however
    good the model: -135 nats for 200 bits and k = 30. With a learned prior, the maximum has most bits switched off. On
    binarised digits (64 pixels, k = 30, 1,500 steps), 200 bits reached -67 nats with a quarter of the bits in use, 50 bits
    -31, and 20 bits -25, where `distinct_bound`, which weighs the other assignments, has -25, -24 and -24. Keeping all bits
    in use by `sparsum.nn.ScoreNorm` made the model better (-29 by `distinct_bound`, from -48), but the bound worse (-133).
    So use `topk_bound` where about k assignments explain an example, and `distinct_bound` elsewhere; see docs/collapse.md.

    >>> import sparsum as sp
    >>> scores = torch.tensor([[0.2, -0.1, 3.0]], requires_grad=True)
    >>> log_joint = lambda z, row: -4.0 * (z - torch.tensor([0.0, 1.0, 1.0])).abs().sum(-1)
    >>> bound = sp.estimators.topk_bound(scores, sp.Bits(3), log_joint, k=4)
    >>> bound.value
    tensor([0.0363])
    >>> (-bound.surrogate).sum().backward()
    >>> scores.grad.round(decimals=1)  # lowers the first bit, raises the second; the third is the same in all of S
    tensor([[ 0.7000, -0.6000,  0.0000]])

    Args:
        scores: one score per part of the structure; -inf forbids the part.
        structure: the set of assignments.
        log_joint: called like the loss of an estimator, as ``log_joint(z, row)`` with packed assignments and the row of
            each, (n,); returns log p(x, z) of each, (n,). A NaN affects only its own row.
        k: the number of best assignments, at least 1; a row that allows fewer uses all it allows.
        mask: True where a part is allowed; see `sparsum.AbstractStructure.bind`.
        temperature: divides the scores; a positive number, or one per example.
        generator: not used; all bounds share one signature.

    Returns:
        The bound, in at least float32, and its surrogate, whose second derivatives are meaningless.

    Raises:
        TypeError: if scores are not floating-point, k is not an int, or ``log_joint`` does not return a floating-point
            tensor.
        ValueError: if shapes do not match, k < 1, or a row contains NaN or +inf or is fully masked.

    References:
        - Reweighted wake-sleep (Bornschein & Bengio, 2015), which uses samples instead of the best assignments and the
          cross-entropy instead of the Fenchel-Young loss, https://arxiv.org/abs/1406.2751
        - Learning with Fenchel-Young losses (Blondel, Martins & Niculae, 2020), https://arxiv.org/abs/1901.02324
    """
    bound = bind(scores, structure, log_joint, k, least=1, mask=mask, temperature=temperature, generator=generator)
    best, values = best_assignments(bound, k)
    allowed = values.detach() > -torch.inf  # shape: (n_rows, n_best)
    packed = Packed.of(allowed, is_bad=bound.is_unusable, is_empty_bad=True, on_bad=bound.raise_bad)
    segments = packed.segments
    log_probs = call_for_numbers("log_joint", log_joint, packed.take(best), packed.row, bound.n_rows)
    value = segments.logsumexp(log_probs)
    lead = _posterior(log_probs.detach(), allowed) - sparsemax(values.detach())
    learned = (lead * values.masked_fill(~allowed, 0.0)).sum(-1).to(value.dtype)
    return shaped(Bound.of(value, value + learned, segments.lengths), bound)


def _posterior(
    log_probs: Tensor,  # shape: (n,)
    allowed: Tensor,  # shape: (n_rows, n_best)
) -> Tensor:
    """The posterior over the best assignments of each row, 0 for forbidden ones: (n_rows, n_best)."""
    place = (allowed.reshape(-1).cumsum(0) - 1).clamp_min_(0).reshape(allowed.shape)
    terms = torch.where(allowed, log_probs[place], -torch.inf)
    # Where p(x, z) is 0 for all of them, the posterior is 0 everywhere, so that all scores with mass fall.
    return torch.where((terms == -torch.inf).all(-1, keepdim=True), 0.0, terms.softmax(-1))
