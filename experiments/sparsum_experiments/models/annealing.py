r"""Annealed importance sampling of log p(x) for latent bit vectors.

Samples from a posterior that was not trained to cover every bit vector that explains an observation, such as a sparse one,
miss much of :math:`p(x) = \sum_z p(x, z)`. Annealing moves each sample, bit by bit, through distributions between an initial
distribution q of independent bits and p(z | x):

.. math:: f_\beta(z) = q(z)^{1 - \beta} p(x, z)^\beta, \quad 0 = \beta_0 < \beta_1 < \dots < \beta_T = 1

A chain starts with a sample from q. Its weight is the product of :math:`f_{\beta_t}(z_t) / f_{\beta_{t-1}}(z_t)`; between
two factors it takes a Metropolis step that leaves :math:`f_{\beta_t}` invariant. The mean weight is an unbiased estimate of
p(x) for any number of steps; more steps reduce its variance.

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
    """The settings of annealed importance sampling."""

    generator: torch.Generator  # the source of all noise
    n_chains: int = 8  # per observation, at least 2
    n_steps: int = 1000  # T, per chain, at least 1


class _Chains(NamedTuple):
    """The states of the chains, and their log-densities at both ends of the path."""

    z: Tensor  # shape: (n_chains, n_bits)
    initial: Tensor  # shape: (n_chains,), log q(z), float64
    target: Tensor  # shape: (n_chains,), log p(x, z), float64

    def where(self, chosen: Tensor, other: _Chains) -> _Chains:
        """Select these states where ``chosen``, else the others."""
        z = torch.where(chosen.unsqueeze(-1), self.z, other.z)
        return _Chains(z, *(torch.where(chosen, *pair) for pair in zip(self[1:], other[1:], strict=True)))


def from_annealing(
    log_joint: LogJoint,
    logits: Tensor,  # shape: (n_rows, n_bits)
    annealing: Annealing,
    after_step: Callable[[], None] = lambda: None,
) -> LogLikelihood:
    """Estimate log p(x) of each row from log p(x, z) and the logits of the initial distribution."""
    generator, n_each, n_steps = annealing
    if n_each < 2 or n_steps < 1:
        raise ValueError(f"annealing needs at least 2 chains and 1 step, got {n_each} chains and {n_steps} steps")
    row = torch.arange(len(logits), device=logits.device).repeat_interleave(n_each, output_size=len(logits) * n_each)
    logits = logits[row]
    z = (uniform(logits.shape, generator) < logits.double().sigmoid()).to(logits.dtype)
    initial = (z * logits - torch.nn.functional.softplus(logits)).double().sum(-1)
    chains = _Chains(z, initial, log_joint(z, row).double())
    weight = torch.zeros_like(chains.target)
    for step in range(1, n_steps + 1):
        weight += (chains.target - chains.initial) / n_steps
        if step < n_steps:  # the last factor needs no further move
            chains = _walk(log_joint, logits, row, chains, step / n_steps, generator)
        after_step()
    return log_mean(weight.unflatten(0, (-1, n_each)))


def _walk(
    log_joint: LogJoint, logits: Tensor, row: Tensor, chains: _Chains, beta: float, generator: torch.Generator
) -> _Chains:
    """Take a Metropolis step of each chain: propose to flip one random bit."""
    shape = (len(row), 1)
    bit = torch.randint(0, logits.shape[1], shape, generator=generator, device=logits.device)
    old = chains.z.gather(1, bit)
    z = chains.z.scatter(1, bit, 1 - old)
    change = (1 - 2 * old) * logits.gather(1, bit)
    moved = _Chains(z, chains.initial + change.squeeze(1).double(), log_joint(z, row).double())
    gain = beta * (moved.target - chains.target) + (1 - beta) * (moved.initial - chains.initial)
    threshold = uniform(shape[:1], generator).log()
    return moved.where(threshold < gain, chains)


def uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Sample from U(0, 1) in float64; in float32 one sample in 2**24 is 0 and would set bits of far smaller probability."""
    return torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
