"""A bound from distinct samples, weighted by their inclusion probabilities."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparsum.distribution.loss import Loss, call_for_numbers
from sparsum.estimators.bounds.bound import Bound, bind, shaped
from sparsum.estimators.members import count_up_to
from sparsum.estimators.noise import exponential
from sparsum.gibbs import Gibbs
from sparsum.structures import AbstractStructure, Scores
from sparsum.tensors import number, tensor_cache


def distinct_bound(
    scores: Scores,  # shape: (*batch, *score_shape)
    structure: AbstractStructure,
    log_joint: Loss,
    k: int,
    *,
    mask: Scores | None = None,  # shape: broadcasts to that of scores
    temperature: float | Tensor | None = None,  # shape: broadcasts to (*batch,)
    generator: torch.Generator | None = None,
) -> Bound:
    r"""A bound from up to k distinct samples, each weighted by its inverse inclusion probability.

    With q the `sparsum.Gibbs` distribution of the scores, S the first k distinct samples from q, and p(x) the sum of
    p(x, z) over all allowed z,

    .. math:: \hat L = \log \sum_{z \in S} \frac{p(x, z)}{\pi(z)}, \quad \mathbb{E}\, e^{\hat L} = p(x), \quad
        \pi(z) = 1 - e^{-\tau q(z \mid x)}

    where samples arrive as a Poisson process, one per unit of time on average, :math:`\tau` is the arrival time of the next
    distinct sample, at most 2 k + 32, and :math:`\pi` the probability of arriving before. :math:`\pi` is close to 1 for
    likely assignments, which are therefore summed exactly, and close to :math:`\tau q` for the others, as in importance
    sampling. The gradient is that of :math:`\log p(x, z) + \log q(z \mid x)`, with each term weighted by its share of the
    sum: p maximises the bound, q is fitted to the posterior.

    `wake_wake` has the same gradient, but calls ``log_joint`` again for repeated samples; here, where q concentrates on few
    assignments, there are few calls. If no sample occurs twice, the bound of `wake_wake` is tighter, by about 1 / (2 k)
    nats, since :math:`\tau` is random.

    >>> import sparsum as sp
    >>> scores = torch.tensor([[9.0, -9.0, 0.0], [0.1, 0.2, 0.3]], requires_grad=True)
    >>> log_joint = lambda z, row: -4.0 * (z - torch.tensor([1.0, 0.0, 0.0])).abs().sum(-1)
    >>> generator = torch.Generator().manual_seed(0)
    >>> sp.estimators.distinct_bound(scores, sp.Bits(3), log_joint, k=6, generator=generator).calls  # row 0: 2 certain bits
    tensor([2, 6])
    >>> many = sp.estimators.distinct_bound(scores[1].expand(4000, 3), sp.Bits(3), log_joint, k=6, generator=generator)
    >>> many.value.exp().mean()  # p(x) is 1.0560
    tensor(1.0670)

    Args:
        scores: one score per part of the structure; -inf forbids the part, and so does a score 1e30 below all others.
        structure: one of which `sparsum.Gibbs` exists.
        log_joint: called like the loss of an estimator, as ``log_joint(z, row)`` with packed assignments and the row of
            each, (n,); returns log p(x, z) of each, (n,). A NaN affects only its own row.
        k: the largest number of distinct samples, at least 2: q learns by comparing them. If the structure has at most k
            assignments, all allowed ones are summed.
        mask: True where a part is allowed; see `sparsum.AbstractStructure.bind`.
        temperature: divides the scores; a positive number, or one per example.
        generator: the source of randomness, on the device of the scores; by default torch's global generator.

    Returns:
        The bound, in at least float32, and its surrogate, whose second derivatives are meaningless.

    Raises:
        TypeError: if scores are not floating-point, k is not an int, ``log_joint`` does not return a floating-point tensor,
            ``generator`` is neither None nor a `torch.Generator`, or `sparsum.Gibbs` does not support the structure.
        ValueError: if shapes do not match, k < 2, or a row contains NaN or +inf or is fully masked.

    References:
        - Priority sampling for estimation of arbitrary subset sums (Duffield, Lund & Thorup, 2007), on the weights
        - Stochastic beams and where to find them (Kool, van Hoof & Welling, 2019), on distinct samples of a model,
          https://arxiv.org/abs/1903.06059
        - Reweighted wake-sleep (Bornschein & Bengio, 2015), on the gradient, https://arxiv.org/abs/1406.2751
    """
    bound = bind(scores, structure, log_joint, k, least=2, mask=mask, temperature=temperature, generator=generator)
    q = Gibbs.from_bound(bound, validate_args=False)
    with torch.no_grad():
        is_small = count_up_to(bound.structure, k + 1) <= k
        drawn, is_kept, log_until = _all_allowed(q, k) if is_small else _first_different(q, k, generator)
    packed = bound.pack(is_kept, bound.is_unusable | q.model.is_empty, most=min(k, is_kept.shape[1]))
    atoms, segments = packed.take(drawn), packed.segments
    log_joints = call_for_numbers("log_joint", log_joint, atoms, segments.row, bound.n_rows)
    log_probs = q.model.log_prob(atoms, segments.row, segments)
    with torch.no_grad():
        log_weights = log_joints - log_inclusion(log_probs, log_until[segments.row]).to(log_joints.dtype)
        value, share = segments.logsumexp_and_softmax(log_weights)
    # Terms with a share of 0 may be -inf.
    terms = share * (log_joints + log_probs.to(log_joints.dtype))
    surrogate = segments.sum(torch.where(share == 0, number(0.0, terms), terms))
    return shaped(Bound.of(value, surrogate, segments.lengths), bound)


def _all_allowed(q: Gibbs, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """`_first_different` for structures with at most k assignments, after an infinite time: all allowed assignments."""
    atoms, is_kept = q.bound.kbest(k)
    # The lowest scores of the dtype also forbid, as they do for samples.
    is_allowed = q.model.log_prob(atoms.flatten(0, 1), q.bound.row(atoms.shape[1])) > -torch.inf
    return atoms, is_kept & is_allowed.reshape(is_kept.shape), torch.full_like(q.model.log_partition, torch.inf)


def _first_different(q: Gibbs, k: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
    """Samples of each row, (n_rows, n, *event_shape), which of them to keep, (n_rows, n), and log tau, (n_rows,), float64.

    If samples arrive as a Poisson process, those of each assignment form an independent Poisson process. So the times of
    first arrival are independent, and the assignments that arrive before a fixed time, or before the (k + 1)-th distinct
    one, are a sample without replacement. Unlike a beam search, this does not loop over the choices of a structure.
    """
    latest = 2 * k + 32
    n = math.ceil(latest + 8 * math.sqrt(latest))  # enough to reach that time except with probability < 1e-10
    drawn = q.model.sample(n, generator).transpose(0, 1)
    like = torch.empty((), dtype=torch.float64, device=drawn.device)
    time = exponential(drawn.shape[:2], like, generator).cumsum(-1)
    is_bits = q.structure.bit_counts() is not None
    is_new = is_first(drawn.bool() if is_bits else drawn, is_whole=is_bits or not drawn.is_floating_point())
    is_over = is_new & (is_new.cumsum(-1) > k)
    until = torch.where(is_over, time, number(torch.inf, time)).amin(-1).clamp_max(latest)
    return drawn, is_new & (time < until.unsqueeze(-1)), until.log()


def is_first(
    atoms: Tensor,  # shape: (n_rows, n, *event_shape)
    *,
    is_whole: bool = True,
) -> Tensor:
    """Whether an atom is the first occurrence in its row: (n_rows, n). Atoms that are bits or integers are whole."""
    flat = atoms.flatten(2) if atoms.ndim > 2 else atoms.unsqueeze(-1)
    # A hash of each atom; two different atoms collide with a probability of at most 2 ** -60.
    whole = flat if flat.dtype == torch.bool else flat.long()
    factors = _factors(2 * flat.shape[-1], flat.device)
    key = (whole * factors[: flat.shape[-1]]).sum(-1)
    if not is_whole:
        key = key + (((flat.double() - whole) * 2**53).long() * factors[flat.shape[-1] :]).sum(-1)
    ordered, source = key.sort(dim=-1, stable=True)
    is_new = torch.ones_like(ordered, dtype=torch.bool)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.empty_like(is_new).scatter_(-1, source, is_new)


@tensor_cache
def _factors(n: int, device: torch.device) -> Tensor:
    """Fixed random 64-bit integers: (n,)."""
    generator = torch.Generator("cpu").manual_seed(0)
    return torch.randint(-(2**63), 2**63 - 1, (n,), generator=generator, device="cpu").to(device)


def log_inclusion(
    log_probs: Tensor,  # shape: (n,)
    log_until: Tensor,  # shape: (n,), float64
) -> Tensor:
    """The logarithm of the probability that an assignment arrives before a given time: (n,), float64."""
    log_mean = log_probs.double() + log_until  # log of the expected number of its samples until then
    # A tiny mean, which might underflow, equals that probability.
    return torch.where(log_mean < -40, log_mean, (-torch.expm1(-log_mean.exp())).log())
