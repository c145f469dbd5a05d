r"""Markov chains of choices: each choice depends at most on the previous one.

.. math:: p(z) = p(z_1) \prod_i p(z_{i+1} \mid z_i) \propto \exp \Bigl( \sum_i u_{i, z_i} + \sum_i v_{i, z_i, z_{i+1}} \Bigr)

A backward pass, from the last choice to the first, turns potentials into conditional probabilities. All other quantities
take one forward pass, from the first choice to the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparsum.segments import Segments
from sparsum.structures import Potentials
from sparsum.structures.log_space import draw, draw_bits, forbidden, infinite, shifted, take, weighted


@dataclass(frozen=True)
class Chain:
    """Log-probabilities of the first choice, and of each later choice given the previous one; c is 1 without transitions."""

    first: Tensor  # shape: (n_rows, n_choices)
    steps: Tensor  # shape: (n_rows, length - 1, c, n_choices)
    is_empty: Tensor  # shape: (n_rows,), whether every assignment is forbidden
    # The log-partition function, or what it is computed from when it is needed: scores of choices, and what to add to them.
    total: Tensor | tuple[Tensor, Tensor]  # shape: (n_rows,), or (n_rows, length, n_choices) and (n_rows, length)

    @classmethod
    def from_potentials(cls, potentials: Potentials) -> Chain:
        """Build the chain of the Gibbs distribution; in at least float32, and in float64 with pairwise scores."""
        unary, pairwise = potentials
        unary, peak = shifted(unary if pairwise is None else unary.double())
        offset = peak.squeeze(-1)  # shape: (n_rows, length)
        if pairwise is None:
            first, steps = unary.log_softmax(-1).split([1, unary.shape[1] - 1], 1)
            is_empty = (unary.detach().amax(-1) < forbidden(unary.dtype) / 2).any(-1)
            return cls(first.squeeze(1), steps.unsqueeze(2), is_empty, (unary, offset))
        pairwise, pair_peak = shifted(pairwise.double(), (-1, -2))
        begin, steps = unary[:, 0], pairwise
        if unary.shape[1] > 1:
            steps, to_come = _Conditionals.apply(pairwise + unary[:, 1:].unsqueeze(2))
            begin = begin + to_come
        total = begin.logsumexp(-1)
        log_partition = total + offset.sum(-1) + pair_peak.sum((-1, -2, -3))
        return cls(begin.log_softmax(-1), steps, total.detach() < forbidden(total.dtype) / 2, log_partition)

    @property
    def log_partition(self) -> Tensor:
        """Log of the partition function: (n_rows,)."""
        if isinstance(self.total, Tensor):
            return self.total
        scores, offset = self.total
        return (scores.logsumexp(-1) + offset).sum(-1)

    @property
    def length(self) -> int:
        """The number of choices."""
        return self.steps.shape[1] + 1

    def step(self, i: int, state: Tensor) -> Tensor:
        """Log-probabilities of choice i given n states at choice i - 1: (n_rows, n) -> (n_rows, n, n_choices)."""
        table = self.steps[:, i - 1]
        if table.shape[1] == 1:
            return table.expand(-1, state.shape[1], -1)
        return table.gather(1, state.unsqueeze(-1).expand(-1, -1, table.shape[-1]))

    def log_prob(
        self,
        choices: Tensor,  # shape: (n, length), int64
        row: Tensor,  # shape: (n,)
        segments: Segments | None = None,
    ) -> Tensor:
        """Log-probability of packed assignments, each under its own row, which segments describe if it is sorted: (n,)."""
        n_steps, c, n_choices = self.steps.shape[1:]
        if segments is not None and (c, n_choices) == (1, 2):
            # The gradient of indexing sorts all places on a GPU; that of a table for each assignment is a sum of segments.
            zero, one = segments.spread(torch.cat([self.first.unsqueeze(1), self.steps.squeeze(2)], 1)).unbind(-1)
            begin, rest = torch.where(choices == 1, one, zero).split([1, n_steps], 1)
            return infinite(begin.squeeze(1) + rest.sum(-1) if n_steps else begin.squeeze(1))
        total = take(self.first, row * n_choices + choices[:, 0])
        if n_steps:
            place = row.unsqueeze(-1) * n_steps + torch.arange(n_steps, device=row.device)
            state = choices[:, :-1] if c > 1 else torch.zeros_like(choices[:, :-1])
            total = total + take(self.steps, (place * c + state) * n_choices + choices[:, 1:]).sum(-1)
        return infinite(total)

    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """Draw n independent samples per row: (n, n_rows, length), int64, or bool for two choices without transitions."""
        n_rows, _, c, n_choices = self.steps.shape
        shape = (n_rows, self.length, n)
        uniform = torch.rand(shape, dtype=torch.float64, device=self.first.device, generator=generator)
        if c == 1:
            table = torch.cat([self.first.unsqueeze(1), self.steps.squeeze(2)], 1)
            draw_all = draw_bits if n_choices == 2 else draw
            drawn = draw_all(table.reshape(-1, n_choices).exp(), uniform.flatten(0, 1))
            return drawn.reshape(shape).permute(2, 0, 1)
        choices = [draw(self.first.exp(), uniform[:, 0])]
        for i in range(1, self.length):
            probs = self.step(i, choices[-1]).exp().reshape(-1, n_choices)
            choices.append(draw(probs, uniform[:, i].reshape(-1, 1)).reshape(n_rows, n))
        return torch.stack(choices, -1).transpose(0, 1)

    def probabilities(self) -> tuple[Tensor, Tensor | None]:
        """Probabilities of choices, (n_rows, length, n_choices), and of neighbouring pairs, None without transitions."""
        if self.steps.shape[2] == 1:
            return torch.cat([self.first.unsqueeze(1), self.steps.squeeze(2)], 1).exp(), None
        choices, pairs = [self.first.exp()], []
        for step in self.steps.exp().unbind(1):
            pairs.append(choices[-1].unsqueeze(-1) * step)
            choices.append(pairs[-1].sum(1))
        return torch.stack(choices, 1), torch.stack(pairs, 1) if pairs else self.steps

    def entropy(self) -> Tensor:
        """Entropy of the first choice plus the conditional entropies of the later ones: (n_rows,)."""
        choices, pairs = self.probabilities()
        if pairs is None:
            return -(choices * torch.cat([self.first.unsqueeze(1), self.steps.squeeze(2)], 1)).sum((-1, -2))
        return -(choices[:, 0] * self.first).sum(-1) - (pairs * self.steps).sum((-1, -2, -3))

    def divergence(self, other: Chain) -> Tensor:
        """KL divergence to another chain: of the first choice, plus the conditional divergences: (n_rows,)."""
        choices, pairs = self.probabilities()
        if pairs is None:
            before = choices[:, :-1].unsqueeze(-1) if other.steps.shape[2] > 1 else 1
            pairs = before * choices[:, 1:].unsqueeze(-2)
        begin = weighted(self.first - infinite(other.first), choices[:, 0]).sum(-1)
        return begin + weighted(self.steps - infinite(other.steps), pairs).sum((-1, -2, -3))


class _Conditionals(torch.autograd.Function):
    r"""Log-probabilities of each choice given the previous one, and the log-sum over all continuations of the first choice.

    .. math:: b_i = \log \sum \exp x_i, \quad x_i = t_i + b_{i+1}, \quad \log p_i = x_i - b_i

    The gradient of :math:`b_i` is :math:`p_i`, so that gradients are passed on by one product for each position. They are
    written in terms of the result, and so are differentiable again.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(terms: Tensor) -> tuple[Tensor, Tensor]:
        """Go from the last choice to the first: (n_rows, length - 1, c, n_choices), and (n_rows, c)."""
        steps: list[Tensor] = []
        to_come = torch.zeros_like(terms[:, 0, 0])
        for term in reversed(terms.unbind(1)):
            values = term + to_come.unsqueeze(1)
            steps.append(values.log_softmax(-1))
            # The larger of the two is the same entry, so that nothing cancels.
            to_come = values.amax(-1) - steps[-1].amax(-1)
        return torch.stack(steps[::-1], 1), to_come

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        """Save the log-probabilities."""
        ctx.save_for_backward(output[0])

    @staticmethod
    def backward(ctx: Any, to_steps: Tensor, to_sum: Tensor) -> Tensor:
        """Go from the first choice to the last."""
        (log_probs,) = ctx.saved_tensors
        probs = log_probs.exp()
        own = to_steps - probs * to_steps.sum(-1, keepdim=True)
        totals = [to_sum.unsqueeze(1)]  # shape: (n_rows, 1, c) each, the gradient of the log-sum at each position
        for step, added in zip(probs[:, :-1].unbind(1), own[:, :-1].sum(2, keepdim=True).unbind(1), strict=True):
            totals.append(torch.baddbmm(added, totals[-1], step))
        to_terms: Tensor = own + probs * torch.stack(totals, 1).mT
        return to_terms
