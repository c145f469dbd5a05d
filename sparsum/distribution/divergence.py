r"""Divergences from sparse distributions, registered with `torch.distributions.kl_divergence`.

.. math:: \mathrm{KL}(q \Vert p) = \sum_z q(z) (\log q(z) - \log p(z))

The sum only runs over the atoms of q. It is infinite if one of them has no mass under p.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, register_kl

from sparsum.distribution.lookup import log_of
from sparsum.distribution.sparse import SparseDistribution
from sparsum.distribution.uniform import UniformOver
from sparsum.structures import AbstractStructure, Groups, OneOf

One = TypeVar("One", bound=Distribution)
Other = TypeVar("Other", bound=Distribution)


def check_uniform(structure: AbstractStructure | None, p: UniformOver) -> None:
    """Raise a ValueError unless the divergence to a uniform distribution is defined."""
    if structure is not None and structure != p.structure:
        raise ValueError(f"the structures of both distributions must be equal, got {structure!r} and {p.structure!r}")
    if getattr(structure, "lengths", None) is not None:
        raise ValueError("UniformOver does not support examples of different lengths; use q.entropy() instead")


def divergence_to_uniform(
    structure: AbstractStructure | None,
    entropy: Tensor,  # shape: batch_shape
    p: UniformOver,
) -> Tensor:
    """KL divergence to a uniform distribution from a distribution over ``structure`` with the given entropy."""
    check_uniform(structure, p)
    return (p.log_count() - entropy).expand(torch.broadcast_shapes(entropy.shape, p.batch_shape))


@register_kl(SparseDistribution, UniformOver)
def _to_uniform(q: SparseDistribution, p: UniformOver) -> Tensor:
    return divergence_to_uniform(q.structure, q.entropy(), p)


@register_kl(SparseDistribution, Categorical)
def _to_categorical(q: SparseDistribution, p: Categorical) -> Tensor:
    if q.event_shape or q.atoms.is_floating_point():
        raise ValueError(f"the KL divergence to a Categorical requires a distribution over category indices, got {q!r}")
    n = p.param_shape[-1]
    if isinstance(q.structure, OneOf) and q.structure.n != n:
        raise ValueError(f"the numbers of categories must match, got {q.structure!r} and a Categorical over {n} categories")
    by_probs = is_given_probs(p)
    q, p = broadcast(q, p)
    values = (p.probs if by_probs else p.logits).reshape(-1, n)[q.row, q.atoms]
    return sum_of_differences(q, values.log() if by_probs else values)


@register_kl(SparseDistribution, Independent)
def _to_independent(q: SparseDistribution, p: Independent[Any]) -> Tensor:
    base = p.base_dist
    is_categorical = isinstance(base, Categorical) and isinstance(q.structure, Groups)
    are_bits = isinstance(base, Bernoulli) and (q.structure is None or q.structure.bit_counts() is not None)
    if not (are_bits or is_categorical) or not q.event_shape:
        raise NotImplementedError(
            f"no KL divergence is implemented from {type(q).__name__} over {q.structure!r} to "
            f"Independent({type(base).__name__})"
        )
    check_independent(q, p)
    by_probs = is_given_probs(base)
    q, p = broadcast(q, p)
    params = p.base_dist.probs if by_probs else p.base_dist.logits
    if is_categorical:
        group = torch.arange(q.event_shape[0], device=q.atoms.device)
        values = params.reshape(-1, *params.shape[-2:])[q.row.unsqueeze(-1), group, q.atoms]
        return sum_of_differences(q, (values.log() if by_probs else values).sum(-1))
    bits, values = q.atoms.to(q.probs.dtype), params.reshape(-1, *q.event_shape)[q.row]
    if by_probs:
        terms = torch.where(bits > 0.5, values, 1 - values).log()
    else:
        terms = -torch.nn.functional.binary_cross_entropy_with_logits(values, bits, reduction="none")
    return sum_of_differences(q, terms.flatten(1).sum(-1))


@register_kl(SparseDistribution, SparseDistribution)
def _to_sparse(q: SparseDistribution, p: SparseDistribution) -> Tensor:
    if q.event_shape != p.event_shape:
        raise ValueError(f"the event shapes {tuple(q.event_shape)} and {tuple(p.event_shape)} differ")
    q, p = broadcast(q, p)
    return sum_of_differences(q, p.log_prob_of(q.atoms, q.row))


def check_independent(q: Distribution, p: Independent[Any]) -> None:
    """Raise a ValueError unless a distribution over bits or `Groups` and independent distributions share their events."""
    if p.event_shape != q.event_shape:
        raise ValueError(f"the event shapes {tuple(q.event_shape)} and {tuple(p.event_shape)} differ")
    structure, base = getattr(q, "structure", None), p.base_dist
    if isinstance(structure, Groups) and isinstance(base, Categorical) and base.param_shape[-1] != structure.n_each:
        raise ValueError(
            f"the numbers of categories must match, got {structure!r} and Categoricals over "
            f"{base.param_shape[-1]} categories"
        )


def is_given_probs(p: Categorical | Bernoulli) -> bool:
    """Whether a distribution was created from probabilities, which can be exactly 0 while torch clamps their logits.

    Call this before `expand`, which keeps the logits instead if torch has already computed them.
    """
    return p._param is p.__dict__.get("probs")


def sum_of_differences(q: SparseDistribution, log_probs: Tensor) -> Tensor:
    """Sum ``q (log q - log p)`` over each row, given log p of each atom."""
    # Padding and probabilities that were rounded to 0 contribute 0, even where log p is infinite.
    return q._sum(q.probs * torch.where(q.probs > 0, log_of(q.probs) - log_probs, 0.0))


def broadcast(q: One, p: Other) -> tuple[One, Other]:
    """Expand both distributions to their common batch shape."""
    shape = torch.broadcast_shapes(q.batch_shape, p.batch_shape)
    return q if q.batch_shape == shape else q.expand(shape), p if p.batch_shape == shape else p.expand(shape)
