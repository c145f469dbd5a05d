"""Bit vectors: all of them, or those with at most or exactly a given number of ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from sparsum.arguments import check_bool, check_int
from sparsum.structures.abstract import AbstractStructure
from sparsum.structures.counts import log_sum_of_bits, sample_bits
from sparsum.structures.declarations import BitCounts, Potentials
from sparsum.structures.kbest import best_bits, best_counted_bits


class AbstractBits(AbstractStructure):
    """Base class of structures over bits: scores have shape (*batch, n), and atoms are their own vectors."""

    n: int
    symmetric: bool

    @property
    def score_shape(self) -> tuple[int]:
        """The shape of the scores of one example."""
        return (self.n,)

    def _check(self, **ones: int) -> None:
        """Raise a TypeError or ValueError unless the sizes are ints in their range."""
        check_int("n", self.n, least=1)
        for name, value in ones.items():
            check_int(name, value, least=0, most=self.n, why=f" for n = {self.n}")
        check_bool("symmetric", self.symmetric)

    def kbest(
        self,
        scores: Tensor,  # shape: (n_rows, n)
        k: int,
    ) -> tuple[Tensor, Tensor]:
        """The k best atoms of each row, (n_rows, n_best, n), and which are allowed, (n_rows, n_best)."""
        atoms = self.topk(scores, k)
        # All atoms differ, so an atom is allowed unless it sets a forbidden bit; this does not need its score.
        return atoms, ~((atoms != 0) & (scores == -torch.inf).unsqueeze(1)).any(-1)

    def quadratic(
        self,
        flat: Tensor,  # shape: (n_rows, n)
    ) -> tuple[Tensor, Tensor]:
        r"""The linear term and weights of SparseMAP's objective.

        With ``symmetric``, the vector of z is [z, 1 - z] and its scores are [t, 0]. Up to a constant, the objective is

        .. math:: t^\top \mu - \tfrac12 \lVert \mu \rVert^2 - \tfrac12 \lVert 1 - \mu \rVert^2
            = (t + 1)^\top \mu - \lVert \mu \rVert^2 + \text{const}.
        """
        if not self.symmetric:
            return super().quadratic(flat)
        return flat + 1, torch.full((self.n,), 2.0, dtype=flat.dtype, device=flat.device)


@dataclass(frozen=True)
class Bits(AbstractBits):
    """All vectors of ``n`` bits.

    Scores have shape (*batch, n); the score of a vector is the sum over the bits that are 1. Atoms are 0/1 tensors of shape
    (n_atoms, n) in the dtype of the scores. A score of -inf forbids a 1. With a score of 0, both states are equally good,
    and `argmax` returns 0.

    >>> structure = Bits(3)
    >>> structure.argmax(torch.tensor([0.5, -2.0, 0.1]))
    tensor([1., 0., 1.])
    >>> structure.topk(torch.tensor([0.5, -2.0, 0.1]), 3)
    tensor([[1., 0., 1.],
            [1., 0., 0.],
            [0., 0., 1.]])

    Args:
        n: the number of bits, at least 1.
        symmetric: whether SparseMAP scores both states of a bit. If True, its marginals are the projection of (t + 1) / 2,
            and a score of 0 gives one half; if False, they are the projection of t, and a negative score gives 0. The argmax
            is the same.
    """

    n: int
    symmetric: bool = field(default=True, compare=False)  # the assignments are the same

    has_free_choices = True

    def __post_init__(self) -> None:
        self._check()

    def argmax(
        self,
        scores: Tensor,  # shape: (*batch, n)
    ) -> Tensor:
        """The bits with positive scores: (*batch, n)."""
        self.check_scores(scores)
        return (scores > 0).to(scores.dtype)

    def topk(
        self,
        scores: Tensor,  # shape: (*batch, n)
        k: int,
    ) -> Tensor:
        """The best bit vectors, best first: (*batch, min(k, 2**n), n)."""
        check_int("k", k, least=1)
        self.check_scores(scores)
        atoms = best_bits(scores.detach().reshape(-1, self.n), min(k, 2**self.n))
        return atoms.view(*scores.shape[:-1], *atoms.shape[1:])

    def log_count(self) -> float:
        """Log of 2**n."""
        return self.n * math.log(2)

    def bit_counts(self) -> BitCounts:
        """Any number of ones."""
        return BitCounts(self.n, is_symmetric=self.symmetric)

    def contains(
        self,
        atoms: Tensor,  # shape: (n_atoms, n)
    ) -> Tensor:
        """Whether all entries are 0 or 1: (n_atoms,)."""
        return is_bits(atoms)

    def potentials(
        self,
        scores: Tensor,  # shape: (n_rows, n)
    ) -> Potentials:
        """One choice between 0 and 1 for each bit; 0 has a score of 0."""
        return Potentials(torch.stack([torch.zeros_like(scores), scores], -1))

    def choices_to_atoms(
        self,
        choices: Tensor,  # shape: (*lead, n), int64
        dtype: torch.dtype,
    ) -> Tensor:
        """The bits, in the dtype of the scores: (*lead, n)."""
        return choices.to(dtype)

    def choice_marginals(
        self,
        choices: Tensor,  # shape: (n_rows, n, 2)
        pairs: Tensor | None,
        scores: Tensor,  # shape: (n_rows, n)
    ) -> Tensor:
        """The probability that each bit is 1: (n_rows, n)."""
        return choices[..., 1]


@dataclass(frozen=True)
class Budget(AbstractBits):
    """Vectors of ``n`` bits of which at most ``most`` are 1.

    Scores and atoms are those of `Bits`.

    >>> Budget(4, most=2).argmax(torch.tensor([0.5, -2.0, 0.1, 0.3]))
    tensor([1., 0., 0., 1.])

    Args:
        n: the number of bits, at least 1.
        most: the largest number of ones, from 0 to n.
        symmetric: whether SparseMAP scores both states of a bit, as for `Bits`.
    """

    n: int
    most: int
    symmetric: bool = field(default=True, compare=False)  # the assignments are the same

    def __post_init__(self) -> None:
        self._check(most=self.most)

    def argmax(
        self,
        scores: Tensor,  # shape: (*batch, n)
    ) -> Tensor:
        """The best bits with positive scores, at most ``most`` of them, the first ones on ties: (*batch, n)."""
        self.check_scores(scores)
        return _take_first(scores, self.most) * (scores > 0)

    def topk(
        self,
        scores: Tensor,  # shape: (*batch, n)
        k: int,
    ) -> Tensor:
        """The best bit vectors, best first: (*batch, min(k, number of assignments), n)."""
        check_int("k", k, least=1)
        best, rows = (tensor.reshape(-1, self.n) for tensor in (self.argmax(scores), scores.detach()))
        atoms = best_counted_bits(rows, best, self.most, min(k, _n_up_to(self.n, self.most)), exactly=False)
        return atoms.view(*scores.shape[:-1], *atoms.shape[1:])

    def log_count(self) -> float:
        r"""Log of :math:`\sum_{i \le most} \binom{n}{i}`."""
        return math.log(_n_up_to(self.n, self.most))

    def bit_counts(self) -> BitCounts:
        """At most ``most`` ones."""
        return BitCounts(self.most, is_symmetric=self.symmetric)

    def contains(
        self,
        atoms: Tensor,  # shape: (n_atoms, n)
    ) -> Tensor:
        """Whether all entries are 0 or 1, with at most ``most`` ones: (n_atoms,)."""
        return is_bits(atoms) & (atoms.sum(-1) <= self.most)

    def log_partition(
        self,
        scores: Tensor,  # shape: (n_rows, n)
    ) -> Tensor:
        """Log of the sum over all vectors with at most ``most`` ones: (n_rows,)."""
        return log_sum_of_bits(scores, self.most, exactly=False)

    def sample(
        self,
        scores: Tensor,  # shape: (n_rows, n)
        n: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Draw n independent vectors per row: (n, n_rows, n_bits)."""
        return sample_bits(scores, n, generator, most=self.most, exactly=False)


@dataclass(frozen=True)
class Subset(AbstractBits):
    """Vectors of ``n`` bits of which exactly ``k`` are 1.

    Scores and atoms are those of `Bits`.

    >>> Subset(4, k=2).argmax(torch.tensor([0.5, -2.0, -0.1, -0.3]))
    tensor([1., 0., 1., 0.])

    Args:
        n: the number of bits, at least 1.
        k: the number of ones, from 0 to n.
        symmetric: whether SparseMAP scores both states of a bit, as for `Bits`.
    """

    n: int
    k: int
    symmetric: bool = field(default=True, compare=False)  # the assignments are the same

    is_fixed_size = True

    def __post_init__(self) -> None:
        self._check(k=self.k)

    def argmax(
        self,
        scores: Tensor,  # shape: (*batch, n)
    ) -> Tensor:
        """The k bits with the best scores, the first ones on ties: (*batch, n)."""
        self.check_scores(scores)
        return _take_first(scores, self.k)

    def topk(
        self,
        scores: Tensor,  # shape: (*batch, n)
        k: int,
    ) -> Tensor:
        """The best bit vectors, best first: (*batch, min(k, number of assignments), n)."""
        check_int("k", k, least=1)
        best, rows = (tensor.reshape(-1, self.n) for tensor in (self.argmax(scores), scores.detach()))
        atoms = best_counted_bits(rows, best, self.k, min(k, math.comb(self.n, self.k)), exactly=True)
        return atoms.view(*scores.shape[:-1], *atoms.shape[1:])

    def log_count(self) -> float:
        r"""Log of :math:`\binom{n}{k}`."""
        return math.log(math.comb(self.n, self.k))

    def bit_counts(self) -> BitCounts:
        """Exactly ``k`` ones."""
        return BitCounts(self.k, is_exact=True, is_symmetric=self.symmetric)

    def contains(
        self,
        atoms: Tensor,  # shape: (n_atoms, n)
    ) -> Tensor:
        """Whether all entries are 0 or 1, with exactly ``k`` ones: (n_atoms,)."""
        return is_bits(atoms) & (atoms.sum(-1) == self.k)

    def log_partition(
        self,
        scores: Tensor,  # shape: (n_rows, n)
    ) -> Tensor:
        """Log of the sum over all vectors with exactly ``k`` ones: (n_rows,)."""
        return log_sum_of_bits(scores, self.k, exactly=True)

    def sample(
        self,
        scores: Tensor,  # shape: (n_rows, n)
        n: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Draw n independent vectors per row: (n, n_rows, n_bits)."""
        return sample_bits(scores, n, generator, most=self.k, exactly=True)


def is_bits(
    atoms: Tensor,  # shape: (n_atoms, n)
) -> Tensor:
    """Whether all entries are 0 or 1: (n_atoms,)."""
    return ((atoms == 0) | (atoms == 1)).all(-1)


def _take_first(
    scores: Tensor,  # shape: (*batch, n)
    k: int,
) -> Tensor:
    """1 for the k best scores, the first ones on ties, and 0 elsewhere: (*batch, n)."""
    # A stable sort, because the order of ties in topk is unspecified.
    places = scores.detach().sort(dim=-1, descending=True, stable=True).indices[..., :k]
    return torch.zeros_like(scores, requires_grad=False).scatter(-1, places, 1.0)


@lru_cache(maxsize=64)
def _n_up_to(n: int, most: int) -> int:
    """The number of subsets of n elements with at most ``most`` elements."""
    total = binomial = 1
    for i in range(most):
        binomial = binomial * (n - i) // (i + 1)
        total += binomial
    return total
