"""The derivatives of chains that are written out, against those that autograd finds for the definition."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsum.gibbs.chain import Chain
from sparsum.structures import Potentials


def by_definition(unary: Tensor, pairwise: Tensor) -> tuple[Tensor, Tensor]:
    """The log-partition function, and the log-probabilities of choices given the previous one, position by position."""
    to_come, steps = torch.zeros_like(unary[:, -1]), []
    for i in range(unary.shape[1] - 1, 0, -1):
        values = pairwise[:, i - 1] + (unary[:, i] + to_come).unsqueeze(1)
        steps.append(values.log_softmax(-1))
        to_come = values.logsumexp(-1)
    return (unary[:, 0] + to_come).logsumexp(-1), torch.stack(steps[::-1], 1)


def test_three_derivatives_of_all_results() -> None:
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(2, 4, 3, dtype=torch.float64, generator=generator).requires_grad_()
    pairwise = torch.randn(2, 3, 3, 3, dtype=torch.float64, generator=generator).requires_grad_()
    weights = torch.randn(2, 3, 3, 3, dtype=torch.float64, generator=generator)
    chain = Chain.from_potentials(Potentials(unary, pairwise))
    found = []
    for log_partition, steps in ((chain.log_partition, chain.steps), by_definition(unary, pairwise)):
        value = (log_partition.sin() + (weights * steps.sin()).sum((-1, -2, -3))).sum()
        results = [log_partition, steps]
        for _ in range(3):
            gradients = torch.autograd.grad(value, (unary, pairwise), create_graph=True)
            results += gradients
            value = torch.stack([((each + 0.5).square() * each.detach().cos()).sum() for each in gradients]).sum()
        found.append(results)
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    assert torch.autograd.gradgradcheck(
        lambda u, v: Chain.from_potentials(Potentials(u, v)).entropy(), (unary[:1], pairwise[:1]), fast_mode=True
    )
