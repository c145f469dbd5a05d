"""Permutations of items, by one score per item."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsum.arguments import check_int
from sparsum.structures import permutahedron
from sparsum.structures.abstract import AbstractStructure
from sparsum.structures.pulling import Decomposition
from sparsum.structures.scores import Scores, flatten


@dataclass(frozen=True)
class Permutation(AbstractStructure):
    r"""Rankings of ``n`` items: each has a different rank from 0 to n - 1, and items with larger scores have larger ranks.

    .. math:: a_z^\top t = \sum_i t_i z_i , \quad z \text{ a permutation of } 0, \dots, n - 1

    Scores have shape (*batch, n). Atoms are the int64 rank of each item, (n_atoms, n), and are their own vectors. To score
    pairs of an item and its place instead, use `Matching`, whose atoms are the same.

    >>> import sparsum as sp
    >>> scores = torch.tensor([0.3, -5.0, 0.5])
    >>> Permutation(3).argmax(scores)
    tensor([1, 0, 2])
    >>> q = sp.sparsemap(scores, Permutation(3))  # whether item 0 or item 2 comes last remains open
    >>> q.atoms, q.mean
    (tensor([[1, 0, 2],
            [2, 0, 1]]), tensor([1.4000, 0.0000, 1.6000]))

    The mean of SparseMAP is the projection of the scores on the permutahedron, a soft rank: an item whose score is at least
    1 away from all others has the rank that sorting gives it. The mean and its atoms are found in closed form, by sorting
    and isotonic regression. A score of -inf forbids all ranks but 0. The partition function is a permanent, so that
    `sparsum.Gibbs` is not supported.

    Args:
        n: the number of items, at least 1.

    Raises:
        TypeError: if ``n`` is not an int.
        ValueError: if ``n`` is less than 1.

    References:
        - Fast differentiable sorting and ranking (Blondel, Teboul, Berthet & Djolonga, 2020),
          https://arxiv.org/abs/2002.08871
    """

    n: int

    def __post_init__(self) -> None:
        check_int("n", self.n, least=1)

    @property
    def score_shape(self) -> tuple[int]:
        """(n,)."""
        return (self.n,)

    def log_count(self) -> float:
        """Log of n!."""
        return math.lgamma(self.n + 1)

    def argmax(
        self,
        scores: Tensor,  # shape: (*batch, n)
    ) -> Tensor:
        """The ranks of the scores, by index on ties: (*batch, n)."""
        self.check_scores(scores)
        return permutahedron.ranks(scores)

    def topk(
        self,
        scores: Tensor,  # shape: (*batch, n)
        k: int,
    ) -> Tensor:
        """The k best rankings, best first: (*batch, min(k, n!), n)."""
        self.check_scores(scores)
        check_int("k", k, least=1)
        found = _best_k(scores.reshape(-1, self.n), k)
        return found.reshape(*scores.shape[:-1], *found.shape[1:])

    def contains(
        self,
        atoms: Tensor,  # shape: (n_atoms, n)
    ) -> Tensor:
        """Whether each rank occurs once: (n_atoms,)."""
        return (atoms.sort(-1).values == torch.arange(atoms.shape[-1], device=atoms.device)).all(-1)

    def closest(
        self,
        scores: Tensor,  # shape: (n_rows, n)
    ) -> Tensor:
        """The projection on the permutahedron: (n_rows, n)."""
        return permutahedron.closest(scores)

    def pull(
        self,
        mean: Scores,  # shape: (n_rows, n), float64
    ) -> Decomposition:
        """Split mean vectors into at most n rankings."""
        return permutahedron.rankings_of(flatten(mean))


@torch.no_grad()
def _best_k(
    scores: Tensor,  # shape: (n_rows, n)
    k: int,
) -> Tensor:
    """The k best rankings of each row: (n_rows, min(k, n!), n).

    Items choose a rank one after the other, from the best to the worst item, and those that follow take the ranks that are
    left in descending order. If an item takes the m-th best rank instead of the best, the items after it move up, which
    costs more the larger m is, and any later choice costs more. So the k best ways to choose for the first items are all
    that is needed to find those of one more.
    """
    n_rows, n = scores.shape
    values, order = scores.double().sort(-1, descending=True)
    values = values.clamp_min(torch.finfo(torch.float64).min)  # the difference of two that are -inf would be NaN
    cost = values.new_zeros(n_rows, 1)
    left = torch.arange(n - 1, -1, -1, device=scores.device).expand(n_rows, 1, n)  # the ranks that are left, best first
    chosen = left[..., :0]
    for item in range(n):
        n_options = min(k, n - item)
        steps = (left[..., : n_options - 1] - left[..., 1:n_options]).double()
        below = (values[:, item : item + 1] - values[:, item + 1 : item + n_options]).unsqueeze(1)
        added = torch.nn.functional.pad((below * steps).cumsum(-1), (1, 0))  # shape: (n_rows, n_kept, n_options)
        total = (cost.unsqueeze(-1) + added).flatten(1)
        best = total.sort(dim=-1, stable=True).indices[:, :k]
        cost, parent, option = total.gather(1, best), best // n_options, best % n_options
        left, chosen = (tensor.gather(1, parent.unsqueeze(-1).expand(-1, -1, tensor.shape[-1])) for tensor in (left, chosen))
        chosen = torch.cat([chosen, left.gather(-1, option.unsqueeze(-1))], -1)
        place = torch.arange(n - item - 1, device=scores.device)
        left = left.gather(-1, place + (place >= option.unsqueeze(-1)))
    return torch.empty_like(chosen).scatter_(-1, order.unsqueeze(1).expand_as(chosen), chosen)
