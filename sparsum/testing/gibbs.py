"""Check the `sparsum.Gibbs` distribution of a structure against sums over all assignments."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.gibbs import Gibbs
from sparsum.structures import BoundScores
from sparsum.structures.scores import flatten
from sparsum.testing.report import Report, index_of, shown

_N_DRAWS = 4000
#: The largest deviation of sample frequencies, in standard errors.
_LIMIT = 6.0


def check_gibbs(
    report: Report,
    bound: BoundScores,
    atoms: Tensor,  # shape: (n_members, *event_shape)
    vectors: Tensor,  # shape: (n_members, n_parts), float64
    scores: Tensor,  # shape: (n_rows, n_members), float64, -inf for forbidden members
    generator: torch.Generator,
) -> None:
    """Check log-partition function, log-probabilities, marginals, entropy and samples of the Gibbs distribution."""
    p = Gibbs.from_bound(bound)
    log_partition, log_probs = scores.logsumexp(-1), scores.log_softmax(-1)
    probs = log_probs.exp()
    seen = p.log_partition.reshape(-1)
    report.check("gibbs", _close(seen, log_partition), f"log-partition {seen}, but by enumeration {log_partition}")
    row = torch.arange(len(scores), device=scores.device).repeat_interleave(len(atoms))
    found = p.log_prob_of(atoms.repeat(len(scores), *[1] * (atoms.ndim - 1)), row).reshape(scores.shape)
    is_wrong = ~_is_close(found, log_probs).all(0)
    report.check("gibbs", not bool(is_wrong.any()), f"log-probabilities are wrong for the atoms {shown(atoms[is_wrong])}")
    mean = flatten(p.mean) if len(bound.batch_shape) == 1 else flatten(p.model.mean())
    report.check("gibbs", _close(mean.double(), probs @ vectors), f"mean {mean}, but by enumeration {probs @ vectors}")
    entropy = -torch.where(probs > 0, probs * log_probs, 0.0).sum(-1)
    seen = p.entropy().reshape(-1)
    report.check("gibbs", _close(seen, entropy), f"entropy {seen}, but by enumeration {entropy}")
    drawn = p.sample((_N_DRAWS,), generator=generator).flatten(0, len(bound.batch_shape))
    index = index_of(drawn, atoms)
    report.check("gibbs", bool((index >= 0).all()), f"samples are not assignments: {shown(drawn[index < 0])}")
    counts = torch.nn.functional.one_hot(index, len(atoms)).reshape(_N_DRAWS, *scores.shape).sum(0).double()
    spread = (probs * (1 - probs) * _N_DRAWS).sqrt()
    is_off = ((counts - _N_DRAWS * probs).abs() > _LIMIT * spread + 3 * (probs > 0)).any(0)
    report.check("gibbs", not bool(is_off.any()), f"samples have wrong frequencies for the atoms {shown(atoms[is_off])}")


def _is_close(seen: Tensor, wanted: Tensor) -> Tensor:
    return (seen == wanted) | ((seen - wanted).abs() <= 1e-7 * (1 + wanted.abs()))


def _close(seen: Tensor, wanted: Tensor) -> bool:
    return seen.shape == wanted.shape and bool(_is_close(seen, wanted).all())
