"""Scores as low as the dtype has them, and half precision around the library."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import sparsum as sp

LOW = [-1e30, -3e38]
STRUCTURES: dict[str, tuple[sp.AbstractStructure, Any]] = {
    "one of": (sp.OneOf(3), torch.zeros(1, 3)),
    "groups": (sp.Groups(2, 3), torch.zeros(1, 2, 3)),
    "tree": (sp.Tree(3), torch.zeros(1, 3, 3)),
    "single root": (sp.Tree(3, single_root=True), torch.zeros(1, 3, 3)),
    "enumerated": (sp.Enumerated(torch.eye(3)), torch.zeros(1, 3)),
    "sequence": (sp.Sequence(3, 2), (torch.zeros(1, 3, 2), torch.zeros(1, 2, 2, 2))),
}


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("name", STRUCTURES)
def test_low_scores_are_scores(name: str, low: float) -> None:
    structure, scores = STRUCTURES[name]
    lowered = tuple(tensor + low for tensor in scores) if isinstance(scores, tuple) else scores + low
    p = sp.Gibbs(lowered, structure)
    torch.testing.assert_close(p.entropy(), torch.tensor([structure.log_count()]))
    samples = p.sample((20,), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(p.log_prob(samples), -p.entropy().expand(20, 1))
    bound = sp.estimators.distinct_bound(lowered, structure, lambda z, row: torch.zeros(len(row)), k=3)
    assert bound.calls.tolist() == [3]


def test_one_low_position_does_not_forbid_the_row() -> None:
    scores = torch.zeros(1, 2, 2)
    scores[0, 1] = -1e30
    p = sp.Gibbs(scores, sp.Groups(2, 2))
    assert p.entropy().item() == pytest.approx(2 * math.log(2))
    with pytest.raises(sp.NoDistribution, match="row 0 forbids every assignment"):
        sp.Gibbs(scores.masked_fill(scores < 0, -torch.inf), sp.Groups(2, 2))


def test_the_variance_of_parts() -> None:
    scores = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(sp.Gibbs(scores, sp.Bits(3)).variance, torch.distributions.Bernoulli(logits=scores).variance)
    p = sp.Gibbs((scores.unsqueeze(1).expand(2, 2, 3), torch.zeros(1, 3, 3, dtype=torch.float64)), sp.Sequence(2, 3))
    assert [tuple(tensor.shape) for tensor in p.variance] == [(2, 2, 3), (2, 1, 3, 3)]
    with pytest.raises(NotImplementedError, match="its vectors may not be 0/1"):
        _ = sp.Gibbs(scores, sp.Enumerated(torch.randn(4, 3))).variance


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_costs_no_digits(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    structure = sp.Enumerated(torch.randn(30, 8, generator=generator))
    scores = torch.randn(4, 8, generator=generator)
    with torch.autocast("cpu", dtype=dtype):
        p = sp.Gibbs(scores, structure)
        found = p.log_partition, p.mean, p.entropy()
    exact = sp.Gibbs(scores, structure)
    for seen, wanted in zip(found, (exact.log_partition, exact.mean, exact.entropy()), strict=True):
        assert seen.dtype == torch.float32
        torch.testing.assert_close(seen, wanted)
