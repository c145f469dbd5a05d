r"""Annealed importance sampling: how probable an observation is, by chains that walk from a guess to the posterior.

Where a posterior was not trained to cover all bit vectors that explain an observation, as a sparse one is not, samples
around it miss much of :math:`p(x) = \sum_z p(x, z)`. Here each sample is moved, bit by bit, through distributions between a
guess q of independent bits and p(z | x):

.. math:: f_\beta(z) = q(z)^{1 - \beta} p(x, z)^\beta, \quad 0 = \beta_0 < \beta_1 < \dots < \beta_T = 1

A chain starts from q. Its weight is the product of :math:`f_{\beta_t}(z_t) / f_{\beta_{t-1}}(z_t)`, and between two factors
it takes a Metropolis step that leaves :math:`f_{\beta_t}` as it is. Then the mean of the weights is p(x) in expectation for
any number of steps, and more steps make it less noisy.

References:
    - Annealed importance sampling (Neal, 2001), https://doi.org/10.1023/A:1008923215028
    - On the quantitative analysis of decoder-based generative models (Wu, Burda, Salakhutdinov & Grosse, 2017),
      https://arxiv.org/abs/1611.04273
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from sparsum_experiments.models.importance import LogJoint, LogLikelihood, log_mean


class Annealing(NamedTuple):
    """How long and how often to anneal.

    Args:
        generator: the source of all noise.
        n_chains: how many chains each observation gets, at least 2.
        n_steps: T, in how many steps a chain goes from the guess to the posterior, at least 1.
    """

    generator: torch.Generator
    n_chains: int = 8
    n_steps: int = 1000


class _Chains(NamedTuple):
    """Bit vectors, and their logarithms under both ends of the path."""

    z: Tensor  # shape: (n_chains, n_bits)
    guess: Tensor  # shape: (n_chains,), log q(z), float64
    target: Tensor  # shape: (n_chains,), log p(x, z), float64

    def where(self, chosen: Tensor, other: _Chains) -> _Chains:
        """These where chosen, and the others elsewhere."""
        return _Chains(
            torch.where(chosen.unsqueeze(-1), self.z, other.z),
            torch.where(chosen, self.guess, other.guess),
            torch.where(chosen, self.target, other.target),
        )


def from_annealing(
    log_joint: LogJoint,
    logits: Tensor,  # shape: (n_rows, n_bits)
    annealing: Annealing,
    after_step: Callable[[], None] = lambda: None,
) -> LogLikelihood:
    """Estimate the logarithm of p(x) of each row, from a guess of independent bits with these logits.

    Args:
        log_joint: log p(x, z).
        logits: of the guess.
        annealing: how long and how often.
        after_step: is called after each step of all chains.
    """
    generator, n_each, n_steps = annealing
    if n_each < 2 or n_steps < 1:
        raise ValueError(f"annealing takes 2 chains and 1 step at least, got {n_each} and {n_steps}")
    row = torch.arange(len(logits), device=logits.device).repeat_interleave(n_each, output_size=len(logits) * n_each)
    logits = logits[row]
    chains = _start(log_joint, logits, row, generator)
    weight = torch.zeros_like(chains.target)
    for step in range(1, n_steps + 1):
        weight += (chains.target - chains.guess) / n_steps
        if step < n_steps:  # after the last factor there is nothing to walk for
            chains = _walk(log_joint, logits, row, chains, step / n_steps, generator)
        after_step()
    return log_mean(weight.unflatten(0, (-1, n_each)))


def _start(log_joint: LogJoint, logits: Tensor, row: Tensor, generator: torch.Generator) -> _Chains:
    """Samples of the guess."""
    z = (uniform(logits.shape, generator) < logits.double().sigmoid()).to(logits.dtype)
    guess = (z * logits - torch.nn.functional.softplus(logits)).double().sum(-1)
    return _Chains(z, guess, log_joint(z, row).double())


def _walk(
    log_joint: LogJoint, logits: Tensor, row: Tensor, chains: _Chains, beta: float, generator: torch.Generator
) -> _Chains:
    """A Metropolis step of each chain, that flips a bit or does not."""
    shape = (len(row), 1)
    bit = torch.randint(0, logits.shape[1], shape, generator=generator, device=logits.device)
    old = chains.z.gather(1, bit)
    z = chains.z.scatter(1, bit, 1 - old)
    change = (1 - 2 * old) * logits.gather(1, bit)
    moved = _Chains(z, chains.guess + change.squeeze(1).double(), log_joint(z, row).double())
    gain = beta * (moved.target - chains.target) + (1 - beta) * (moved.guess - chains.guess)
    threshold = uniform(shape[:1], generator).log()
    return moved.where(threshold < gain, chains)


def uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """In float64: in float32 one of 2**24 is 0, and would set bits whose probability is far smaller."""
    return torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
