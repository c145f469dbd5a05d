"""Gibbs distributions of rows of scores, computed by the methods that their structure defines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor

from sparsum.gibbs.chain import Chain
from sparsum.segments import Segments
from sparsum.structures import Bits, BoundScores, Scores
from sparsum.structures.log_space import finite, forbidden, infinite, shifted, weighted
from sparsum.structures.scores import unflatten

# Rounding may leave up to this probability for a part that no assignment uses.
_ROUNDING = 1e-13


class AbstractModel(ABC):
    """The Gibbs distribution of each row of scores."""

    bound: BoundScores
    is_empty: Tensor  # shape: (n_rows,), whether every assignment is forbidden

    @property
    @abstractmethod
    def log_partition(self) -> Tensor:
        """Log of the partition function: (n_rows,)."""

    @abstractmethod
    def log_prob(
        self,
        atoms: Tensor,  # shape: (n, *event_shape)
        row: Tensor,  # shape: (n,)
        segments: Segments | None = None,
    ) -> Tensor:
        """Log-probability of packed atoms, each under its own row, -inf for forbidden ones: (n,).

        With segments, whose row this is, the gradient may take fewer launches.
        """

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """Draw n independent samples per row: (n, n_rows, *event_shape)."""

    @abstractmethod
    def mean(self) -> Scores:
        """The mean vector, in the form of the rows of scores."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Shannon entropy: (n_rows,)."""

    @abstractmethod
    def divergence(self, other: Self) -> Tensor:
        """Kullback-Leibler divergence to a model with the same structure and number of rows: (n_rows,)."""


def model_of(bound: BoundScores) -> AbstractModel:
    """Create the model of rows of scores whose structure `has_partition`."""
    return ChainModel(bound) if bound.structure.is_chain else SummedModel(bound)


class ChainModel(AbstractModel):
    """Model for structures that are a chain of choices, from their `potentials`."""

    def __init__(self, bound: BoundScores) -> None:
        self.bound = bound
        self.chain = Chain.from_potentials(bound.structure.potentials(bound.scores))
        self.is_empty = self.chain.is_empty

    @property
    def log_partition(self) -> Tensor:
        """That of the chain."""
        return self.chain.log_partition

    def log_prob(self, atoms: Tensor, row: Tensor, segments: Segments | None = None) -> Tensor:
        """Sum of conditional log-probabilities, which avoids cancellation with a large partition function."""
        return self.chain.log_prob(self.bound.structure.atoms_to_choices(atoms), row, segments)

    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """Sample from the first choice to the last."""
        with torch.no_grad():
            choices, structure = self.chain.sample(n, generator), self.bound.structure
            # `Bits` takes them as they are; other structures are promised int64.
            choices = choices if type(structure) is Bits else choices.long()
            return structure.choices_to_atoms(choices, self.bound.dtype)

    def mean(self) -> Scores:
        """Mean vectors from the probability of each choice and, with pairwise scores, of each pair."""
        return self.bound.structure.choice_marginals(*self.chain.probabilities(), self.bound.scores)

    def entropy(self) -> Tensor:
        """Sum of conditional entropies."""
        return self.chain.entropy()

    def divergence(self, other: Self) -> Tensor:
        """Sum of conditional divergences."""
        return self.chain.divergence(other.chain)


class SummedModel(AbstractModel):
    r"""Model for structures that define `log_partition` and `sample`, in float64.

    If a structure uses one part of each group, let every group choose its part independently, :math:`\pi_{gc} \propto \exp
    t_{gc}`. Conditioned on forming an assignment, these choices follow the Gibbs distribution:

    .. math:: p(z) = \frac1S \prod_g \pi_{g, z_g}, \quad \log Z = \log S + \sum_g \log \sum_c \exp t_{gc},

    where S is the probability of forming an assignment. These logarithms are small however large the scores are. For other
    structures, :math:`\pi` are the exponentials of the scores, and S is Z.
    """

    def __init__(self, bound: BoundScores) -> None:
        self.bound = bound
        self.choices, self.log_sum, totals, is_closed = self._sums(bound)
        self._log_partition = self.log_sum + totals
        self.is_empty = is_closed | ~(self.log_sum.detach() > forbidden(self.log_sum.dtype) / 2)

    @property
    def log_partition(self) -> Tensor:
        """Log Z."""
        return self._log_partition

    def log_prob(self, atoms: Tensor, row: Tensor, segments: Segments | None = None) -> Tensor:
        """Score of each atom minus log S; -inf for atoms that are not assignments."""
        is_member = self.bound.structure.select(row).contains(atoms)
        known = torch.where(is_member.reshape(-1, *[1] * (atoms.ndim - 1)), atoms, 0)
        total = self.choices.score(known, row) - self.log_sum[row]
        return torch.where(is_member, infinite(total), -torch.inf)

    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """Sample by the ``sample`` method of the structure."""
        with torch.no_grad():
            choices = self.choices.map(lambda tensor: infinite(tensor.detach()))
            atoms = self.bound.structure.sample(choices.scores, n, generator)
        return atoms.to(self.bound.dtype) if atoms.is_floating_point() else atoms

    def mean(self) -> Scores:
        """Derivative of the log-partition function, 0 for padding."""
        mean, is_padding = self._mean(), self.bound.structure.padding()
        return unflatten(mean if is_padding is None else mean.masked_fill(is_padding, 0.0), self.bound.scores)

    def entropy(self) -> Tensor:
        r""":math:`\log S - \sum_i \mu_i \log \pi_i`, kept from 0 to its largest value where large scores cancel."""
        found = self.log_sum - weighted(self.choices.flat, self._mean(), _ROUNDING).sum(-1)
        return found.clamp(0.0, self.bound.structure.log_count())

    def divergence(self, other: Self) -> Tensor:
        r""":math:`\sum_i \mu_i (\log \pi_i - \log \pi'_i) - \log S + \log S'`."""
        difference = weighted(self.choices.flat - infinite(other.choices.flat), self._mean(), _ROUNDING)
        return difference.sum(-1) - self.log_sum + other.log_sum

    def _sums(self, bound: BoundScores) -> tuple[BoundScores, Tensor, Tensor, Tensor]:
        r"""The logarithms of :math:`\pi` and of S, log Z - log S, and whether all parts of a group are forbidden."""
        flat, group_size = bound.flat.double(), bound.structure.group_size
        totals, is_closed = flat.new_zeros(len(flat)), torch.zeros(len(flat), dtype=torch.bool, device=flat.device)
        if group_size is None:
            flat = finite(flat)
        else:
            groups, peak = shifted(flat.unflatten(-1, (-1, group_size)))
            sums = groups.logsumexp(-1)
            totals, is_closed = (sums + peak.squeeze(-1)).sum(-1), (sums.detach() < forbidden(sums.dtype) / 2).any(-1)
            flat = groups.log_softmax(-1).flatten(1)
        choices = bound.with_flat(infinite(flat))
        log_sum = bound.structure.log_partition(choices.scores)
        log_sum = torch.where(log_sum == -torch.inf, forbidden(log_sum.dtype), log_sum)
        return bound.with_flat(flat), log_sum, totals, is_closed

    def _mean(self) -> Tensor:
        """The mean vectors: the derivative of the log-partition function with respect to the scores, (n_rows, n_parts)."""
        bound = self.bound
        is_differentiable = torch.is_grad_enabled() and bound.flat.requires_grad
        with torch.inference_mode(False), torch.enable_grad():
            flat = bound.flat.double().clone()
            flat = flat if is_differentiable else flat.detach().requires_grad_()
            _, log_sum, totals, _ = self._sums(bound.with_flat(flat))
            (mean,) = torch.autograd.grad((log_sum + totals).sum(), flat, create_graph=is_differentiable)
        # The derivative is a difference of probabilities; rounding may make it negative.
        return mean if bound.structure.group_size is None else mean.clamp(0.0, 1.0)
