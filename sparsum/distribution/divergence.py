r"""Divergences from sparse distributions, registered with `torch.distributions.kl_divergence`.

.. math:: \mathrm{KL}(q \Vert p) = \sum_z q(z) (\log q(z) - \log p(z))

runs over the atoms of q alone, and is infinite where one of them has no mass under p.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, register_kl

from sparsum.distribution.lookup import log_of
from sparsum.distribution.sparse import SparseDistribution
from sparsum.distribution.uniform import UniformOver
from sparsum.structures import AbstractStructure, OneOf

One = TypeVar("One", bound=Distribution)
Other = TypeVar("Other", bound=Distribution)


def check_uniform(structure: AbstractStructure | None, p: UniformOver) -> None:
    """Raise unless a distribution over a structure has a divergence to a uniform one."""
    if structure is not None and structure != p.structure:
        raise ValueError(f"a distribution over {structure!r} has no divergence to a uniform one over {p.structure!r}")
    if getattr(structure, "lengths", None) is not None:
        raise ValueError("examples of different lengths have no uniform distribution in common; use q.entropy() instead")


@register_kl(SparseDistribution, UniformOver)
def _to_uniform(q: SparseDistribution, p: UniformOver) -> Tensor:
    check_uniform(q.structure, p)
    return p.log_count() - q.entropy()


@register_kl(SparseDistribution, Categorical)
def _to_categorical(q: SparseDistribution, p: Categorical) -> Tensor:
    if q.event_shape or q.atoms.is_floating_point():
        raise ValueError(f"only a distribution over category indices has a divergence to a Categorical, got {q!r}")
    n = p.param_shape[-1]
    if isinstance(q.structure, OneOf) and q.structure.n != n:
        raise ValueError(f"a distribution over {q.structure!r} has no divergence to a Categorical over {n} categories")
    q, p = broadcast(q, p)
    # Torch clamps the logits of given probabilities; their own logarithms know a true 0.
    is_given_probs = p._param is p.__dict__.get("probs")
    values = (p.probs if is_given_probs else p.logits).reshape(-1, n)[q.row, q.atoms]
    return sum_of_differences(q, values.log() if is_given_probs else values)


@register_kl(SparseDistribution, Independent)
def _to_independent(q: SparseDistribution, p: Independent[Any]) -> Tensor:
    base = p.base_dist
    if not isinstance(base, Bernoulli) or not q.event_shape:
        raise NotImplementedError(f"no divergence from {type(q).__name__} to Independent({type(base).__name__}) is known")
    if p.event_shape != q.event_shape:
        raise ValueError(f"the event shapes {tuple(q.event_shape)} and {tuple(p.event_shape)} differ")
    q, p = broadcast(q, p)
    base = p.base_dist
    bits = q.atoms.to(q.probs.dtype)
    if base._param is base.__dict__.get("probs"):
        one = base.probs.reshape(-1, *q.event_shape)[q.row]
        terms = torch.where(bits > 0.5, one, 1 - one).log()
    else:
        logits = base.logits.reshape(-1, *q.event_shape)[q.row]
        terms = -torch.nn.functional.binary_cross_entropy_with_logits(logits, bits, reduction="none")
    return sum_of_differences(q, terms.flatten(1).sum(-1))


@register_kl(SparseDistribution, SparseDistribution)
def _to_sparse(q: SparseDistribution, p: SparseDistribution) -> Tensor:
    if q.event_shape != p.event_shape:
        raise ValueError(f"the event shapes {tuple(q.event_shape)} and {tuple(p.event_shape)} differ")
    q, p = broadcast(q, p)
    return sum_of_differences(q, p.log_prob_of(q.atoms, q.row))


def sum_of_differences(q: SparseDistribution, log_probs: Tensor) -> Tensor:
    """The sum of ``q (log q - log p)`` over each row, given log p of each atom."""
    return q._sum(q.probs * (log_of(q.probs) - log_probs))


def broadcast(q: One, p: Other) -> tuple[One, Other]:
    """Both in the batch shape that they have in common."""
    shape = torch.broadcast_shapes(q.batch_shape, p.batch_shape)
    return q if q.batch_shape == shape else q.expand(shape), p if p.batch_shape == shape else p.expand(shape)
