"""Divergences between Gibbs and other distributions, registered with `torch.distributions.kl_divergence`.

They are infinite where the second distribution forbids an assignment that has mass under the first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Independent, register_kl
from torch.nn.functional import logsigmoid

from sparsum.distribution import SparseDistribution, UniformOver
from sparsum.distribution.divergence import (
    broadcast,
    check_independent,
    divergence_to_uniform,
    is_given_probs,
    sum_of_differences,
)
from sparsum.gibbs.chain import Chain
from sparsum.gibbs.gibbs import Gibbs
from sparsum.gibbs.model import ChainModel
from sparsum.structures import AbstractStructure, Bits, Groups, OneOf, Potentials


@register_kl(Gibbs, UniformOver)
def _to_uniform(q: Gibbs, p: UniformOver) -> Tensor:
    return divergence_to_uniform(q.structure, q.entropy(), p)


@register_kl(Gibbs, Gibbs)
def _to_gibbs(q: Gibbs, p: Gibbs) -> Tensor:
    _check_structures(q.structure, p.structure)
    q, p = broadcast(q, p)
    _check_lengths(q.structure, p.structure)
    return q.shaped(q.model.divergence(p.model))


@register_kl(Gibbs, Categorical)
def _to_categorical(q: Gibbs, p: Categorical) -> Tensor:
    if not isinstance(q.structure, OneOf):
        raise ValueError(f"the KL divergence to a Categorical requires a distribution over OneOf, got {q!r}")
    n = p.param_shape[-1]
    if q.structure.n != n:
        raise ValueError(f"the numbers of categories must match, got {q.structure!r} and a Categorical over {n} categories")
    by_probs = is_given_probs(p)
    q, p = broadcast(q, p)
    log_probs = _log(p.probs) if by_probs else p.logits
    return _to_independent_choices(q, log_probs.reshape(-1, 1, n))


@register_kl(Gibbs, Independent)
def _to_independent(q: Gibbs, p: Independent[Any]) -> Tensor:
    base = p.base_dist
    is_categorical = isinstance(base, Categorical) and isinstance(q.structure, Groups)
    if not is_categorical and not (isinstance(base, Bernoulli) and isinstance(q.structure, Bits)):
        raise NotImplementedError(f"no KL divergence is implemented from {q!r} to Independent({type(base).__name__})")
    check_independent(q, p)
    by_probs = is_given_probs(base)
    q, p = broadcast(q, p)
    base = p.base_dist
    if is_categorical:
        log_probs = _log(base.probs) if by_probs else base.logits
        return _to_independent_choices(q, log_probs.reshape(-1, *log_probs.shape[-2:]))
    if by_probs:
        zero, one = _log(1 - base.probs), _log(base.probs)
    else:
        zero, one = logsigmoid(-base.logits), logsigmoid(base.logits)
    return _to_independent_choices(q, torch.stack([zero, one], -1).reshape(-1, *q.event_shape, 2))


@register_kl(SparseDistribution, Gibbs)
def _from_sparse(q: SparseDistribution, p: Gibbs) -> Tensor:
    if q.event_shape != p.event_shape:
        raise ValueError(f"the event shapes {tuple(q.event_shape)} and {tuple(p.event_shape)} differ")
    # A `Budget` or `Subset` is contained in `Bits`, so the divergence is defined.
    are_bits = q.structure is not None and q.structure.bit_counts() is not None and isinstance(p.structure, Bits)
    if q.structure is not None and not are_bits:
        _check_structures(q.structure, p.structure)
    q, p = broadcast(q, p)
    if q.structure is None:
        p.check_members(q.atoms, q.row)
    else:
        _check_lengths(q.structure, p.structure)
    return sum_of_differences(q, p.log_prob_of(q.atoms, q.row))


def _to_independent_choices(
    q: Gibbs,
    log_probs: Tensor,  # shape: (n_rows, length, n_choices)
) -> Tensor:
    assert isinstance(q.model, ChainModel)
    return q.shaped(q.model.chain.divergence(Chain.from_potentials(Potentials(log_probs))))


def _check_structures(q: AbstractStructure, p: AbstractStructure) -> None:
    if q != p:
        seen = f"{q!r} and {p!r}" if repr(q) != repr(p) else f"two {q!r} that differ in what this does not show"
        raise ValueError(f"the structures of both distributions must be equal, got {seen}")


def _check_lengths(q: AbstractStructure, p: AbstractStructure) -> None:
    """Raise a ValueError unless two equal structures with the same number of rows also have the same lengths."""
    ours: Any = getattr(q, "lengths", None)
    theirs: Any = getattr(p, "lengths", None)
    if ours is None and theirs is None:
        return
    # The sizes of all examples if lengths is None: the first of a structure's shape, or as many as there are.
    given = theirs if ours is None else ours
    full = torch.tensor(q.score_shape[: given.shape[-1]] if given.ndim > 1 else q.score_shape[0], device=given.device)
    is_same = (full if ours is None else ours) == (full if theirs is None else theirs)
    if not bool(is_same.all()):
        raise ValueError("both distributions must have the same lengths, got structures with different lengths")


def _log(probs: Tensor) -> Tensor:
    """Logarithm that is exactly -inf at 0, with zero gradient there."""
    is_positive = probs > 0
    return torch.where(is_positive, torch.where(is_positive, probs, 1.0).log(), -torch.inf)
